"""Gradient of the whole model, whichever part of it a rank holds: its norm, and clipping."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from strategies.train.mesh import Mesh


class Weight(NamedTuple):
    """Parameter under its global name, and the number of ranks that hold each number of it."""

    name: str
    parameter: nn.Parameter
    copies: int


def weights_of(named: Sequence[tuple[str, nn.Parameter]], mesh: Mesh) -> list[Weight]:
    """Return the trained parameters of this rank's layers.

    A rank that shares its layers with others but holds only part of the numbers has a DTensor; a
    plain tensor is held whole by all ranks of the layer.
    """
    return [
        Weight(name, parameter, mesh.layout.stage_size // num_shards(parameter))
        for name, parameter in named
        if parameter.requires_grad
    ]


def num_shards(tensor: Tensor) -> int:
    """Return the number of parts into which ranks have split a tensor."""
    if not isinstance(tensor, DTensor):
        return 1
    shards = 1
    for degree, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
        shards *= 1 if placement.is_replicate() else degree
    return shards


def own_part(tensor: Tensor) -> Tensor:
    """Return the numbers that this rank holds, as a plain tensor on the same storage."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_gradient(parameter: nn.Parameter) -> Tensor:
    """Return the numbers of a gradient that this rank holds."""
    assert parameter.grad is not None
    return own_part(parameter.grad)


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that this rank holds of some tensors."""
    return sum(part.numel() * part.element_size() for part in map(own_part, tensors))


@torch.no_grad()
def clip_gradients(
    weights: Sequence[Weight], max_norm: float, mesh: Mesh, *, loss_scale: float = 1.0
) -> Tensor:
    """Divide the gradient by `loss_scale`, and scale that of the whole model to at most `max_norm`.

    Returns its norm before the second scaling, 0-d, float64. Every rank adds up the squares of its
    numbers, each divided by the number of ranks that also hold it; the sum over all ranks then
    counts every number once, whatever the layout. A gradient that is not finite is not changed, so
    that one can still see where it broke.
    """
    settle(weight.parameter for weight in weights)
    by_copies: dict[int, list[Tensor]] = {}
    for weight in weights:
        if weight.parameter.grad is not None:
            by_copies.setdefault(weight.copies, []).append(own_gradient(weight.parameter))
    squares = torch.zeros((), dtype=torch.float64, device=mesh.device)
    for copies, gradients in by_copies.items():
        squares += norm_of(gradients, mesh.device).square() / copies
    everyone_holds_all = set(by_copies) <= {mesh.world_size}
    total = squares * mesh.world_size if everyone_holds_all else mesh.sum(squares)
    norm = total.sqrt() / loss_scale
    scale_down(itertools.chain(*by_copies.values()), clip_factor(norm, max_norm, loss_scale))
    return norm


def clip_factor(norm: Tensor, max_norm: float, loss_scale: float) -> Tensor:
    """Return the factor of the whole gradient, 0-d; 1 if its norm is not finite.

    `norm` is that of the gradient divided by `loss_scale`.
    """
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0) / loss_scale
    return torch.where(norm.isfinite(), factor, 1.0)


def scale_down(gradients: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply gradients by a 0-d factor, in place.

    Offloaded gradients are in host memory; a tensor cannot be multiplied by one on another device.
    One kernel takes all gradients of a device if the factor has their type, else one kernel each.
    """
    for (device, dtype), together in by_place(gradients).items():
        torch._foreach_mul_(together, factor.to(device, dtype))


def by_place(tensors: Iterable[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """Group tensors by device and type."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return groups


def broken_weights(weights: Sequence[Weight], *, updated: bool) -> list[str]:
    """Return the names of weights whose gradient, on this rank, is not finite.

    With `updated` the gradient has been used: it has made the same weights not finite.
    """
    return [
        weight.name
        for weight in weights
        for tensor in [weight.parameter if updated else weight.parameter.grad]
        if tensor is not None and not own_part(tensor).isfinite().all()
    ]


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Lay out every gradient as its parameter: some tensor-parallel ones are not summed yet.

    Those of norms are many and small, so ranks send all of a type in one message.
    """
    parts: dict[tuple[ProcessGroup, torch.dtype], list[tuple[nn.Parameter, DTensor]]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
            continue
        if (group := group_of_sum(gradient, parameter)) is not None:
            parts.setdefault((group, gradient.dtype), []).append((parameter, gradient))
        elif gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    for (group, _), together in parts.items():
        own = [gradient.to_local() for _, gradient in together]
        totals = torch.cat([part.flatten() for part in own])
        dist.all_reduce(totals, group=group)
        sizes = [part.numel() for part in own]
        for (parameter, _), part, total in zip(
            together, own, torch.split(totals, sizes), strict=True
        ):
            assert isinstance(parameter, DTensor)
            parameter.grad = DTensor.from_local(
                total.view_as(part),
                *(parameter.device_mesh, parameter.placements),
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )


def group_of_sum(gradient: DTensor, parameter: DTensor) -> ProcessGroup | None:
    """Return the ranks whose parts of a gradient add up to it; None if there is more to do, or
    nothing."""
    found = None
    both = zip(gradient.placements, parameter.placements, strict=True)
    for axis, (own, wanted) in enumerate(both):
        if own == wanted:
            continue
        if found is not None or not own.is_partial("sum") or not wanted.is_replicate():
            return None
        found = gradient.device_mesh.get_group(axis)
    return found


def norm_of(gradients: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return the norm of all gradients as one vector, 0-d, float64, on `device`.

    Row by row, and the rows in float64: in one sum on CPU, float32 sums are so long that torch's
    own norm is off by 3e-6 on 160 x 640 numbers and by 6e-4 on 4096 x 4096. It costs the same.
    """
    norms = []
    for together in by_place(gradients).values():
        rows = torch.cat([row_norms(gradient) for gradient in together])
        norms.append(torch.linalg.vector_norm(rows, dtype=torch.float64).to(device))
    norm: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return norm


def row_norms(gradient: Tensor) -> Tensor:
    """Return the norm of every row, in float32 or wider, 1-d."""
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(gradient, dim=-1, dtype=dtype)
    return norms.flatten()
