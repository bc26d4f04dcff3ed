"""Reading and planning of a job, from its text to the plan that it gets: everything before
`api.jobs.queueing` writes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files.owned import find_readable
from api.jobs.forks import find_fork
from api.jobs.inputs import (
    ResolvedInput,
    find_mixture,
    resolve_inputs,
)
from api.jobs.plan_cache import Offers, PlanCache, PlanOnClass
from api.nodes.network_lists import ceilings_of, granted_hosts
from api.web.errors import InvalidRequest, validation_items
from api.web.schemas import ProblemItem
from core.base.errors import BadRequest
from core.base.reasons import ReasonCode
from core.base.strict_text import Json, SpecText
from core.leases.neighbours import why_not_beside_others
from core.policy.grid import usable_end
from core.spec.hosts import HostRule, host_rules, named, narrowed
from core.spec.spec import (
    MAX_OUT_OF_MEMORY_S,
    AnyJobSpec,
    JobSpec,
    ProgramJobSpec,
    ScriptJobSpec,
    format_duration,
    may_start,
    read_job_spec,
)
from core.states import LeaseState
from core.tables.files import Dataset, Model, Tokenizer
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.scripts import CodeArchive, Secret
from strategies.plan.built_in.datasets import BUILT_IN
from strategies.plan.hugging_face.hf_config import differences, parse_config
from strategies.plan.planner import DOES_NOT_FIT, Plan
from strategies.plan.spec import HUB, FrozenDtype, ModelName

OWN_SCRIPT = ("command", "entrypoint")


@dataclass(frozen=True)
class PlannedSpec:
    """A spec, and its plan on every node class that it may run on, smallest class first."""

    spec: AnyJobSpec
    dataset_id: str | None
    model_id: str | None
    tokenizer_id: str | None
    plans: Sequence[PlanOnClass]
    inputs: Sequence[ResolvedInput] = ()
    networks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Hosts that a script may reach on each of these classes, if it asks for some."""

    @property
    def chosen(self) -> PlanOnClass | None:
        """Smallest class on which the job can run; else the smallest where it may run out of
        memory."""
        fitting = (each for each in self.plans if each.plan.runnable)
        allowed = (each for each in self.plans if may_start(self.spec, each.plan))
        return next(fitting, next(allowed, None))

    @property
    def nearest(self) -> PlanOnClass:
        """Class that lacks least: first ranks, then fewest problems, then largest memory."""

        def lacks(each: PlanOnClass) -> tuple[int, int, float]:
            plan = each.plan
            ranks = max(0, plan.ranks_per_node - each.offer.hardware.slots)
            return ranks, len(plan.problems), -plan.capacity_gib if isinstance(plan, Plan) else 0.0

        return min(self.plans, key=lacks)


def read_spec(text: SpecText) -> AnyJobSpec:
    """Return the job that a text asks for; every wrong field is named, with its line."""
    for name in OWN_SCRIPT:
        if name in text.value:
            raise BadRequest(
                f"{name}: a script is submitted under `script`, with its entry point and its "
                "code; `trainyard submit --script FILE` writes that for you.",
                code="unknown_field",
                param=name,
            )
    try:
        spec = read_job_spec(text.value)
    except ValidationError as error:
        items = validation_items(error.errors(include_url=False), lines=text.lines)
        raise InvalidRequest([_kinder(item) for item in items]) from error
    return spec


