"""Uploaded images, checked once they are all here: the directory of an archive is at its end."""

from pathlib import Path

from core.base.errors import BadRequest
from strategies.data.corpus import BadData
from strategies.data.images import Found, check

MOST_UNPACKED = 8  # times the largest upload: MNIST packs to a fifth of its size


def check_images(path: Path, *, max_bytes: int) -> Found:
    """What a .npz file holds. BadRequest, with the numbers, where it cannot be trained on."""
    try:
        return check(path, most_bytes=MOST_UNPACKED * max_bytes)
    except BadData as error:
        raise BadRequest(
            f"These are no images to train on: the file {error}.", code="bad_images", param="body"
        ) from error
