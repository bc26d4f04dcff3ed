"""Recorded workloads for the simulator: requests to a real cluster, with their times.

Standard Workload Format (SWF 2.2, Parallel Workloads Archive), Haizea's lease workloads (LWF) and
Alibaba's GPU trace of 2023. Files only; nothing is fetched.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ONE_CLASS = "nodes"


@dataclass(frozen=True)
class TracedJob:
    """One job of a trace. Times in seconds since the trace began."""

    submitted_s: float
    run_s: float
    """Run time without interruptions, at most `wall_s`."""
    wall_s: float
    """Wall time that the job asks for."""
    num_nodes: int
    user: str
    classes: tuple[str, ...] = (ONE_CLASS,)
    lab: str = ""
    """Group that the trace puts the job in; empty: none."""


@dataclass(frozen=True)
class TracedLease:
    """A lease of nodes, booked ahead for a fixed time. Times in seconds like those of jobs."""

    booked_s: float
    start_s: float
    seconds: float
    num_nodes: int


@dataclass(frozen=True)
class Workload:
    """A cluster, with the jobs and leases asked of it."""

    name: str
    nodes: Mapping[str, int]
    """Number of nodes of each class."""
    jobs: Sequence[TracedJob]
    leases: Sequence[TracedLease] = ()


class BadTrace(ValueError):
    """A file is not a readable trace; the message says where and why."""


def read_workload(
    path: Path, *, num_nodes: int | None = None, leases: Path | None = None
) -> Workload:
    """Read the workload in a `.swf`, `.lwf` or `.csv` file, and add the leases of a `.lwf` file.

    `num_nodes` is the number of nodes of the cluster, needed if the file does not give it. Raises
    BadTrace.
    """
    match path.suffix:
        case ".swf":
            workload = read_swf(path, num_nodes)
        case ".lwf":
            workload = read_lwf(path, num_nodes)
        case ".csv":
            workload = read_alibaba(path, num_nodes)
        case other:
            raise BadTrace(f"{path}: can't read {other or 'this'}; give a .swf, .lwf or .csv file")
    if leases is None:
        return workload
    added = read_lwf(leases, num_nodes=1).leases
    name = f"{workload.name} + {leases.stem}"
    return replace(workload, name=name, leases=[*workload.leases, *added])


def read_swf(path: Path, num_nodes: int | None = None) -> Workload:
    """Read an SWF file. Jobs that never ran are left out; run times are capped at the request.

    Fields used, of 18: 2 submit, 4 run time, 8 nodes asked for or else 5 nodes given, 9 time asked
    for or else 4, 12 user, 13 group; -1 means missing. (Feitelson and others, SWF 2.2.) Raises
    BadTrace.
    """
    jobs = []
    for number, line in _lines(path):
        if line.startswith(";"):
            key, _, value = line.lstrip("; ").partition(":")
            if key == "MaxNodes" and num_nodes is None:
                num_nodes = int(value.split()[0])
            continue
        fields = _numbers(path, number, line.split()[:18], at_least=12)
        run_s, asked_s = fields[3], fields[8] if fields[8] > 0 else fields[3]
        wanted = int(fields[7] if fields[7] > 0 else fields[4])
        if run_s > 0 and wanted > 0:
            user = f"{fields[11]:.0f}"
            lab = f"{fields[12]:.0f}" if len(fields) > 12 and fields[12] >= 0 else ""
            job = TracedJob(fields[1], min(run_s, asked_s), asked_s, wanted, user, lab=lab)
            jobs.append(job)
    return Workload(path.stem, {ONE_CLASS: _known(path, num_nodes)}, _that_fit(jobs, num_nodes))


def read_lwf(path: Path, num_nodes: int | None = None) -> Workload:
    """Read an LWF file: leases, which have a start, and jobs, whose start is -1.

    Fields: submit, start, time asked for, time used, nodes; the required properties of the nodes,
    which follow, are ignored. Raises BadTrace.
    """
    jobs, leases = [], []
    for number, line in _lines(path):
        submitted, start, asked_s, used_s, wanted = _numbers(
            path, number, line.split()[:5], at_least=5
        )
        if start >= 0:
            leases.append(TracedLease(min(submitted, start), start, asked_s, int(wanted)))
        elif used_s > 0:
            jobs.append(TracedJob(submitted, min(used_s, asked_s), asked_s, int(wanted), "-1"))
    return Workload(
        path.stem, {ONE_CLASS: _known(path, num_nodes)}, _that_fit(jobs, num_nodes), leases
    )


def read_alibaba(path: Path, num_nodes: int | None = None) -> Workload:
    """Read tasks with GPUs; every GPU counts as a node of its model, a part of one as a whole.

    The file of nodes lies beside that of tasks. The trace has no wall times, so a task's wall time
    is its run time. The trace does not fill the whole cluster: `num_nodes` reduces it to so many
    GPUs, each model in proportion, but to no fewer than the largest task needs. Raises BadTrace.
    """
    beside = path.with_name("openb_node_list_gpu_node.csv")
    nodes: dict[str, int] = {}
    for row in _rows(beside, "gpu", "model"):
        nodes[row["model"]] = nodes.get(row["model"], 0) + int(row["gpu"])
    jobs = []
    names = ("num_gpu", "gpu_spec", "creation_time", "deletion_time", "scheduled_time")
    for row in _rows(path, *names):
        classes = tuple(row["gpu_spec"].split("|")) if row["gpu_spec"] else tuple(sorted(nodes))
        wanted, begun = int(row["num_gpu"]), row["scheduled_time"] or row["creation_time"]
        run_s = float(row["deletion_time"]) - float(begun)
        if wanted > 0 and run_s > 0:
            submitted = float(row["creation_time"])
            jobs.append(TracedJob(submitted, run_s, run_s, wanted, row["qos"], classes))
    if num_nodes is not None:
        share = num_nodes / sum(nodes.values())
        largest = max((job.num_nodes for job in jobs), default=1)
        nodes = {name: max(largest, round(count * share)) for name, count in nodes.items()}
    return Workload(path.stem, nodes, sorted(jobs, key=lambda job: job.submitted_s))


def _known(path: Path, num_nodes: int | None) -> int:
    if num_nodes is None:
        raise BadTrace(f"{path} does not say how many nodes there are; say it with --nodes")
    return num_nodes


def _that_fit(jobs: Iterable[TracedJob], num_nodes: int | None) -> list[TracedJob]:
    """Return the jobs that ask for no more nodes than there are, in order of submission."""
    fitting = [job for job in jobs if num_nodes is None or job.num_nodes <= num_nodes]
    return sorted(fitting, key=lambda job: job.submitted_s)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path} can't be read: {error}") from error
    yield from ((n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip())


def _numbers(path: Path, line: int, fields: Sequence[str], *, at_least: int) -> list[float]:
    try:
        numbers = [float(field) for field in fields]
    except ValueError as error:
        raise BadTrace(f"{path}, line {line}: {error}") from error
    if len(numbers) < at_least:
        raise BadTrace(f"{path}, line {line}: {len(numbers)} fields, at least {at_least} needed")
    return numbers


def _rows(path: Path, *names: str) -> Iterator[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            missing = set(names) - set(reader.fieldnames or ())
            if missing:
                raise BadTrace(f"{path} has no column {', '.join(sorted(missing))}")
            yield from reader
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path} can't be read: {error}") from error
