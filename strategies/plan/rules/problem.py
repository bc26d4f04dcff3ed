"""Input and output of a rule."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from strategies.plan.hardware import Hardware
from strategies.plan.layout import Layout
from strategies.plan.spec import Strategy, TrainSpec


@dataclass(frozen=True)
class ResolvedSpec:
    """Spec with its open fields resolved, and the nodes and hardware it is to run on."""

    spec: TrainSpec
    strategy: Strategy
    layout: Layout
    micro_batch_size: int
    gradient_accumulation_steps: int
    nodes: int
    ranks_per_node: int
    hardware: Hardware

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


class Problem(BaseModel):
    """Reason why a spec cannot run.

    `param` is a dotted field of the spec; the message has the numbers and the nearest valid value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    param: str
    message: str


def largest_divisor(limit: int, *numbers: int) -> int:
    """Return the largest degree up to `limit` that divides every number, for a rule's advice."""
    return next(d for d in range(limit, 0, -1) if all(number % d == 0 for number in numbers))
