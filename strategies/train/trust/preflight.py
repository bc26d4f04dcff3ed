"""Preflight: test a group of ranks before a job trusts it.

By hand `trainyard preflight`, or
`torchrun --nproc-per-node 2 -m strategies.train.trust.preflight` with torchrun's usual arguments
for several nodes. Every multi-rank run does the quick form, `trust`.
"""

import argparse
import hashlib
import itertools
import math
import os
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import BaseModel
from torch import Tensor
from torch.distributed.distributed_c10d import Store, _get_default_store, _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from strategies.plan.trust.nccl_log import NcclLog, transport_of, warnings_of
from strategies.plan.trust.preflight_report import (
    Check,
    Missing,
    OtherBits,
    Report,
    SlowRank,
    Timing,
    WrongValue,
)
from strategies.train.mesh import Mesh
from strategies.train.trust.collectives import MIB, PreparedCheck, full_list, prepare, quick_list
from strategies.train.trust.roll_call import RanksMissing, RollCall
from strategies.train.trust.transport import gloo_transport, nccl_logging, read_nccl_log

START_TIMEOUT_S = 120.0  # for all ranks to have imported torch
TIMEOUT_S = 10.0  # torchrun gives the survivors of a dead rank 25 s; naming it takes 2 x 10 + 1
QUICK_TIMEOUT_S = 20.0  # ranks of a loaded machine come to their first collective seconds apart
AHEAD = 2  # checks of the quick form that are in progress while another is waited for
REPEATS = 9  # the first one warms up
SLOW_FACTOR = 3.0
SLOW_BY_S = 1e-3  # a smaller difference is the machine's noise, whatever the factor
MATRIX_WIDTH = {"cpu": 192, "cuda": 4096}
LINK_BYTES, LINK_TRIPS = 4 * MIB, 5

numbered = itertools.count()


class PreflightFailed(Exception):
    """Ranks that cannot be trusted; the message names them and says why."""


def trust(
    mesh: Mesh,
    *,
    timeout_s: float,
    tell: Callable[[Report], None],
    begun: Callable[[RollCall], None] = lambda roll: None,
) -> None:
    """Do the quick preflight and pass its report to `tell`. Raises PreflightFailed naming the rank.

    `begun` gets the roll call, for a thread that watches the time.

    Collectives have `timeout_s` again afterwards. A slow rank alone is not a reason to refuse: ten
    collectives cannot tell it from a busy moment.
    """
    short_s = min(QUICK_TIMEOUT_S, timeout_s)
    mesh.set_timeout(short_s)
    report = quick(mesh, timeout_s=short_s, begun=begun)
    mesh.set_timeout(timeout_s)
    tell(report)
    if report.failures:
        raise PreflightFailed(f"preflight: {'; '.join(report.failures[:3])}")


def quick(
    mesh: Mesh,
    *,
    timeout_s: float = QUICK_TIMEOUT_S,
    begun: Callable[[RollCall], None] = lambda roll: None,
) -> Report:
    """Run each collective once in the default process group; called by all ranks together."""
    return examine(quick_list(), device=mesh.device, timeout_s=timeout_s, repeats=1, begun=begun)


