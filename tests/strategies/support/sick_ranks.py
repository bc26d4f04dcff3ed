"""Ranks that a preflight must find: each sickness breaks torch or the machine, never our code.

Loaded by ranks.py as cases.py is; not a test.
"""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from strategies.plan.run_directory import RunDirectory
from strategies.plan.trust.preflight_report import Check, Report
from strategies.train import main
from strategies.train.trust import collectives
from strategies.train.trust.collectives import MIB, full_list, quick_list
from strategies.train.trust.preflight import examine
from strategies.train.trust.ring_all_reduce import ring_all_reduce

Done = Callable[[int], None]
SICK = 1


def examined(
    out: str, sickness: str = "", checks: str = "quick", timeout_s: float = 1.5, sick: int = SICK
) -> int:
    """A preflight in which rank `sick` has a sickness; each rank that lives reports into `out`."""
    rank = meet()
    listed = quick_list()
    if checks == "full":
        listed = [check for check in full_list("cpu") if check.size_bytes < MIB]
    done: Done = nothing
    if sickness and rank == sick:
        listed, done = SICKNESSES[sickness](listed, out)
    report = examine(listed, device=CPU, timeout_s=timeout_s, repeats=2, done=done)
    leave_report(report, out, rank)
    return int(report.verdict)


def sum_for_mean(out: str) -> int:
    """A backend that answers with the sum where the mean is asked for (pytorch#162338)."""
    rank = meet()
    collectives.OPERATIONS["mean"] = dist.ReduceOp.SUM
    report = examine(quick_list(), device=CPU, timeout_s=5.0, repeats=1)
    leave_report(report, out, rank)
    return int(report.verdict)


def rings() -> int:
    """The ring by hand against torch's all-reduce, for sizes that divide and sizes that do not."""
    rank = meet()
    for elements in (0, 1, 2, 3, 7, 12, 1000, 4099):
        generator = torch.Generator().manual_seed(rank)
        numbers = torch.randn(elements, generator=generator, dtype=torch.float64)
        for tensor in (numbers, (numbers * 100).long(), numbers[: elements // 3 * 3].view(-1, 3)):
            ours, torchs = tensor.clone(), tensor.clone()
            ring_all_reduce(ours)
            dist.all_reduce(torchs)
            torch.testing.assert_close(ours, torchs, rtol=1e-14, atol=1e-14)
            of_last = ours.clone()
            dist.broadcast(of_last, dist.get_world_size() - 1)
            assert torch.equal(of_last, ours), "ranks hold other bits"
    dist.barrier()
    return 0


def train_run(run_dir: str, sickness: str) -> int:
    """One rank of a training; rank 1 has the sickness."""
    if os.environ["RANK"] == str(SICK):
        SICKNESSES[sickness]([], run_dir)
    directory = RunDirectory(Path(run_dir))
    return main.run(directory.read_plan(), directory.path)


CPU = torch.device("cpu")


def meet() -> int:
    """Join the others; this rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    return dist.get_rank()


def leave_report(report: Report, out: str, rank: int) -> None:
    """Write it whole, and stay until all have theirs: rank 0 keeps the store."""
    aside = Path(out, f".{rank}")
    aside.write_text(report.model_dump_json())
    aside.rename(Path(out, f"{rank}.json"))
    if report.missing is None:
        dist.barrier()


def nothing(number: int) -> None:
    """Nothing is sick."""


def at(number: int, act: Callable[[], None]) -> Done:
    """Act when so many checks are done."""

    def done(now: int) -> None:
        if now == number:
            act()

    return done


def replaced(name: str, change: Callable[..., None]) -> None:
    """Let `change` hear of every call of a function of torch.distributed, after it."""
    real = getattr(dist, name)

    def call(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        if named.get("async_op"):
            result.wait()
            result = None  # it has ended
        change(*arguments)
        return result

    setattr(dist, name, call)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def busy(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    """Something else takes 50 ms of this rank after every check."""
    return listed, lambda number: time.sleep(0.05)


def slow_link(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    """What goes through this rank's network takes 60 ms longer."""
    for name in ("send", "recv"):
        replaced(name, lambda *_: time.sleep(0.06))
    return listed, nothing


def dies_between(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    return listed, at(3, kill)


def dies_inside(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    """Killed as it enters the first all_gather."""
    dist.all_gather_single = lambda *_, **__: kill()
    return listed, nothing


def hangs(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    """Stands still after three checks, until the others have reported."""

    def hang() -> None:
        others = dist.get_world_size() - 1
        while len(list(Path(out).glob("*.json"))) < others:
            time.sleep(0.01)
        kill()

    return listed, at(3, hang)


def sleeps_inside(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    """Stands still as it enters the first all_gather, until rank 0 has given up."""
    given_up = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[1] / "rank-0/error.json"

    def sleep(*_: Any, **__: Any) -> None:
        while not given_up.exists():
            time.sleep(0.01)
        kill()

    dist.all_gather_single = sleep
    return listed, nothing


def wrong_value(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    """Its memory flips a bit in every reduce_scatter."""

    def flip(received: torch.Tensor, *_: Any) -> None:
        received[5] += 1

    replaced("reduce_scatter_single", flip)
    return listed, nothing


def other_bits(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    """Its sums are off by the last bit, where they are not whole numbers."""

    def nudge(tensor: torch.Tensor, *_: Any) -> None:
        if tensor.dtype == torch.float32 and tensor[0] != tensor[0].round():
            tensor[7] = torch.nextafter(tensor[7], tensor.new_tensor(torch.inf))

    replaced("all_reduce", nudge)
    return listed, nothing


def other_dtype(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    """Its third check is of another dtype."""
    return [*listed[:2], listed[2].model_copy(update={"dtype": "float64"}), *listed[3:]], nothing


def other_order(listed: list[Check], out: str) -> tuple[list[Check], Done]:
    return [listed[0], *reversed(listed[1:])], nothing


SICKNESSES = {
    sickness.__name__: sickness
    for sickness in (
        busy,
        slow_link,
        dies_between,
        dies_inside,
        hangs,
        sleeps_inside,
        wrong_value,
        other_bits,
        other_dtype,
        other_order,
    )
}
