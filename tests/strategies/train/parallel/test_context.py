"""Attention over ranks that each hold some tokens is that of one rank; so is training with it."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.plan.planner import Problem, plan
from strategies.plan.spec import Precision, TrainSpec
from strategies.train.engine import Batch
from strategies.train.parallel.attention_block import (
    CpuFlash,
    CudaFlash,
    Kernel,
    Sight,
    WrittenOut,
    merge,
)
from strategies.train.parallel.ring_attention import part_of, zigzag
from tests.strategies.support.law import BANDS, departure
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import (
    HARDWARE,
    Run,
    WarmRanks,
    make_run_plan,
    make_spec,
)

KERNELS = [
    pytest.param(CpuFlash(), id="fused"),
    pytest.param(WrittenOut(), id="written-out"),
    pytest.param(WrittenOut(most_scores=100), id="a-few-queries-at-a-time"),
]
degrees = st.integers(1, 8)


@given(degrees, st.integers(1, 5))
def test_the_zigzag_deals_every_token_once_and_in_order(degree: int, chunk: int) -> None:
    dealt = zigzag(2 * degree * chunk, degree)
    assert sorted(dealt.flatten().tolist()) == list(range(2 * degree * chunk))
    assert all(positions.tolist() == sorted(positions.tolist()) for positions in dealt)


@given(degrees, st.integers(1, 5))
def test_parts_are_the_causal_pairs_and_as_many_on_every_rank(degree: int, chunk: int) -> None:
    tokens, dealt = 2 * chunk, zigzag(2 * degree * chunk, degree)
    seen, work = set(), []
    for rank in range(degree):
        pairs = []
        for origin in range(degree):
            part = part_of(rank, origin, tokens)
            queries, keys = dealt[rank, part.queries].tolist(), dealt[origin, part.keys].tolist()
            pairs += [
                (query, key)
                for i, query in enumerate(queries)
                for j, key in enumerate(keys)
                if not part.causal or j <= i
            ]
        assert not seen & set(pairs)
        seen |= set(pairs)
        work.append(len(pairs))
    assert seen == {(i, j) for i in range(dealt.numel()) for j in range(i + 1)}
    assert len(set(work)) == 1


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_merged_blocks_are_one_attention(kernel: Kernel, kv_heads: int) -> None:
    query, grad_output = normal(2, 4, 10, 6), normal(2, 4, 10, 6)
    key, value = normal(2, kv_heads, 16, 6), normal(2, kv_heads, 16, 6)
    mask_B1TS = torch.rand(2, 1, 10, 16, generator=generator()) > 0.4
    mask_B1TS[:, :, 3, 8:] = mask_B1TS[:, :, 4, :8] = False  # each block has a query that sees none
    blocks = [
        (key[:, :, keys], value[:, :, keys], Sight(mask_B1TS=mask_B1TS[..., keys]))
        for keys in (slice(0, 8), slice(8, 16))
    ]
    output, log_sum = torch.zeros_like(query), torch.full_like(query[..., 0], -math.inf)
    for block in blocks:
        merge(output, log_sum, *kernel.forward(query, *block))
    gradients = [
        kernel.backward(grad_output, query, keys, values, output, log_sum, sight)
        for keys, values, sight in blocks
    ]
    inputs = [x.requires_grad_() for x in (query, key, value)]
    expected = scaled_dot_product_attention(*inputs, attn_mask=mask_B1TS, enable_gqa=True)
    grad_query, grad_key, grad_value = torch.autograd.grad(expected, inputs, grad_output)
    queries, keys, values = zip(*gradients, strict=True)
    close(output, expected.detach())
    close(sum(queries, torch.zeros_like(query)), grad_query)
    close(torch.cat(keys, dim=2), grad_key)
    close(torch.cat(values, dim=2), grad_value)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_causal_block_is_one_attention(kernel: Kernel) -> None:
    query, key, value, grad_output = (normal(2, 4, 10, 6) for _ in range(4))
    output, log_sum = kernel.forward(query, key, value, Sight(causal=True))
    found = kernel.backward(grad_output, query, key, value, output, log_sum, Sight(causal=True))
    inputs = [x.requires_grad_() for x in (query, key, value)]
    expected = scaled_dot_product_attention(*inputs, is_causal=True)
    close(output, expected.detach())
    for own, wanted in zip(found, torch.autograd.grad(expected, inputs, grad_output), strict=True):
        close(own, wanted)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_that_sees_nothing_anywhere_gets_zeros(kernel: Kernel) -> None:
    query, key, value = (normal(1, 1, 4, 2) for _ in range(3))
    blind = Sight(mask_B1TS=torch.zeros(1, 1, 4, 4, dtype=torch.bool))
    output, log_sum = torch.zeros_like(query), torch.full_like(query[..., 0], -math.inf)
    for _ in range(2):
        merge(output, log_sum, *kernel.forward(query, key, value, blind))
    assert torch.equal(output, torch.zeros_like(query))
    assert log_sum.isneginf().all()
    for gradient in kernel.backward(query, query, key, value, output, log_sum, blind):
        assert torch.equal(gradient, torch.zeros_like(gradient))


class AttentionCalls(TorchDispatchMode):
    """Records the arguments of fused attention: shape and type of tensors, other values as such."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "attention" in str(function):
            given = {a.name: a.default_value for a in function._schema.arguments}
            given |= dict(zip(given, args, strict=False)) | (kwargs or {})
            self.made.append((str(function), [described(value) for value in given.values()]))
        return function(*args, **(kwargs or {}))


