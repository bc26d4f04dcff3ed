"""What a rule sees, and what it answers."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from strategies.hardware import Hardware
from strategies.layout import Layout
from strategies.spec import Strategy, TrainSpec


@dataclass(frozen=True)
class Asked:
    """A spec with its open fields resolved, and where it is to run."""

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
    """Why a spec cannot run. `param` is a dotted field of the spec; the message has the numbers
    and the nearest value that would do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    param: str
    message: str


def largest_divisor(limit: int, *numbers: int) -> int:
    """The largest degree up to `limit` that divides every number: what a rule advises."""
    return next(d for d in range(limit, 0, -1) if all(number % d == 0 for number in numbers))
