"""A template: a job, script or agenda in which some fields are open and all others locked.

Pure. A field is named by its path, as in refusals: `training.learning_rate`, and in an agenda
`common.data.dataset` or `jobs.0.training.steps`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from core.base.strict_text import Json
from strategies.plan.built_in.datasets import BUILT_IN
from strategies.plan.spec import HUB

ALWAYS_OPEN = ("lease", "leases")
"""Fields that the person who starts a template sets: where it runs."""
MOST_OPEN = 50
PATH = r"^[a-z][a-z0-9_]*(\.([a-z][a-z0-9_]*|[0-9]{1,2}))*$"
IDS = re.compile(r"^(data|model|tok|job)_[0-9a-z]{26}")
MISSING = object()

Scalar = str | int | float | bool


class TemplateKind(StrEnum):
    """Result of a start."""

    JOB = "job"
    SCRIPT = "script"
    AGENDA = "agenda"


class OpenField(BaseModel):
    """A field that the person who starts the template may set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    field: Annotated[str, Field(pattern=PATH, max_length=200)]
    """Path of the field, such as `training.learning_rate`."""
    label: Annotated[str, Field(max_length=100)] = ""
    """Name of the field in the form; by default its path."""
    hint: Annotated[str, Field(max_length=300)] = ""
    choices: Annotated[tuple[Scalar, ...], Field(max_length=50)] = ()
    """Values that are allowed; empty: any."""
    minimum: float | None = None
    maximum: float | None = None


class TemplateSpec(BaseModel):
    """A job, script or agenda to start from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    description: Annotated[str, Field(max_length=2000)] = ""
    spec: dict[str, Any]
    """The job or agenda. An open field has its default here; without one it must be filled in."""
    open: Annotated[tuple[OpenField, ...], Field(max_length=MOST_OPEN)] = ()
    """Fields that may be set. All others are locked."""

    @model_validator(mode="after")
    def _has_distinct_fields(self) -> Self:
        paths = [one.field for one in self.open]
        for number, path in enumerate(paths):
            for other in paths[:number]:
                if f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}."):
                    raise ValueError(
                        f"open: {path} and {other} are not apart; name each field once"
                    )
        if "lease" in self.spec or "leases" in self.spec:
            raise ValueError("spec: leave the lease out; who starts the template names theirs")
        return self

    @property
    def kind(self) -> TemplateKind:
        if "jobs" in self.spec:
            return TemplateKind.AGENDA
        return TemplateKind.SCRIPT if "script" in self.spec else TemplateKind.JOB


@dataclass(frozen=True)
class Refusal:
    """Reason why a template cannot be started so, with the field."""

    field: str
    code: str
    message: str


def filled(
    template: TemplateSpec, values: Mapping[str, Json]
) -> tuple[dict[str, Any], list[Refusal]]:
    """Return the template's spec with values by path, and what is wrong with them.

    A value of a field that is not open, that is not among its choices or outside its bounds, or
    an open field that is left without a value is a refusal.
    """
    spec = deepcopy(template.spec)
    known = {one.field: one for one in template.open}
    refusals = [_locked(field, known) for field in values if field not in known]
    for path, one in known.items():
        value = values.get(path, value_at(spec, path))
        if value is MISSING or value is None:
            refusals.append(Refusal(path, "missing", f"{path}: fill it in; it has no default."))
        elif (why := _why_not(one, value)) is not None:
            refusals.append(Refusal(path, "not_allowed", f"{path}: {why}"))
        elif path in values and not _put(spec, path, value):
            refusals.append(
                Refusal(path, "unknown_field", f"{path}: the template has no such field.")
            )
    return spec, refusals


def changes(
    template: TemplateSpec, spec: Mapping[str, Any]
) -> tuple[dict[str, Json], list[Refusal]]:
    """Return the values of the open fields in a whole spec that was made of a template, and a
    refusal for each locked field that differs."""
    known = {one.field for one in template.open}
    values: dict[str, Json] = {}
    for path in known:
        value = value_at(spec, path)
        if value is not MISSING:
            values[path] = value
    given = {name: value for name, value in spec.items() if name not in ALWAYS_OPEN}
    wrong = [_locked(path, known) for path in _differing(template.spec, given, "", known)]
    return values, wrong


def value_at(spec: Any, path: str) -> Any:
    """Return the value of a field, MISSING if there is none."""
    for part in path.split("."):
        if isinstance(spec, list) and part.isdigit() and int(part) < len(spec):
            spec = spec[int(part)]
        elif isinstance(spec, Mapping) and part in spec:
            spec = spec[part]
        else:
            return MISSING
    return spec


def qualified(spec: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return a spec in which all things are named with their owner, so that it means the same to
    everybody who starts it."""
    found = deepcopy(dict(spec))
    for part in (found, found.get("common"), *_jobs(found)):
        if isinstance(part, dict):
            _qualify(part, owner)
    return found