def plan_job(
    session: Session,
    cache: PlanCache,
    spec: AnyJobSpec,
    *,
    user_id: str,
    offers: Offers | None = None,
) -> PlannedSpec:
    """Plan `spec` on every node class that it may run on. Reads only; jobs that are planned
    together share their `offers`.

    Raises BadRequest if its dataset, model, inputs, node class or lease do not exist.
    """
    dataset_id = model_id = tokenizer_id = None
    inputs: Sequence[ResolvedInput] = ()
    if isinstance(spec, ScriptJobSpec):
        require_code(session, spec, user_id=user_id)
        require_secrets(session, spec, user_id=user_id)
    if isinstance(spec, ProgramJobSpec):
        inputs = resolve_inputs(session, spec, user_id=user_id)
    else:
        dataset_id = find_dataset(
            session, spec.data.dataset, user_id=user_id, model=spec.model.name
        )
        model = find_model(session, spec, user_id=user_id)
        if model is not None:
            model_id, spec = model.id, with_frozen_dtype(spec, model.dtype)
        inputs = find_mixture(session, spec, user_id=user_id)
        find_fork(session, spec, user_id=user_id)
        if spec.data.tokenizer_name is not None:
            tokenizer_id, spec = with_tokenizer(session, spec, user_id=user_id)
    wanted = spec.resources.node_class
    num_slots = None
    if spec.named_leases:
        leased, num_slots = nodes_of_leases(session, spec, user_id=user_id)
        if wanted not in (None, leased):
            raise BadRequest(
                f"resources.node_class is {wanted}, but the lease is on a node of class "
                f"{leased}. Leave node_class out.",
                code="lease_mismatch",
                param="resources.node_class",
            )
        wanted = leased
    offers = offers or Offers(session)
    possible = [offer.part(num_slots) for offer in offers.of(wanted)]
    if wanted is not None and not possible:
        known = ", ".join(offer.name for offer in offers.all) or "none yet"
        raise BadRequest(
            f"resources.node_class: there is no node of class {wanted!r} here. Classes: {known}.",
            code="unknown_node_class",
            param="resources.node_class",
        )
    enough = [offer for offer in possible if offer.num_nodes >= spec.resources.nodes]
    if spec.resources.device == "cpu":  # leave GPUs to others where there are nodes without
        enough.sort(key=lambda offer: offer.hardware.device != "cpu")
    if possible and not enough:
        most = max(possible, key=lambda offer: offer.num_nodes)
        raise BadRequest(
            f"resources.nodes: {spec.resources.nodes} nodes of one class were requested, but "
            f"the largest class, {most.name}, has {most.num_nodes}. Request fewer.",
            code="too_few_nodes",
            param="resources.nodes",
        )
    networks = granted_networks(session, spec, [one.name for one in enough], user_id=user_id)
    if networks:
        enough = [offer for offer in enough if offer.name in networks]
    return PlannedSpec(
        spec=spec,
        dataset_id=dataset_id,
        model_id=model_id,
        tokenizer_id=tokenizer_id,
        plans=[cache.plan(spec, offer) for offer in enough],
        inputs=inputs,
        networks=networks,
    )


def require_runnable(planned: PlannedSpec) -> PlanOnClass:
    """Return the plan that the job gets; raise an error with the reasons and remedies if it fits
    nowhere."""
    if not planned.plans:
        raise BadRequest(
            "No node is enrolled yet, so nothing can be planned. An administrator adds one: "
            "`trainyard admin enrol NAME`, then `trainyard worker` on the machine.",
            code="no_nodes",
            param="resources.node_class",
        )
    if planned.chosen is not None:
        return planned.chosen
    best = planned.nearest
    plan = best.plan
    items = [
        ProblemItem(param=p.param, code=p.code, message=f"{p.param}: {p.message}")
        for p in plan.problems
    ]
    if isinstance(plan, Plan) and all(one.code == DOES_NOT_FIT for one in plan.problems):
        raise InvalidRequest(
            items,
            code="does_not_fit",
            detail=f"The job needs {plan.needed_gib:.2f} GiB per rank; the largest class "
            f"here, {best.offer.name}, has {plan.capacity_gib:.2f} GiB per rank. "
            f"{items[0].message}. To run it all the same, once and with a wall_time of at most "
            f"{format_duration(MAX_OUT_OF_MEMORY_S)}, set resources.allow_oom: true (trainyard "
            "submit --allow-oom).",
        )
    raise InvalidRequest(items, code="cannot_run")


def find_dataset(session: Session, name: str, *, user_id: str, model: ModelName) -> str | None:
    """Return the id of a dataset that the user may read, and `model` can; None for a built-in
    dataset."""
    if name in BUILT_IN:
        return None
    found = find_readable(session, Dataset, user_id, name)
    if found is None:
        raise BadRequest(
            f"data.dataset: you have no dataset {name!r}. Upload it first, or use a built-in "
            f"one: {', '.join(BUILT_IN)}.",
            code="unknown_dataset",
            param="data.dataset",
        )
    if (found.format == "npz") != model.reads_images:
        holds, others = ("text", "gpt or llama") if model.reads_images else ("images", "mlp or cnn")
        raise BadRequest(
            f"data.dataset: {name!r} holds {holds}, which model {model} cannot read. Use {others}.",
            code="wrong_dataset",
            param="data.dataset",
        )
    return found.id


class FoundModel(NamedTuple):
    """A model that a user may read."""

    id: str
    dtype: FrozenDtype | None
    """Type of its weights, by its config.json."""


