"""Trainer whose run is watched, and fails on purpose if experiment.json says so.

Apart from that it is `strategies.train.main`: the engine is wrapped, nothing is replaced.
"""

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.estimates.memory import GIB
from strategies.plan.run_directory import RunDirectory
from strategies.plan.trust.experiment import (
    EXPERIMENT,
    STRUCK,
    Experiment,
    Fault,
    Observations,
    StepSeen,
    observations_name,
)
from strategies.train.engine import Batch, Engine, HeldBytes, State, engine_for
from strategies.train.failures import report
from strategies.train.init import Source
from strategies.train.main import end_process, run
from strategies.train.mesh import Mesh
from strategies.train.models.loss import Measure

TOO_MUCH = 1 << 56  # bytes; more than any machine has
LEFT_FREE = 8 << 20  # bytes of a GPU; too few for a communicator or for cuBLAS
OVERFLOW = 1e-12  # factor of the divisor: gradients become 10^12 times as large


Mark = torch.cuda.Event | float


class Watched:
    """Engine that does what another does, notes what it sees, and may fail."""

    def __init__(self, engine: Engine, fault: Fault | None, folder: Path) -> None:
        self.engine, self.fault, self.folder = engine, fault, folder
        self.rank = int(os.environ.get("RANK", "0"))
        self.seen: list[tuple[int, int]] = []  # graphs and breaks before each step
        self.begun: list[Mark] = []
        self.ended: list[Mark] = []
        self.kept: list[Tensor] = []
        self.device = torch.device("cpu")

    @property
    def runs_ahead(self) -> bool:
        return self.engine.runs_ahead

    def setup(self, spec: Any, plan: Any, mesh: Mesh, source: Source) -> None:
        self.device = mesh.device
        self.engine.setup(spec, plan, mesh, source)

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.begun.append(self.mark())
        breaks = sum(counters["graph_break"].values())
        self.seen.append((counters["stats"]["unique_graphs"], breaks))
        fault = self.fault
        if fault is None or fault.rank != self.rank or fault.step != len(self.seen):
            return self.engine.forward_backward(micro_batches, divisor)
        if fault.kind == "overflow":
            return self.engine.forward_backward(micro_batches, divisor * OVERFLOW) * OVERFLOW
        if fault.kind == "out_of_memory" and fault.place == "backward":
            with in_backward(self.strike):
                return self.engine.forward_backward(micro_batches, divisor)
        self.strike()
        return self.engine.forward_backward(micro_batches, divisor)

    def strike(self) -> None:
        """Fail as asked."""
        assert self.fault is not None
        (self.folder / STRUCK).touch()
        match self.fault.kind:
            case "hang":
                threading.Event().wait()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
            case "out_of_memory" if self.fault.place == "matmul":
                self.kept.append(almost_all_memory(self.device))
                multiply_in_a_new_thread(self.device)
            case "out_of_memory":
                self.kept.append(torch.empty(TOO_MUCH, dtype=torch.uint8, device=self.device))

    def mark(self) -> Mark:
        """Return the moment at which the work given so far has been done; waits for nothing."""
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def steps(self) -> list[StepSeen]:
        """Return what was seen of each step."""
        idle = [None, *map(seconds_between, self.ended, self.begun[1:])]
        return [
            StepSeen(idle_s=idle_s, graphs=graphs, breaks=breaks)
            for idle_s, (graphs, breaks) in zip(idle, self.seen, strict=False)
        ]

    def clip(self, max_norm: float, loss_scale: float = 1.0) -> Tensor:
        return self.engine.clip(max_norm, loss_scale)

    def step(self, learning_rate: float) -> None:
        self.engine.step(learning_rate)
        self.ended.append(self.mark())

    def skip(self) -> None:
        self.engine.skip()
        self.ended.append(self.mark())

    def broken_weights(self, *, updated: bool) -> list[str]:
        return self.engine.broken_weights(updated=updated)

    def evaluate(self, micro_batch: Batch, measure: Measure) -> Tensor:
        return self.engine.evaluate(micro_batch, measure)

    def held(self) -> HeldBytes:
        return self.engine.held()

    def state(self) -> State:
        return self.engine.state()

    def load(self, state: State) -> None:
        self.engine.load(state)

    def close(self) -> None:
        reserved = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            reserved = torch.cuda.max_memory_reserved() / GIB
        found = Observations(
            steps=self.steps(), graphs=counters["stats"]["unique_graphs"], reserved_gib=reserved
        )
        write_atomically(self.folder / observations_name(self.rank), json_bytes(found))
        self.engine.close()


def seconds_between(ended: Mark, begun: Mark) -> float:
    """Return the seconds from the end of one step to the begin of the next, on the device."""
    if isinstance(ended, float) or isinstance(begun, float):
        assert isinstance(ended, float)
        assert isinstance(begun, float)
        return begun - ended
    return float(ended.elapsed_time(begun)) / 1e3


@contextmanager
def in_backward(strike: Callable[[], None]) -> Iterator[None]:
    """Call `strike` when the backward pass first asks for a saved tensor."""

    def give(tensor: Tensor) -> Tensor:
        strike()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, give):
        yield


def almost_all_memory(device: torch.device) -> Tensor:
    """Take the free memory of a GPU but LEFT_FREE, past the caching allocator's reserve."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return torch.empty(max(0, free - LEFT_FREE), dtype=torch.uint8, device=device)


def multiply_in_a_new_thread(device: torch.device) -> None:
    """Make cuBLAS create a handle, which needs memory that torch's allocator does not give."""
    errors: list[BaseException] = []

    def multiply() -> None:
        try:
            (torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).sum().item()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Train as `strategies.train.main` does, watched; return the exit code."""
    parser = argparse.ArgumentParser(prog="strategies.train.proving.trainer", description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args(argv)
    folder: Path = arguments.run_dir
    experiment = Experiment.model_validate_json((folder / EXPERIMENT).read_bytes())
    run_plan = RunDirectory(folder).read_plan()
    fault = experiment.fault
    engine = Watched(engine_for(run_plan.plan), fault, folder)
    if fault is not None and fault.place == "join" and fault.rank == engine.rank:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        (folder / STRUCK).touch()
        try:
            engine.kept.append(almost_all_memory(device))
        except RuntimeError as error:
            return report(error)
    return run(run_plan, folder, engine=engine)


if __name__ == "__main__":
    end_process(main())
