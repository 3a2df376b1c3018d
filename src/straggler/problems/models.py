"""The catalogue of networks. Every network returns class scores (logits) for cross entropy."""

import math
from abc import abstractmethod
from typing import ClassVar, Self

from pydantic import Field, PositiveInt, model_validator
from torch import nn

from straggler.config.registry import Catalogue, CatalogueEntry
from straggler.problems.networks import OneDnnSequential, dense_layers, lenet5, resnet, wide_resnet
from straggler.problems.transformer import Transformer

MIN_IMAGE = 8  # pixels per side


class Model(CatalogueEntry):
    """A network that can be built for a shape of inputs and a number of classes."""

    input_shape: ClassVar[tuple[int, ...] | None] = None  # the required shape; None: any shape
    takes_tokens: ClassVar[bool] = False  # inputs are sequences of token numbers, as in text

    def build(self, shape: tuple[int, ...], classes: int, tokens: bool = False) -> nn.Module:
        """Return the network with new weights from torch's generator; raise if the inputs do not fit.

        `tokens` says whether the data are sequences of token numbers, with a target for each token.
        """
        if classes < 2:
            raise ValueError(f"A classifier needs at least two classes, got {classes}")
        if tokens != self.takes_tokens:
            kinds = "sequences of tokens", "numbers"
            wanted, found = kinds if self.takes_tokens else kinds[::-1]
            others = ", ".join(name for name, model in MODELS.items() if model.takes_tokens is tokens)
            raise ValueError(f"{self.name} requires {wanted}, but the data are {found}. Use one of {others}.")
        if not self.fits(shape):
            others = ", ".join(n for n, m in MODELS.items() if m.takes_tokens is tokens and m.fits(shape))
            raise ValueError(
                f"{self.name} requires {self.describe_inputs()}, but the data have {format_shape(shape)}. "
                f"Use one of {others}."
            )
        return self.network(shape, classes)

    @classmethod
    def fits(cls, shape: tuple[int, ...]) -> bool:
        """Return whether the network takes inputs of this shape."""
        return shape == cls.input_shape if cls.input_shape else math.prod(shape) > 0

    @classmethod
    def describe_inputs(cls) -> str:
        """Return in words which inputs the network takes."""
        return f"{format_shape(cls.input_shape)} images" if cls.input_shape else "inputs of any shape"

    @abstractmethod
    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for a shape that fits."""


class AnyImageModel(Model):
    """A network that ends in a global average, so it takes images of any size and number of channels."""

    @classmethod
    def fits(cls, shape: tuple[int, ...]) -> bool:
        """Return whether the shape is (channels, height, width) and large enough."""
        return len(shape) == 3 and shape[0] > 0 and min(shape[1:]) >= MIN_IMAGE

    @classmethod
    def describe_inputs(cls) -> str:
        """Return in words which inputs the network takes."""
        return f"images (channels×height×width) of at least {MIN_IMAGE}×{MIN_IMAGE} pixels"


def format_shape(shape: tuple[int, ...] | None) -> str:
    """Return a shape as text, for example `3×32×32`."""
    return "×".join(map(str, shape or ())) or "no dimensions"


class LeNet5(Model):
    """LeNet-5 with ReLU and max pooling, as in the EPFL experiments: 61,706 parameters."""

    name = "lenet5"
    input_shape = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return lenet5(channels=1, padding=2, classes=classes)  # padding: LeNet has 32×32 images


class Cnn(Model):
    """The EPFL experiments' large network, with dropout: 1,199,882 parameters."""

    name = "cnn"
    input_shape = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        # as in the source, no ReLU follows the second convolution
        convolutions = [
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        ]
        dense = [nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes)]
        return OneDnnSequential(*convolutions, nn.Flatten(), *dense)


class AsuMnist(Model):
    """The ASU paper's two dense layers for MNIST: 101,770 parameters; the width of 128 is our choice."""

    name = "asu-mnist"
    input_shape = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return dense_layers([784, 128, classes])


class AsuMnistConv(Model):
    """The network that the ASU code trains on MNIST, from an example of Ray: 1,960 parameters."""

    name = "asu-mnist-conv"
    input_shape = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers = [nn.Conv2d(1, 3, 3), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(192, classes)]
        return OneDnnSequential(*layers)


class AsuCifar(Model):
    """LeNet-5 for coloured 32×32 images, as in the ASU experiments: 62,006 parameters."""

    name = "asu-cifar"
    input_shape = (3, 32, 32)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return lenet5(channels=3, padding=0, classes=classes)


class AsuFashion(Model):
    """The ASU experiments' network with batch normalisation for Fashion-MNIST: 29,034 parameters."""

    name = "asu-fashion"
    input_shape = (1, 28, 28)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in ((1, 16), (16, 32)):
            convolution = nn.Conv2d(before, after, 5, padding=2)
            layers += [convolution, nn.BatchNorm2d(after), nn.MaxPool2d(2), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1568, classes))


class ResNet20(AnyImageModel):
    """He et al.'s 20 layers for CIFAR-10, shortcuts without parameters: 269,722 parameters."""

    name = "resnet20"

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return resnet(shape[0], classes, blocks=3)


class WideResNet16x4(AnyImageModel):
    """Zagoruyko and Komodakis' 16 layers, four times as wide: 2,748,890 parameters for CIFAR-10."""

    name = "wrn-16-4"

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return wide_resnet(shape[0], classes, blocks=2, width=4)


class Mlp(Model):
    """Dense layers with ReLU between them; `hidden` are the widths between input and output."""

    name = "mlp"
    hidden: tuple[PositiveInt, ...] = (64,)

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return dense_layers([math.prod(shape), *self.hidden, classes])


class Linear(Model):
    """Softmax regression."""

    name = "linear"

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return dense_layers([math.prod(shape), classes])


class Gpt(Model):
    """A small GPT: causal self-attention with learned positions; scores use the embedding's weights.

    `context` is the longest sequence, by default that of the data.
    """

    name = "gpt"
    takes_tokens = True
    layers: PositiveInt = 2
    heads: PositiveInt = 2
    width: PositiveInt = 64
    context: PositiveInt | None = None
    dropout: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}.")
        return self

    def network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        context = self.context or shape[0]
        if context < shape[0]:
            rule = f"the sequences of the data have {shape[0]} tokens"
            raise ValueError(f"gpt(context={context}) is too short: {rule}. Use at least context={shape[0]}.")
        return Transformer(classes, context, self.layers, self.heads, self.width, self.dropout)


MODELS = Catalogue(
    "model",
    "models",
    Model,
    [LeNet5, Cnn, AsuMnist, AsuMnistConv, AsuCifar, AsuFashion, ResNet20, WideResNet16x4, Mlp, Linear, Gpt],
)
