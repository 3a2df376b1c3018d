"""How a model is computed: the precision, the memory layout of images, and compilation."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Precision = Literal["float32", "bf16", "fp16"]
# Small gradients of 16-bit numbers would become 0, so the loss is multiplied by a power of two. If the
# gradient overflows, the next smaller one is tried. A job always begins with the first, so its gradient
# depends on nothing that other jobs did.
LOSS_SCALES = (2.0**16, 2.0**12, 2.0**8, 2.0**4, 1.0)
COMPILED_SHAPES = 64  # of batches; torch compiles each once, and otherwise gives up at eight


@dataclass(frozen=True)
class Computation:
    """How the forward and the backward pass are computed."""

    precision: Precision = "float32"
    channels_last: bool = False
    compile: bool = False

    @property
    def loss_scales(self) -> tuple[float, ...]:
        """The factors of the loss to try in turn."""
        return LOSS_SCALES if self.precision == "fp16" else (1.0,)

    def apply(self, forward: Callable[..., Any], inputs: Any, device: torch.device) -> Any:
        """Return the outputs of a module; those of a 16-bit precision as float32, for the loss."""
        if self.channels_last and isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        if self.precision == "float32":
            return forward(inputs)
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float16
        with torch.autocast(device.type, dtype=dtype):
            outputs = forward(inputs)
        return outputs.float() if isinstance(outputs, Tensor) and outputs.dtype == dtype else outputs

    def compile_module(self, module: nn.Module) -> Callable[..., Any]:
        """Return the module, compiled at its first call if wanted.

        Every shape of batches is compiled for itself, so that a gradient does not depend on earlier batches.
        """
        if not self.compile:
            return module
        import torch._dynamo.config as dynamo  # takes a second

        dynamo.recompile_limit = max(dynamo.recompile_limit, COMPILED_SHAPES)
        compiled: Callable[..., Any] = torch.compile(module, dynamic=False)
        return compiled

    def check(self) -> None:
        """Raise ValueError if the model cannot be compiled here."""
        names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
        if self.compile and not any(name and shutil.which(name) for name in names):
            raise ValueError(
                "compile=True requires a C++ compiler, and none of c++, g++ and clang++ is installed. "
                "Install one, or use compile=False."
            )


PLAIN = Computation()
