"""The form of a template: its open fields with their defaults, and what was sent. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.views import Template, TemplateField

PREFIX = "v."
"""Beginning of the names of the form's fields."""


@dataclass(frozen=True)
class FormField:
    """An open field in the form."""

    path: str
    label: str
    hint: str
    choices: tuple[str, ...]
    value: str
    """Text of the default, or of what was sent last."""
    is_number: bool


def fields_of(template: Template, sent: Mapping[str, str]) -> list[FormField]:
    """The form's fields, filled with what was sent, else with the template's defaults."""
    return [
        FormField(
            path=one.field,
            label=one.label or one.field,
            hint=" ".join(filter(None, (one.hint, _bounds(one)))),
            choices=tuple(text_of(choice) for choice in one.choices),
            value=sent.get(PREFIX + one.field, text_of(value_at(template.spec, one.field))),
            is_number=_is_number(template, one),
        )
        for one in template.open
    ]


def values_of(template: Template, sent: Mapping[str, str]) -> dict[str, Any]:
    """Value by path, as the template's choices and defaults have their types; an emptied field is
    left out."""
    found: dict[str, Any] = {}
    for one in template.open:
        text = sent.get(PREFIX + one.field, "").strip()
        if not text:
            continue
        choices = {text_of(choice): choice for choice in one.choices}
        default = value_at(template.spec, one.field)
        if text in choices:
            found[one.field] = choices[text]
        elif isinstance(default, list):
            found[one.field] = [word.strip() for word in text.split(",") if word.strip()]
        elif isinstance(default, bool) and text in ("true", "false"):
            found[one.field] = text == "true"
        else:
            found[one.field] = _number(text) if _is_number(template, one) else text
    return found


def locked_of(spec: Mapping[str, Any], template: Template) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of each locked field."""
    known = {one.field for one in template.open}
    yield from ((path, text_of(value)) for path, value in _flat(spec, "") if path not in known)


def value_at(spec: Any, path: str) -> Any:
    """The value of a field; None if there is none."""
    for part in path.split("."):
        if isinstance(spec, list):
            spec = spec[int(part)] if part.isdigit() and int(part) < len(spec) else None
        else:
            spec = spec.get(part) if isinstance(spec, Mapping) else None
    return spec


def text_of(value: object) -> str:
    """A value as a form shows it."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(text_of, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_number(template: Template, one: TemplateField) -> bool:
    default = value_at(template.spec, one.field)
    has_bounds = one.minimum is not None or one.maximum is not None
    return has_bounds or (isinstance(default, int | float) and not isinstance(default, bool))


def _bounds(one: TemplateField) -> str:
    low, high = one.minimum, one.maximum
    if low is not None and high is not None:
        return f"From {low:g} to {high:g}."
    if low is not None:
        return f"At least {low:g}."
    return "" if high is None else f"At most {high:g}."


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _flat(part: Any, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(part, Mapping):
        for name, value in part.items():
            yield from _flat(value, f"{path}.{name}" if path else str(name))
    elif isinstance(part, list) and any(isinstance(one, Mapping) for one in part):
        for number, value in enumerate(part):
            yield from _flat(value, f"{path}.{number}")
    elif part is not None:
        yield path, ", ".join(map(str, part)) if isinstance(part, list) else part