def described(value: object) -> object:
    return (value.shape, value.dtype) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("kernel", "device", "dtype"),
    [
        pytest.param(CudaFlash(), "meta", torch.bfloat16, id="cuda"),
        pytest.param(CpuFlash(), "cpu", torch.float32, id="cpu"),
    ],
)
def test_a_kernel_is_called_as_torch_calls_it(
    kernel: Kernel, device: str, dtype: torch.dtype, causal: bool
) -> None:
    """CUDA's kernel takes other paths for arguments that are there but empty."""
    query, key, value = (
        torch.zeros(2, 4, 16, 32, dtype=dtype, device=device, requires_grad=True) for _ in range(3)
    )
    forward = {
        "meta": torch.ops.aten._scaled_dot_product_flash_attention,
        "cpu": torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    }[device]
    with AttentionCalls() as torchs:
        forward(query, key, value, 0.0, causal)[0].sum().backward()
    with AttentionCalls() as ours, torch.no_grad():
        output, log_sum = kernel.forward(query, key, value, Sight(causal=causal))
        kernel.backward(output, query, key, value, output, log_sum, Sight(causal=causal))
    assert ours.made == torchs.made


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # in autograd's thread, once
@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_the_blocks_of_a_ring_on_a_gpu_are_one_attention(degree: int, kv_heads: int) -> None:
    """All ranks of a ring in turn on one GPU, in bfloat16, against float64."""
    tokens, width, kernel = 64, 64, CudaFlash()
    heads = {"query": 8, "key": kv_heads, "value": kv_heads, "grad_output": 8}
    dealt = zigzag(tokens * degree, degree).cuda()
    whole = {
        name: torch.randn(2, count, tokens * degree, width, device="cuda", dtype=torch.bfloat16)
        for name, count in heads.items()
    }
    found = {name: torch.zeros_like(one, dtype=torch.float32) for name, one in whole.items()}
    found["output"] = found.pop("grad_output")
    for rank, mine in enumerate(dealt):
        query, grad_output = whole["query"][:, :, mine], whole["grad_output"][:, :, mine]
        output = torch.zeros_like(query, dtype=torch.float32)
        log_sum = torch.full_like(output[..., 0], -math.inf)
        blocks = []
        for step in range(degree):
            origin = (rank - step) % degree
            part = part_of(rank, origin, tokens)
            keys = dealt[origin, part.keys]
            block = (whole["key"][:, :, keys], whole["value"][:, :, keys], Sight(part.causal))
            blocks.append((part.queries, keys, block))
            merged = output[:, :, part.queries], log_sum[:, :, part.queries]
            merge(*merged, *kernel.forward(query[:, :, part.queries], *block))
        output = output.bfloat16()
        found["output"][:, :, mine] = output.float()
        for rows, keys, (key, value, sight) in blocks:
            gradients = kernel.backward(
                grad_output[:, :, rows], query[:, :, rows], key, value,
                output[:, :, rows], log_sum[:, :, rows], sight,
            )  # fmt: skip
            for name, places, gradient in zip(
                ("query", "key", "value"), (mine[rows], keys, keys), gradients, strict=True
            ):
                found[name][:, :, places] += gradient.float()
    inputs = [whole[name].double().requires_grad_() for name in ("query", "key", "value")]
    expected = scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
    wanted = torch.autograd.grad(expected, inputs, whole["grad_output"].double())
    named = zip(("query", "key", "value"), wanted, strict=True)
    for name, one in (("output", expected.detach()), *named):
        assert (found[name] - one).norm() / one.norm() < 1e-2, name


