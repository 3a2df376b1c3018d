"""The commands that show data sets: Ctrl-C is answered."""

import signal
import sys

import pytest

from straggler.cli import main
from straggler.problems.datasets import DATASETS


def test_ctrl_c_in_data_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(DATASETS["mnist"], "load", interrupt)
    monkeypatch.setattr(sys, "argv", ["straggler", "data", "mnist"])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 130 and "error: interrupted" in capsys.readouterr().err
