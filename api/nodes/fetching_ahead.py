"""Files that a node fetches ahead, and environments that it builds: those of jobs whose booked
lease on it begins soon."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from api.files.dataset_files import files_of
from api.nodes.network_lists import network_of
from core.spec.inputs import InputKind
from core.spec.spec import JobSpec, WorkbenchJobSpec, stored_spec
from core.states import JobState, LeaseState
from core.tables.files import Dataset, Model
from core.tables.jobs import Job, JobInput
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.wire.messages import FileRef, InputFiles, PackagesAhead

AHEAD = timedelta(hours=1)
DATASET_FILE = "dataset"

# Built once: to build a query takes longer than to ask it, and every heartbeat asks this one.
WAITING_FOR_LEASES = (
    select(Job, Lease.id)
    .join(Lease, Lease.user_id == Job.user_id)
    .where(
        Lease.node_id == bindparam("node_id"),
        Lease.state == LeaseState.BOOKED,
        Lease.hold_start <= bindparam("until"),
        Job.state == JobState.QUEUED,
        Job.lease_id.is_not(None),
    )
    .order_by(Lease.hold_start, Job.id)
)


class WantedAhead(NamedTuple):
    """Inputs and packages that a node should have before a lease begins."""

    inputs: list[InputFiles]
    packages: list[PackagesAhead]


NOTHING = WantedAhead([], [])


def wanted_ahead(session: Session, node_id: str, *, now: datetime) -> WantedAhead:
    """Return what waiting jobs read, and the packages of workbenches, whose leases on this node
    begin within AHEAD, soonest first.

    A script's packages are named in its archive, which is unpacked with its attempt.
    """
    rows = session.execute(WAITING_FOR_LEASES, {"node_id": node_id, "until": now + AHEAD})
    inputs: list[InputFiles] = []
    packages: list[PackagesAhead] = []
    for job, lease_id in rows:
        spec = stored_spec(job.spec)
        if spec is None or lease_id not in spec.named_leases:
            continue
        recipe = isinstance(spec, JobSpec)
        read = _recipe_files(session, job) if recipe else script_inputs(session, job)
        inputs += [one for one in read if one not in inputs]
        if isinstance(spec, WorkbenchJobSpec) and spec.workbench.requirements is not None:
            network = network_of(session, job, spec, session.get_one(Node, node_id))
            one = PackagesAhead(requirements=spec.workbench.requirements, network=network)
            packages += [] if one in packages else [one]
    return WantedAhead(inputs, packages)


def script_inputs(session: Session, job: Job) -> list[InputFiles]:
    """Return the inputs of a script's job, in the order of its spec."""
    rows = session.scalars(
        select(JobInput).where(JobInput.job_id == job.id).order_by(JobInput.position)
    )
    return [
        InputFiles(
            kind=row.kind,
            name=row.name,
            files=[FileRef.model_validate(file) for file in row.files],
        )
        for row in rows
    ]


def _recipe_files(session: Session, job: Job) -> Iterator[InputFiles]:
    """Yield a recipe's dataset and model: the node's cache has them where it has inputs."""
    dataset = session.get(Dataset, job.dataset_id) if job.dataset_id else None
    if dataset is not None:
        yield InputFiles(kind=InputKind.DATASET, name="dataset", files=files_of(dataset))
    yield from script_inputs(session, job)  # what it mixes in
    model = session.get(Model, job.model_id) if job.model_id else None
    if model is not None:
        files = [FileRef.model_validate(file) for file in model.files]
        yield InputFiles(kind=InputKind.MODEL, name="model", files=files)
