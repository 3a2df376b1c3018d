"""Residual networks for small images: the ResNet of He et al. and the wide one of Zagoruyko and Komodakis."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut without parameters: every other pixel, missing channels zero."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = convolution(before, after, stride), nn.BatchNorm2d(after)
        self.second, self.second_norm = convolution(after, after), nn.BatchNorm2d(after)
        self.stride, self.missing = stride, after - before

    def forward(self, images: Tensor) -> Tensor:
        """Convolution, norm, ReLU, convolution, norm; add the shortcut; ReLU."""
        inner = functional.relu(self.first_norm(self.first(images)))
        inner = self.second_norm(self.second(inner))
        shortcut = images[:, :, :: self.stride, :: self.stride]
        return functional.relu(inner + functional.pad(shortcut, (0, 0, 0, 0, 0, self.missing)))


class WideBlock(nn.Module):
    """Norm and ReLU before each of two 3×3 convolutions; where the shape changes, a 1×1 shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.BatchNorm2d(before), convolution(before, after, stride)
        self.second_norm, self.second = nn.BatchNorm2d(after), convolution(after, after)
        changes = stride != 1 or before != after
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if changes else None

    def forward(self, images: Tensor) -> Tensor:
        """A changing shortcut starts after the first norm and ReLU, an identity before them."""
        active = functional.relu(self.first_norm(images))
        inner = self.second(functional.relu(self.second_norm(self.first(active))))
        return cast(Tensor, inner + (images if self.shortcut is None else self.shortcut(active)))


class GlobalAverage(nn.Module):
    """The mean over all pixels of each channel."""

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, channels)."""
        return torch.mean(images, dim=(2, 3))


def resnet(channels: int, classes: int, blocks: int = 3) -> nn.Module:
    """Three stages of 16, 32 and 64 channels: 6·blocks + 2 layers (20 with three)."""
    layers: list[nn.Module] = [convolution(channels, 16), nn.BatchNorm2d(16), nn.ReLU()]
    for before, after, stride in stages(16, (16, 32, 64), blocks):
        layers.append(BasicBlock(before, after, stride))
    return initialised(nn.Sequential(*layers, GlobalAverage(), nn.Linear(64, classes)))


def wide_resnet(channels: int, classes: int, blocks: int = 2, width: int = 4) -> nn.Module:
    """Three stages `width` times as wide: 6·blocks + 4 layers (16 with two); no dropout."""
    widths = (16 * width, 32 * width, 64 * width)
    layers: list[nn.Module] = [convolution(channels, 16)]
    for before, after, stride in stages(16, widths, blocks):
        layers.append(WideBlock(before, after, stride))
    end = [nn.BatchNorm2d(widths[-1]), nn.ReLU(), GlobalAverage(), nn.Linear(widths[-1], classes)]
    return initialised(nn.Sequential(*layers, *end))


def stages(channels: int, widths: tuple[int, ...], blocks: int) -> list[tuple[int, int, int]]:
    """Channels before and after, and stride, of each block: the first of each later stage halves."""
    shapes = []
    for stage, width in enumerate(widths):
        for block in range(blocks):
            shapes.append((channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = width
    return shapes


def convolution(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)


def initialised(network: nn.Module) -> nn.Module:
    """He's normal initialisation of the convolutions, as both papers say; the last bias starts at zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return network
