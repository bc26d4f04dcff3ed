"""Measurement of one step in many: duration of its phases, time this rank only waited for others,
and memory use after each phase.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from strategies.plan.estimates.memory import GIB
from strategies.train.engine import HeldBytes
from strategies.train.gradients import own_part
from strategies.train.watching.clock import Clock, Interval
from strategies.train.watching.phases import Phase, listeners
from strategies.train.watching.waits import Waits

FIRST_LOOK = 20  # steps after the start: torch has warmed up by then
EVERY = 500  # steps


class Probe:
    """Measurement of a few steps of a run, the same ones on all ranks."""

    def __init__(self, device: torch.device, held: Callable[[], HeldBytes]) -> None:
        self.device, self.held = device, held
        self.steps = 0
        self.is_asked = False
        """True to measure the next step whatever its number; all ranks measure the same one."""

    @contextmanager
    def next_step(self) -> Iterator[dict[str, float]]:
        """Wrap every step; yield the measurements of the step, most often an empty dict."""
        self.steps += 1
        if self.is_asked or self.steps == FIRST_LOOK or self.steps % EVERY == 0:
            self.is_asked = False
            with self.look() as found:
                yield found
        else:
            yield {}

    @contextmanager
    def look(self) -> Iterator[dict[str, float]]:
        """Measure the step that runs inside; the yielded metrics are complete at the end.

        Seconds: `look_time_s` for all of it, and of it `forward_time_s`, `backward_time_s`,
        `optimizer_time_s`, `exposed_comm_time_s`.

        GiB on this rank, for each of four moments: `<moment>_weights_gib` and so on.
        """
        found: dict[str, float] = {}
        clock, activations = Clock(self.device), KeptActivations()
        watch, waits = PhaseWatch(clock, self.held, activations, found), Waits(clock)

        def give(kept: Tensor | SavedTensor) -> Tensor:
            waits.in_backward()
            return activations.give(kept)

        with ExitStack() as stack:
            stack.enter_context(waits.watching())
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(activations.keep, give))
            for listener in (waits, watch):
                listeners.append(listener)
                stack.callback(listeners.remove, listener)
            watch.remember("before_forward")
            began = clock.mark()
            yield found
            ended = clock.mark()
        clock.settle()
        found["look_time_s"] = clock.seconds(ended) - clock.seconds(began)
        found |= watch.times()
        found["exposed_comm_time_s"] = waits.seconds()


class PhaseWatch:
    """Listener that marks each phase, and records the memory in use at its end."""

    def __init__(
        self,
        clock: Clock,
        held: Callable[[], HeldBytes],
        activations: "KeptActivations",
        found: dict[str, float],
    ) -> None:
        self.clock, self.held, self.activations, self.found = clock, held, activations, found
        self.began = clock.start
        self.intervals: list[tuple[Phase, Interval]] = []

    def __call__(self, phase: Phase, begins: bool) -> None:
        if begins:
            self.began = self.clock.mark()
            return
        self.intervals.append((phase, (self.began, self.clock.mark())))
        self.remember(f"after_{phase}")

    def times(self) -> dict[str, float]:
        """Return the seconds of each phase; the clock has settled."""
        times: dict[str, float] = {}
        for phase, (begin, end) in self.intervals:
            seconds = self.clock.seconds(end) - self.clock.seconds(begin)
            times[f"{phase}_time_s"] = times.get(f"{phase}_time_s", 0.0) + seconds
        return times

    def remember(self, moment: str) -> None:
        """Record the memory in use; of several micro-batches the last one counts."""
        held = self.held()
        rest = self.activations.num_bytes
        if self.clock.device.type == "cuda":
            rest = torch.cuda.memory_allocated(self.clock.device) - sum(held)
        for kind, num_bytes in {**held._asdict(), "rest": rest}.items():
            self.found[f"{moment}_{kind}_gib"] = num_bytes / GIB


class SavedTensor:
    """Tensor that a backward pass will need."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class KeptActivations:
    """Bytes that autograd keeps for the backward pass, each storage counted once.

    Weights and views of them are kept too, but they exist in any case and do not count.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self.uses: Counter[int] = Counter()

    def keep(self, tensor: Tensor) -> Tensor | SavedTensor:
        origin = tensor if tensor._base is None else tensor._base
        if origin.is_leaf and origin.requires_grad:
            return tensor
        own = own_part(tensor)
        if isinstance(own, AsyncCollectiveTensor):  # has no storage of its own
            own = own.elem
        storage = own.untyped_storage()
        kept, address = SavedTensor(tensor), storage.data_ptr()
        if not self.uses[address]:
            self.num_bytes += storage.nbytes()
        self.uses[address] += 1
        weakref.finalize(kept, self.forget, address, storage.nbytes())
        return kept

    def give(self, kept: Tensor | SavedTensor) -> Tensor:
        return kept.tensor if isinstance(kept, SavedTensor) else kept

    def forget(self, address: int, num_bytes: int) -> None:
        self.uses[address] -= 1
        if not self.uses[address]:
            self.num_bytes -= num_bytes
