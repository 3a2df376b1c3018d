"""The catalogue of networks; each gives logits, for cross entropy."""

import math
from abc import abstractmethod
from itertools import islice, pairwise
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from straggler.config.registry import Catalogue, CatalogueEntry
from straggler.problems.residual_networks import resnet, wide_resnet

SMALLEST_IMAGE = 8
LARGEST = torch.finfo(torch.float32).max
ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


class Model(CatalogueEntry):
    """A network that can be built for inputs of a shape; `takes` is the only shape that fits, if any."""

    takes: ClassVar[tuple[int, ...] | None] = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network with fresh weights from torch's generator, or an error that says what would fit."""
        if classes < 2:
            raise ValueError(f"classes={classes}: there must be at least two to tell apart")
        if not self.fits(shape):
            others = ", ".join(name for name, model in MODELS.items() if model.fits(shape))
            raise ValueError(f"{self.name} takes {self.wants()}, the data have {times(shape)}; use {others}")
        return self.network(shape, classes)

    @classmethod
    def fits(cls, shape: tuple[int, ...]) -> bool:
        """Whether inputs of this shape can be read."""
        return shape == cls.takes if cls.takes else math.prod(shape) > 0

    @classmethod
    def wants(cls) -> str:
        """The inputs that can be read, in words."""
        return f"{times(cls.takes)} images" if cls.takes else "inputs of any shape"

    @abstractmethod
    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The layers, for a shape that fits."""


class AnyImage(Model):
    """A network that ends in a global average and so reads images of any number of channels and size."""

    @classmethod
    def fits(cls, shape: tuple[int, ...]) -> bool:
        """Channels, height and width."""
        return len(shape) == 3 and shape[0] > 0 and min(shape[1:]) >= SMALLEST_IMAGE

    @classmethod
    def wants(cls) -> str:
        """The inputs that can be read, in words."""
        return f"images (channels×height×width) of at least {SMALLEST_IMAGE}×{SMALLEST_IMAGE} pixels"


class LeNet5(Model):
    """LeNet-5 with ReLU and max pooling, as in the EPFL experiments: 61,706 parameters."""

    name = "lenet5"
    takes = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Padding makes the 28×28 images LeNet's 32×32."""
        return lenet(channels=1, padding=2, classes=classes)


class Cnn(Model):
    """The EPFL experiments' large network, with dropout: 1,199,882 parameters."""

    name = "cnn"
    takes = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The second convolution is followed by pooling without a ReLU, as it was there."""
        convolutions = [
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        ]
        dense = [nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes)]
        return Images(*convolutions, nn.Flatten(), *dense)


class AsuMnist(Model):
    """The ASU paper's two dense layers for MNIST: 101,770 parameters; it gives no width, 128 is ours."""

    name = "asu-mnist"
    takes = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """784, 128, classes."""
        return dense([784, 128, classes])


class AsuMnistConv(Model):
    """What the ASU code trains on MNIST instead, Ray's small example: 1,960 parameters."""

    name = "asu-mnist-conv"
    takes = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """One convolution, pooled by three before the ReLU."""
        return Images(nn.Conv2d(1, 3, 3), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(192, classes))


class AsuCifar(Model):
    """LeNet-5 for coloured 32×32 images, as in the ASU experiments: 62,006 parameters."""

    name = "asu-cifar"
    takes = (3, 32, 32)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """No padding: the images have LeNet's own size."""
        return lenet(channels=3, padding=0, classes=classes)


class AsuFashion(Model):
    """The ASU experiments' network with batch normalisation for Fashion-MNIST: 29,034 parameters."""

    name = "asu-fashion"
    takes = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Two normalised convolutions, one dense layer."""
        layers: list[nn.Module] = []
        for before, after in ((1, 16), (16, 32)):
            convolution = nn.Conv2d(before, after, 5, padding=2)
            layers += [convolution, nn.BatchNorm2d(after), nn.MaxPool2d(2), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1568, classes))


class ResNet20(AnyImage):
    """He et al.'s 20 layers for CIFAR-10, shortcuts without parameters: 269,722 parameters."""

    name = "resnet20"

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Three blocks a stage."""
        return resnet(shape[0], classes, blocks=3)


class WideResNet16x4(AnyImage):
    """Zagoruyko and Komodakis' 16 layers, four times as wide: 2,748,890 parameters for CIFAR-10."""

    name = "wrn-16-4"

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Two blocks a stage."""
        return wide_resnet(shape[0], classes, blocks=2, width=4)


class Mlp(Model):
    """Dense layers with ReLU between them; `hidden` are the widths between input and output."""

    name = "mlp"
    hidden: tuple[PositiveInt, ...] = (64,)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Inputs of any shape, flattened."""
        return dense([math.prod(shape), *self.hidden, classes])


class Linear(Model):
    """Softmax regression."""

    name = "linear"

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """One dense layer on the flattened input."""
        return dense([math.prod(shape), classes])


class Images(nn.Sequential):
    """Layers of which the first work in oneDNN's own layout: the same bits in less time."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Through the layers."""
        done, x = self.begun(pixels)
        for layer in islice(self, done, None):
            x = layer(x)
        return x

    def begun(self, pixels: Tensor) -> tuple[int, Tensor]:
        """How many layers oneDNN has done, and what they gave.

        None, where the bits would be others: its pooling and its ReLU lose NaN, and torch itself gives single
        images of small windows to other kernels.
        """
        if not ONEDNN or pixels.device.type != "cpu" or pixels.dtype != torch.float32 or len(pixels) == 1:
            return 0, pixels
        x, bound = pixels.to_mkldnn(), length(pixels)
        for number, layer in enumerate(self):
            if not isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.ReLU):
                return number, x.to_dense()
            if isinstance(layer, nn.Conv2d):
                inputs = layer.weight.numel() / layer.out_channels
                bound = (length(layer.weight) + length(layer.bias)) * (inputs * bound + 1)
                if not bound < LARGEST:  # NaN is not, either
                    break
            x = layer(x)
        return 0, pixels


def length(x: Tensor | None) -> float:
    """No element is larger; NaN if one is."""
    return 0.0 if x is None else float(torch.linalg.vector_norm(x.detach()))


def lenet(channels: int, padding: int, classes: int) -> nn.Module:
    """Two convolutions of five by five, each pooled, and three dense layers.

    Pooled before the ReLU, which leaves every bit as it is and the ReLU a quarter of the pixels.
    """
    first = [nn.Conv2d(channels, 6, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
    second = [nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()]
    return Images(*first, *second, *dense([400, 120, 84, classes]))


def dense(widths: list[int]) -> nn.Sequential:
    """Flatten, then dense layers with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(widths[0], widths[1])]
    for before, after in pairwise(widths[1:]):
        layers += [nn.ReLU(), nn.Linear(before, after)]
    return nn.Sequential(*layers)


def times(shape: tuple[int, ...] | None) -> str:
    """`3×32×32`"""
    return "×".join(str(length) for length in shape or ()) or "no dimensions"


MODELS = Catalogue(
    "model",
    "models",
    Model,
    [LeNet5, Cnn, AsuMnist, AsuMnistConv, AsuCifar, AsuFashion, ResNet20, WideResNet16x4, Mlp, Linear],
)
