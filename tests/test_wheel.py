"""The wheel works in an empty environment, on every Python that is supported and can be found here."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")


def find_python(version: str) -> str | None:
    """Return an interpreter from the path or from pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python"))
    return shutil.which(f"python{version}") or (str(found[-1]) if found else None)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_works_in_an_empty_environment(version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    done = subprocess.run([str(ROOT / ".ci" / "wheel"), python], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"== Python {version}" in done.stdout and "test accuracy" in done.stdout
