"""Instructions to a training that proves a node: its fault, and the observations that it leaves.

Written into the run directory beside plan.json and read by `strategies.train.proving.trainer`.
Torch-free.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

EXPERIMENT = "experiment.json"
STRUCK = "struck"  # the file that a rank leaves just before its fault

Kind = Literal["hang", "kill", "stop", "terminate", "overflow", "out_of_memory"]
Place = Literal["forward", "backward", "join", "matmul"]


class ExperimentPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fault(ExperimentPart):
    """Failure of one rank on purpose.

    hang: sleeps for ever. kill, stop, terminate: SIGKILL, SIGSTOP, SIGTERM to itself. overflow:
    gradients beyond float16. out_of_memory: asks for more memory than there is.
    """

    kind: Kind
    rank: int = Field(ge=0)
    step: int = Field(default=3, ge=1)
    place: Place = "forward"
    """Moment of out_of_memory. On GPUs only: before the ranks meet (join), in cuBLAS (matmul)."""


class Experiment(ExperimentPart):
    """Content of experiment.json."""

    fault: Fault | None = None


class StepSeen(ExperimentPart):
    """Observation of one step of one rank."""

    idle_s: float | None
    """Time between the previous step and this one in which the device did nothing of either."""
    graphs: int
    """Graphs that torch.compile has made so far."""
    breaks: int
    """Places so far at which it had to leave a graph."""


class Observations(ExperimentPart):
    """Content of observations-N.json: what rank N saw."""

    steps: list[StepSeen] = []
    graphs: int = 0
    """Graphs at the end of the run, evaluations included."""
    reserved_gib: float | None = None
    """Highest memory of the caching allocator; None on a CPU."""


def observations_name(rank: int) -> str:
    """Return the file name of a rank's observations."""
    return f"observations-{rank}.json"
