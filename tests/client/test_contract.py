"""The client's views are written from the API's schemas, and read what those dump."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

import api.app  # noqa: F401  # so that all schemas of answers are there
from api.contract import client_views
from api.contract.client_views import answers_of, name_of, render
from strategies.plan.hardware import GpuSpeeds
from tests.answers import Answer, answer, full_answer
from tests.client import documents as d
from trainyard import views
from trainyard.errors import UnexpectedAnswer
from trainyard.transport.decoding import View, decode

OURS = ("api", "core", "strategies")


def classes(of: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """All schemas that are written in Python, with those that inherit from them."""
    for found in of.__subclasses__():
        yield found
        yield from classes(found)


def answers_in(value: object) -> Iterator[Answer]:
    """All answers that a value holds."""
    if isinstance(value, Answer):
        yield value
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from answers_in(part)


CLASSES: dict[str, type] = {
    **{one.__name__: one for one in classes(BaseModel) if one.__module__.startswith(OURS)},
    GpuSpeeds.__name__: GpuSpeeds,  # a dataclass
}
DOCUMENTS = list(answers_in([*vars(d).values(), d.ended(), d.event(1, "Started.")]))
ANSWERS = answers_of(json.loads(client_views.DOCUMENT.read_text()))


@pytest.mark.parametrize("name", [name for name in ANSWERS if hasattr(views, name_of(name))])
def test_a_view_reads_what_its_schema_writes(name: str) -> None:
    schema = TypeAdapter(CLASSES[name])
    view: type[View] = getattr(views, name_of(name))
    typed = [document for document in DOCUMENTS if document.schema == name]
    for document in (answer(name), full_answer(name), *typed):
        written = json.loads(schema.dump_json(schema.validate_python(document)))
        assert decode(view, written).raw == written


def test_the_views_are_those_of_the_openapi_document() -> None:
    document = json.loads(client_views.DOCUMENT.read_text())
    assert client_views.VIEWS.read_text() == render(document), "write it again: make openapi"


def test_fields_of_a_newer_server_are_kept_in_raw() -> None:
    user = decode(views.User, {**d.USER, "shoe_size": 43})
    assert user.raw["shoe_size"] == 43


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"id": 5}, "User.id is 5"),
        ({"disabled": "no"}, "User.disabled"),
        ({"created_at": "yesterday"}, "User.created_at is not a valid time"),
        ({"created_at": None}, "User.created_at"),
    ],
)
def test_an_answer_of_another_shape_is_told_by_field(change: dict[str, Any], what: str) -> None:
    with pytest.raises(UnexpectedAnswer, match=what):
        decode(views.User, {**d.USER, **change})


def test_a_field_of_several_scalar_types_is_read_as_each_of_them() -> None:
    choices = (256, 0.5, "adamw", True)
    field = decode(views.TemplateField, {**answer("TemplateFieldView"), "choices": list(choices)})
    assert field.choices == choices
    with pytest.raises(UnexpectedAnswer, match=r"TemplateField.choices is None"):
        decode(views.TemplateField, {**answer("TemplateFieldView"), "choices": [None]})


def test_a_missing_field_says_that_versions_differ() -> None:
    with pytest.raises(UnexpectedAnswer, match=r"has no 'role'.*does its version differ"):
        decode(views.User, {name: value for name, value in d.USER.items() if name != "role"})


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(UnexpectedAnswer, match="expected a User"):
        decode(views.User, document)
