"""Answers about datasets and models."""

from typing import Any

from pydantic import Field

from api.web.schemas import Body, Moment, View


class DatasetImages(View):
    """Contents of a dataset of images, in the terms that a job's spec must use."""

    count: int
    """Number of training images, including those that `data.held_out` keeps back."""
    tests: int
    """Number of images in the dataset's own test part."""
    image_shape: list[int]
    """Height, width and channels."""
    classes: int
    """The largest label + 1."""


class DatasetView(View):
    """A text, or images, that jobs can train on. Built-in datasets have no owner."""

    id: str
    name: str
    built_in: bool
    format: str
    size: int
    lines: int | None
    characters: int | None
    images: DatasetImages | None
    """Images of the dataset; null for a text."""
    warnings: list[str]
    created_at: Moment | None


class DatasetPreview(View):
    """The beginning of a text, or a description of the images."""

    text: str
    is_all: bool


class ModelFile(View):
    """One file of a model's folder."""

    path: str
    size: int
    sha256: str


class ModelOrigin(View):
    """Checkpoint that a model was promoted from."""

    job: str
    step: int
    epoch: int


class NewPromotion(Body):
    """Checkpoint to promote to a model."""

    job: str = Field(max_length=200)
    step: int = Field(ge=0, le=2**53)
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Name of the model. If you have one of that name, this is its next version."""


class ModelView(View):
    """A Hugging Face model that jobs can start from."""

    id: str
    name: str
    architecture: str
    """Architecture as named in the model's config.json."""
    parameters: int
    size: int
    files: list[ModelFile]
    has_tokenizer: bool
    model: dict[str, Any]
    """The `model` part of a spec that starts from this model."""
    vocabulary_size: int
    """Required value of `data.vocabulary_size`."""
    longest_sequence: int | None
    """Largest allowed `data.sequence_length`; null if no limit is known."""
    version: int
    """Number among the models that have had its name; an earlier one is NAME@1."""
    origin: ModelOrigin | None
    """Checkpoint that it was promoted from; null if it was uploaded."""
    used_by: list[str]
    """Ids of your jobs that were submitted with it, newest first, at most 20; empty in a list of
    models."""
    created_at: Moment
