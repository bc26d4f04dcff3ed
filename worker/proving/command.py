"""`trainyard prove`: run the checks on this machine, show them, and publish the proof."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from core.process.settings import WorkerSettings
from core.wire.messages import Inventory
from strategies.plan.hardware import Constants
from strategies.plan.trust.proof import (
    CheckName,
    CheckResult,
    Machine,
    NotAProof,
    Proof,
    document,
    read_document,
)
from worker.agent.inventory import take_inventory
from worker.agent.spawners import Spawners
from worker.gpus.node_gpus import DriverBroken, NodeGpus
from worker.node.api_client import ApiClient, RequestRefused, Unreachable
from worker.node.attempts import NodeFolder, read_model
from worker.node.boot import cores
from worker.node.enrol import IdentityFile
from worker.proving.all_checks import CHECKS
from worker.proving.bench import TRAINER, Bench
from worker.proving.runner import Check, Progress, run_checks
from worker.scripts.sandbox import find_level

PROVEN, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
NAME_WIDTH = max(len(name) for name in CheckName)


class BadInput(Exception):
    """Request that can't be carried out; the message says what to do."""


def run(
    *,
    only: Sequence[str] = (),
    ranks: int | None = None,
    on: Literal["cpu", "gpu"] | None = None,
    as_json: bool = False,
    out: Path | None = None,
    trainer: str = TRAINER,
) -> int:
    """Prove this node by the checks named in `only`, by default all; return the exit code."""
    try:
        checks = chosen(only)
        require_idle()
        with interrupted_by_signals():
            proof = prove(checks, ranks=ranks, on=on, trainer=trainer)
    except BadInput as error:
        sys.stderr.write(f"{error}\n")
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    if out is not None:
        out.write_text(document(proof))
    if as_json:
        sys.stdout.write(document(proof))
    note(f"{proof.sentence} SHA-256 {proof.sha256}")
    note(send(proof))
    return FAILED if proof.named("failed") else PROVEN


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: trainings outlive one that is just
    ended, and keep their GPUs."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_file(path: Path) -> int:
    """Check that a published proof has the hash that it says; return the exit code."""
    try:
        proof = read_document(path.read_bytes())
    except (OSError, NotAProof) as error:
        sys.stderr.write(f"{path}: {error}\n")
        return FAILED
    machine = proof.machine
    on = ", ".join(dict.fromkeys(machine.gpus)) or f"{machine.ranks} CPU slots"
    sys.stdout.write(f"Intact: {on}, {proof.proven_at:%Y-%m-%d %H:%M} UTC. {proof.sentence}\n")
    return PROVEN


def chosen(only: Sequence[str]) -> list[Check]:
    """Return the checks with these names, in their order; all for none. Raises BadInput."""
    unknown = [name for name in only if name not in set(CheckName)]
    if unknown:
        raise BadInput(f"There is no check {unknown[0]!r}; there are: {', '.join(CheckName)}.")
    return [check for check in CHECKS if not only or check.name in only]


def prove(
    checks: Iterable[Check],
    *,
    ranks: int | None,
    on: Literal["cpu", "gpu"] | None,
    trainer: str = TRAINER,
) -> Proof:
    """Run the checks in a folder of their own, which is deleted afterwards. Raises BadInput."""
    os.environ.pop("TORCH_LOGS", None)  # the compile check reads what torch prints unasked
    with tempfile.TemporaryDirectory(prefix="trainyard-prove-") as path, ExitStack() as stack:
        folder = NodeFolder(Path(path))
        folder.create()
        try:
            node_gpus = NodeGpus(folder.gpus, limit=None, wake=lambda: None)
        except DriverBroken as error:
            raise BadInput(str(error)) from error
        stack.callback(node_gpus.close)
        found = node_gpus.look(held=(), roots=())
        inventory = take_inventory(found, None, find_level())
        device, ranks = where(inventory, ranks=ranks, on=on)
        spawners = Spawners(trainer, warm_allowed=True)
        stack.callback(spawners.close)
        bench = Bench(folder, inventory, device, ranks, spawners, node_gpus)
        stack.callback(bench.clear)
        began = datetime.now(UTC)
        results = run_checks(checks, bench, show)
    return Proof(
        trainyard=version("trainyard-platform"),
        proven_at=began.replace(microsecond=0),
        seconds=round((datetime.now(UTC) - began).total_seconds(), 1),
        machine=machine(inventory, device=device, ranks=ranks),
        checks=results,
        constants=constants(results, device=device),
    )


