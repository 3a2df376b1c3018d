"""Cross entropy of class scores: one target per sample, or one per token of a sequence."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

IGNORED_TARGET = -100  # of a token that is not predicted, such as padding; torch's default


def has_token_scores(outputs: Any, targets: Any) -> bool:
    """Return whether outputs (batch, tokens, scores) and integer targets (batch, tokens) fit together."""
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and (outputs.dim(), targets.dim()) == (3, 2)
        and outputs.shape[:2] == targets.shape
        and not targets.is_floating_point()
    )


def token_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over the tokens of sequences: scores are in the last dimension."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED_TARGET)


def default_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return torch's cross entropy, or that of tokens if the shapes are those of sequences."""
    if not has_token_scores(outputs, targets):
        return F.cross_entropy(outputs, targets)
    if outputs.shape[1] == outputs.shape[2]:
        raise ValueError(
            f"The outputs have shape {tuple(outputs.shape)}, so the scores may be in dimension 1 or 2. "
            f"Pass loss='token_cross_entropy' if they are in dimension 2, otherwise loss='cross_entropy'."
        )
    return token_cross_entropy(outputs, targets)


LOSSES = {"token_cross_entropy": token_cross_entropy}  # by name, besides those in torch.nn.functional
