"""A small GPT: a causal transformer that returns the scores of the next token at every position."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from straggler.problems.memory import check_size

INITIAL_STD = 0.02


class CausalBlock(nn.Module):
    """Attention to earlier tokens, then two dense layers; each after a norm and beside a shortcut."""

    def __init__(self, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.dense_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors of the same shape (batch, tokens, width)."""
        batch, tokens, width = x.shape
        parts = self.attention(self.attention_norm(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # (batch, heads, tokens, width of a head)
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        x = x + self._drop(self.projection(seen.transpose(1, 2).reshape(batch, tokens, width)))
        inner = functional.gelu(self.expand(self.dense_norm(x)))
        return x + self._drop(self.contract(inner))

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)


class Transformer(nn.Module):
    """The GPT of Radford et al. 2019: learned positions, norms before the layers, tied embeddings."""

    def __init__(
        self, vocabulary: int, context: int, layers: int, heads: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        largest = max(4 * width, vocabulary, context) * width
        check_size(f"A GPT of width {width} with {vocabulary} tokens and context {context}", largest)
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(CausalBlock(heads, width, dropout) for _ in range(layers))
        self.norm, self.dropout = nn.LayerNorm(width), dropout
        for name, weights in self.named_parameters():
            if weights.dim() > 1:  # the outputs of 2·layers shortcuts are added up
                ends_branch = "projection" in name or "contract" in name
                nn.init.normal_(weights, std=INITIAL_STD / (math.sqrt(2 * layers) if ends_branch else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(weights)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores (batch, tokens, vocabulary) of the token after each."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = functional.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)