def examine(
    checks: Sequence[Check],
    *,
    device: torch.device,
    timeout_s: float,
    repeats: int = REPEATS,
    done: Callable[[int], None] = lambda number: None,
    begun: Callable[[RollCall], None] = lambda roll: None,
    log: Path | None = None,
) -> Report:
    """Run the checks in the default process group; return the same report on every live rank.

    `done` is called with the number of checks completed on this rank. With a single repeat,
    measurements of single ranks and links and random numbers are left out. `log` is NCCL's log of
    this rank, if it writes one.
    """
    began = time.perf_counter()
    roll = RollCall(
        _get_default_store(),
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        timeout_s=timeout_s,
        name=f"preflight-{next(numbered)}",
    )
    begun(roll)
    rank = Examiner(roll, device, repeats, log)
    try:
        everyone = rank.examine(checks, done)
        missing = None
    except RanksMissing as error:
        everyone = [rank.findings]
        missing = Missing(ranks=sorted(error.ranks), why=str(error))
    logs = [findings.nccl for findings in everyone if findings.nccl is not None]
    nodes = roll.world_size // int(os.environ.get("LOCAL_WORLD_SIZE", roll.world_size))
    over_gloo = dist.get_backend() == "gloo"
    report = Report(
        device=device_name(device),
        backend=dist.get_backend(),
        torch=torch.__version__,
        ranks=roll.names,
        seconds=time.perf_counter() - began,
        timings=list(timings(checks, everyone)),
        wrong=[wrong for findings in everyone for wrong in findings.wrong],
        other_bits=rank.findings.other_bits,
        slow=[] if missing else slow_ranks(everyone),
        missing=missing,
        transport=gloo_transport() if over_gloo else transport_of(logs, nodes=nodes),
        warnings=warnings_of(logs, nodes=nodes),
    )
    if missing is None and report.findings:
        roll.leave_with(range(roll.world_size))  # a rank that reads this report may exit at once
    return report


class RankTimes(BaseModel):
    """One rank's times in one check."""

    own_s: float
    """Time of the rank's own work between the previous collective and this one."""
    taken_s: list[float]
    bus_bytes: float


class Findings(BaseModel):
    """Findings of one rank."""

    rank: int
    measured: list[RankTimes] = []
    alone_s: list[float] = []
    """Times of a matrix product on the rank's own device, after every check."""
    link_s: float | None = None
    """Time to the right neighbour and back."""
    wrong: list[WrongValue] = []
    other_bits: list[OtherBits] = []
    nccl: NcclLog | None = None


@dataclass(frozen=True)
class OnItsWay:
    """Check that has begun."""

    check: Check
    prepared: PreparedCheck
    work: dist.Work | None
    """Work that waits for the end of the check; None if it has ended."""
    entered: tuple[int, str]
    """Place and name in the roll call."""
    own_s: float
    began: float


