"""`straggler check` tells good custom code from bad, and names the law that is broken."""

from pathlib import Path

import pytest

from straggler.config.registry import InputError
from straggler.running.component_checks import check_custom_code

pytestmark = pytest.mark.slow

CODE = '''
from typing import ClassVar

from pydantic import PrivateAttr
import torch
from straggler import Channel, Correction, Policy
from torch import nn


class Halved(Correction):
    def correct(self, gradient, arrival, server):
        return gradient * 0.5, 1.0


class Counting(Correction):
    """Counts outside of its state, so that two runs differ."""

    calls: ClassVar[list[int]] = [0]

    def correct(self, gradient, arrival, server):
        self.calls[0] += 1
        return gradient / self.calls[0], 1.0


class Forgetful(Correction):
    """Counts in its state, but does not let a checkpoint store it."""

    _calls: int = PrivateAttr(default=0)

    def begin(self, x, workers, shapes):
        self._calls = 0

    def state(self):
        return {}

    def correct(self, gradient, arrival, server):
        self._calls += 1
        return gradient / self._calls, 1.0


class Miscounted(Channel):
    """Sends more bytes than it says."""

    def count_bytes(self, x, shapes):
        return x.numel()

    def encode(self, vector, memory, seed):
        return vector.to(torch.float32).view(torch.uint8), None

    def decode(self, encoded, seed):
        return encoded.view(torch.float32)


class Stuck(Policy):
    """Never starts a worker again."""

    def receive(self, server, arrival):
        server.merge(arrival)
        server.step()
        return ()


def total(output, target):
    return nn.functional.cross_entropy(output, target)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failures(text: str, key: str | None = None) -> dict[str, str]:
    results = list(check_custom_code(text, key))
    return {result.law: result.failure for result in results if result.failure is not None}


def test_good_code_obeys_all_laws(folder: Path) -> None:
    assert failures("./code.py:Halved") == {}
    assert failures("./code.py:total", "loss") == {}


def test_state_outside_of_a_component_is_found(folder: Path) -> None:
    broken = failures("./code.py:Counting")
    assert "two identical runs" in broken["The same experiment gives the same weights"]
    assert "An interrupted run resumes to the same weights" in broken


def test_state_that_a_checkpoint_does_not_store_is_found(folder: Path) -> None:
    broken = failures("./code.py:Forgetful")
    assert list(broken) == ["An interrupted run resumes to the same weights"]


def test_a_policy_that_deadlocks_is_found(folder: Path) -> None:
    assert "idle" in failures("./code.py:Stuck")["Training reaches its budget"]


def test_a_channel_that_miscounts_its_bytes_is_found(folder: Path) -> None:
    assert "count_bytes returned" in failures("./code.py:Miscounted")["Training reaches its budget"]


def test_a_function_needs_its_kind(folder: Path) -> None:
    with pytest.raises(InputError, match="--as loss, --as model or --as dataset"):
        failures("./code.py:total")
