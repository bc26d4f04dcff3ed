"""Llama style: RMSNorm, SwiGLU, grouped keys and values, rotary positions, no dropout."""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from strategies.plan.shapes import ffn_width
from strategies.plan.spec import ModelSpec
from strategies.train.models.activated_linear import ActivatedPart, Down
from strategies.train.models.attention import Attention
from strategies.train.models.norms import RMSNorm
from strategies.train.models.transformer import Transformer


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return SiLU(gate) x up."""
    return silu(gate) * up


class FeedForward(ActivatedPart):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, width: int, inner: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False, dtype=dtype)
        self.up = nn.Linear(width, inner, bias=False, dtype=dtype)
        self.down = Down(inner, width, bias=False, dtype=dtype)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.finish(gated, *self.products(x_BTC, self.gate, self.up))


class Block(nn.Module):
    def __init__(self, spec: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.width, eps=spec.norm_epsilon, dtype=dtype)
        self.attention = Attention(spec, dtype)
        self.feed_forward_norm = RMSNorm(spec.width, eps=spec.norm_epsilon, dtype=dtype)
        self.feed_forward = FeedForward(spec.width, ffn_width(spec), dtype)

    def forward(self, x_BTC: Tensor, rotation: Tensor, documents_BT: Tensor | None) -> Tensor:
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), rotation, documents_BT)
        x_BTC = x_BTC + self.feed_forward(self.feed_forward_norm(x_BTC))
        return x_BTC


class Llama(Transformer):
    """Llama's blocks (RMSNorm, SwiGLU, grouped keys and values)."""

    def __init__(
        self, spec: ModelSpec, *, vocabulary: int, sequence_length: int, dtype: torch.dtype
    ) -> None:
        super().__init__(
            spec,
            block=Block,
            norm=RMSNorm(spec.width, eps=spec.norm_epsilon, dtype=dtype),
            vocabulary=vocabulary,
            sequence_length=sequence_length,
            dtype=dtype,
        )