def where(
    inventory: Inventory, *, ranks: int | None, on: Literal["cpu", "gpu"] | None
) -> tuple[Literal["cpu", "cuda"], int]:
    """Return the device of the checks and the number of their ranks. Raises BadInput."""
    device: Literal["cpu", "cuda"] = "cuda" if inventory.gpus and on != "cpu" else "cpu"
    if on == "gpu" and device == "cpu":
        raise BadInput("This machine has no GPU that its driver reports: trainyard doctor --node.")
    most = len(inventory.gpus) if device == "cuda" else 64
    ranks = ranks or (most if device == "cuda" else cores())
    if ranks > most:
        raise BadInput(f"There are {most} GPUs, not {ranks}.")
    return device, ranks


def machine(inventory: Inventory, *, device: Literal["cpu", "cuda"], ranks: int) -> Machine:
    """Return the hardware and software that were proven."""
    return Machine(
        device=device,
        ranks=ranks,
        gpus=[gpu.name for gpu in inventory.gpus] if device == "cuda" else [],
        driver=inventory.driver if device == "cuda" else "",
        torch=inventory.torch,
        python=inventory.python,
        cores=inventory.cores,
    )


def constants(
    results: Iterable[CheckResult], *, device: Literal["cpu", "cuda"]
) -> Constants | None:
    """Return the numbers for the planner: from passed checks, on GPUs only."""
    if device == "cpu":
        return None
    figures = {
        name: value
        for result in results
        if result.verdict == "passed" and result.name in (CheckName.MEMORY, CheckName.COLLECTIVES)
        for name, value in result.figures.items()
    }
    bus = [value for name, value in figures.items() if name.startswith("bus_")]
    return Constants(
        process_gib=figures.get("process_gib"),
        communicator_gib=figures.get("communicator_gib"),
        link_gb_per_s=min(bus, default=None),
    )


def show(progress: Progress) -> None:
    """Print a line for each check: its name while it runs on a terminal, then its result."""
    number, total, check, result = progress
    head = f"{number:2}/{total} {check.name:{NAME_WIDTH}}"
    if result is not None:
        sys.stderr.write(f"{head} {result.verdict:7} {result.seconds:5.0f} s  {result.sentence}\n")
    elif sys.stderr.isatty():
        sys.stderr.write(f"{head} ...\r")
    sys.stderr.flush()


def note(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def require_idle() -> None:
    """Raise BadInput if this node's worker runs a job: its numbers and the checks' would be
    wrong."""
    settings = worker_settings()
    if settings is None or not NodeFolder(settings.data).attempts.is_dir():
        return
    for attempt in NodeFolder(settings.data).all_attempts():
        if attempt.shim_lives():
            raise BadInput(
                f"Job {attempt.key.job_id} runs on this node; drain the node first (trainyard "
                "admin drain NAME) and wait for the job's end."
            )


def send(proof: Proof) -> str:
    """Send the proof to the platform if this node has joined one; return what became of it."""
    settings = worker_settings()
    if settings is None:
        return "Not sent: TRAINYARD_API_URL, TRAINYARD_DATA and the worker's others are not set."
    identity = read_model(NodeFolder(settings.data).identity, IdentityFile)
    if identity is None:
        return f"Not sent: this node has not joined a platform (no identity in {settings.data})."
    client = ApiClient(settings.api_url, identity.node_token)
    try:
        client.send_proof(proof)
    except (Unreachable, RequestRefused) as error:
        return f"Not sent: {error}"
    finally:
        client.close()
    return f"Sent to {settings.api_url} as the proof of {identity.name}."


def worker_settings() -> WorkerSettings | None:
    """Return the settings of this machine's worker; None if they are not set here."""
    with suppress(ValidationError):
        return WorkerSettings()
    return None
