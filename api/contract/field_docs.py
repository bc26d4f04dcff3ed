"""Descriptions of fields for the OpenAPI document: the docstrings that stand below the fields.

Pydantic can read them itself (`use_attribute_docstrings`), but does so whenever a class is made,
which costs each start of the API almost a second. Here they are read when the document is built.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

OURS = ("api", "core", "strategies")


def add_field_docs(schemas: Mapping[str, dict[str, Any]]) -> None:
    """Give the properties of `schemas`, by name of their class, the descriptions they lack."""
    models = sorted(_models(BaseModel), key=lambda model: model.__module__)
    for name, schema in schemas.items():
        properties = schema.get("properties", {})
        plain_name = name.removesuffix("-Input").removesuffix("-Output")
        for model in models:
            if model.__name__ == plain_name and properties.keys() <= _fields_of(model):
                docs = field_docs(model)
                for field in properties.keys() & docs.keys():
                    properties[field].setdefault("description", docs[field])
                break


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Map each field of `model`, inherited ones included, to its docstring, where it has one."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base.__module__ != "pydantic.main":
            docs |= _docs_in(inspect.getfile(base)).get(base.__name__, {})
    return docs


def _models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield our own models; other code of the process may have some of the same name."""
    for model in base.__subclasses__():
        if model.__module__.split(".")[0] in OURS:
            yield model
        yield from _models(model)


def _fields_of(model: type[BaseModel]) -> set[str]:
    return {*model.model_fields, *model.model_computed_fields}


@cache
def _docs_in(path: str) -> dict[str, dict[str, str]]:
    """Map classes of a file to the docstrings of their fields."""
    tree = ast.parse(Path(path).read_text("utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_docs_of(node)) for node in classes}


def _docs_of(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
