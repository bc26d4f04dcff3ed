"""Orders for a node: every attempt that should live there, with its deadlines."""

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from api.files.dataset_files import files_of
from api.nodes.fetching_ahead import DATASET_FILE, NOTHING, script_inputs, wanted_ahead
from api.nodes.network_lists import network_of
from api.nodes.workspace_orders import workspace_order
from core.jobs.attempts import limited_to
from core.leases.active_policies import active_policies
from core.leases.adjacent import stopped_with
from core.policy.document import policy_of
from core.policy.grid import usable_end
from core.policy.verdict import NodeRef
from core.spec.script import Script
from core.spec.spec import (
    AnyJobSpec,
    JobSpec,
    Launcher,
    ProgramJobSpec,
    ScriptJobSpec,
    WorkbenchJobSpec,
    stored_plan,
    stored_spec,
)
from core.spec.workbench import Workbench
from core.states import LIVE_ATTEMPT, AttemptState, Outcome, Phase
from core.tables.files import Checkpoint, Dataset, Model, StoredFile, Tokenizer
from core.tables.jobs import Attempt, AttemptPart, Job, JobInput
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.wire.messages import (
    AttemptRef,
    Deadlines,
    FileRef,
    Gang,
    MixedFiles,
    ObservedAttempt,
    Order,
    Orders,
    Rendezvous,
    Request,
    Resume,
    StopOrder,
    Unread,
)
from core.workspaces.quota import Quota
from strategies.plan.built_in.datasets import BUILT_IN, DatasetFormat
from strategies.plan.spec import TrainSpec

CODE_FILE = "code.zip"
# Seconds for the checkpoint before SIGTERM. A cancelled job gets less time than one that continues
# later.
STOP_GRACE_S = {Outcome.CANCELLED: 10.0}
DEFAULT_STOP_GRACE_S = 60.0
# After the loss of a rank on another node nothing can be saved: a checkpoint needs all ranks.
FELLOW_GONE_GRACE_S = 5.0
HOST_IS_BACK_GRACE_S = 10.0  # of a guest on an idle workbench's slots: its owner sits there

# Built once: to build a query takes longer than to ask it, and every heartbeat asks these.
DESIRED = (
    select(Attempt, Job, AttemptPart)
    .join(Job, (Job.id == Attempt.job_id) & (Job.epoch == Attempt.epoch))
    .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
    .where(
        AttemptPart.node_id == bindparam("node_id"),
        AttemptPart.ended_at.is_(None),
        Attempt.state.in_(LIVE_ATTEMPT),
    )
    .order_by(Attempt.assigned_at)
)
LEASES_OF = (
    select(Lease)
    .join(AttemptPart, AttemptPart.lease_id == Lease.id)
    .where(AttemptPart.attempt_id == bindparam("attempt_id"))
    .order_by(Lease.id)
)


def orders_for(
    session: Session,
    node_id: str,
    seen: Sequence[ObservedAttempt],
    *,
    quota: Quota,
    looks_ahead: bool = True,
    now: datetime,
) -> Orders:
    """Return the full desired set of a node's attempts, the attempts that it may wipe, and, if a
    booked lease may begin soon, the inputs to fetch ahead. `quota` is that of every person's
    workspace."""
    node = session.get_one(Node, node_id)
    rows = session.execute(DESIRED, {"node_id": node_id}).all()
    has_workbench = any("workbench" in job.spec for _, job, _ in rows)
    idle_after_s = _idle_after_s(session, node) if has_workbench else None
    wanted = [
        _order(session, node, job, attempt, part, quota, idle_after_s, now=now)
        for attempt, job, part in rows
    ]
    ahead = wanted_ahead(session, node_id, now=now) if looks_ahead else NOTHING
    return Orders(
        attempts=[one for one in wanted if isinstance(one, Order)],
        unread=[one for one in wanted if isinstance(one, Unread)],
        forget=_forgettable(session, node_id, seen),
        fetch_ahead=ahead.inputs,
        build_ahead=ahead.packages,
    )