def test_a_rank_takes_its_tokens_and_the_documents_of_all() -> None:
    tokens = torch.arange(12).view(2, 6)
    found = Batch(tokens, tokens + 1, tokens // 3).at(torch.tensor([0, 5]))
    assert found.inputs_BT.tolist() == [[0, 5], [6, 11]]
    assert found.labels_BT.tolist() == [[1, 6], [7, 12]]
    assert found.documents_BT is not None
    assert found.documents_BT.tolist() == (tokens // 3).tolist()


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("ranks", "ulysses_degree"),
    [
        (2, 1),
        (2, 2),
        pytest.param(4, 1, marks=pytest.mark.slow),
        (4, 2),
        pytest.param(4, 4, marks=pytest.mark.slow),
    ],
)
def test_attention_over_ranks_is_that_of_one(
    ranks: int, ulysses_degree: int, warm: WarmRanks
) -> None:
    started = warm.start("attend_across_ranks", ranks=ranks, ulysses_degree=ulysses_degree)
    assert started.wait() == [0] * ranks, warm.said()


def context(degree: int, ulysses_degree: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "strategy": "context",
        "context_parallel_degree": degree,
        "ulysses_degree": ulysses_degree,
        **fields,
    }


@pytest.fixture(scope="module")
def one_rank(pool: Pool, ragged: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of packed documents that every split must follow."""
    run_plan = make_run_plan(packed({"strategy": "single"}), **ragged)
    return pool.train(run_plan, tmp_path_factory.mktemp("one-rank"))


def packed(parallelism: dict[str, Any]) -> TrainSpec:
    return make_spec(
        model={"name": "llama", "layers": 2, "width": 32, "heads": 4, "kv_heads": 2},
        data__packing=True,
        training__steps=8,
        training__gradient_accumulation_steps=2,
        parallelism=parallelism,
        precision="float64",
    )


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("ranks", "parallelism"),
    [
        pytest.param(2, context(2), id="ring"),
        pytest.param(2, context(2, 2), id="ulysses", marks=pytest.mark.slow),
        pytest.param(4, context(4, 2), id="both", marks=pytest.mark.slow),
        pytest.param(
            4,
            context(2, data_parallel_replicate_degree=2),
            id="ring-ddp",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            4,
            context(2, data_parallel_shard_degree=2),
            id="ring-fsdp",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            4,
            context(2, tensor_parallel_degree=2, sequence_parallel=True),
            id="ring-tensor-sequence",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_packed_documents_train_as_on_one_rank(
    ranks: int,
    parallelism: dict[str, Any],
    pool: Pool,
    one_rank: Run,
    ragged: dict[str, Any],
    tmp_path: Path,
) -> None:
    run_plan = make_run_plan(packed(parallelism), ranks=ranks, **ragged)
    found = departure(pool.train(run_plan, tmp_path), one_rank)
    assert found.within(BANDS[Precision.FLOAT64]), str(found)


def planned(*, ranks: int, **changes: Any) -> list[Problem]:
    return plan(make_spec(**changes), nodes=1, ranks_per_node=ranks, hardware=HARDWARE).problems


@pytest.mark.parametrize(
    ("ranks", "parallelism", "length", "heads", "param", "words"),
    [
        (1, {"ulysses_degree": 2}, 48, 4, "ulysses_degree", "context degree of 2, or leave it out"),
        (4, context(4, 3), 48, 12, "ulysses_degree", "context degree 4; the nearest is 2"),
        (4, context(4, 4), 48, 2, "ulysses_degree", "2 heads cannot .* nearest .* is 2"),
        (
            4,
            context(2, 2, tensor_parallel_degree=2),
            48,
            2,
            "ulysses_degree",
            "1 heads of each tensor-parallel rank cannot .* is 1",
        ),
        (2, context(2), 50, 4, "sequence_length", "50 .* divisible by 4, .* 48 would be divisible"),
        (2, context(2), 3, 4, "sequence_length", "; 4 would be divisible"),
        (
            2,
            context(2, 2),
            51,
            4,
            "sequence_length",
            "51 .* divisible by 2, .* 50 would be divisible",
        ),
        (
            4,
            context(4, 2),
            50,
            4,
            "sequence_length",
            "50 .* by 4, .* rings of 2 .* 48 would be divisible",
        ),
        (
            8,
            context(2, tensor_parallel_degree=4, sequence_parallel=True),
            54,
            4,
            "sequence_length",
            "; 48 would be divisible",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_nearest_that_can(
    ranks: int, parallelism: dict[str, Any], length: int, heads: int, param: str, words: str
) -> None:
    changes = {"parallelism": parallelism, "data__sequence_length": length, "model__heads": heads}
    problems = planned(ranks=ranks, model__width=4 * heads, model__ffn_width=64, **changes)
    assert any(p.param.endswith(param) and re.search(words, p.message) for p in problems), problems


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(), dtype=torch.float64)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
