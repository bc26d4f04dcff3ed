"""A tensor-parallel rank's own tensors of parameters, which torch's DTensor holds for all ranks."""

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def own(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter; without tensor parallelism, all of it."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def own_copy(parameter: Tensor) -> Tensor:
    """Return this rank's copy of a parameter, whose gradient is a sum over ranks."""
    if not isinstance(parameter, DTensor):
        return parameter
    return parameter.to_local(grad_placements=[Partial()])