def deadlines(job: Job, attempt: Attempt, leases: Sequence[Lease], *, now: datetime) -> Deadlines:
    """Return the seconds that remain to the end of the lease or of the wall time, if earlier.

    `leases` are those with which the attempt is stopped, one on each of its nodes (of adjacent ones
    the last), each with the timetable of the policy that it was granted under. The earliest
    deadline applies on all nodes.
    """
    to_lease_stop = min(_until(usable_end(one.hold_end, one.grace_s), now) for one in leases)
    to_time_limit = _until(limited_to(job, attempt, now=now), now)
    stop_in_s = min(to_lease_stop, to_time_limit)
    return Deadlines(
        checkpoint_in_s=min(_until(one.hold_end, now) - one.checkpoint_s for one in leases),
        stop_in_s=stop_in_s,
        stop_reason=Outcome.LEASE_ENDED if to_lease_stop <= to_time_limit else Outcome.TIME_LIMIT,
        # The owner's next lease may be given back in the last minutes of this one: then the stop
        # is late already, and the job has to save all the same.
        kill_in_s=max(0.0, stop_in_s) + min(one.kill_after_s for one in leases),
    )


def _until(moment: datetime, now: datetime) -> float:
    return (moment - now).total_seconds()


def _order(
    session: Session,
    node: Node,
    job: Job,
    attempt: Attempt,
    part: AttemptPart,
    quota: Quota,
    idle_after_s: int | None,
    *,
    now: datetime,
) -> Order | Unread:
    spec, plan = stored_spec(job.spec), stored_plan(job.plan)
    leases = session.scalars(LEASES_OF, {"attempt_id": attempt.id}).all()
    stopping = [stopped_with(session, one) for one in leases]
    until = deadlines(job, attempt, stopping, now=now)
    stop = _stop(session, job, attempt) if attempt.state is AttemptState.STOPPING else None
    if spec is None or plan is None:
        return Unread(job_id=job.id, epoch=attempt.epoch, deadlines=until, stop=stop)
    dataset = session.get(Dataset, job.dataset_id) if job.dataset_id else None
    return Order(
        job_id=job.id,
        epoch=attempt.epoch,
        spec=_task(job, spec),
        plan=plan,
        launcher=_launcher(spec),
        slots=part.slots,
        slots_of_node=_slots_of_node(session, node, job, attempt, part),
        gang=_gang(attempt, part),
        threads_per_rank=spec.resources.threads_per_rank,
        dataset=FileRef(path=DATASET_FILE, sha256=dataset.sha256, size=dataset.size)
        if dataset and dataset.files is None
        else None,
        dataset_files=files_of(dataset) if dataset and dataset.files is not None else [],
        dataset_format=_format(dataset, spec),
        mixture=_mixture(session, job) if isinstance(spec, JobSpec) and spec.data.mixture else [],
        model=_model_files(session, job),
        tokenizer=_tokenizer_files(session, job),
        code=_code(session, job),
        inputs=script_inputs(session, job)
        if isinstance(spec, ProgramJobSpec) and spec.inputs
        else [],
        workspace=workspace_order(session, job, attempt, part, quota),
        network=network_of(session, job, spec, node),
        hold_on_failure_s=spec.hold_on_failure if isinstance(spec, ScriptJobSpec) else None,
        idle_after_s=idle_after_s if isinstance(spec, WorkbenchJobSpec) else None,
        resume=_resume(session, attempt),
        deadlines=until,
        stop=stop,
        request=attempt.request and Request.model_validate(attempt.request),
        traceparent=job.traceparent,
    )


def _stop(session: Session, job: Job, attempt: Attempt) -> StopOrder:
    if attempt.stop_reason is None:
        return StopOrder(reason=Outcome.PREEMPTED, grace_s=FELLOW_GONE_GRACE_S)
    if attempt.stop_reason is Outcome.PREEMPTED and is_beside_host(session, job, attempt):
        return StopOrder(reason=Outcome.PREEMPTED, grace_s=HOST_IS_BACK_GRACE_S)
    grace_s = STOP_GRACE_S.get(attempt.stop_reason, DEFAULT_STOP_GRACE_S)
    return StopOrder(reason=attempt.stop_reason, grace_s=grace_s)


def is_beside_host(session: Session, job: Job, attempt: Attempt) -> bool:
    """Return True for a guest in a lease in which something of the lease's owner runs too."""
    lease = session.get_one(Lease, attempt.lease_id)
    if lease.user_id == job.user_id:
        return False
    found = session.scalar(
        select(Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            AttemptPart.lease_id == lease.id,
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
            Job.user_id == lease.user_id,
        )
    )
    return found is not None


def _idle_after_s(session: Session, node: Node) -> int | None:
    """Return the seconds after which workbenches on a node are idle, by the node's policy."""
    ref = NodeRef(node.id, node.name, node.class_name, node.slots)
    after_min = policy_of(ref, active_policies(session)).scheduling.idle_after_min
    return None if after_min is None else 60 * after_min


