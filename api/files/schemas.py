"""Answers about datasets and models."""

from typing import Any, Literal

from pydantic import Field

from api.web.schemas import Body, Moment, View
from core.wire.messages import RelativePath


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


class DatasetFile(View):
    """One file of a dataset."""

    path: str
    size: int
    sha256: str


class HubOrigin(View):
    """Job that fetched a dataset from the hub."""

    job: str
    epoch: int
    hub: str
    """Repository and commit: `owner/name@COMMIT`."""


class DatasetView(View):
    """A text, or images, that jobs can train on."""

    id: str
    name: str
    owner: str | None
    """Name of its owner; null if it is built in. Jobs of others name it OWNER/NAME."""
    built_in: bool
    format: str
    size: int
    files: list[DatasetFile]
    """Files in their order; none for a built-in dataset."""
    lines: int | None
    characters: int | None
    images: DatasetImages | None
    """Images of the dataset; null for a text."""
    warnings: list[str]
    origin: HubOrigin | None
    """Job that fetched it; null if it was uploaded or is built in."""
    created_at: Moment | None


class NewUpload(Body):
    """A file that is to arrive in parts."""

    path: RelativePath
    """Path within what it is for: `train/00003.jsonl`, `model.safetensors`."""
    size: int = Field(ge=1, le=2**53)
    fingerprint: str = Field(pattern=r"^[\x21-\x7e]{16,200}$")
    """Mark of the content that you choose, such as a hash of samples of it. The same mark finds the
    upload again after a break."""
    format: Literal["text", "jsonl", "npz", "parquet", "arrow", "file"] = "file"
    """Check while it arrives: of a dataset its format, else file."""


class UploadView(View):
    """A file that arrives in parts. It is gone once a dataset, model or archive is made of it."""

    id: str
    path: str
    format: str
    size: int
    received: int
    """Bytes that are safe: the offset at which the next part begins."""
    sha256: str | None
    """SHA-256 of the whole, once it has arrived and passed its check."""
    touched_at: Moment
    """Last time that bytes arrived; three days later it is deleted."""
    created_at: Moment


class NewDataset(Body):
    """A dataset to make of uploads."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Name by which job specs refer to it."""
    uploads: list[str] = Field(min_length=1, max_length=1000)
    """Ids of its files, complete and of one format. Sorted by path, they are one dataset."""


class NewModel(Body):
    """A model to make of uploads."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Name by which job specs refer to it."""
    uploads: list[str] = Field(min_length=1, max_length=300)
    """Ids of the files of its folder, complete and of format file."""


class NewTokenizer(Body):
    """A tokenizer to make of uploads."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Name by which job specs refer to it."""
    uploads: list[str] = Field(min_length=1, max_length=5)
    """Ids of tokenizer.json and the files beside it, complete and of format file."""


class TokenizerOfJob(Body):
    """A job that has left a tokenizer.json."""

    job: str = Field(max_length=200)
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Name by which job specs refer to the tokenizer."""


class NewCode(Body):
    """An archive of code to make of an upload."""

    upload: str = Field(max_length=200)
    """Id of the zip archive, complete and of format file."""


class DatasetPreview(View):
    """The beginning of a text, or a description of the images."""

    text: str
    is_all: bool


class TokenPiece(View):
    """A token of a row, or a run of bytes."""

    text: str
    learned: bool
    """True if a model learns to write it; otherwise it is only read."""


class RowPreview(View):
    """A row of a dataset as a model reads it."""

    place: str
    """`line 1`, `row 1`, or `beginning` of a text."""
    form: Literal["text", "completion", "chat"]
    num_tokens: int
    num_learned: int
    pieces: list[TokenPiece]
    """First tokens of the row; with the tokenizer `bytes`, runs of them of one kind."""
    is_cut: bool
    """True if it has more than are here."""


class DatasetRows(View):
    """The first rows of a dataset."""

    tokenizer: str
    rows: list[RowPreview]


class ModelFile(View):
    """One file of a model's folder."""

    path: str
    size: int
    sha256: str


class ModelOrigin(View):
    """Checkpoint that a model was promoted from, or job that fetched it from the hub."""

    job: str
    step: int | None
    """Step of the checkpoint; null if it was fetched."""
    epoch: int
    hub: str | None = None
    """Repository and commit that it was fetched from: `owner/name@COMMIT`."""


class NewFetchedFiles(Body):
    """A job that has fetched a model or a dataset from the hub."""

    job: str = Field(max_length=200)
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Name by which job specs refer to it."""


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
    owner: str
    """Name of its owner. Jobs of others name it OWNER/NAME."""
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
    """Job that it came from; null if it was uploaded."""
    used_by: list[str]
    """Ids of your jobs that were submitted with it, newest first, at most 20; empty in a list of
    models."""
    created_at: Moment


class TokenizerView(View):
    """A tokenizer that jobs can pretrain with."""

    id: str
    name: str
    owner: str
    """Name of its owner. Jobs of others name it OWNER/NAME."""
    vocabulary_size: int
    """Number of tokens; `data.vocabulary_size` of a job, if that leaves it open."""
    size: int
    files: list[ModelFile]
    job: str | None
    """Id of the job that made it; null if it was uploaded."""
    created_at: Moment
