"""Reports of nodes about their attempts, written to rows once each."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from api.nodes import enrolment, heartbeat
from api.nodes.fencing import FencedAttempt, fence
from api.nodes.order_marks import good_until, read_bases
from api.nodes.orders import orders_for
from api.records import metric_store
from api.web.auth import find_node
from api.web.bells import Bells
from api.web.identity import NodeIdentity
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.base.ids import IdKind, new_id
from core.jobs import attempts
from core.tables.files import Artifact, Checkpoint, CheckpointPart, StoredFile
from core.tables.jobs import Attempt, Event, Job
from core.tables.nodes import Node
from core.transitions import note
from core.wire.messages import (
    ArtifactReport,
    CheckpointReport,
    Enrolment,
    FileRef,
    Heartbeat,
    NewIdentity,
    Orders,
    own_name,
)
from core.workspaces.quota import Quota

RENAMED = "output_renamed"


def enrol(session: Session, bells: Bells, message: Enrolment) -> NewIdentity:
    """Trade a single-use token for the identity of a node."""
    bells.scheduler = True
    return enrolment.enrol(session, message, now=utc_now())


class HeartbeatEffects(NamedTuple):
    """Consequences of a heartbeat that was taken in."""

    finished: Sequence[tuple[str, str]]
    """(job id, attempt id) of the attempts that are kept by now."""
    orders: Orders
    mark: str
    """Mark of the orders; empty if they follow from more than a mark covers."""


def beat(
    session: Session,
    bells: Bells,
    message: Heartbeat,
    *,
    token_sha256: str,
    quota: Quota,
    num_nodes: int,
    now: datetime,
) -> HeartbeatEffects:
    """Take in the state of one of so many nodes; return the orders for it. Raises
    Unauthenticated."""
    # Held to the end: a session reads a row that nobody holds again wherever it is asked for.
    node = session.get_one(Node, find_node(session, token_sha256).id)
    finished = heartbeat.newly_kept(session, node.id, message)
    heartbeat.take_in(session, node, message, now=now, bells=bells)
    session.flush()
    # Before the orders: what is written meanwhile, they may have and the mark must not.
    basis = read_bases(session, [token_sha256], now=now).get(token_sha256)
    orders = orders_for(
        session,
        node.id,
        message.attempts,
        quota=quota,
        looks_ahead=basis is None or basis.begins_soon,
        now=now,
    )
    is_settled = basis is not None and not orders.unread and basis.is_settled(message)
    until = good_until(now, num_nodes)
    mark = basis.mark(message, quota, until=until) if basis and is_settled else ""
    return HeartbeatEffects(finished, orders, mark)


def merge_curve(session: Session, _: Bells, job_id: str, attempt_id: str) -> None:
    """Merge the blocks of an attempt's metrics into large ones."""
    session.execute(select(Job.id).where(Job.id == job_id).with_for_update(key_share=True))
    metric_store.merge(session, attempt_id)


def add_checkpoint(
    session: Session, bells: Bells, message: CheckpointReport, node: NodeIdentity, *, now: datetime
) -> None:
    """Insert a checkpoint once every node has brought its files. Raises NotFound, StaleEpoch."""
    fenced = fence(session, node, message.job_id, message.epoch)
    require_stored(session, message.files)
    known = session.scalar(
        select(Checkpoint.id).where(
            Checkpoint.job_id == message.job_id,
            Checkpoint.epoch == message.epoch,
            Checkpoint.step == message.step,
        )
    )
    if known is not None:
        return
    whole = _whole_checkpoint(session, fenced, message, now=now)
    if whole is None:
        return  # other nodes have yet to bring their files
    step, files = whole
    size = sum(file.size for file in files)
    session.add(
        Checkpoint(
            id=new_id(IdKind.CHECKPOINT),
            job_id=message.job_id,
            epoch=message.epoch,
            step=step,
            size=size,
            files=[file.model_dump(mode="json") for file in files],
            created_at=now,
        )
    )
    note(
        session,
        message.job_id,
        "checkpoint_kept",
        now=now,
        message=f"The checkpoint of step {step:,} is safe in the store ({size / 2**20:,.1f} MiB).",
        actor=node.id,
        epoch=fenced.epoch,
    )
    bells.jobs.add(message.job_id)


def add_artifact(
    session: Session, bells: Bells, message: ArtifactReport, node: NodeIdentity
) -> None:
    """Insert or replace an artifact. Raises NotFound, StaleEpoch.

    Where nodes leave different files of one name, that of the first node keeps it, and those of the
    others move to `node-1/name`.
    """
    fenced = fence(session, node, message.job_id, message.epoch)
    require_stored(session, [message.file])
    path, position = message.file.path, fenced.position
    known = _artifact_at(session, message, path)
    if known is not None and known.sha256 != message.file.sha256:
        if known.position > position:
            _note_moved(session, fenced, own_name(path, known.position), utc_now())
            _move_artifact(session, message, known)
            known = None
        elif known.position < position:
            path = own_name(path, position)
            known = _artifact_at(session, message, path)
            if known is None:
                _note_moved(session, fenced, path, utc_now())
    if known is not None:
        known.sha256, known.size = message.file.sha256, message.file.size
    else:
        session.add(
            Artifact(
                id=new_id(IdKind.FILE),
                job_id=message.job_id,
                epoch=message.epoch,
                path=path,
                sha256=message.file.sha256,
                size=message.file.size,
                position=position,
                created_at=utc_now(),
            )
        )
    bells.jobs.add(message.job_id)