def _slots_of_node(
    session: Session, node: Node, job: Job, attempt: Attempt, part: AttemptPart
) -> int | None:
    """Return the number of the node's slots if the lease is a part of them, or if it is the job of
    a guest beside one of the lease's owner.

    An older worker, which would not read the order, is told nothing: it has been given no parts.
    """
    lease = session.get_one(Lease, part.lease_id)
    is_part = lease.num_slots is not None and lease.num_slots < node.slots
    is_part = is_part or is_beside_host(session, job, attempt)
    return node.slots if is_part and node.inventory.get("sharing") else None


def _gang(attempt: Attempt, part: AttemptPart) -> Gang | None:
    if attempt.rendezvous is None:
        return None
    return Gang(
        position=part.position,
        rendezvous=Rendezvous.model_validate(attempt.rendezvous),
        start=attempt.prepared_at is not None,
    )


def _launcher(spec: AnyJobSpec) -> Launcher:
    match spec:
        case ScriptJobSpec():
            return Launcher(spec.script.launcher)
        case WorkbenchJobSpec():
            return Launcher.PYTHON
        case JobSpec():
            return spec.launcher


def _task(job: Job, spec: AnyJobSpec) -> TrainSpec | Script | Workbench:
    if isinstance(spec, ScriptJobSpec):
        return spec.script
    if isinstance(spec, WorkbenchJobSpec):
        return spec.workbench
    training = {name: job.spec[name] for name in TrainSpec.model_fields if name in job.spec}
    return TrainSpec.model_validate(training)


def _code(session: Session, job: Job) -> FileRef | None:
    if job.code_sha256 is None:
        return None
    stored = session.get(StoredFile, job.code_sha256)
    assert stored is not None
    return FileRef(path=CODE_FILE, sha256=stored.sha256, size=stored.size)


def _format(dataset: Dataset | None, spec: AnyJobSpec) -> DatasetFormat:
    if not isinstance(spec, JobSpec):
        return "text"
    if dataset is None:
        return BUILT_IN[spec.data.dataset]
    return cast(DatasetFormat, dataset.format)  # checked when the dataset was uploaded


def _mixture(session: Session, job: Job) -> list[MixedFiles]:
    """Return the datasets that a recipe mixes in; a deleted one's row is still there."""
    rows = session.scalars(
        select(JobInput).where(JobInput.job_id == job.id).order_by(JobInput.position)
    )
    return [
        MixedFiles(
            format=cast(DatasetFormat, session.get_one(Dataset, row.source_id).format),
            files=[FileRef.model_validate(file) for file in row.files],
        )
        for row in rows
    ]


def _tokenizer_files(session: Session, job: Job) -> list[FileRef]:
    if job.tokenizer_id is None:
        return []
    tokenizer = session.get_one(Tokenizer, job.tokenizer_id)
    return [FileRef.model_validate(file) for file in tokenizer.files]


def _model_files(session: Session, job: Job) -> list[FileRef]:
    if job.model_id is None:
        return []
    model = session.get(Model, job.model_id)
    assert model is not None
    return [FileRef.model_validate(file) for file in model.files]


def _resume(session: Session, attempt: Attempt) -> Resume | None:
    if attempt.resume_checkpoint_id is None:
        return None
    checkpoint = session.get(Checkpoint, attempt.resume_checkpoint_id)
    assert checkpoint is not None
    files = [FileRef.model_validate(file) for file in checkpoint.files]
    return Resume(step=checkpoint.step, files=files)


def _forgettable(
    session: Session, node_id: str, seen: Sequence[ObservedAttempt]
) -> list[AttemptRef]:
    """Return exited attempts whose files are all kept, or that a newer attempt has superseded."""
    exited = [one for one in seen if one.phase is Phase.EXITED]
    if not exited:
        return []
    known = {
        (attempt.job_id, attempt.epoch): (part, job_epoch)
        for attempt, part, job_epoch in session.execute(
            select(Attempt, AttemptPart, Job.epoch)
            .join(Job, Job.id == Attempt.job_id)
            .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
            .where(
                AttemptPart.node_id == node_id,
                AttemptPart.ended_at.is_not(None),
                Attempt.job_id.in_({one.job_id for one in exited}),
            )
        )
    }
    refs = []
    for one in exited:
        part, job_epoch = known.get((one.job_id, one.epoch), (None, 0))
        if part is None:
            continue
        is_superseded = part.exit is None and job_epoch > one.epoch
        if part.files_kept or is_superseded:
            refs.append(AttemptRef(job_id=one.job_id, epoch=one.epoch))
    return refs