@dataclass
class Examiner:
    """One rank's part in a preflight."""

    roll: RollCall
    device: torch.device
    repeats: int
    log: Path | None = None
    findings: Findings = field(init=False)
    free_since: float = 0.0
    """Time at which this rank last finished an operation with the others."""

    def __post_init__(self) -> None:
        self.findings = Findings(rank=self.roll.rank)

    def examine(self, checks: Sequence[Check], done: Callable[[int], None]) -> list[Findings]:
        """Run all checks; return the findings of all ranks, by rank. Raises RanksMissing."""
        purpose = "the preflight"
        ready: Iterable[PreparedCheck] = map(self.prepare, checks)  # one at a time: some are large
        if self.repeats == 1:  # ranks will not meet before each check: they compare lists here
            listed = hashlib.sha256(repr(checks).encode()).hexdigest()[:8]
            purpose = f"the quick preflight of list {listed}"
            ready = list(ready)  # prepared while other ranks are still arriving
        self.roll.introduce(purpose)
        self.free_since = time.perf_counter()
        on_their_way: deque[OnItsWay] = deque()
        for number, (check, prepared) in enumerate(zip(checks, ready, strict=True)):
            if self.repeats > 1:
                self.check(check, prepared)
            else:
                on_their_way.append(self.begin(check, prepared))
            if len(on_their_way) > AHEAD:
                self.end(on_their_way.popleft())
            done(number + 1)
        while on_their_way:
            self.end(on_their_way.popleft())
        if self.repeats > 1:
            for dtype in (torch.float32, torch.bfloat16):
                self.compare_bits(dtype)
            self.time_links()
        if self.log is not None:
            self.findings.nccl = read_nccl_log(self.log)
        said = self.roll.exchange(self.findings.model_dump_json())
        return [Findings.model_validate_json(text) for text in said]

    def prepare(self, check: Check) -> PreparedCheck:
        """Return the tensors of one check."""
        rank, ranks = self.roll.rank, self.roll.world_size
        return prepare(check, rank=rank, ranks=ranks, device=self.device)

    def begin(self, check: Check, prepared: PreparedCheck) -> OnItsWay:
        """Begin a check that is done once, without meeting the others first. Raises RanksMissing.

        To meet costs four small messages per rank.
        """
        own_s = time.perf_counter() - self.free_since
        self.roll.enter(str(check))
        prepared.reset()
        self.synchronize()
        began = time.perf_counter()
        try:
            work = prepared.begin()
        except RuntimeError as error:
            raise self.roll.explain(error) from error
        self.free_since = time.perf_counter()
        return OnItsWay(check, prepared, work, self.roll.waits_for, own_s, began)

    def end(self, one: OnItsWay) -> None:
        """Wait for a check that was begun, compare its result, and record the times.

        Raises RanksMissing.
        """
        self.roll.wait_for(one.entered)
        try:
            if one.work is not None:
                one.work.wait()
            self.synchronize()
        except RuntimeError as error:
            raise self.roll.explain(error) from error
        self.free_since = time.perf_counter()
        self.note(one.prepared, one.own_s, [self.free_since - one.began])
        wrong = self.first_wrong(one.check, one.prepared)
        if wrong is not None:
            self.findings.wrong.append(wrong)

    def check(self, check: Check, prepared: PreparedCheck) -> None:
        """Run one check, compare its result with the expected one, and record the times."""
        self.synchronize()
        own_s = time.perf_counter() - self.free_since
        self.roll.meet(str(check))
        taken_s: list[float] = []
        wrong: WrongValue | None = None
        try:
            for repeat in range(self.repeats):
                prepared.reset()
                if repeat > 0:
                    dist.barrier()
                self.synchronize()
                began = time.perf_counter()
                prepared.run()
                self.synchronize()
                taken_s.append(time.perf_counter() - began)
                wrong = wrong or self.first_wrong(check, prepared)
        except RuntimeError as error:  # backends differ in what they raise if a peer is gone
            raise self.roll.explain(error) from error
        self.free_since = time.perf_counter()
        self.note(prepared, own_s, taken_s)
        if wrong is not None:
            self.findings.wrong.append(wrong)
        self.findings.alone_s.append(self.time_alone())

    def note(self, prepared: PreparedCheck, own_s: float, taken_s: list[float]) -> None:
        """Record the times of a check."""
        self.findings.measured.append(
            RankTimes(own_s=own_s, taken_s=taken_s, bus_bytes=prepared.bus_bytes)
        )

    def first_wrong(self, check: Check, prepared: PreparedCheck) -> WrongValue | None:
        """Return the first number that differs from the expected one."""
        index = prepared.first_wrong()
        if index is None:
            return None
        assert prepared.expected is not None
        got = float(prepared.exchange.received[index])
        return WrongValue(
            check=check,
            rank=self.roll.rank,
            index=index,
            expected=float(prepared.expected[index]),
            got=got if math.isfinite(got) else None,
        )

    def time_alone(self) -> float:
        """Return the seconds of a matrix product that no other rank takes part in."""
        matrix = torch.ones([MATRIX_WIDTH[self.device.type]] * 2, device=self.device)
        self.synchronize()
        began = time.perf_counter()
        matrix @ matrix
        self.synchronize()
        return time.perf_counter() - began

    def compare_bits(self, dtype: torch.dtype) -> None:
        """Add up random numbers, whose sum depends on the order of adding: all ranks must agree."""
        generator = torch.Generator().manual_seed(self.roll.rank)
        numbers = torch.randn(MIB, generator=generator).to(self.device, dtype)
        self.roll.meet(f"all_reduce (random {dtype})")
        try:
            dist.all_reduce(numbers)
        except RuntimeError as error:
            raise self.roll.explain(error) from error
        content = numbers.cpu().view(torch.uint8).numpy().tobytes()
        said = self.roll.exchange(hashlib.sha256(content).hexdigest())
        self.findings.other_bits += [
            OtherBits(rank=rank, dtype=str(dtype).removeprefix("torch."))
            for rank, digest in enumerate(said)
            if digest != said[0]
        ]

    def time_links(self) -> None:
        """Send a tensor to the right neighbour and back, one pair of ranks at a time.

        Skipped for two ranks: their single link cannot tell which of them is slow.
        """
        rank, ranks = self.roll.rank, self.roll.world_size
        if ranks < 3:
            return
        parcel = torch.zeros(LINK_BYTES, dtype=torch.uint8, device=self.device)
        for left in range(ranks):
            right = (left + 1) % ranks
            self.roll.meet(f"the link of ranks {left} and {right}")
            try:
                if rank == left:
                    self.findings.link_s = statistics.median(
                        self.round_trip(parcel, right) for _ in range(LINK_TRIPS)
                    )
                elif rank == right:
                    for _ in range(LINK_TRIPS):
                        dist.recv(parcel, left)
                        dist.send(parcel, left)
            except RuntimeError as error:
                raise self.roll.explain(error) from error

    def round_trip(self, parcel: Tensor, other: int) -> float:
        """Return the seconds to another rank and back."""
        began = time.perf_counter()
        dist.send(parcel, other)
        dist.recv(parcel, other)
        self.synchronize()
        return time.perf_counter() - began

    def synchronize(self) -> None:
        """Wait for the GPU, so that clocks measure completed work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def timings(checks: Sequence[Check], everyone: Sequence[Findings]) -> Iterator[Timing]:
    """Yield a row for each check that all ranks of `everyone` completed."""
    wrong = {found.check for findings in everyone for found in findings.wrong}
    by_check = zip(*(findings.measured for findings in everyone), strict=False)
    for check, ranks in zip(checks, by_check, strict=False):
        # A collective is over when its last rank is.
        repeats = [max(taken) for taken in zip(*(one.taken_s for one in ranks), strict=True)]
        measured = sorted(repeats[1:] or repeats)
        p50, p95 = statistics.median(measured), measured[int(0.95 * (len(measured) - 1) + 0.5)]
        busy = [one.own_s + statistics.median(one.taken_s) for one in ranks]
        yield Timing(
            check=check,
            right=check not in wrong,
            p50_ms=p50 * 1e3,
            p95_ms=p95 * 1e3,
            bus_gb_per_s=ranks[0].bus_bytes / p50 / 1e9,
            slowest_rank=everyone[busy.index(max(busy))].rank,
        )


def slow_ranks(everyone: Sequence[Findings]) -> list[SlowRank]:
    """Return ranks that take over SLOW_FACTOR times as long as the others for one of three things.

    They are: own work between collectives, a matrix product, both of the rank's links.
    """
    own_s = [statistics.median(one.own_s for one in findings.measured) for findings in everyone]
    slow = list(stragglers("its own work between two collectives", own_s))
    if all(findings.alone_s for findings in everyone):
        alone_s = [statistics.median(findings.alone_s) for findings in everyone]
        slow += stragglers("a matrix product of its own", alone_s)
    link_s = [findings.link_s for findings in everyone if findings.link_s is not None]
    for rank in range(len(link_s)):
        best_s, fastest_s = min(link_s[rank - 1], link_s[rank]), min(link_s)
        if is_slow(best_s, fastest_s):
            what = f"{LINK_BYTES // MIB} MiB to a neighbour and back"
            slow.append(slow_rank(rank, what, best_s, fastest_s))
    return slow


def stragglers(what: str, seconds: Sequence[float]) -> Iterator[SlowRank]:
    """Yield ranks that took much longer than the others' median; `seconds` are by rank."""
    for rank, taken_s in enumerate(seconds):
        usual_s = statistics.median([*seconds[:rank], *seconds[rank + 1 :]])
        if is_slow(taken_s, usual_s):
            yield slow_rank(rank, what, taken_s, usual_s)


