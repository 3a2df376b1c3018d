"""Building blocks of the built-in networks."""

from itertools import islice, pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from straggler.problems.memory import check_size

MAX_FLOAT = torch.finfo(torch.float32).max
HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


class OneDnnSequential(nn.Sequential):
    """A Sequential whose first convolutions, poolings and ReLUs run in oneDNN's memory layout.

    This is an optimisation for small images on CPUs: torch calls oneDNN for convolutions anyway, but converts
    the layout before and after each. Converting once gives the same bits in less time. Where oneDNN's results
    would have other bits, `forward` uses the plain layers.
    """

    def forward(self, pixels: Tensor) -> Tensor:
        """Apply the layers."""
        done, x = self.run_onednn_layers(pixels)
        for layer in islice(self, done, None):
            x = layer(x)
        return x

    def run_onednn_layers(self, pixels: Tensor) -> tuple[int, Tensor]:
        """Return how many layers oneDNN has applied, and their output; 0 if its bits might differ.

        oneDNN's pooling and ReLU lose NaN, so no value may overflow: `bound` limits the largest activation.
        For a single image, torch itself uses other kernels.
        """
        if not HAS_ONEDNN or pixels.device.type != "cpu" or pixels.dtype != torch.float32 or len(pixels) == 1:
            return 0, pixels
        if torch.is_autocast_enabled("cpu") or not pixels.is_contiguous() or torch.compiler.is_compiling():
            return 0, pixels
        x, bound = pixels.to_mkldnn(), bound_elements(pixels)
        for number, layer in enumerate(self):
            if not isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.ReLU):
                return number, x.to_dense()
            if isinstance(layer, nn.Conv2d):
                inputs = layer.weight.numel() / layer.out_channels
                bound = (bound_elements(layer.weight) + bound_elements(layer.bias)) * (inputs * bound + 1)
                if not bound < MAX_FLOAT:  # also if it is NaN
                    break
            x = layer(x)
        return 0, pixels


def bound_elements(x: Tensor | None) -> float:
    """Return an upper bound of the absolute values of all elements; NaN if an element is NaN."""
    return 0.0 if x is None else float(torch.linalg.vector_norm(x.detach()))


def lenet5(channels: int, padding: int, classes: int) -> nn.Module:
    """Return two 5×5 convolutions, each pooled, and three dense layers.

    Pooling comes before the ReLU: the result is the same, and the ReLU processes a quarter of the pixels.
    """
    first = [nn.Conv2d(channels, 6, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
    second = [nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()]
    return OneDnnSequential(*first, *second, *dense_layers([400, 120, 84, classes]))


def dense_layers(widths: list[int]) -> nn.Sequential:
    """Return a network that flattens its input and applies dense layers with ReLU between them."""
    check_size(f"A dense network with layers {widths}", max(a * b for a, b in pairwise(widths)))
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(widths[0], widths[1])]
    for before, after in pairwise(widths[1:]):
        layers += [nn.ReLU(), nn.Linear(before, after)]
    return nn.Sequential(*layers)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions plus a shortcut without parameters: strided, with zeros for missing channels."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = conv3x3(before, after, stride), nn.BatchNorm2d(after)
        self.second, self.second_norm = conv3x3(after, after), nn.BatchNorm2d(after)
        self.stride, self.missing = stride, after - before

    def forward(self, images: Tensor) -> Tensor:
        """Apply convolution, norm, ReLU, convolution and norm; add the shortcut; apply ReLU."""
        inner = functional.relu(self.first_norm(self.first(images)))
        inner = self.second_norm(self.second(inner))
        shortcut = images[:, :, :: self.stride, :: self.stride]
        return functional.relu(inner + functional.pad(shortcut, (0, 0, 0, 0, 0, self.missing)))


class WideBlock(nn.Module):
    """Norm and ReLU before each of two 3×3 convolutions; the shortcut is 1×1 where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.BatchNorm2d(before), conv3x3(before, after, stride)
        self.second_norm, self.second = nn.BatchNorm2d(after), conv3x3(after, after)
        changes = stride != 1 or before != after
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if changes else None

    def forward(self, images: Tensor) -> Tensor:
        """Apply the block; a 1×1 shortcut starts after the first norm and ReLU, an identity before them."""
        active = functional.relu(self.first_norm(images))
        inner = self.second(functional.relu(self.second_norm(self.first(active))))
        return cast(Tensor, inner + (images if self.shortcut is None else self.shortcut(active)))


class GlobalAverage(nn.Module):
    """The mean over all pixels of each channel."""

    def forward(self, images: Tensor) -> Tensor:
        """Average (batch, channels, height, width) to (batch, channels)."""
        return torch.mean(images, dim=(2, 3))


def resnet(channels: int, classes: int, blocks: int = 3) -> nn.Module:
    """Return the ResNet of He et al.: 16, 32 and 64 channels, 6·blocks + 2 layers (20 with three)."""
    layers: list[nn.Module] = [conv3x3(channels, 16), nn.BatchNorm2d(16), nn.ReLU()]
    for before, after, stride in list_blocks(16, (16, 32, 64), blocks):
        layers.append(BasicBlock(before, after, stride))
    return initialise_weights(nn.Sequential(*layers, GlobalAverage(), nn.Linear(64, classes)))


def wide_resnet(channels: int, classes: int, blocks: int = 2, width: int = 4) -> nn.Module:
    """Return the network of Zagoruyko and Komodakis: `width` times wider, 6·blocks + 4 layers, no dropout."""
    widths = (16 * width, 32 * width, 64 * width)
    layers: list[nn.Module] = [conv3x3(channels, 16)]
    for before, after, stride in list_blocks(16, widths, blocks):
        layers.append(WideBlock(before, after, stride))
    end = [nn.BatchNorm2d(widths[-1]), nn.ReLU(), GlobalAverage(), nn.Linear(widths[-1], classes)]
    return initialise_weights(nn.Sequential(*layers, *end))


def list_blocks(channels: int, widths: tuple[int, ...], blocks: int) -> list[tuple[int, int, int]]:
    """Return channels before and after, and stride, of each block; later stages begin with stride 2."""
    shapes = []
    for stage, width in enumerate(widths):
        for block in range(blocks):
            shapes.append((channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = width
    return shapes


def conv3x3(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)


def initialise_weights(network: nn.Module) -> nn.Module:
    """Initialise convolutions from He's normal distribution, as in both papers, and dense biases with 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return network