def _artifact_at(session: Session, message: ArtifactReport, path: str) -> Artifact | None:
    return session.scalars(
        select(Artifact).where(
            Artifact.job_id == message.job_id,
            Artifact.epoch == message.epoch,
            Artifact.path == path,
        )
    ).one_or_none()


def _move_artifact(session: Session, message: ArtifactReport, known: Artifact) -> None:
    """Make room for an earlier node's file of the same name."""
    path = own_name(known.path, known.position)
    standing = _artifact_at(session, message, path)
    if standing is None:
        known.path = path
    else:  # sent again after it had moved
        standing.sha256, standing.size = known.sha256, known.size
        session.delete(known)
    session.flush()


def _whole_checkpoint(
    session: Session, fenced: FencedAttempt, message: CheckpointReport, *, now: datetime
) -> tuple[int, Sequence[FileRef]] | None:
    """Return step and files of a checkpoint once every node has brought its own; None before."""
    parts = attempts.parts_of(session, session.get_one(Attempt, fenced.attempt_id))
    if len(parts) == 1:
        return message.step, message.files
    code = session.scalar(select(Job.code_sha256).where(Job.id == fenced.job_id))
    if message.of_one_node:
        has_others = any(part.has_output for part in parts if part.position > 0)
        return None if has_others else (message.step, message.files)
    session.merge(
        CheckpointPart(
            attempt_id=fenced.attempt_id,
            step=message.step,
            position=fenced.position,
            files=[file.model_dump(mode="json") for file in message.files],
        )
    )
    session.flush()
    of_this = [CheckpointPart.attempt_id == fenced.attempt_id]
    if code is None:  # a script's nodes share no step: they bring their parts at its end alone
        of_this.append(CheckpointPart.step == message.step)
    brought = session.scalars(
        select(CheckpointPart).where(*of_this).order_by(CheckpointPart.position)
    ).all()
    if len({part.position for part in brought}) != len(parts):
        return None
    step = brought[0].step
    by_node = [
        (part.position, [FileRef.model_validate(file) for file in part.files]) for part in brought
    ]
    session.execute(delete(CheckpointPart).where(*of_this))
    files, moved = together(by_node)
    if moved:
        first, others = moved[0], len(moved) - 1
        _note_moved(session, fenced, f"{first}{f' and {others:,} more' if others else ''}", now)
    if code is not None and all(len(of_node) == 1 for _, of_node in by_node):
        return None  # manifests alone: the script has no output
    return step, files


def together(
    by_node: Sequence[tuple[int, Sequence[FileRef]]],
) -> tuple[list[FileRef], list[str]]:
    """Return the files of all nodes, (position, files) each, and the names that have moved.

    The same path with the same bytes is one file. If a later node has other bytes, its file moves
    to `node-1/path`.
    """
    found: dict[str, FileRef] = {}
    moved = []
    for position, files in by_node:
        for file in files:
            path = file.path
            if found.get(path, file).sha256 != file.sha256:
                path = own_name(file.path, position)
                moved.append(path)
            found[path] = file.model_copy(update={"path": path})
    return list(found.values()), moved


def _note_moved(session: Session, fenced: FencedAttempt, names: str, now: datetime) -> None:
    """Tell the owner, once in an attempt, that nodes have left different files of one name."""
    told = select(Event.id).where(
        Event.subject == fenced.job_id, Event.epoch == fenced.epoch, Event.kind == RENAMED
    )
    if session.scalar(told.limit(1)) is not None:
        return
    note(
        session,
        fenced.job_id,
        RENAMED,
        now=now,
        message="Nodes have left different files of the same name. Those of the first node keep "
        f"it, those of the others are {names}.",
        actor="",
        epoch=fenced.epoch,
    )


def require_stored(session: Session, files: list[FileRef]) -> None:
    hashes = {file.sha256 for file in files}
    stored: dict[str, int] = {}
    for start in range(0, len(hashes), 500):
        part = sorted(hashes)[start : start + 500]
        here = StoredFile.sha256.in_(part) & StoredFile.gone_at.is_(None)
        rows = session.execute(
            select(StoredFile.sha256, StoredFile.size)
            .where(here)
            .order_by(StoredFile.sha256)
            .with_for_update()
        ).all()
        # Named again, so that no sweep takes them away meanwhile.
        session.execute(
            update(StoredFile).where(here).values(named_at=utc_now()),
            execution_options={"synchronize_session": False},
        )
        stored |= {sha256: size for sha256, size in rows}
    for file in files:
        if stored.get(file.sha256) != file.size:
            raise BadRequest(
                f"files: {file.path} ({file.size:,} bytes, {file.sha256}) is not in the store. "
                "Upload it first.",
                code="file_missing",
                param="files",
            )