def is_slow(taken_s: float, usual_s: float) -> bool:
    """Return True if a time is out of proportion."""
    return taken_s > SLOW_FACTOR * usual_s and taken_s - usual_s > SLOW_BY_S


def slow_rank(rank: int, what: str, taken_s: float, usual_s: float) -> SlowRank:
    """Return the finding, in milliseconds."""
    return SlowRank(rank=rank, what=what, ms=taken_s * 1e3, usual_ms=usual_s * 1e3)


def device_name(device: torch.device) -> str:
    """Return `cpu`, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def main(argv: Sequence[str] | None = None) -> int:
    """Examine the ranks that torchrun has started; return the verdict as exit code."""
    parser = argparse.ArgumentParser(prog="strategies.train.trust.preflight", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each collective once")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--report", type=Path, help="also write the report, as JSON, to this file")
    arguments = parser.parse_args(argv)
    # torchrun sends SIGTERM to the survivors of a dead rank; they must stay to say which it was.
    # They do not stay forever: everything below has a timeout.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    report = examine_here(quick=arguments.quick, tell=not arguments.json)
    missing = () if report.missing is None else report.missing.ranks
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == min(set(range(world_size)) - set(missing)):
        if arguments.report is not None:
            arguments.report.write_text(report.model_dump_json(indent=2))
        if arguments.json:
            sys.stdout.write(report.model_dump_json(indent=2) + "\n")
        else:
            from strategies.train.trust.preflight_display import show

            show(report)
    return report.verdict


def examine_here(*, quick: bool, tell: bool) -> Report:
    """Meet the ranks of torchrun's environment and examine them, on their GPUs if they have any."""
    with nccl_logging() as log:
        return examine_with(log, quick=quick, tell=tell)


