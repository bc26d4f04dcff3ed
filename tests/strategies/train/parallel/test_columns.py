"""What tensor-parallel ranks keep of the features that matrices read, and when they send them.

Losses and gradients are compared with one rank's by the matrix of layouts.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import FakeWork
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.plan.planner import plan
from strategies.train.init import design_model, seed_of
from strategies.train.mesh import Mesh
from strategies.train.models.own import own
from strategies.train.parallel.columns import Columns
from strategies.train.parallel.exchange import Exchange
from strategies.train.parallel.parallelize import parallelize
from strategies.train.parallel.tensor import spread
from tests.strategies.support.fake_ranks import CPU, fake_ranks
from tests.strategies.support.training_runs import HARDWARE, make_spec

RANKS, TOKENS, WIDTH = 4, 64, 32
BOTH = {"strategy": "tensor", "sequence_parallel": True}


class Order(TorchDispatchMode):
    """Products and messages in the order of their start, waits in that of their call."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.calls: list[str] = []
        patch.setattr(FakeWork, "wait", lambda *_: self.calls.append("wait"))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.split("::")[1].strip("_")
        if name in ("mm", "addmm", "allgather_base", "reduce_scatter_base", "allreduce"):
            self.calls.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("splits_tokens", "order"),
    [
        (True, ["allgather_base", "mm", "addmm", "reduce_scatter_base", "wait", "mm", "mm"]),
        (False, ["mm", "addmm", "allreduce", "mm", "mm"]),
    ],
    ids=["tokens split", "whole"],
)
def test_the_backward_pass_sends_while_it_multiplies(
    monkeypatch: pytest.MonkeyPatch, splits_tokens: bool, order: list[str]
) -> None:
    """Gradients of features first, then those of matrices, beside whose products they add up."""
    with fake_ranks(RANKS):
        ranks = init_device_mesh("cpu", (RANKS,))
        matrices = [nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 8, bias=False)]
        for matrix in matrices:
            spread(matrix, ranks, Shard(0))
        exchange = Exchange(ranks.get_group(), splits_tokens)
        columns = Columns(exchange, gathers_again=splits_tokens)
        own_tokens = TOKENS // RANKS if splits_tokens else TOKENS
        x = torch.zeros(2, own_tokens, WIDTH, requires_grad=True)
        products = columns(x, *matrices)
        assert [product.shape for product in products] == [(2, TOKENS, 4), (2, TOKENS, 2)]
        with Order(monkeypatch) as found:
            torch.autograd.backward(products, [torch.ones_like(each) for each in products])
    assert found.calls == [*order, "wait"]
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert all(parameter.grad is not None for each in matrices for parameter in each.parameters())


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_a_rank_keeps_the_features_of_its_own_tokens(model: str) -> None:
    kept = kept_features(model, activation_checkpointing="none")
    assert kept == {TOKENS // RANKS}


def kept_features(model: str, **changes: Any) -> set[int]:
    """Numbers of tokens of the features as wide as the model that its layers keep."""
    spec = make_spec(
        model={"name": model, "layers": 2, "width": WIDTH, "heads": 4, "ffn_width": 80},
        data={
            "dataset": "ragged",
            "tokenizer": "characters",
            "vocabulary_size": 256,
            "sequence_length": TOKENS,
        },
        parallelism=BOTH,
        training__micro_batch_size=1,
        **changes,
    )
    planned = plan(spec, nodes=1, ranks_per_node=RANKS, hardware=HARDWARE)
    assert planned.runnable, planned.problems
    kept = set[int]()

    def watch(tensor: Tensor) -> Tensor:
        if tensor.ndim == 3 and tensor.shape[-1] == WIDTH:
            kept.add(own(tensor).shape[1])
        return tensor

    with fake_ranks(RANKS):
        found = parallelize(design_model(spec), spec, Mesh(planned.layout, 0, CPU), seed_of(spec))
        x_BTC = found.model.embedding(torch.zeros(1, TOKENS, dtype=torch.int64))
        rotation = found.model.rotation
        with saved_tensors_hooks(watch, lambda tensor: tensor):
            for layer in found.model.layers.values():
                x_BTC = layer(x_BTC, rotation, None)
    return kept