def find_model(session: Session, spec: JobSpec, *, user_id: str) -> FoundModel | None:
    """Return the model that the spec names; None if it names none, or a model of the hub.

    Raises BadRequest if the user may read no such model, or the spec has another shape.
    """
    name = spec.model.checkpoint
    if name is None or name.startswith(HUB) or spec.model.name is not ModelName.LLAMA:
        return None  # a rule tells those who ask for a checkpoint of something else
    found = find_readable(session, Model, user_id, name)
    if found is None:
        raise BadRequest(
            f"model.checkpoint: you have no model {name!r}. Upload it first (trainyard models "
            "upload DIR), or name one of the hub, as hub:owner/name@revision.",
            code="unknown_model",
            param="model.checkpoint",
        )
    config = parse_config(found.config.encode())
    wrong = list(differences(config, spec))
    if wrong:
        raise BadRequest(
            f"model.checkpoint: the shape of {name} differs: {'; '.join(wrong)}. `trainyard "
            f"models show {name}` prints the fields.",
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
    return FoundModel(found.id, config.stored_dtype)


def with_tokenizer(session: Session, spec: JobSpec, *, user_id: str) -> tuple[str, JobSpec]:
    """Return the id of the tokenizer that the spec names, and the spec with its vocabulary.

    Raises BadRequest if there is none, or the spec gives a smaller vocabulary.
    """
    name, told = spec.data.tokenizer_name, spec.data.vocabulary_size
    assert name is not None
    found = find_readable(session, Tokenizer, user_id, name)
    if found is None:
        raise BadRequest(
            f"data.tokenizer_name: you have no tokenizer {name!r}. `trainyard tokenizers` trains, "
            "uploads and lists them.",
            code="unknown_tokenizer",
            param="data.tokenizer_name",
        )
    if told is not None and told < found.vocabulary_size:
        raise BadRequest(
            f"data.vocabulary_size: {told:,} is less than the {found.vocabulary_size:,} tokens of "
            f"{name}. Leave it out.",
            code="vocabulary_too_small",
            param="data.vocabulary_size",
        )
    size = told or found.vocabulary_size
    data = spec.data.model_copy(update={"vocabulary_size": size})
    return found.id, spec.model_copy(update={"data": data})


def with_frozen_dtype(spec: JobSpec, dtype: FrozenDtype | None) -> JobSpec:
    """Return the spec with the type of its frozen weights: the checkpoint's, if it is left open."""
    if spec.adapter is None or spec.adapter.frozen_dtype is not None:
        return spec
    told = spec.adapter.model_copy(update={"frozen_dtype": dtype})
    return spec.model_copy(update={"adapter": told})


def require_code(session: Session, spec: ScriptJobSpec, *, user_id: str) -> None:
    """Raise BadRequest if the user has not uploaded the script's code."""
    archive = session.get(CodeArchive, (user_id, spec.script.code))
    if archive is None:
        raise BadRequest(
            f"script.code: you have uploaded no code {spec.script.code}. Upload a folder with "
            "`trainyard submit --script FILE`, or an archive with POST /v1/code.",
            code="unknown_code",
            param="script.code",
        )
    script = spec.script
    for param, path in (("entry", script.entry), ("requirements", script.requirements)):
        if path is not None and path not in archive.paths:
            raise BadRequest(
                f"script.{param}: the code has no file {path!r}. It has "
                f"{', '.join(archive.paths[:5])}{' and more' if len(archive.paths) > 5 else ''}.",
                code="not_in_code",
                param=f"script.{param}",
            )


def granted_networks(
    session: Session, spec: AnyJobSpec, node_classes: Sequence[str], *, user_id: str
) -> Mapping[str, Sequence[str]]:
    """Map node class -> the hosts that a program may reach there, for classes on which all that it
    asks for is granted; empty if it asks for nothing. Raises BadRequest if there is no such class.
    """
    if not isinstance(spec, ProgramJobSpec) or not spec.network or not node_classes:
        return {}
    found, refusals = {}, []
    for name in node_classes:
        granted = granted_hosts(session, node_class=name, user_id=user_id)
        for number, entry in enumerate(spec.network):
            wanted = host_rules([entry])
            if len(narrowed(wanted, granted)) < len(wanted):
                refusals.append((number, entry, f"{named(granted)} on {name}"))
                break
            ceilings = ceilings_of(session, name)
            if ceilings and not any(_is_below(wanted, ceiling) for ceiling in ceilings):
                most = {named(ceiling) for ceiling in ceilings if ceiling is not None}
                refusals.append((number, entry, f"{' or '.join(sorted(most))} on nodes of {name}"))
                break
        else:
            found[name] = [str(rule) for rule in narrowed(host_rules(spec.network), granted)]
    if not found:
        number, entry, _ = refusals[0]
        raise BadRequest(
            f"network.{number}: {entry} may not be reached. You may reach: "
            f"{'; '.join(each for *_, each in refusals)}. An administrator lists hosts with "
            "`trainyard admin network`.",
            code="network_not_granted",
            param=f"network.{number}",
        )
    return found


def _is_below(wanted: Sequence[HostRule], ceiling: Sequence[HostRule] | None) -> bool:
    return ceiling is None or len(narrowed(wanted, ceiling)) == len(wanted)


def require_secrets(session: Session, spec: ScriptJobSpec, *, user_id: str) -> None:
    """Raise BadRequest if the script names a secret that the user does not have."""
    wanted = set(spec.script.secrets)
    rows = session.scalars(
        select(Secret.name).where(Secret.user_id == user_id, Secret.name.in_(wanted))
    )
    missing = sorted(wanted - set(rows))
    if missing:
        raise BadRequest(
            f"script.secrets: you have no secret {missing[0]}. Set it with `trainyard secrets "
            f"set {missing[0]}`, which asks for its value.",
            code="unknown_secret",
            param="script.secrets",
        )


def overridden(spec: dict[str, Any], changes: dict[str, Json]) -> dict[str, Json]:
    """Return `spec` with `changes` laid over it, mapping by mapping; null removes a field."""
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


def laid_over(text: SpecText, changes: dict[str, Json]) -> SpecText:
    """Return a job's text with `changes` laid over it. Changed fields have no line number."""
    lines = {path: line for path, line in text.lines.items() if not _changes(changes, path)}
    return SpecText(value=overridden(text.value, changes), lines=lines)


def _changes(changes: Json, path: Sequence[str | int]) -> bool:
    if not isinstance(changes, dict) or not path:
        return not isinstance(changes, dict)
    first, *rest = path
    return isinstance(first, str) and first in changes and _changes(changes[first], rest)


def nodes_of_leases(session: Session, spec: AnyJobSpec, *, user_id: str) -> tuple[str, int | None]:
    """Return the node class of the leases that a job names, and the slots that each of them has of
    its node; None: all. Raises BadRequest if they cannot be used."""
    named, nodes = spec.named_leases, spec.resources.nodes
    param = "leases" if spec.leases else "lease"
    if spec.leases and spec.lease is not None:
        raise BadRequest(
            "leases: name all leases of the job here, and leave `lease` out.", param="leases"
        )
    if len(set(named)) != nodes:
        raise BadRequest(
            f"{param}: a job on {nodes} nodes runs in {nodes} leases, one on each node, but "
            f"{len(set(named))} were named. Name all of them in `leases`.",
            code="lease_mismatch",
            param=param,
        )
    found = [_usable_lease(session, lease_id, param, user_id=user_id) for lease_id in named]
    begins = max(lease.hold_start for lease, _ in found)
    ends = min(usable_end(lease.hold_end, lease.grace_s) for lease, _ in found)
    classes = sorted({class_name for _, class_name in found})
    nodes_found = {lease.node_id for lease, _ in found}
    if len(classes) > 1 or begins >= ends or len(nodes_found) < nodes:
        why = "they do not overlap in time"
        if len(classes) > 1:
            why = f"they are of different classes: {', '.join(classes)}"
        elif len(nodes_found) < nodes:
            why = "two are on the same node"
        raise BadRequest(
            f"leases: these cannot be used together: {why}.", code="lease_mismatch", param="leases"
        )
    for lease, _ in found:
        node = session.get_one(Node, lease.node_id)
        why = why_not_beside_others(node, lease, is_script=isinstance(spec, ProgramJobSpec))
        if why:
            raise BadRequest(f"{param}: {why}", code=ReasonCode.SHARING_UNAVAILABLE, param=param)
    sizes = [lease.num_slots for lease, _ in found if lease.num_slots is not None]
    return classes[0], min(sizes, default=None)


def _usable_lease(
    session: Session, lease_id: str, param: str, *, user_id: str
) -> tuple[Lease, str]:
    found = session.execute(
        select(Lease, Node.class_name)
        .join(Node, Lease.node_id == Node.id)
        .where(Lease.id == lease_id, Lease.user_id == user_id)
    ).one_or_none()
    if found is None or found[0].state not in (LeaseState.BOOKED, LeaseState.ACTIVE):
        why = "you have no such lease" if found is None else f"it is {found[0].state}"
        raise BadRequest(
            f"{param}: {lease_id} cannot be used: {why}. Book a lease, or leave the field out.",
            code="unknown_lease",
            param=param,
        )
    return found[0], found[1]


def _kinder(item: ProblemItem) -> ProblemItem:
    if item.code == "missing" and item.param in ("resources", "resources.wall_time"):
        return item.model_copy(
            update={
                "param": "resources.wall_time",
                "message": "resources.wall_time: give the longest time that the job may run, "
                "such as 20min or 1h 30min. The scheduler needs it to find a start "
                "for the job.",
            }
        )
    return item
