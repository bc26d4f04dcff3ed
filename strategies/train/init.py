"""Initial weights that do not depend on the layout: seed, name and position determine a number, so
a rank draws only its own, on its device.

They come from a source: a Hugging Face checkpoint, or `Seed`, which draws them. Norm weights start
at 1, biases at 0, matrices at a normal distribution with deviation sqrt(2 / (5 x width))
(SmallInit, arXiv:1910.05895, equation 6: 0.05 at width 160, 0.023 at width 768). For image models,
whose matrices read more or fewer numbers than width, the formula uses how many each reads. In an
adapter, A is uniform up to 1 / sqrt(width) and B zero; adapters are always drawn. Numbers are
computed in float32, whatever the precision of the run, which then rounds them.
"""

import hashlib
import importlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from strategies.plan.catalog import MODELS
from strategies.plan.image_shapes import image_shape, num_classes
from strategies.plan.shapes import tokens_per_sample, vocabulary_size
from strategies.plan.spec import TrainSpec
from strategies.train.adapters.adapters import adapt
from strategies.train.adapters.frozen_matrix import FrozenMatrix
from strategies.train.mesh import Mesh
from strategies.train.models.network import Network
from strategies.train.philox import normal_numbers, uniform_numbers
from strategies.train.precision import dtype_of, frozen_dtype_of

Region = tuple[slice, ...]  # part of a tensor, with the bounds of every dimension
ADAPTER = re.compile(r"\.lora\.\w+\.([ab])$")


class Source(Protocol):
    """Source of initial weights."""

    def read(self, name: str, shape: torch.Size, region: Region, *, device: torch.device) -> Tensor:
        """Return a region of the weight with this global name and, as a whole, this shape.

        It is wanted on `device`; a source that reads files may return it on the CPU.
        """


@dataclass(frozen=True)
class Seed:
    """Source that draws a region from a stream of random numbers keyed by hash(seed, name)."""

    seed: int
    width: int | None  # None: for each matrix, the count of numbers it reads

    def read(self, name: str, shape: torch.Size, region: Region, *, device: torch.device) -> Tensor:
        return first_values(name, shape, region, seed=self.seed, width=self.width, device=device)


def seed_of(spec: TrainSpec) -> Seed:
    """Return the source of a model that starts from random weights."""
    return Seed(spec.training.seed, None if spec.model.name.reads_images else spec.model.width)


def design_model(spec: TrainSpec) -> Network:
    """Return the model without storage, so that it can be cut and spread before it takes memory."""
    module, _, name = MODELS[spec.model.name].partition(":")
    make: Callable[..., Network] = getattr(importlib.import_module(module), name)
    with torch.device("meta"):  # torch's own initial values are not wanted
        if spec.model.name.reads_images:
            return make(
                spec.model,
                image=image_shape(spec.data),
                classes=num_classes(spec.data),
                dtype=dtype_of(spec.precision),
            )
        model = make(
            spec.model,
            vocabulary=vocabulary_size(spec.data),
            sequence_length=tokens_per_sample(spec.data),
            dtype=dtype_of(spec.precision),
        )
    if spec.adapter is not None:
        adapt(model, spec.adapter, frozen_dtype=frozen_dtype_of(spec))
    return model


def build_model(spec: TrainSpec, *, device: torch.device, source: Source | None = None) -> Network:
    """Return the whole model with its initial weights, by default the random ones."""
    model = design_model(spec)
    for name, module in parts_of(model):
        materialise(module, name, source or seed_of(spec), device=device)
    model.compute_constants(device)
    model.tie()
    return model


def parts_of(model: Network) -> Iterator[tuple[str, nn.Module]]:
    """Yield a model's layers and its other parts, by global name; a head that shares the
    embedding's matrix is left out where the embedding is."""
    for name, layer in model.layers.items():
        yield f"layers.{name}", layer
    for name in ("embedding", "norm", "head"):
        module = getattr(model, name)
        if module is None or (name == "head" and model.tied and model.embedding is not None):
            continue
        yield "embedding" if model.tied and name == "head" else name, module


def give_first_weights(
    model: Network,
    source: Source,
    mesh: Mesh,
    *,
    before: Callable[[nn.Module], None] = lambda layer: None,
    then: Callable[[nn.Module], None] = lambda layer: None,
    on_host: bool = False,
) -> None:
    """Allocate and fill the weights of a meta model, layer by layer.

    `before` takes each layer without storage, and may cut its weights, of which this rank then
    draws its own part only; `then` takes each layer with its weights. `on_host` says that layers
    have them in the host's memory.
    """
    layers = set(model.layers.values())
    for name, module in parts_of(model):
        if module in layers:
            before(module)
        kept_on = torch.device("cpu") if on_host and module in layers else mesh.device
        materialise(module, name, source, device=mesh.device, kept_on=kept_on)
        if module in layers:
            then(module)
    model.compute_constants(mesh.device)
    model.tie()


@torch.no_grad()
def materialise(
    module: nn.Module,
    name: str,
    source: Source,
    *,
    device: torch.device,
    kept_on: torch.device | None = None,
) -> None:
    """Give a module of a meta model storage and initial weights; `name` is its global name.

    They are drawn on `device`, and kept there or on `kept_on`.
    """
    module.to_empty(device=kept_on or device)
    for own_name, matrix in module.named_modules(prefix=name):
        if isinstance(matrix, FrozenMatrix):
            whole = tuple(slice(0, length) for length in matrix.shape)
            matrix.take(source.read(f"{own_name}.weight", matrix.shape, whole, device=device))
    for own_name, parameter in module.named_parameters(prefix=name):
        if not parameter.is_floating_point():
            continue  # codes of a frozen matrix, filled above
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        region = own_region(parameter)
        own.copy_(source.read(own_name, parameter.shape, region, device=device))


def own_region(weight: Tensor) -> Region:
    """Return the region of a whole tensor that this rank holds."""
    shape, offset = tuple(weight.shape), (0,) * weight.ndim
    if isinstance(weight, DTensor):
        shape, offset = compute_local_shape_and_global_offset(
            weight.shape, weight.device_mesh, weight.placements
        )
    return region_at(offset, shape)


def region_at(offsets: Sequence[int], sizes: Sequence[int]) -> Region:
    """Return the region of these sizes that begins at these offsets."""
    return tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))


def first_values(
    name: str,
    shape: torch.Size,
    region: Region,
    *,
    seed: int,
    width: int | None,
    device: torch.device,
) -> Tensor:
    """Return a region of a drawn tensor, in float32.

    Its whole rows are drawn: number n of the flattened tensor is number n of the tensor's stream.
    """
    adapter = ADAPTER.search(name)
    if len(shape) == 1 or (adapter is not None and adapter[1] == "b"):
        is_norm = len(shape) == 1 and not name.endswith("bias")
        return torch.full(
            [part.stop - part.start for part in region], float(is_norm), device=device
        )
    rows, *columns = region
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    key = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
    row = math.prod(shape[1:])
    span = range(rows.start * row, rows.stop * row)
    if adapter is not None:  # torch's own for a linear layer, which is peft's
        drawn = uniform_numbers(key, span, device).mul_(1 / math.sqrt(shape[1]))
    else:
        deviation = math.sqrt(2 / (5 * (width or row)))
        drawn = normal_numbers(key, span, device).mul_(deviation)
    return drawn.view(-1, *shape[1:])[:, *columns]
