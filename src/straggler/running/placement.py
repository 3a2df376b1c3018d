"""Where the parts of a run compute: the server, the workers, and the process that evaluates."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from straggler.config.registry import InputError
from straggler.core.devices import (
    CPU,
    DeviceChoice,
    Placement,
    describe_device,
    find_devices,
    parse_device,
    require_determinism,
)
from straggler.engines import is_virtual_engine


@dataclass(frozen=True)
class RunPlacement:
    """The device of the server, and where the workers (in turn) and the evaluator compute."""

    server: torch.device
    workers: list[Placement]
    evaluator: Placement

    def __str__(self) -> str:
        return ", ".join(describe_device(each.device) for each in self.workers)


def place_run(
    engine: str,
    workers: int,
    device: DeviceChoice,
    deterministic: bool,
    resources: Mapping[str, float],
    report: Callable[[str], None],
) -> RunPlacement:
    """Return where a run computes; raise InputError if a device is not available."""
    if engine == "ray":
        return place_on_ray(device, deterministic, resources)
    devices = find_devices(device)
    if is_virtual_engine(engine):
        if len(devices) > 1:
            report(f"engine={engine!r} computes on one device, {devices[0]}.")
        place = Placement(str(devices[0]), deterministic)
        return RunPlacement(devices[0], [place], place)
    places = [Placement(str(each), deterministic) for each in devices]
    return RunPlacement(CPU, places, places[workers % len(places)])


def place_on_ray(device: DeviceChoice, deterministic: bool, resources: Mapping[str, float]) -> RunPlacement:
    """Return where a run on Ray computes: every actor uses what Ray gave it, a GPU if it reserves one.

    The process that evaluates is on the driver's machine, which may have no such device.
    """
    name = str(device).strip() if isinstance(device, str | torch.device) else ",".join(map(str, device))
    if "," in name:
        raise InputError(
            f"device={name!r} is a list, but on Ray every worker uses the device that Ray gives it. "
            f"Name one type, such as cuda."
        )
    if name == "cpu" and resources.get("GPU"):
        name = "cuda"
    if name != "auto" and parse_device(name).type == "cuda" and not resources.get("GPU"):
        raise InputError(
            f"device={name!r} on Ray requires a share of a GPU for each worker. "
            f"Reserve one with worker_resources={{'GPU': 1}} (--worker-resources GPU=1)."
        )
    worker = Placement(name, deterministic, max(1, int(resources.get("CPU", 1))))
    try:
        driver = find_devices(name)[0]
    except InputError:
        driver = CPU
    return RunPlacement(CPU, [worker], Placement(str(driver), deterministic))


@contextmanager
def deterministic_mode(wanted: bool) -> Iterator[None]:
    """Let torch use deterministic operations only, if wanted; restore its mode afterwards."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        require_determinism()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