def scripts_in(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the `script` part of a job, or of those jobs of an agenda that have one."""
    for part in (spec, spec.get("common"), *_jobs(spec)):
        script = part.get("script") if isinstance(part, Mapping) else None
        if isinstance(script, dict):
            yield script


def with_code(spec: Mapping[str, Any], sha256: str | None) -> dict[str, Any]:
    """Return a spec whose scripts run an archive of code, if they name none."""
    found = deepcopy(dict(spec))
    for script in scripts_in(found):
        if sha256 is not None:
            script.setdefault("code", sha256)
    return found


def _jobs(spec: Mapping[str, Any]) -> Sequence[Any]:
    jobs = spec.get("jobs")
    return jobs if isinstance(jobs, list) else ()


def _qualify(job: dict[str, Any], owner: str) -> None:
    data, model, inputs = job.get("data"), job.get("model"), job.get("inputs")
    if isinstance(data, dict):
        _name_owner(data, "dataset", owner)
        _name_owner(data, "tokenizer_name", owner)
        mixture = data.get("mixture")
        for part in mixture if isinstance(mixture, list) else ():
            if isinstance(part, dict):
                _name_owner(part, "dataset", owner)
    if isinstance(model, dict):
        _name_owner(model, "checkpoint", owner)
    for one in inputs if isinstance(inputs, list) else ():
        if isinstance(one, dict):
            for kind in ("dataset", "model"):
                plain = one.get(kind)
                _name_owner(one, kind, owner)
                if one.get(kind) != plain:
                    one.setdefault("name", plain)  # its folder keeps its name


def _name_owner(part: dict[str, Any], field: str, owner: str) -> None:
    name = part.get(field)
    if not isinstance(name, str) or not name or "/" in name:
        return
    if name in BUILT_IN or name.startswith(HUB) or IDS.match(name):
        return
    part[field] = f"{owner}/{name}"


def _locked(field: str, known: Mapping[str, object] | set[str]) -> Refusal:
    there = ", ".join(sorted(known)) or "none"
    return Refusal(field, "locked", f"{field}: the template locks this field. Open: {there}.")


def _why_not(one: OpenField, value: Json) -> str | None:
    """Return why a value is not allowed, None if it is."""
    if one.choices and value not in one.choices:
        return f"{value!r} is not allowed; choose {', '.join(map(str, one.choices))}."
    if one.minimum is None and one.maximum is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return f"{value!r} is not a number."
    if one.minimum is not None and value < one.minimum:
        return f"{value:g} is less than {one.minimum:g}, the smallest value allowed."
    if one.maximum is not None and value > one.maximum:
        return f"{value:g} is more than {one.maximum:g}, the largest value allowed."
    return None


def _put(spec: dict[str, Any], path: str, value: Json) -> bool:
    """Set a field; make the mappings on its way. Return False if there is no such place."""
    *parents, name = path.split(".")
    place: Any = spec
    for part in parents:
        if isinstance(place, list):
            if not part.isdigit() or int(part) >= len(place):
                return False
            place = place[int(part)]
        elif isinstance(place, dict):
            place = place.setdefault(part, {})
        else:
            return False
    if not isinstance(place, dict):
        return False
    place[name] = value
    return True


def _differing(ours: Any, theirs: Any, path: str, known: set[str]) -> Iterator[str]:
    """Yield the paths of the locked fields in which two specs differ."""
    if path in known:
        return
    below = any(one.startswith(f"{path}.") for one in known) or not path
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted({*ours, *theirs}):
            inner = f"{path}.{name}" if path else str(name)
            yield from _differing(ours.get(name), theirs.get(name), inner, known)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from _differing(*pair, f"{path}.{number}", known)
    elif below and ours is None and isinstance(theirs, Mapping):
        yield from _differing({}, theirs, path, known)
    elif ours != theirs:
        yield path
