"""Inputs of a program: the datasets, models and checkpoints that it reads, as its job names them.

Pure. Names are resolved to exact files when the job is submitted. Inside the sandbox each input is
a read-only folder below FOLDER, whose path is also in an environment variable.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Self

from pydantic import Field, model_validator

from strategies.plan.spec import SpecPart

FOLDER = "/job/inputs"
MAX_INPUTS = 32
CHECKPOINT = r"^job_[0-9a-z]{26}/step-[0-9]{1,16}$"
PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HUB_NAME = rf"^{PART}(/{PART})?$"

HubName = Annotated[str, Field(pattern=HUB_NAME)]
Named = Annotated[str, Field(min_length=1, max_length=200)]


class InputKind(StrEnum):
    """Kind of an input."""

    DATASET = "dataset"
    MODEL = "model"
    CHECKPOINT = "checkpoint"


class Input(SpecPart):
    """One input of a program: a dataset, a model, or a checkpoint."""

    dataset: Named | None = None
    """A dataset that you may read: by name or id, or as OWNER/NAME."""
    model: Named | None = None
    """A model that you may read: by name or id, or as OWNER/NAME."""
    checkpoint: Annotated[str, Field(pattern=CHECKPOINT)] | None = None
    """A checkpoint of a job that you may read, as job_.../step-400."""
    name: HubName | None = None
    """Name by which the program asks for it, such as the hub's owner/name. Default: the name by
    which it is found."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        named = [kind for kind in InputKind if getattr(self, kind) is not None]
        if len(named) != 1:
            found = " and ".join(named) or "none"
            raise ValueError(f"name one of dataset, model and checkpoint, not {found}")
        if re.fullmatch(HUB_NAME, self.inner_name) is None:
            raise ValueError(
                f"{self.source!r} cannot be a folder's name inside; give `name` too, such as "
                "owner/name"
            )
        if "--" in self.inner_name or ".." in self.inner_name:
            raise ValueError(
                f"name {self.inner_name!r} contains -- or .., which names of the hub do not"
            )
        return self

    @property
    def kind(self) -> InputKind:
        return next(kind for kind in InputKind if getattr(self, kind) is not None)

    @property
    def source(self) -> str:
        """Name, id or path by which it is found."""
        source = getattr(self, self.kind)
        assert isinstance(source, str)
        return source

    @property
    def inner_name(self) -> str:
        """Name by which the program asks for it."""
        return self.name or self.source


def require_apart(inputs: Sequence[Input]) -> Sequence[Input]:
    """Raise ValueError if two inputs would have the same folder or variable, or one lies in the
    other."""
    for number, one in enumerate(inputs):
        for other in inputs[:number]:
            ours, theirs = one.inner_name, other.inner_name
            if variable(ours) == variable(theirs) or f"{ours}/".startswith(f"{theirs}/"):
                raise ValueError(f"the names {theirs!r} and {ours!r} are too alike; change one")
            if theirs.startswith(f"{ours}/"):
                raise ValueError(f"{theirs!r} would lie in the folder of {ours!r}; rename one")
    return inputs


def folder(name: str) -> str:
    """Return the path of an input's folder inside the sandbox."""
    return f"{FOLDER}/{name}"


def variable(name: str) -> str:
    """Return the name of the environment variable that holds the path of an input's folder."""
    return "TRAINYARD_INPUT_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def tree_sha256(files: Iterable[tuple[str, str]]) -> str:
    """Return the hash of a folder, from (path, SHA-256) of each of its files.

    It is the SHA-256 of what `sha256sum` prints for the files in the order of their paths (bytes).
    """
    return sha256(tree_listing(files)).hexdigest()


def tree_listing(files: Iterable[tuple[str, str]]) -> bytes:
    """Return what `sha256sum` prints for the files of a folder, in the order of their paths."""
    lines = sorted((path, digest) for path, digest in files)
    return "".join(f"{digest}  {path}\n" for path, digest in lines).encode()
