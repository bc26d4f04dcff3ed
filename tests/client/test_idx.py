"""MNIST's own files become the .npz that the server takes; whatever else they are is told."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies.plan.data.images import check
from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json
from tests.client.scripted import Run
from trainyard.errors import BadInput
from trainyard.idx import is_idx, pack

IMAGES = np.arange(30 * 7 * 5).astype(np.uint8).reshape(30, 7, 5)
LABELS = (np.arange(30) % 10).astype(np.uint8)
NAMES = {
    "train-images-idx3-ubyte.gz": IMAGES,
    "train-labels-idx1-ubyte.gz": LABELS,
    "t10k-images.idx3-ubyte": IMAGES[:5],
    "t10k-labels.idx1-ubyte": LABELS[:5],
}


def idx(array: Any) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + bytes(array)
    )


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for name, array in NAMES.items():
        content = idx(array)
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    return [tmp_path / name for name in NAMES]


@pytest.mark.parametrize("count", [2, 4])
def test_what_was_packed_is_what_numpy_reads(files: list[Path], count: int, tmp_path: Path) -> None:
    target = tmp_path / "mnist.npz"
    pack(files[:count], target)
    with np.load(target) as found:
        assert sorted(found) == sorted(["x_train", "y_train", "x_test", "y_test"][:count])
        assert np.array_equal(found["x_train"], IMAGES)
        assert np.array_equal(found["y_train"], LABELS)
        if count == 4:
            assert np.array_equal(found["x_test"], IMAGES[:5])
    report = check(target)
    assert (report.shape, report.num_train, report.classes) == ((7, 5, 1), 30, 10)
    assert report.num_tests == (5 if count == 4 else 0)
    pack(files[:count], tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == target.read_bytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it begins with nothing"),
        (b"\x89PNG....", "is not an IDX file: it begins with 89504e47"),
        (bytes([0, 0, 13, 3]) + bytes(12), "has 3 dimensions of type 0x0d"),
        (bytes([0, 0, 8, 2]) + bytes(8), "has 2 dimensions"),
        (bytes([0, 0, 8, 3, 0]), "ends within its header"),
        (idx(IMAGES)[:-1], r"has less than the 1,050 bytes that \(30, 7, 5\) need"),
        (idx(IMAGES) + b"x", "has more than the 1,050 bytes"),
        (gzip.compress(idx(IMAGES))[:-9], "is a damaged gzip file"),
    ],
    ids=["empty", "png", "type", "dimensions", "header", "shorter", "longer", "gzip"],
)
def test_a_file_that_is_not_what_it_says_is_refused(
    files: list[Path], content: bytes, said: str, tmp_path: Path
) -> None:
    files[0].write_bytes(content)
    with pytest.raises(BadInput, match=said):
        pack(files[:2], tmp_path / "mnist.npz")


def test_half_of_a_pair_is_refused(files: list[Path], tmp_path: Path) -> None:
    for wrong in (files[:1], files[:3], [files[0], files[0]], files[2:]):
        with pytest.raises(BadInput, match="name the images and labels to train on"):
            pack(wrong, tmp_path / "mnist.npz")


def test_names_tell_which_files_are_idx(files: list[Path]) -> None:
    assert all(map(is_idx, files))
    assert not any(is_idx(Path(name)) for name in ("idx.txt", "mnist.npz", "a.idx3-ubyte.txt"))


@pytest.mark.parametrize("as_folder", [False, True])
def test_the_command_packs_and_uploads_them(
    files: list[Path], server: FakeServer, run: Run, tmp_path: Path, as_folder: bool
) -> None:
    images = {"count": 30, "tests": 5, "image_shape": [7, 5, 1], "classes": 10}
    kept = {**d.DATASET, "name": "mnist", "format": "npz", "lines": None, "images": images}
    server.answer("POST /v1/datasets", as_json(kept, status=201))
    named = [tmp_path] if as_folder else files
    done = run("datasets", "upload", *map(str, named), "mnist")
    assert done.exit_code == 0, done.stderr
    asked = server.of("POST /v1/datasets")[0]
    assert asked.query == {"name": ["mnist"], "format": ["npz"]}
    pack(files, tmp_path / "expected.npz")
    assert asked.body == (tmp_path / "expected.npz").read_bytes()
    assert "35 images" in done.stdout
    assert "{dataset: mnist, image_shape: [7, 5], classes: 10}" in done.stdout

    refused = run("datasets", "upload", str(files[0]), str(tmp_path / "a.txt"), "mnist")
    assert refused.exit_code == 2
    assert "IDX images and other files don't mix" in refused.stderr
