"""The form of a job spec, made from the API's own schema: its fields, limits, defaults and words.

The YAML is what is sent. The form is read out of it and written back into it; what the form does
not know stays as it is. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

SPEC = "JobSpec"
GROUPS = {
    "": "What",
    "model": "Model",
    "data": "Data",
    "training": "Training",
    "parallelism": "Parallelism",
    "resources": "Where and how long",
    "checkpoint": "Checkpoints",
    "tiling": "Tiling",
    "guards": "Guards",
    "adapter": "Adapter",
    "verify": "Certificate",
}
HELP = {
    "model": "training",
    "data": "data",
    "training": "training",
    "parallelism": "strategies/README",
    "resources": "scheduling",
    "checkpoint": "training",
    "tiling": "strategies/tiling",
    "guards": "training",
    "adapter": "strategies/lora",
    "verify": "strategies/certificate",
}
# What most jobs set; the rest is folded away.
BASIC = frozenset(
    [
        "name",
        "precision",
        "lease",
        "activation_checkpointing",
        "model.name",
        "model.layers",
        "model.width",
        "model.heads",
        "data.dataset",
        "data.sequence_length",
        "data.tokenizer",
        "training.steps",
        "training.global_batch_size",
        "training.micro_batch_size",
        "training.learning_rate",
        "training.warmup_steps",
        "training.seed",
        "parallelism.strategy",
        "parallelism.data_parallel_replicate_degree",
        "parallelism.data_parallel_shard_degree",
        "parallelism.tensor_parallel_degree",
        "parallelism.pipeline_parallel_degree",
        "parallelism.context_parallel_degree",
        "parallelism.pipeline_schedule",
        "resources.nodes",
        "resources.ranks_per_node",
        "resources.node_class",
        "resources.wall_time",
        "checkpoint.every_steps",
        "checkpoint.keep_last",
        "verify.steps",
    ]
)
UNITS = {"steps": "steps", "sequence_length": "tokens", "global_batch_size": "samples"}
LABELS = {
    "kv_heads": "KV heads",
    "ffn_width": "FFN width",
    "data_parallel_replicate_degree": "Replicate degree",
    "data_parallel_shard_degree": "Shard degree",
}
MOST_DEPTH = 20
MOST_CHARACTERS = 100_000  # a spec has some 2,000
MOST_EVENTS = 5000  # a spec has fewer than 500
DIRECTIVE = re.compile(r"^%", re.MULTILINE)


class Unreadable(Exception):
    """A text that is no spec; the message says why, for a person."""


@dataclass(frozen=True)
class Field:
    """One field of the form."""

    path: str
    label: str
    kind: str
    """text, integer, number, choice, flag or words (several, with commas)."""
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    default: str
    is_required: bool
    hint: str
    unit: str

    @property
    def is_basic(self) -> bool:
        """True if most jobs set the field."""
        return self.path in BASIC


@dataclass(frozen=True)
class Group:
    """A part of the spec."""

    title: str
    help: str
    """Page of the manual about it; empty if there is none."""
    basic: list[Field]
    more: list[Field]


def groups_of(document: Mapping[str, Any]) -> list[Group]:
    """Every field of a job spec that a form can show, as the API's OpenAPI document has them."""
    schemas = document["components"]["schemas"]
    found: dict[str, list[Field]] = {name: [] for name in GROUPS}
    for name, part in schemas[SPEC]["properties"].items():
        inner = _object(part, schemas)
        if inner is None:
            is_required = name in schemas[SPEC].get("required", [])
            found[""].append(_field(name, part, schemas, is_required=is_required))
        else:
            found.setdefault(name, []).extend(_fields(name, inner, schemas))
    return [
        Group(
            GROUPS.get(name, _label(name)),
            HELP.get(name, ""),
            sorted((field for field in fields if field.is_basic), key=_basic_order),
            [field for field in fields if not field.is_basic],
        )
        for name, fields in found.items()
        if fields
    ]


def values_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """Path to text of everything that a spec says."""
    return dict(_flat(spec, ""))


def spec_of(
    fields: Mapping[str, str], groups: list[Group], base: Mapping[str, Any]
) -> dict[str, Any]:
    """The spec with what the form says; a field that was emptied is left out of it."""
    spec = _copy(base)
    for group in groups:
        for field in (*group.basic, *group.more):
            if field.path not in fields:
                continue
            _put(spec, field.path.split("."), _value(fields[field.path].strip(), field))
    return spec


