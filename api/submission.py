"""From the text of a job to a queued job: read, plan, then write in one short transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.errors import InvalidRequest, validation_items
from api.identity import Person
from api.plan_cache import ClassPlanned, PlanCache, classes_on_offer
from api.schemas import JobView, ProblemItem
from api.spec_text import Json, SpecText
from core.errors import BadRequest, NotSupportedYet, TooMany
from core.ids import Kind, new_id
from core.spec import JobSpec
from core.states import LIVE_JOB, WAITING_JOB, Desired, JobState
from core.tables import Dataset, Job, Lease, Model, Node
from core.transitions import enter_job
from strategies.data.built_in import BUILT_IN
from strategies.fine_tuning.hf_config import differences, parse_config
from strategies.spec import HUB, ModelName

OWN_SCRIPT = ("script", "command", "entrypoint")


@dataclass(frozen=True)
class Planned:
    """A spec, and its plan on every class it may run on, smallest first."""

    spec: JobSpec
    dataset_id: str | None
    model_id: str | None
    plans: Sequence[ClassPlanned]

    @property
    def chosen(self) -> ClassPlanned | None:
        """The smallest class on which it can run."""
        return next((each for each in self.plans if each.plan.runnable), None)


def read_spec(text: SpecText) -> JobSpec:
    """The job that a text asks for; every wrong field is named, with its line."""
    for name in OWN_SCRIPT:
        if name in text.value:
            raise NotSupportedYet(
                f"{name}: running a script of your own can't be done yet. Describe a training by "
                "model, data, training and parallelism.",
                param=name,
            )
    try:
        spec = JobSpec.model_validate(text.value)
    except ValidationError as error:
        items = validation_items(error.errors(include_url=False), lines=text.lines)
        raise InvalidRequest([_kinder(item) for item in items]) from error
    if spec.resources.nodes > 1:
        raise NotSupportedYet(
            f"resources.nodes: a job on {spec.resources.nodes} nodes can't be run yet; take 1.",
            param="resources.nodes",
        )
    return spec


def plan_job(session: Session, cache: PlanCache, spec: JobSpec, *, user_id: str) -> Planned:
    """Plan `spec` on every node class it may run on. Reads only.

    Raises BadRequest where its dataset, model, node class or lease is not there.
    """
    dataset_id = find_dataset(session, spec.data.dataset, user_id=user_id, model=spec.model.name)
    model_id = find_model(session, spec, user_id=user_id)
    wanted = spec.resources.node_class
    if spec.lease is not None:
        leased = _class_of_lease(session, spec.lease, user_id=user_id)
        if wanted not in (None, leased):
            raise BadRequest(
                f"resources.node_class is {wanted}, but lease {spec.lease} is on a {leased}. Leave "
                "node_class out.",
                code="lease_mismatch",
                param="resources.node_class",
            )
        wanted = leased
    offers = classes_on_offer(session, wanted)
    if wanted is not None and not offers:
        known = ", ".join(offer.name for offer in classes_on_offer(session)) or "none yet"
        raise BadRequest(
            f"resources.node_class: there is no node of class {wanted!r} here. Classes: {known}.",
            code="unknown_node_class",
            param="resources.node_class",
        )
    plans = [cache.plan(spec, offer) for offer in offers]
    return Planned(spec=spec, dataset_id=dataset_id, model_id=model_id, plans=plans)


def require_runnable(planned: Planned) -> ClassPlanned:
    """The plan the job gets; else an error that says why it fits nowhere and what would."""
    if not planned.plans:
        raise BadRequest(
            "No node is enrolled yet, so nothing can be planned. An administrator adds one: "
            "`trainyard admin enrol NAME`, then `trainyard worker` on the machine.",
            code="no_nodes",
            param="resources.node_class",
        )
    if planned.chosen is not None:
        return planned.chosen
    # The class that comes closest: the fewest problems, then the largest.
    best = min(planned.plans, key=lambda each: (len(each.plan.problems), -each.plan.capacity_gib))
    plan = best.plan
    items = [
        ProblemItem(param=p.param, code=p.code, message=f"{p.param}: {p.message}")
        for p in plan.problems
    ]
    if all(problem.code == "does_not_fit" for problem in plan.problems):
        raise InvalidRequest(
            items,
            code="does_not_fit",
            detail=f"The job needs {plan.needed_gib:.2f} GiB per rank; the largest class here, "
            f"{best.offer.name}, has {plan.capacity_gib:.2f} GiB for each. {items[0].message}.",
        )
    raise InvalidRequest(items, code="cannot_run")


def insert_job(
    session: Session,
    planned: Planned,
    chosen: ClassPlanned,
    *,
    owner: Person,
    cloned_from: str | None = None,
    study: str | None = None,
    now: datetime,
) -> JobView:
    """Queue the job. A study's own rows are its caller's."""
    spec = planned.spec
    values: dict[str, Any] = {
        "id": new_id(Kind.JOB),
        "user_id": owner.id,
        "name": spec.name,
        "spec": spec.model_dump(mode="json"),
        "plan": chosen.document,
        "dataset_id": planned.dataset_id,
        "model_id": planned.model_id,
        "lease_id": spec.lease,
        "cloned_from": cloned_from,
        "state": JobState.QUEUED,
        "desired": Desired.RUN,
        "epoch": 0,
        "reason_code": "submitted",
        "reason": "Submitted; waiting for the scheduler to look at it.",
        "wall_time_s": spec.resources.wall_time,
        "used_s": 0,
        "infrastructure_failures": 0,
        "interruptions": 0,
        "steps": spec.training.steps,
        "last_step": 0,
        "created_at": now,
    }
    enter_job(
        session, values, now=now, reason_code="submitted", message="Submitted.", actor=owner.id
    )
    return JobView(
        id=values["id"],
        name=spec.name,
        user=owner.name,
        state=JobState.QUEUED,
        desired=Desired.RUN,
        reason_code=values["reason_code"],
        reason=values["reason"],
        predicted_start=None,
        spec=spec,
        plan=chosen.plan,
        lease=spec.lease,
        cloned_from=cloned_from,
        study=study,
        epoch=0,
        node=None,
        steps=spec.training.steps,
        step=0,
        loss=None,
        tokens_per_s=None,
        stops_at=None,
        wall_time_s=spec.resources.wall_time,
        used_s=0,
        certificate=None,
        result=None,
        created_at=now,
        started_at=None,
        finished_at=None,
    )


def check_queue(session: Session, user_id: str, max_jobs: int, *, adding: int = 1) -> None:
    """Raises TooMany where `adding` more make it over `max_jobs` waiting or running ones; 0 is no
    limit. Under `lock_user`."""
    if not max_jobs:
        return
    open_jobs = session.scalar(
        select(func.count())
        .select_from(Job)
        .where(Job.user_id == user_id, Job.state.in_(LIVE_JOB + WAITING_JOB))
    )
    assert open_jobs is not None
    if open_jobs + adding > max_jobs:
        more = "" if adding == 1 else f", so {adding} more are too many"
        raise TooMany(
            f"You have {open_jobs} jobs waiting or running and may have {max_jobs}{more}. Cancel "
            "some, or wait until some have ended.",
            code="queue_full",
        )


def find_dataset(session: Session, name: str, *, user_id: str, model: ModelName) -> str | None:
    """Id of the user's dataset with this name or id, which `model` can read; None for a built-in
    one."""
    if name in BUILT_IN:
        return None
    found = session.execute(
        select(Dataset.id, Dataset.format).where(
            Dataset.user_id == user_id,
            Dataset.deleted_at.is_(None),
            (Dataset.name == name) | (Dataset.id == name),
        )
    ).first()
    if found is None:
        raise BadRequest(
            f"data.dataset: you have no dataset {name!r}. Upload it first, or take a built-in "
            f"one: {', '.join(BUILT_IN)}.",
            code="unknown_dataset",
            param="data.dataset",
        )
    if (found.format == "npz") != model.reads_images:
        holds, others = ("text", "gpt or llama") if model.reads_images else ("images", "mlp or cnn")
        raise BadRequest(
            f"data.dataset: {name!r} holds {holds}, which {model} does not read; take {others}.",
            code="wrong_dataset",
            param="data.dataset",
        )
    return str(found.id)


def find_model(session: Session, spec: JobSpec, *, user_id: str) -> str | None:
    """Id of the user's model with this name or id; None where the spec names none, or one of the
    hub. BadRequest where the spec is of another shape."""
    name = spec.model.checkpoint
    if name is None or name.startswith(HUB) or spec.model.name is not ModelName.LLAMA:
        return None  # a rule tells those who ask for a checkpoint of something else
    found = session.execute(
        select(Model.id, Model.config, Model.has_tokenizer).where(
            Model.user_id == user_id,
            Model.deleted_at.is_(None),
            (Model.name == name) | (Model.id == name),
        )
    ).first()
    if found is None:
        raise BadRequest(
            f"model.checkpoint: you have no model {name!r}. Upload it first (trainyard models "
            "upload DIR), or name one of the hub, as hub:owner/name@revision.",
            code="unknown_model",
            param="model.checkpoint",
        )
    wrong = list(differences(parse_config(found.config.encode()), spec))
    if wrong:
        raise BadRequest(
            f"model.checkpoint: {name} is of another shape: {'; '.join(wrong)}. `trainyard models "
            f"show {name}` prints the fields.",
            code="bad_checkpoint",
            param="model.checkpoint",
        )
    if spec.data.tokenizer == "huggingface" and not found.has_tokenizer:
        raise BadRequest(
            f"data.tokenizer: {name} was uploaded without a tokenizer.json. Save it into its "
            "folder with AutoTokenizer.from_pretrained(...).save_pretrained(DIR), and upload it.",
            code="no_tokenizer",
            param="data.tokenizer",
        )
    return str(found.id)


def overridden(spec: dict[str, Any], changes: dict[str, Json]) -> dict[str, Json]:
    """`spec` with `changes` laid over it, mapping by mapping; null removes a field."""
    merged = dict(spec)
    for name, value in changes.items():
        before = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(before, dict):
            merged[name] = overridden(before, value)
        else:
            merged[name] = value
    return merged


def _class_of_lease(session: Session, lease_id: str, *, user_id: str) -> str:
    found = session.execute(
        select(Node.class_name, Lease.state)
        .join(Lease, Lease.node_id == Node.id)
        .where(Lease.id == lease_id, Lease.user_id == user_id)
    ).one_or_none()
    if found is None or found.state not in ("booked", "active"):
        why = "you have no such lease" if found is None else f"that lease is {found.state}"
        raise BadRequest(
            f"lease: {lease_id} can't be used, {why}. Book one, or leave the field out.",
            code="unknown_lease",
            param="lease",
        )
    return str(found.class_name)


def _kinder(item: ProblemItem) -> ProblemItem:
    if item.code == "missing" and item.param in ("resources", "resources.wall_time"):
        return item.model_copy(
            update={
                "param": "resources.wall_time",
                "message": "resources.wall_time: say how long the job may run at most, such as "
                "20min or 1h 30min. It decides when the job can start.",
            }
        )
    return item
