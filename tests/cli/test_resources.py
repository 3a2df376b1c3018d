"""A machine without room ends a run with one line and exit code 1, and the run can be resumed."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from straggler.cli.resources import explain_resource_error
from straggler.record import Record

FULL = Path("/dev/full")
COMMAND = [sys.executable, "-m", "straggler", "run", "--dataset", "digits", "--workers", "3", "--jobs", "1"]


def run_limited(limit: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line under a limit of the shell."""
    words = " ".join(f"'{word}'" for word in (*COMMAND, *options, "--out", str(folder)))
    return subprocess.run(["bash", "-c", f"{limit}; exec {words}"], capture_output=True, text=True)


def list_errors(output: str) -> list[str]:
    """Return the lines that are no progress."""
    return [line for line in output.splitlines() if not line.startswith(("asgd", " "))]


@pytest.mark.slow
def test_a_file_that_cannot_grow_ends_the_run_in_one_line(tmp_path: Path) -> None:
    """The limit of a file's size fails like a full disk, at the first checkpoint of the large model."""
    options = ["--model", "mlp(hidden=[400])", "--gradients", "40", "--checkpoint-every", "8"]
    done = run_limited("ulimit -f 1000", tmp_path, *options)
    assert done.returncode == 1
    (line,) = list_errors(done.stderr)
    assert "A file would be larger than allowed" in line and "resumes the run" in line
    (folder,) = tmp_path.iterdir()
    assert Record(folder).summary["status"] == "failed" and not list(folder.rglob("*.tmp"))


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("limit", "options", "reason"),
    [
        ("ulimit -n 24", ["--engine", "processes", "--workers", "12"], "no free file descriptors"),
        ("ulimit -v 1500000", ["--model", "mlp(hidden=[20000,8000])"], "not enough memory"),
    ],
)
def test_no_memory_and_no_descriptors_end_in_one_line(
    limit: str, options: list[str], reason: str, tmp_path: Path
) -> None:
    done = run_limited(limit, tmp_path, "--gradients", "500", *options)
    (line,) = list_errors(done.stderr)
    assert done.returncode == 1 and reason in line


def test_errors_of_all_libraries_are_recognised() -> None:
    with pytest.raises(OSError, match="No space") as error:
        FULL.write_text("x" * 100_000)
    assert "disk is full" in str(explain_resource_error(error.value))
    with pytest.raises(RuntimeError) as torch_error:
        torch.empty(1 << 60)
    assert "not enough memory" in str(explain_resource_error(torch_error.value))
    failed = ValueError("while it was written")
    failed.__cause__ = MemoryError()
    assert "not enough memory" in str(explain_resource_error(failed))
    assert explain_resource_error(ValueError("no")) is None
    assert explain_resource_error(OSError(errno.ENOENT, "missing")) is None
    rust = Exception("I/O error: No space left on device (os error 28)")  # safetensors and polars
    assert "disk is full" in str(explain_resource_error(rust))
