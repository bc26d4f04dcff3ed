"""Measurement of one step in many: duration of its phases, time this rank only waited for others,
and memory use after each phase.

Communication that overlaps computation costs nothing, so timers cannot tell what it costs; torch's
profiler can. Exposed time is the time in which a collective ran and no computation did.
"""

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.profiler import ProfilerActivity, profile

from strategies.plan.estimates.memory import GIB
from strategies.train.engine import HeldBytes
from strategies.train.gradients import own_part
from strategies.train.watching.phases import Phase, listeners

FIRST_LOOK = 20  # steps after the start: torch has warmed up by then
EVERY = 500  # steps; a measurement costs about one step's time
COLLECTIVES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")

Interval = tuple[int, int]  # begin and end, ns


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
        activations = KeptActivations()
        watch = PhaseWatch(self.device, self.held, activations, found)
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with ExitStack() as stack:
            recording = stack.enter_context(profile(activities=activities))
            stack.enter_context(
                torch.autograd.graph.saved_tensors_hooks(activations.keep, activations.give)
            )
            listeners.append(watch)
            stack.callback(listeners.remove, watch)
            watch.remember("before_forward")
            began = time.perf_counter()
            yield found
            watch.settle()
            found["look_time_s"] = time.perf_counter() - began
        found["exposed_comm_time_s"] = exposed_seconds(recording)


class PhaseWatch:
    """Listener that adds up each phase's time and records the memory in use at its end."""

    def __init__(
        self,
        device: torch.device,
        held: Callable[[], HeldBytes],
        activations: "KeptActivations",
        found: dict[str, float],
    ) -> None:
        self.device, self.held, self.activations, self.found = device, held, activations, found
        self.began = 0.0

    def __call__(self, phase: Phase, begins: bool) -> None:
        self.settle()
        if begins:
            self.began = time.perf_counter()
            return
        key = f"{phase}_time_s"
        self.found[key] = self.found.get(key, 0.0) + time.perf_counter() - self.began
        self.remember(f"after_{phase}")

    def settle(self) -> None:
        """Wait until the GPU has finished its queue, so that each phase is charged for its own
        work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def remember(self, moment: str) -> None:
        """Record the memory in use; of several micro-batches the last one counts."""
        held = self.held()
        rest = self.activations.num_bytes
        if self.device.type == "cuda":
            rest = torch.cuda.memory_allocated(self.device) - sum(held)
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


def exposed_seconds(recording: profile) -> float:
    """Return the seconds in which a collective ran while nothing was computed."""
    assert recording.profiler is not None
    results = recording.profiler.kineto_results
    assert results is not None
    events = [
        (event.name(), event.device_type(), (event.start_ns(), event.end_ns()))
        for event in results.events()
    ]
    on_gpu = any(device == torch.profiler.DeviceType.CUDA for _, device, _ in events)
    if on_gpu:
        events = [e for e in events if e[1] == torch.profiler.DeviceType.CUDA]
    communication = [span for name, _, span in events if name.startswith(COLLECTIVES)]
    computation = [
        span
        for name, _, span in events
        if (on_gpu and not name.startswith(COLLECTIVES)) or name.startswith("aten::")
    ]
    return uncovered_ns(communication, computation) / 1e9


def uncovered_ns(spans: Iterable[Interval], covers: Iterable[Interval]) -> int:
    """Return how much of the union of `spans` is covered by no interval of `covers`, in ns."""
    together = length(merged([*spans, *covers]))
    return together - length(merged(covers))


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same points as disjoint intervals in ascending order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def length(intervals: Iterable[Interval]) -> int:
    """Return the sum of the intervals' lengths."""
    return sum(end - begin for begin, end in intervals)
