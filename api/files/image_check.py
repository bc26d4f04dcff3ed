"""Check of uploaded images once they are complete: the directory of an archive is at its end."""

from pathlib import Path

from api.files.schemas import DatasetImages
from core.base.errors import BadRequest
from core.tables.base import Document
from strategies.plan.data.images import ArchiveContents, check
from strategies.plan.data.reading import BadData

MOST_UNPACKED = 8  # times the largest upload: MNIST packs to a fifth of its size


def check_images(path: Path, *, max_bytes: int) -> ArchiveContents:
    """Return a description of a .npz file's content.

    Raises BadRequest, with the numbers, if it can't be trained on. `max_bytes` is the cap of an
    upload; unpacked, the arrays may have MOST_UNPACKED times as much.
    """
    try:
        return check(path, most_bytes=MOST_UNPACKED * max_bytes)
    except BadData as error:
        raise BadRequest(
            f"This is not a valid image dataset: the file {error}.", code="bad_images", param="body"
        ) from error


def images_report(path: Path, *, max_bytes: int) -> Document:
    """Return the report to be stored with a dataset of images. Raises BadRequest."""
    found = check_images(path, max_bytes=max_bytes)
    images = DatasetImages(
        count=found.num_train,
        tests=found.num_tests,
        image_shape=list(found.shape),
        classes=found.classes,
    )
    return {"lines": None, "characters": None, "warnings": [], "images": images.model_dump()}