def examine_with(log: Path | None, *, quick: bool, tell: bool) -> Report:
    """Do what `examine_here` does while NCCL writes to `log`."""
    began = time.perf_counter()
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
        # A collective that waits too long must raise here, not end the process from a thread.
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    start_timeout = timedelta(seconds=START_TIMEOUT_S)
    store, rank, world_size = next(rendezvous("env://", timeout=start_timeout))
    roll = RollCall(
        store, rank=rank, world_size=world_size, timeout_s=START_TIMEOUT_S, name="start"
    )
    try:
        roll.introduce("the preflight")
        roll.enter("the process group")
        join_group(backend, store, roll, device=device if backend == "nccl" else None)
    except RanksMissing as error:
        return Report(
            device=device_name(device),
            backend=backend,
            torch=torch.__version__,
            ranks=roll.names,
            seconds=time.perf_counter() - began,
            timings=[],
            missing=Missing(ranks=sorted(error.ranks), why=str(error)),
        )
    checks = quick_list() if quick else full_list(device.type)
    examined = partial(
        examine,
        checks,
        device=device,
        timeout_s=TIMEOUT_S,
        repeats=2 if quick else REPEATS,
        log=log if backend == "nccl" else None,
    )
    if rank == 0 and tell:
        from strategies.train.trust.preflight_display import progress

        with progress(len(checks)) as done:
            return examined(done=done)
    return examined()


def join_group(backend: str, store: Store, roll: RollCall, *, device: torch.device | None) -> None:
    """Create the process group of all ranks. Raises RanksMissing."""
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=roll.rank,
            world_size=roll.world_size,
            timeout=timedelta(seconds=START_TIMEOUT_S),
            device_id=device,
        )
    except RuntimeError as error:
        raise roll.explain(error) from error
    _set_pg_timeout(timedelta(seconds=TIMEOUT_S))


if __name__ == "__main__":
    verdict = main()
    sys.stdout.flush()
    # Not sys.exit: tearing down a group that has lost a rank can hang.
    os._exit(verdict)
