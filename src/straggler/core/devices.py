"""Devices: where gradients are computed and models are evaluated, the CPU or an accelerator."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from straggler.config.registry import InputError

DeviceChoice = str | torch.device | Sequence[str | torch.device]
CPU = torch.device("cpu")
REMEDY = "Use cpu (the default), auto, cuda, cuda:1, mps, or a list such as cuda:0,cuda:1."


@dataclass(frozen=True)
class Placement:
    """Where and how a process computes gradients."""

    device: str = "cpu"
    is_deterministic: bool = False  # use only torch's deterministic operations
    threads: int = 1  # on the CPU

    def prepare(self) -> torch.device:
        """Set this process's threads and torch's deterministic mode, and return the device."""
        torch.set_num_threads(self.threads)
        if self.is_deterministic:
            require_determinism()
        return find_devices(self.device)[0]


DEFAULT_PLACEMENT = Placement()


def require_determinism() -> None:
    """Let torch use deterministic operations only, and raise for one that has no deterministic form."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which cuBLAS requires for it
    torch.use_deterministic_algorithms(True)


def find_devices(choice: DeviceChoice) -> list[torch.device]:
    """Return the devices that a choice names; raise InputError if one is unknown or not available.

    A name without a number, such as `cuda`, stands for all devices of its type. `auto` stands for the
    accelerators that torch finds, or for the CPU.
    """
    names = choice.split(",") if isinstance(choice, str) else choice
    names = [names] if isinstance(names, torch.device) else names
    if not names:
        raise InputError(f"device={choice!r} names no device. {REMEDY}")
    return [device for name in names for device in expand_device(name)]


def expand_device(name: str | torch.device) -> list[torch.device]:
    """Return the devices that one name stands for."""
    if isinstance(name, str) and name.strip() == "auto":
        name = (torch.accelerator.is_available() and torch.accelerator.current_accelerator()) or CPU
    device = parse_device(name)
    if device.type == "cpu":
        return [CPU]
    count = count_devices(device.type)
    if (device.index or 0) >= count:
        found = f"{count} of them" if count else f"no {device.type} device"
        raise InputError(f"Device {str(device)!r} is not available: torch finds {found} here. {REMEDY}")
    numbers = range(count) if device.index is None else [device.index]
    return [torch.device(device.type, number) for number in numbers]


def parse_device(name: str | torch.device) -> torch.device:
    """Return the device with this name, which may not be available."""
    try:
        return torch.device(name.strip() if isinstance(name, str) else name)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"Unknown device {name!r}. {REMEDY}") from error


def count_devices(kind: str) -> int:
    """Return the number of devices of a type that torch can use; 0 if it has no module for them."""
    try:
        module: Any = torch.get_device_module(kind)
        return int(module.device_count()) if module.is_available() else 0
    except (RuntimeError, AttributeError):
        return 0


def describe_device(name: str) -> str:
    """Return the name of a device, with its model if torch finds it here."""
    try:
        return f"{name} ({torch.get_device_module(name).get_device_name(name)})"
    except (RuntimeError, AttributeError, AssertionError, ValueError):
        return name


def move_tensors(value: Any, device: torch.device) -> Any:
    """Return tensors, and nested tuples, lists and dictionaries of them, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: move_tensors(each, device) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move_tensors(each, device) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(move_tensors(each, device) for each in value)
    return value
