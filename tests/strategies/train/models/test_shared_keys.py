"""Keys and values that query heads share: copied where no fused kernel takes shared ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from strategies.train.models import attention

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries of 4 heads, keys and values of 2, of 2 samples of 6 tokens."""
    torch.manual_seed(1)
    return [torch.randn(2, heads, 6, 8, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)]


@pytest.mark.parametrize("masked", [False, True])
def test_copies_give_the_same_output_and_gradients(
    monkeypatch: pytest.MonkeyPatch, masked: bool
) -> None:
    documents = torch.tensor([[0, 0, 1, 1, 1, 2]] * 2) if masked else None
    tensors = inputs()
    shared = attention.attend(*tensors, documents)
    monkeypatch.setattr(attention, "repeats_keys_here", lambda *_: True)
    copied = attention.attend(*tensors, documents)
    torch.testing.assert_close(copied, shared, rtol=1e-14, atol=1e-14)
    weight = torch.randn_like(shared)
    for one, other in zip(
        torch.autograd.grad(shared, tensors, weight),
        torch.autograd.grad(copied, tensors, weight),
        strict=True,
    ):
        torch.testing.assert_close(other, one, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("gpu", "dtype", "masked", "is_copied"),
    [
        (A100, torch.bfloat16, False, False),
        (A100, torch.bfloat16, True, True),
        (A100, torch.float32, False, True),
        (A100, torch.float64, False, False),
        (H100, torch.bfloat16, True, False),
        (H100, torch.float32, True, True),
        (None, torch.float32, False, True),
    ],
)
def test_a_gpu_copies_them_by_its_name_type_and_mask(
    monkeypatch: pytest.MonkeyPatch,
    gpu: str | None,
    dtype: torch.dtype,
    masked: bool,
    is_copied: bool,
) -> None:
    monkeypatch.setattr(attention, "name_of_gpu", lambda: gpu)
    query: Any = SimpleNamespace(is_cuda=True, dtype=dtype, shape=(2, 4, 6, 8))
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool) if masked else None
    assert attention.repeats_keys_here(query, mask) == is_copied


def test_a_layer_on_a_gpu_compiles_without_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def ask_the_driver() -> str:
        names.append(Path("/proc/version").read_text() and H100)  # a file: no graph can hold it
        return names[-1]

    monkeypatch.setattr(torch.cuda, "get_device_name", ask_the_driver)
    compiled = torch.compile(attention.attend, fullgraph=True, backend="eager")
    with FakeTensorMode():
        query, key, value = (
            torch.empty(2, heads, 6, 8, device="cuda", dtype=torch.float32) for heads in (4, 2, 2)
        )
        assert compiled(query, key, value, None).shape == query.shape
    assert names == [H100]


@pytest.mark.parametrize("is_copied", [False, True])
def test_the_kernel_gets_copies_or_is_told_that_heads_are_shared(
    monkeypatch: pytest.MonkeyPatch, is_copied: bool
) -> None:
    calls: list[tuple[int, int, bool]] = []

    def call(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
        calls.append((key.shape[1], value.shape[1], how["enable_gqa"]))
        return query

    monkeypatch.setattr(attention, "scaled_dot_product_attention", call)
    monkeypatch.setattr(attention, "repeats_keys_here", lambda *_: is_copied)
    attention.attend(*inputs(), None)
    assert calls == [(4, 4, False) if is_copied else (2, 2, True)]


def test_a_cpu_copies_none() -> None:
    query, _, _ = inputs(dtype=torch.float32)
    assert not attention.repeats_keys_here(query, None)
