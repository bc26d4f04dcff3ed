"""Causal self-attention with rotary positions and, for llama, grouped keys and values."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from strategies.plan.attention_kernels import repeats_keys
from strategies.plan.shapes import head_width, kv_width, query_width
from strategies.plan.spec import ModelSpec, Precision, RopeScaling
from strategies.train.models.activated_linear import Down
from strategies.train.models.norms import RMSNorm
from strategies.train.models.products import Products, one_by_one

PRECISIONS = {
    torch.float64: Precision.FLOAT64,
    torch.float32: Precision.FLOAT32,
    torch.float16: Precision.FLOAT16,
    torch.bfloat16: Precision.BFLOAT16,
}
ROTARY_BASE = 10_000.0  # RoFormer (arXiv:2104.09864), section 3.2.2


def rotary_table(
    sequence_length: int,
    num_features: int,
    *,
    dtype: torch.dtype,
    device: torch.device | None = None,
    base: float = ROTARY_BASE,
    scaling: RopeScaling | None = None,
) -> Tensor:
    """Return cosine and sine of each pair's angle in a head of so many features, (T, 1, D/2, 2)."""
    exponents = torch.arange(0, num_features, 2, dtype=torch.float64, device=device) / num_features
    positions = torch.arange(sequence_length, dtype=torch.float64, device=device)
    frequencies = base**-exponents
    if scaling is not None:
        frequencies = stretched(frequencies, scaling)
    angles = torch.outer(positions, frequencies)
    wide = torch.promote_types(dtype, torch.float32)
    return torch.stack((angles.cos(), angles.sin()), dim=-1).to(wide).unsqueeze(1)


def stretched(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Return Llama 3.1's frequencies.

    Slow ones are divided by the factor, fast ones kept, those between interpolated smoothly.
    Source: Meta's llama-models, `apply_scaling`.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    slow, fast = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - slow) / (fast - slow)).clamp(0, 1)
    return frequencies * ((1 - kept) / scaling.factor + kept)


def rotate(x_BTHD: Tensor, rotation: Tensor) -> Tensor:
    """Rotate neighbouring pairs of features by their position's angle; keeps (B, T, H, D).

    Eagerly by one complex product, which costs a third of the same in real numbers (measured on a
    CPU); in real numbers where it is compiled, because torch generates no complex kernels.
    """
    pairs = torch.unflatten(x_BTHD.to(rotation.dtype), -1, (-1, 2))
    if torch.compiler.is_compiling():
        (x, y), (cosine, sine) = pairs.unbind(-1), rotation.unbind(-1)
        turned = torch.stack((x * cosine - y * sine, x * sine + y * cosine), dim=-1)
    else:
        product = torch.view_as_complex(pairs) * torch.view_as_complex(rotation)
        turned = torch.view_as_real(product)
    return turned.flatten(-2).to(x_BTHD.dtype)


def attend(
    query_BHTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, documents_BT: Tensor | None
) -> Tensor:
    """Compute causal attention, (B, H, T, D); with document numbers, within each document only."""
    mask = None
    if documents_BT is not None:
        same_B1TT = (documents_BT[:, :, None] == documents_BT[:, None, :]).unsqueeze(1)
        mask = same_B1TT.tril()
    shared_by = query_BHTD.shape[1] // key_BKTD.shape[1]
    if shared_by > 1 and repeats_keys_here(query_BHTD, mask):
        key_BKTD = key_BKTD.repeat_interleave(shared_by, dim=1)
        value_BKTD = value_BKTD.repeat_interleave(shared_by, dim=1)
    return scaled_dot_product_attention(
        query_BHTD,
        key_BKTD,
        value_BKTD,
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=query_BHTD.shape[1] != key_BKTD.shape[1],
    )


def repeats_keys_here(query_BHTD: Tensor, mask: Tensor | None) -> bool:
    """Return True if keys that these queries share are copied on this device."""
    return query_BHTD.is_cuda and repeats_keys(
        PRECISIONS[query_BHTD.dtype],
        gpu=name_of_gpu(),
        masked=mask is not None,
        head_width=query_BHTD.shape[-1],
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def name_of_gpu() -> str:
    """Return the name of this rank's GPU. Not cached: torch would compile through the cache, and
    break the graph at the driver."""
    return torch.cuda.get_device_name()


class Attention(nn.Module):
    """Self-attention, (B, T, C) to (B, T, C).

    Biases of query, key and value, and norms of query and key, are for checkpoints that have them;
    the norms' weights are the same for all heads. The number of heads follows from the matrices: a
    tensor-parallel rank holds only some.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_width = head_width(spec)
        width, queries, keys = spec.width, query_width(spec), kv_width(spec)
        self.query = nn.Linear(width, queries, bias=spec.attention_bias, dtype=dtype)
        self.key = nn.Linear(width, keys, bias=spec.attention_bias, dtype=dtype)
        self.value = nn.Linear(width, keys, bias=spec.attention_bias, dtype=dtype)
        self.output = Down(queries, width, bias=False, dtype=dtype)
        self.query_norm: nn.Module | None = None
        self.key_norm: nn.Module | None = None
        if spec.query_key_norms:
            self.query_norm, self.key_norm = (
                RMSNorm(self.head_width, eps=spec.norm_epsilon, dtype=dtype) for _ in range(2)
            )
        self.products: Products = one_by_one  # tensor parallelism replaces it
        self.attend = attend  # context parallelism replaces it

    def forward(self, x_BTC: Tensor, rotation: Tensor, documents_BT: Tensor | None) -> Tensor:
        query_BTHD, key_BTKD, value_BTKD = (
            torch.unflatten(product, -1, (-1, self.head_width))
            for product in self.products(x_BTC, self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query_BTHD, key_BTKD = self.query_norm(query_BTHD), self.key_norm(key_BTKD)
        mixed_BHTD = self.attend(
            rotate(query_BTHD, rotation).transpose(1, 2),
            rotate(key_BTKD, rotation).transpose(1, 2),
            value_BTKD.transpose(1, 2),
            documents_BT,
        )
        mixed_BTC = mixed_BHTD.transpose(1, 2).flatten(-2)
        output: Tensor = self.output(mixed_BTC)
        return output
