"""Inputs of scripts' jobs: from the names in a spec to exact files, and their views."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files.dataset_files import files_of
from api.files.owned import Owned, find_readable, reference
from api.jobs.schemas import JobInputView
from api.web.sharing import find_readable_job
from core.base.errors import BadRequest
from core.spec.inputs import Input, InputKind, folder, tree_sha256, variable
from core.spec.spec import JobSpec, ProgramJobSpec
from core.tables.files import Checkpoint, Dataset, Model, Tokenizer
from core.tables.jobs import Job, JobInput
from core.tables.nodes import Node
from core.wire.messages import FileRef
from strategies.plan.built_in.datasets import BUILT_IN

MOST_LISTED = 8


@dataclass(frozen=True)
class ResolvedInput:
    """An input, and the files that it consists of."""

    kind: InputKind
    name: str
    """Name by which the program asks for it."""
    source_id: str
    source: str
    """Name by which people know it."""
    files: Sequence[FileRef]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def sha256(self) -> str:
        return tree_sha256((file.path, file.sha256) for file in self.files)


def resolve_inputs(
    session: Session, spec: ProgramJobSpec, *, user_id: str
) -> Sequence[ResolvedInput]:
    """Return the inputs of a job with their files, in the order of the spec.

    Raises BadRequest with the field and what there is, if the user can read no such input.
    """
    return [
        FINDERS[one.kind](session, one, f"inputs.{number}.{one.kind}", user_id)
        for number, one in enumerate(spec.inputs)
    ]


def find_mixture(session: Session, spec: JobSpec, *, user_id: str) -> Sequence[ResolvedInput]:
    """Return the datasets that a recipe mixes in, in the order of its spec.

    They are kept as a script's inputs are: by their exact files. Raises BadRequest with the field.
    """
    found = []
    for number, part in enumerate(spec.data.mixture):
        param = f"data.mixture.{number}.dataset"
        one = Input(dataset=part.dataset, name=f"mixture-{number}")
        resolved = _dataset(session, one, param, user_id)
        if session.get_one(Dataset, resolved.source_id).format == "npz":
            raise BadRequest(
                f"{param}: {part.dataset} holds images, which are not mixed. Name a text.",
                code="wrong_dataset",
                param=param,
            )
        found.append(resolved)
    return found


def insert_inputs(session: Session, job_id: str, inputs: Sequence[ResolvedInput]) -> None:
    """Insert the rows of a new job's inputs."""
    session.add_all(
        JobInput(
            job_id=job_id,
            position=position,
            kind=one.kind,
            name=one.name,
            source_id=one.source_id,
            source=one.source,
            sha256=one.sha256,
            size=one.size,
            files=[file.model_dump(mode="json") for file in one.files],
        )
        for position, one in enumerate(inputs)
    )


def inputs_of(session: Session, jobs: Sequence[Job]) -> Mapping[str, list[JobInputView]]:
    """Map job id -> the views of its inputs, for those of `jobs` that have some."""
    having = [job.id for job in jobs if isinstance(job.spec, dict) and job.spec.get("inputs")]
    found: dict[str, list[JobInputView]] = {}
    if not having:
        return found
    rows = session.scalars(
        select(JobInput)
        .where(JobInput.job_id.in_(having))
        .order_by(JobInput.job_id, JobInput.position)
    )
    for row in rows:
        found.setdefault(row.job_id, []).append(input_view(row))
    return found


def recipe_bytes(
    session: Session, *, dataset_id: str | None, model_id: str | None, tokenizer_id: str | None
) -> int:
    """Return the bytes of a recipe's dataset, model and tokenizer; of what is built in or comes
    from the hub, none."""
    named = ((Dataset, dataset_id), (Model, model_id), (Tokenizer, tokenizer_id))
    sizes = [session.scalar(select(table.size).where(table.id == id)) for table, id in named if id]
    return sum(size or 0 for size in sizes)


def fetch_seconds(session: Session, size: int, node_class: str) -> float | None:
    """Return the seconds in which a node of the class fetches `size` bytes.

    It is the median of the rates that its nodes have measured; None if none has yet.
    """
    rows = session.scalars(select(Node.telemetry).where(Node.class_name == node_class))
    rates = [float(rate) for row in rows if (rate := (row or {}).get("fetch_bytes_per_s"))]
    if not rates:
        return None
    return size / statistics.median(rates)


def input_view(one: ResolvedInput | JobInput) -> JobInputView:
    """Return the view of an input."""
    return JobInputView(
        kind=one.kind,
        name=one.name,
        source=one.source,
        source_id=one.source_id,
        path=folder(one.name),
        variable=variable(one.name),
        sha256=one.sha256,
        size=one.size,
        files=len(one.files),
    )


def _dataset(session: Session, one: Input, param: str, user_id: str) -> ResolvedInput:
    if one.source in BUILT_IN:
        raise BadRequest(
            f"{param}: {one.source} is built in: each node makes it by itself, so it has no exact "
            "bytes. Upload a dataset of your own.",
            code="built_in_dataset",
            param=param,
        )
    found = _found(session, Dataset, one, param, user_id)
    source = reference(session, found, user_id)
    return ResolvedInput(one.kind, one.inner_name, found.id, source, files_of(found))


def _model(session: Session, one: Input, param: str, user_id: str) -> ResolvedInput:
    found = _found(session, Model, one, param, user_id)
    files = [FileRef.model_validate(file) for file in found.files]
    source = reference(session, found, user_id)
    return ResolvedInput(one.kind, one.inner_name, found.id, source, files)


def _checkpoint(session: Session, one: Input, param: str, user_id: str) -> ResolvedInput:
    job_id, _, step = one.source.partition("/step-")
    job = find_readable_job(session, job_id, user_id)
    if job is None:
        raise BadRequest(
            f"{param}: you have no job {job_id}, and none is shared with you.",
            code="unknown_job",
            param=param,
        )
    kept = session.scalars(
        select(Checkpoint)
        .where(Checkpoint.job_id == job_id, Checkpoint.deleted_at.is_(None))
        .order_by(Checkpoint.step.desc(), Checkpoint.epoch.desc())
    ).all()
    found = next((each for each in kept if each.step == int(step)), None)
    if found is None:
        steps = list(dict.fromkeys(f"step-{each.step}" for each in kept))
        raise BadRequest(
            f"{param}: {job.name} has no checkpoint of step {int(step):,}. It has "
            f"{_listed(steps)}.",
            code="unknown_checkpoint",
            param=param,
        )
    files = [FileRef.model_validate(file) for file in found.files]
    return ResolvedInput(one.kind, one.inner_name, found.id, one.source, files)


FINDERS = {
    InputKind.DATASET: _dataset,
    InputKind.MODEL: _model,
    InputKind.CHECKPOINT: _checkpoint,
}


def _found(session: Session, table: type[Owned], one: Input, param: str, user_id: str) -> Owned:
    """Return the dataset or model that the user may read by this name or id."""
    found = find_readable(session, table, user_id, one.source)
    if found is None:
        own = table.user_id == user_id, table.deleted_at.is_(None)
        names = session.scalars(
            select(table.name).where(*own).order_by(table.name).limit(MOST_LISTED + 1)
        ).all()
        raise BadRequest(
            f"{param}: you have no {one.kind} {one.source!r}. You have {_listed(names)}.",
            code=f"unknown_{one.kind}",
            param=param,
        )
    return found


def _listed(names: Sequence[str]) -> str:
    more = " and more" if len(names) > MOST_LISTED else ""
    return (", ".join(names[:MOST_LISTED]) or "none") + more
