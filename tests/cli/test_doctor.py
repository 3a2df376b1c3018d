"""`doctor`: what is missing is said with its remedy, and what is broken gives exit code 1."""

import resource
import socket
from importlib import metadata
from pathlib import Path

import pytest

from straggler.cli import doctor as doctor_module
from straggler.cli.doctor import doctor, examine_environment


def test_a_sound_environment_has_nothing_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network is used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "cache"))
    doctor()
    text = capsys.readouterr().out
    for word in ("torch", "cores", "memory", "devices", "cache", "Ray", "open files"):
        assert word in text


def find_broken() -> dict[str, str]:
    return {each.name: each.remedy for each in examine_environment() if each.is_broken}


def test_broken_things_have_a_remedy_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "file" / "cache"))
    wanted = [*(metadata.requires("straggler") or []), "torch>=999", "nothing-of-this-name>=1"]
    monkeypatch.setattr(doctor_module.metadata, "requires", lambda name: wanted)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100, 100))
    broken = find_broken()
    assert set(broken) == {"packages", "data cache", "open files"} and all(broken.values())
    with pytest.raises(SystemExit) as ended:
        doctor()
    captured = capsys.readouterr()
    assert ended.value.code == 1 and "must be fixed" in captured.err


def test_missing_ray_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def find_version(name: str) -> str:
        if name == "ray":
            raise metadata.PackageNotFoundError
        return version(name)

    monkeypatch.setattr(doctor_module.metadata, "version", find_version)
    (ray,) = [each for each in examine_environment() if each.name == "Ray"]
    assert "straggler[ray]" in ray.remedy and not ray.is_broken
