"""Traffic and work of a training step, operation by operation, as an upper bound.

A GPU's step cannot be timed here, but its operations are known: fake tensors have shapes, types and
no numbers. Products, attention and update are bounded by what they must read and write; the rest,
which is bound by memory on a GPU, by what it was found to move. A change that adds a cast, a copy
or a pass over the weights fails. Fused kernels (a compiled model, norms on a GPU) move less than is
counted here.

N tokens; bytes are counted once for each operand of an operation.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from strategies.plan.planner import plan
from strategies.train.engine import Batch, engine_for
from strategies.train.init import Region
from strategies.train.mesh import Mesh
from strategies.train.models import linear_cross_entropy
from tests.strategies.support.training_runs import HARDWARE, make_spec
from tests.strategies.support.two_devices import to_empty

HOST = torch.device("cpu")
SAMPLES, TOKENS, WIDTH, WORDS, HEADS, KV_HEADS = 4, 1024, 1024, 32_000, 16, 4
N, HALF, FULL = SAMPLES * TOKENS, 2, 4  # bytes of bfloat16 and of float32
LAYERS = (2, 4)  # two depths: their difference is a layer, the rest the ends of the model
KINDS = {
    "mm": "products",
    "addmm": "products",
    "addmm_": "products",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "attention",
    "_fused_adamw_": "update",
    "linalg_vector_norm": "clipping",
    "_foreach_mul_": "clipping",
    "_to_copy": "casts",
}
KINDS_OF = {*KINDS.values(), "others"}
SILENT = ("empty", "_unsafe_view")


class Traffic(TorchDispatchMode):
    """Adds up the bytes that operations read and write, by kind; a view moves none."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        found = call(*args, **(kwargs or {}))
        made = [one for one in tree_leaves(found) if isinstance(one, Tensor)]
        is_view = any(
            one.alias_info and not one.alias_info.is_write for one in call._schema.returns
        )
        name = call.overloadpacket.__name__
        if not is_view and call.namespace == "aten" and not name.startswith(SILENT):
            operands = {
                (one.untyped_storage()._cdata, one.storage_offset(), one.shape): one.nbytes
                for one in (*given, *made)
            }
            self.num_bytes[KINDS.get(name, "others")] += sum(operands.values())
        return found


class NoNumbers:
    """Source of weights that are never looked at."""

    def read(self, name: str, shape: torch.Size, region: Region, *, device: torch.device) -> Tensor:
        sizes = [len(range(*part.indices(size))) for part, size in zip(region, shape, strict=True)]
        return torch.empty(sizes, device=device)


@dataclass(frozen=True)
class Traced:
    """One step of a model: forward, backward, clipping and update."""

    num_bytes: Counter[str]
    flops: int
    """Those of products; torch counts none for attention on a CPU."""
    matrices: tuple[tuple[int, int], ...]
    """Shapes of the weights that a product reads: all but norms, biases and the embedding."""
    num_weights: int


def traced(name: str, layers: int) -> Traced:
    spec = make_spec(
        model={"name": name, "layers": layers, "width": WIDTH, "heads": HEADS}
        | ({"kv_heads": KV_HEADS} if name == "llama" else {}),
        data__sequence_length=TOKENS,
        data__tokenizer="characters",
        data__vocabulary_size=WORDS,
        training__global_batch_size=SAMPLES,
        training__micro_batch_size=SAMPLES,
        precision="bfloat16",
    )
    roomy = HARDWARE.model_copy(update={"memory_gib": 64.0})
    found = plan(spec, nodes=1, ranks_per_node=1, hardware=roomy)
    assert found.runnable, found.problems
    with FakeTensorMode(allow_non_fake_inputs=True):
        engine: Any = engine_for(found)
        engine.setup(spec, found, Mesh(found.layout, 0, HOST), NoNumbers())
        tokens = torch.zeros(SAMPLES, TOKENS, dtype=torch.int64)
        with FlopCounterMode(display=False) as work, Traffic() as traffic:
            engine.forward_backward([Batch(tokens, tokens)], float(N))
            engine.clip(1.0, 1.0)
            engine.step(1e-3)
        shapes = {key: weight.shape for key, weight in engine.model.named_weights()}
    return Traced(
        traffic.num_bytes,
        work.get_total_flops(),
        tuple((s[0], s[1]) for key, s in shapes.items() if len(s) == 2 and "embedding" not in key),
        sum(shape.numel() for shape in shapes.values()),
    )


def through_products(matrices: Iterable[tuple[int, int]]) -> int:
    """Bytes of a product and of its two in the backward pass, each operand once."""
    return 3 * HALF * sum(N * rows + rows * columns + N * columns for rows, columns in matrices)


@pytest.mark.parametrize(
    ("name", "keys", "norms", "others", "ends"),
    [("gpt", 1.0, 0, 145, 2460), ("llama", KV_HEADS / HEADS, 2, 374, 2580)],
)
def test_a_step_moves_no_more_than_it_must(
    name: str, keys: float, norms: int, others: int, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`keys`: heads of keys for each of queries; `norms` of a layer, each made of plain operations;
    `others` and `ends` were found: bytes for each token and feature, of a layer and of the rest."""
    monkeypatch.setattr(nn.Module, "to_empty", to_empty)
    monkeypatch.setattr(linear_cross_entropy, "may_be_fused", lambda *_: True)  # as on a GPU
    few, many = (traced(name, layers) for layers in LAYERS)
    assert few.flops == 6 * N * sum(rows * columns for rows, columns in few.matrices)

    between = LAYERS[1] - LAYERS[0]
    layer = {kind: (many.num_bytes[kind] - few.num_bytes[kind]) / between for kind in KINDS_OF}
    own = Counter(many.matrices) - Counter(few.matrices)
    weights = (many.num_weights - few.num_weights) / between
    assert layer["products"] == through_products(own.elements()) / between
    # Queries, keys, values, what comes out, and a gradient of each; twice a float32 of each head.
    assert layer["attention"] == N * WIDTH * HALF * 6 * (1 + keys) + 2 * N * HEADS * FULL
    assert layer["update"] <= 1.001 * weights * 4 * FULL  # weight, gradient and two averages
    assert layer["clipping"] <= 1.001 * weights * 2 * FULL  # read for the norm, then scaled
    # A weight and its gradient; positions of queries and keys, there and back, and their gradients;
    # two casts of a norm, and three in its backward pass.
    cast = weights * 2 + N * WIDTH * (4 * (1 + keys) + 5 * norms)
    assert layer["casts"] <= 1.001 * cast * (HALF + FULL)
    assert layer["others"] <= others * N * WIDTH
    rest = sum(few.num_bytes.values()) - LAYERS[0] * sum(layer.values())
    assert rest <= ends * N * WIDTH
