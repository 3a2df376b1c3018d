"""The command `doctor`: what this machine and environment offer, what is missing, and the remedy."""

import importlib
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement

from straggler.analysis.tables import build_table
from straggler.cli.app import exit_with_error, out
from straggler.running.untrusted_files import read_regular_bytes

IMPORTED = ("torch", "numpy", "polars", "safetensors.torch", "sklearn", "matplotlib", "starlette", "uvicorn")
FEWEST_FILES = 256  # descriptors: a worker process needs about six
LEAST_CACHE_BYTES = 500_000_000
LEAST_SHARED_BYTES = 500_000_000  # that Ray's object store needs


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` is empty if all is well; `is_broken` means that runs will fail."""

    name: str
    found: str
    remedy: str = ""
    is_broken: bool = False


def doctor(
    environment: Annotated[
        bool,
        typer.Option("--environment", help="Check this machine and the packages (default)."),
    ] = True,
) -> None:
    """Check the environment: versions, cores, memory, devices, data cache, Ray and limits.

    Nothing is downloaded and no network is used. The exit code is 1 if something that runs need is broken.
    """
    findings = list(examine_environment())
    rows = [[each.name, each.found, each.remedy or "–"] for each in findings]
    out.print(build_table("environment", ["", "found", "remedy"], rows))
    if broken := [each.name for each in findings if each.is_broken]:
        exit_with_error(f"{', '.join(broken)} must be fixed before anything can run", code=1)


def examine_environment() -> Iterator[Finding]:
    """Yield everything that is worth knowing about this environment."""
    yield Finding("straggler", f"{metadata.version('straggler')} in {Path(__file__).parents[1]}")
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}")
    yield Finding("system", platform.platform())
    yield from examine_packages()
    yield from examine_machine()
    yield examine_cache()
    yield from examine_ray()
    yield from examine_limits()


def examine_packages() -> Iterator[Finding]:
    """Compare the installed packages with the requirements, and import those that break most often."""
    versions, problems = [], []
    for requirement in map(Requirement, metadata.requires("straggler") or []):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            problems.append(f"{requirement} (missing)")
            continue
        if requirement.name in ("torch", "numpy", "polars"):
            versions.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement} (found {version})")
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except Exception as error:
            problems.append(f"{name} ({type(error).__name__}: {str(error).splitlines()[0][:80]})")
    remedy = "Install straggler again: pip install --force-reinstall straggler" if problems else ""
    yield Finding("packages", ", ".join(problems or versions), remedy, bool(problems))


def examine_machine() -> Iterator[Finding]:
    """Report cores, memory and devices."""
    usable, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    yield Finding("cores", f"{usable} of {all_cores} usable by this process")
    memory = {line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()}
    total, free = (int(memory.get(key, "0")) / 1e6 for key in ("MemTotal", "MemAvailable"))
    yield Finding("memory", f"{free:.1f} of {total:.1f} GB available{describe_memory_limit()}")
    yield Finding("devices", find_devices())
    has_pool = hasattr(os, "memfd_create") and hasattr(os, "fork")
    remedy = "" if has_pool else "Use Linux, or --jobs 1 and the engine simulator"
    yield Finding("worker processes", "forked, with shared memory" if has_pool else "unavailable", remedy)


def describe_memory_limit() -> str:
    """Return the memory limit of this container, if there is one."""
    try:
        limit = read_regular_bytes("/sys/fs/cgroup/memory.max", 1 << 20, follow_links=True).strip()
    except (OSError, ValueError):
        return ""
    return f", limited to {int(limit) / 1e9:.1f} GB" if limit.isdigit() else ""


def find_devices() -> str:
    """Return the devices that torch can use."""
    try:
        import torch

        found = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        names = [f"cuda:{number} ({name})" for number, name in enumerate(found)]
        return ", ".join(["cpu", *names, *(["mps"] if torch.backends.mps.is_available() else [])])
    except Exception as error:
        return f"unknown ({error})"


def examine_cache() -> Finding:
    """Report the cache of data sets: whether it is writable, its free space, and what it holds."""
    from straggler.problems.downloads.cache import data_cache_folder

    folder = data_cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        remedy = "Set STRAGGLER_CACHE to a folder that can be written"
        return Finding("data cache", f"{folder}: {error.strerror}", remedy, True)
    cached = sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")
    remedy = "Free some space, or set STRAGGLER_CACHE" if free < LEAST_CACHE_BYTES else ""
    content = ", ".join(cached) or "empty"
    return Finding("data cache", f"{folder}, {free / 1e9:.1f} GB free, {content}", remedy)


def examine_ray() -> Iterator[Finding]:
    """Report Ray, which is optional, and the memory of its object store."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        yield Finding("Ray", "not installed", "For engine=ray: pip install 'straggler[ray]'")
        return
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        free = 0
    small = free < LEAST_SHARED_BYTES
    remedy = "Start the container with --shm-size=2g: Ray's object store is in /dev/shm" if small else ""
    yield Finding("Ray", f"{version}, {free / 1e9:.1f} GB in /dev/shm", remedy)


def examine_limits() -> Iterator[Finding]:
    """Report the limits of this process on files, processes and address space."""
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= files < FEWEST_FILES
    remedy = f"ulimit -n {min(4096, hard) if hard > 0 else 4096}" if few else ""
    yield Finding("open files", describe_limit(files), remedy, few)
    yield Finding("processes", describe_limit(resource.getrlimit(resource.RLIMIT_NPROC)[0]))
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    remedy = "" if space == resource.RLIM_INFINITY else "ulimit -v unlimited: torch reserves much"
    yield Finding("address space", describe_limit(space), remedy)


def describe_limit(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
