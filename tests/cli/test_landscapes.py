"""The command `landscape`: runs that diverged are left out."""

from types import SimpleNamespace
from typing import Any

import pytest

from straggler.cli.landscapes import leave_out_diverged


@pytest.mark.parametrize(
    ("converged", "kept"),
    [((True, False), "a"), ((False, False), "ab"), ((True, None), "ab"), ((True, True), "ab")],
)
def test_runs_that_diverged_are_left_out_unless_all_did(
    converged: tuple[bool | None, ...], kept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without a result, because it continues, is kept."""
    records: Any = {
        name: SimpleNamespace(summary={} if value is None else {"converged": value})
        for name, value in zip("ab", converged, strict=True)
    }
    assert "".join(leave_out_diverged(records)) == kept
    assert ("left out: b" in capsys.readouterr().err) == (kept == "a")
