"""Changes in a new version of a policy, as sentences. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from core.policy.sections import PolicyDocument

Value = Mapping[str, "Value"] | Sequence["Value"] | str | int | float | bool | None
SILENT = ("policy.version", "policy.supersedes")


def changes(old: PolicyDocument, new: PolicyDocument) -> list[str]:
    """List the changes field by field, such as: grid.horizon_days: 14 instead of 21."""
    before = old.model_dump(mode="json", by_alias=True)
    after = new.model_dump(mode="json", by_alias=True)
    return list(_compare("", before, after))


def _compare(path: str, old: Value, new: Value) -> Iterator[str]:
    if old == new or path in SILENT:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            inner = f"{path}.{key}" if path else str(key)
            if key not in old:
                yield f"{inner} was added: {_text(new[key])}."
            elif key not in new:
                yield f"{inner} was removed; it was {_text(old[key])}."
            else:
                yield from _compare(inner, old[key], new[key])
    elif _are_lists_of_parts(old, new):
        assert isinstance(old, Sequence)
        assert isinstance(new, Sequence)
        yield from (f"{path}: {_text(part)} was removed." for part in old if part not in new)
        yield from (f"{path}: {_text(part)} was added." for part in new if part not in old)
    else:
        yield f"{path}: changed from {_text(old)} to {_text(new)}."


def _are_lists_of_parts(old: Value, new: Value) -> bool:
    both = [value for value in (old, new) if isinstance(value, list)]
    return len(both) == 2 and any(isinstance(part, Mapping) for side in both for part in side)


def _text(value: Value) -> str:
    if isinstance(value, Mapping):
        said = [f"{key}: {_text(part)}" for key, part in value.items() if _says(part)]
        return "{" + ", ".join(said) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(part) for part in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return "nothing" if value is None or value == "" else str(value)


def _says(value: Value) -> bool:
    return value is not None and value != "" and value != [] and value != {}