def merged(spec: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with a change laid over it; null removes."""
    result = _copy(spec)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            inner = result.get(name)
            result[name] = merged(inner if isinstance(inner, dict) else {}, value)
        else:
            result[name] = value
    return result


def read_yaml(text: str) -> dict[str, Any]:
    """Return the content of a text. Raises Unreadable; the API reads it more strictly still."""
    if len(text) > MOST_CHARACTERS:
        raise Unreadable(f"A spec may have at most {MOST_CHARACTERS:,} characters.")
    if DIRECTIVE.search(text):  # libyaml compares each with all before it
        raise Unreadable(
            "YAML directives (lines that begin with %) are not supported. Remove them."
        )
    try:
        _refuse_events(text)
        found = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise Unreadable(f"Line {line}: {error.problem}.") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Unreadable(str(error)) from None
    if not isinstance(found, dict):
        raise Unreadable("A spec must be a mapping of fields, such as `name: my-job`.")
    return {str(name): value for name, value in found.items()}


def _refuse_events(text: str) -> None:
    """Refuse aliases, which could make a short text enormous, and more than any spec has."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise Unreadable(f"Line {line}: YAML aliases are not supported. Write the value out.")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MOST_DEPTH:
            raise Unreadable(f"Line {line}: nested more than {MOST_DEPTH} levels deep.")
        if count > MOST_EVENTS:
            raise Unreadable(f"Line {line}: a spec may have at most {MOST_EVENTS:,} parts.")


def _object(part: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any] | None:
    for candidate in (part, *part.get("anyOf", [])):
        target = schemas.get(str(candidate.get("$ref", "")).rpartition("/")[2])
        if isinstance(target, dict) and target.get("type") == "object":
            return target
    return None


def _fields(before: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[Field]:
    required = schema.get("required", [])
    for name, part in schema["properties"].items():
        if _object(part, schemas) is None:
            path = f"{before}.{name}"
            yield _field(path, part, schemas, is_required=name in required)


def _field(
    path: str, part: Mapping[str, Any], schemas: Mapping[str, Any], *, is_required: bool
) -> Field:
    options = [_resolved(one, schemas) for one in part.get("anyOf", [part])]
    options = [one for one in options if one.get("type") != "null"]
    shape = {**options[0], **{key: value for key, value in part.items() if key != "anyOf"}}
    if "$ref" in shape:
        shape = {**_resolved(part, schemas), **shape}
    name = path.rpartition(".")[2]
    kind = {"integer": "integer", "number": "number", "boolean": "flag", "array": "words"}.get(
        str(shape.get("type")), "text"
    )
    if len(options) > 1:
        kind = "text"  # a number or a word, such as auto
    choices = tuple(str(one) for one in shape.get("enum", []))
    if len(options) > 1 and shape.get("type") == "boolean":
        words = (word for one in options for word in one.get("enum", []))
        choices = ("true", "false", *words)
    default = part.get("default")
    return Field(
        path=path,
        label=LABELS.get(name, _label(name)),
        kind="choice" if choices else kind,
        choices=choices,
        minimum=_bound(shape, "minimum", "exclusiveMinimum"),
        maximum=_bound(shape, "maximum", "exclusiveMaximum"),
        default="" if default is None or isinstance(default, list | dict) else _text(default),
        is_required=is_required,
        hint=str(part.get("description", "")).replace("\n", " "),
        unit=UNITS.get(name, ""),
    )


def _resolved(part: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    target = schemas.get(str(part.get("$ref", "")).rpartition("/")[2], {})
    if "const" in part:
        return {**part, "enum": [part["const"]]}
    return {**target, **part}


def _bound(shape: Mapping[str, Any], *names: str) -> float | None:
    return next((float(shape[name]) for name in names if name in shape), None)


def _label(name: str) -> str:
    return name.replace("_parallel_degree", " degree").replace("_", " ").capitalize()


def _basic_order(field: Field) -> int:
    order = ("name", "layers", "width", "heads", "steps", "strategy", "nodes", "ranks_per_node")
    name = field.path.rpartition(".")[2]
    return order.index(name) if name in order else len(order)


def _flat(part: Mapping[str, Any], before: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    for name, value in part.items():
        if isinstance(value, dict) and depth < MOST_DEPTH:
            yield from _flat(value, f"{before}{name}.", depth + 1)
        elif value is not None:
            yield f"{before}{name}", _text(value)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)


def _value(text: str, field: Field) -> object:
    """The text as the field's type; as it is where it is none, so that the API can say so."""
    if not text:
        return None
    if field.kind == "flag" or (field.choices and text in ("true", "false")):
        return text == "true"
    if field.kind == "words":
        return [_number(word.strip()) for word in text.split(",") if word.strip()]
    return _number(text) if field.kind in ("integer", "number") or not field.choices else text


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _put(spec: dict[str, Any], path: list[str], value: object) -> None:
    *parents, name = path
    place = spec
    for parent in parents:
        inner = place.get(parent)
        if not isinstance(inner, dict):
            if value is None:
                return
            inner = place[parent] = {}
        place = inner
    if value is None:
        place.pop(name, None)
        if not place and parents:
            _put(spec, parents, None)
    else:
        place[name] = value


def _copy(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _copy(value) if isinstance(value, dict) else value for name, value in spec.items()
    }
