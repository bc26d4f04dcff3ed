"""Attention of the models, by each of torch's kernels, against the same in float64.

Errors are largest differences of the output and of the three gradients, relative to the largest
number of the reference.
"""

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from strategies.train.models.attention import attend
from strategies.train.proving.written import out_path, write

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
BATCH, HEADS, WIDTH = 1, 16, 64
TOKENS = {"cuda": 4096, "cpu": 256}
MIB = 2**20


class Case(NamedTuple):
    """One call of attention."""

    dtype: torch.dtype
    grouped: bool
    documents: bool

    @property
    def name(self) -> str:
        words = [str(self.dtype).removeprefix("torch.")]
        words += ["grouped"] * self.grouped + ["documents"] * self.documents
        return " ".join(words)


def measure(device: torch.device) -> dict[str, object]:
    """Return, by case: each kernel's error and peak MiB, or the reason why it can't, and the
    error of the kernel that torch chooses."""
    found: dict[str, object] = {}
    types = (torch.float32, torch.bfloat16, torch.float16)
    for case in map(Case._make, product(types, (False, True), (False, True))):
        tokens = TOKENS[device.type]
        query, key, value, documents = inputs(case, tokens, device)
        expected = passes(query.double(), key.double(), value.double(), documents)
        by_kernel: dict[str, object] = {}
        for name, kernel in KERNELS.items():
            try:
                with sdpa_kernel(kernel):
                    by_kernel[name] = weigh(query, key, value, documents, expected, device)
            except RuntimeError as error:
                by_kernel[name] = {"refused": str(error).splitlines()[0]}
        chosen = weigh(query, key, value, documents, expected, device)
        called = operators(query, key, value, documents)
        found[case.name] = {"kernels": by_kernel, "chosen": {**chosen, "operator": called}}
    return found


def inputs(
    case: Case, tokens: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return query, key, value and document numbers, the same on every device."""
    generator = torch.Generator().manual_seed(1)
    kv_heads = HEADS // 4 if case.grouped else HEADS
    shapes = [(BATCH, heads, tokens, WIDTH) for heads in (HEADS, kv_heads, kv_heads)]
    query, key, value = (
        torch.randn(shape, generator=generator).to(device, case.dtype) for shape in shapes
    )
    documents = torch.arange(tokens, device=device) // (tokens // 4)
    return query, key, value, documents.expand(BATCH, -1) if case.documents else None


def passes(query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None) -> list[Tensor]:
    """Return the output and the gradients of query, key and value."""
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    output = attend(leaves[0], leaves[1], leaves[2], documents)
    weight = torch.linspace(-1, 1, output.shape[-1], device=output.device, dtype=output.dtype)
    return [output.detach(), *torch.autograd.grad((output * weight).sum(), leaves)]


def weigh(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Tensor | None,
    expected: list[Tensor],
    device: torch.device,
) -> dict[str, float]:
    """Return the error, and the peak memory of both passes on a GPU."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    got = passes(query, key, value, documents)
    error = max(
        float((one.double() - other).abs().max() / other.abs().max())
        for one, other in zip(got, expected, strict=True)
    )
    if not on_gpu:
        return {"error": error}
    return {"error": error, "peak_mib": (torch.cuda.max_memory_allocated(device) - before) / MIB}


def operators(query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None) -> str:
    """Return torch's name of the attention operator that a forward pass calls."""
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        attend(query, key, value, documents)
    names = {str(event.key) for event in recording.key_averages()}
    inner = sorted(name for name in names if "_scaled_dot_product" in name)
    return inner[0].removeprefix("aten::") if inner else ""


if __name__ == "__main__":
    out = out_path("strategies.train.proving.attention")
    write(out, measure(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
