"""Activation checkpointing changes what a layer keeps, and nothing that it gives."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from strategies.plan.estimates.activations import kept_by_layer
from strategies.plan.spec import ActivationCheckpointing, TrainSpec
from strategies.train.init import build_model
from strategies.train.models.loss import token_loss_sum
from strategies.train.models.transformer import Transformer
from strategies.train.parallel.recompute import forget_activations
from strategies.train.precision import compute_in
from tests.strategies.support.training_runs import make_spec

CPU = torch.device("cpu")
NONE, SELECTIVE, FULL = ActivationCheckpointing
TOKENS_BT = torch.arange(4 * 48).reshape(4, 48)


def make_model(how: ActivationCheckpointing, **changes: Any) -> tuple[Transformer, TrainSpec]:
    spec = make_spec(**changes)
    model = build_model(spec, device=CPU)
    forget_activations(model, how)
    compute_in(spec.precision, model, CPU)
    return model, spec


def gradients(model: Transformer) -> dict[str, Tensor]:
    token_loss_sum(model(TOKENS_BT), TOKENS_BT).backward()
    return {name: weight.grad for name, weight in model.named_weights() if weight.grad is not None}


@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
def test_gradients_are_bit_equal_and_names_stay(name: str, precision: str) -> None:
    plain = gradients(make_model(NONE, model__name=name, precision=precision)[0])
    for how in (SELECTIVE, FULL):
        found = gradients(make_model(how, model__name=name, precision=precision)[0])
        assert found.keys() == plain.keys()
        assert all(torch.equal(found[name], plain[name]) for name in plain)


class Products(TorchDispatchMode):
    """Counts the operations that run, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[call.overloadpacket.__name__] += 1
        return call(*args, **(kwargs or {}))


def test_full_repeats_the_products_of_a_layer_and_selective_repeats_none() -> None:
    products, activations = [], []
    for how in (NONE, SELECTIVE, FULL):
        model, _ = make_model(how)
        with Products() as seen:
            gradients(model)
        products.append(seen.calls["mm"])
        activations.append(seen.calls["gelu"])
    per_layer = 6  # query, key, value, output, up, down
    head = 1
    assert products[0] == 3 * (4 * per_layer + head)  # forward, and a gradient for either side
    assert products[1] == products[0]
    # The last product of a layer is not needed again, so torch stops before it.
    assert products[2] == products[0] + 4 * (per_layer - 1)
    assert activations == [8, 8, 8]  # no layer keeps what an activation function returns


class Storages(TorchDispatchMode):
    """Knows the memory that operations have made, and how much of it is still held."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {StorageWeakRef(one.untyped_storage()) for one in tensors_of((args, kwargs))}
        found = call(*args, **(kwargs or {}))
        for one in tensors_of(found):
            storage = one.untyped_storage()
            if (made := StorageWeakRef(storage)) not in given:
                self._made[made] = storage.nbytes()
        return found

    @property
    def held_bytes(self) -> int:
        return sum(size for made, size in self._made.items() if not made.expired())


def tensors_of(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def held_after_forward(how: ActivationCheckpointing, **changes: Any) -> int:
    """Bytes that a forward pass has taken and not given back."""
    model, _ = make_model(how, data__sequence_length=48, **changes)
    with Storages() as seen:
        logits_BTV = model(TOKENS_BT)
    assert logits_BTV.requires_grad
    return seen.held_bytes


@pytest.mark.parametrize("how", [NONE, SELECTIVE])
def test_norms_of_queries_and_keys_keep_as_much_as_the_plan_says(
    how: ActivationCheckpointing,
) -> None:
    """What is beside the matrices: queries and keys before their norms, unless they are products
    that are kept anyway."""
    found, planned = [], []
    for has_norms in (True, False):
        changes = {"model__name": "llama", "model__query_key_norms": has_norms}
        found.append(held_after_forward(how, model__layers=4, **changes))
        _, spec = make_model(how, model__layers=4, **changes)
        planned.append(4 * kept_by_layer(spec, how).total * TOKENS_BT.numel())
    assert found[0] - found[1] == pytest.approx(planned[0] - planned[1], rel=0.01, abs=100)


@pytest.mark.parametrize(
    ("name", "precision"), [("gpt", "float32"), ("llama", "float32"), ("gpt", "bfloat16")]
)
def test_memory_falls_from_none_to_selective_to_full_as_the_plan_says(
    name: str, precision: str
) -> None:
    found, planned = [], []
    for how in (NONE, SELECTIVE, FULL):
        changes = {"model__name": name, "precision": precision}
        four, two = (held_after_forward(how, model__layers=n, **changes) for n in (4, 2))
        _, spec = make_model(how, **changes)
        kept = kept_by_layer(spec, how).total * TOKENS_BT.numel()
        if how is NONE and precision == "bfloat16":  # matrices stay in half precision, too
            kept += 2 * 12 * spec.model.width**2
        found.append((four - two) // 2)
        planned.append(kept)
    assert found[0] > found[1] > 5 * found[2]
    assert found == pytest.approx(planned, rel=0.15)
