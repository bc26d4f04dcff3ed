"""Labelled images: which files are read, which are refused and why, what a rank gets of them."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strategies.plan.built_in import digits
from strategies.plan.data.images import PIECE_BYTES, Images, check
from strategies.plan.run_directory import RunPlan
from strategies.train.data.batches import BadData, HeldOut, TrainingData, open_windows
from tests.strategies.support.training_runs import make_run_plan, make_spec

CPU = torch.device("cpu")
RNG = np.random.default_rng(1)
PIXELS = RNG.integers(0, 256, (20, 6, 5), dtype=np.uint8)
LABELS = RNG.integers(0, 3, 20, dtype=np.uint8)
LABELS[0] = 2


def saved(path: Path, *, packed: bool = False, **arrays: Any) -> Path:
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    return path


def image_plan(path: Path | None, *, ranks: int = 1, **data: Any) -> RunPlan:
    known = {} if path is None else {"image_shape": [6, 5], "classes": 3}
    spec = make_spec(
        model={"name": "mlp", "layers": 1, "width": 8},
        data={"dataset": "digits" if path is None else "mine", "held_out": 0.25, **known, **data},
        parallelism__strategy="ddp" if ranks > 1 else "single",
        training__global_batch_size=4,
    )
    fields = {} if path is None else {"dataset_path": str(path), "dataset_format": "npz"}
    return make_run_plan(spec, ranks=ranks, **fields)


def opened(path: Path | None, folder: Path, **data: Any) -> Images:
    windows = open_windows(image_plan(path, **data), folder)
    assert isinstance(windows, Images)
    return windows


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "f2", "<f4", ">f4", "f8"])
def test_pixels_and_labels_come_out_as_they_went_in(
    packed: bool, dtype: str, tmp_path: Path
) -> None:
    pixels = PIXELS.astype(dtype) if dtype == "u1" else (PIXELS / 255).astype(dtype)
    path = saved(tmp_path / "a.npz", packed=packed, images=pixels, labels=LABELS.astype("<i8"))
    images = opened(path, tmp_path)
    assert (images.num_train, images.num_held_out) == (15, 5)
    numbers = np.arange(20)
    expected = pixels.reshape(20, 1, 30).astype(np.float32)
    if dtype == "u1":
        expected = expected / np.float32(255)
    assert np.array_equal(images.inputs(numbers), expected)
    assert np.array_equal(images.labels, LABELS)
    assert isinstance(images.pixels.base, np.memmap)


def test_pixels_are_centred_and_scaled_as_asked(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    found = opened(path, tmp_path, pixel_mean=0.1307, pixel_deviation=0.3081)
    expected = (PIXELS.reshape(20, 1, 30) / 255 - 0.1307) / 0.3081
    assert np.allclose(found.inputs(np.arange(20)), expected, rtol=0, atol=1e-6)


def test_a_part_for_tests_is_held_out_whatever_the_share(tmp_path: Path) -> None:
    arrays = {"x_train": PIXELS, "y_train": LABELS, "x_test": PIXELS[:7], "y_test": LABELS[:7]}
    path = saved(tmp_path / "mnist.npz", **arrays)
    images = opened(path, tmp_path)
    assert (images.num_train, images.num_held_out) == (20, 7)
    starts, _ = images.bounds(images.num_train + np.arange(7))
    assert np.array_equal(images.pixels[starts, :, :, 0], PIXELS[:7])
    assert opened(path, tmp_path, held_out=0).num_held_out == 0


def test_the_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    images = opened(None, tmp_path)
    assert len(images.labels) == digits.IMAGES == 1797
    assert images.num_held_out == 450
    assert images.pixels.shape[1:] == digits.SHAPE
    assert (images.pixels.min(), images.pixels.max()) == (0, 1)
    counts = np.bincount(images.labels)  # of each digit, as its documentation tells
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits.prepare(tmp_path).stat().st_size > digits.NUM_BYTES


def test_a_step_is_dealt_out_and_what_is_held_out_is_evaluated_once(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    whole, seen = image_plan(path), []
    windows = open_windows(whole, tmp_path)
    (batch,), valid = TrainingData(windows, whole, batch_rank=0, device=CPU).step(0)
    assert (batch.inputs_BT.shape, batch.labels_BT.shape, valid) == ((4, 1, 30), (4, 1), 4)
    halves = image_plan(path, ranks=2)
    parts = []
    for rank in range(2):
        (part,), valid = TrainingData(windows, halves, batch_rank=rank, device=CPU).step(0)
        parts.append(part)
        assert valid == 4
        held_out = HeldOut(windows, halves, batch_rank=rank, device=CPU)
        assert held_out.valid_tokens == 5
        seen += [b.labels_BT[b.labels_BT >= 0] for b in held_out.batches]
    assert torch.equal(torch.cat([part.inputs_BT for part in parts]), batch.inputs_BT)
    assert sorted(torch.cat(seen).tolist()) == sorted(LABELS[15:].tolist())


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def edited(content: bytes, at: bytes, becomes: bytes) -> bytes:
    assert content.count(at) == 1
    return content.replace(at, becomes)


IMAGES, GOOD = npy(PIXELS), npy(LABELS)
OBJECTS = npy(np.array([{}] * 20), allow_pickle=True)
BROKEN = {
    "text": (b"just a text", "it does not end like a zip archive"),
    "empty": (b"", "it does not end like a zip archive"),
    "only an end": (b"PK\x05\x06" + bytes(18), "has nothing; it needs images and labels"),
    "other names": (archive(a=IMAGES, b=GOOD), "has a, b; it needs images and labels"),
    "two pairs": (
        archive(images=IMAGES, labels=GOOD, x_train=IMAGES, y_train=GOOD),
        "it needs images and labels, or x_train and y_train",
    ),
    "no array": (archive(images=b"hello", labels=GOOD), "images is not an array"),
    "objects": (archive(images=IMAGES, labels=OBJECTS), "labels holds Python objects"),
    "long header": (
        archive(images=b"\x93NUMPY\x02\x00" + b"\xff" * 20, labels=GOOD),
        r"images is not an array written by numpy.save: version \(2, 0\)",
    ),
    "too short": (archive(images=IMAGES[:-1], labels=GOOD), "should take 728 bytes, not 727"),
    "fortran": (archive(images=npy(np.asfortranarray(PIXELS)), labels=GOOD), "Fortran order"),
    "shape": (archive(images=npy(PIXELS[:, 0]), labels=GOOD), r"\(20, 5\) must be \(N, height"),
    "empty images": (
        archive(images=npy(PIXELS[:0]), labels=npy(LABELS[:0])),
        r"images \(0, 6, 5\) are empty",
    ),
    "int64": (archive(images=npy(PIXELS.astype(np.int64)), labels=GOOD), "must be uint8"),
    "one-hot": (archive(images=IMAGES, labels=npy(np.eye(20, dtype=int))), "must be integers"),
    "lengths": (archive(images=IMAGES, labels=npy(LABELS[:19])), "20 images, but 19 labels"),
    "negative": (
        archive(images=IMAGES, labels=npy(LABELS.astype(int) - 3)),
        r"labels\[0\] is -1; labels are from 0 to 65,535",
    ),
    "huge label": (
        archive(images=IMAGES, labels=npy(np.full(20, 2**64 - 1, dtype=np.uint64))),
        r"labels\[0\] is 18446744073709551615",
    ),
    "one class": (archive(images=IMAGES, labels=npy(LABELS * 0)), "at least 2 classes"),
    "nan": (
        archive(
            images=npy(np.where(np.arange(20)[:, None, None] == 7, np.nan, PIXELS)), labels=GOOD
        ),
        r"images\[7\] has a pixel that is not finite",
    ),
    "tests unlike": (
        archive(x_train=IMAGES, y_train=GOOD, x_test=npy(PIXELS[:, :5]), y_test=GOOD),
        r"x_test \(20, 5, 5\) of uint8 differ from x_train \(20, 6, 5\)",
    ),
    "damaged": (
        edited(archive(images=IMAGES, labels=GOOD), PIXELS[3].tobytes(), bytes(30)),
        "not a valid .npz archive: Bad CRC-32",
    ),
    "many arrays": (
        archive(**{f"array-{i}": b"" for i in range(2000)}),
        "its directory has .* bytes: too many arrays",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_cannot_be_trained_on_is_told_with_the_numbers(broken: str, tmp_path: Path) -> None:
    content, said = BROKEN[broken]
    path = tmp_path / "broken.npz"
    path.write_bytes(content)
    with pytest.raises(BadData, match=said):
        check(path)
    if content:
        with pytest.raises(BadData, match=f"dataset mine: .*{said}"):
            open_windows(image_plan(path), tmp_path)
        assert not [p for p in (tmp_path / "images").iterdir() if p.name != "lock" and not p.suffix]


def test_a_small_file_that_unpacks_to_a_large_one_is_refused_unread(tmp_path: Path) -> None:
    bomb = saved(
        tmp_path / "bomb.npz",
        packed=True,
        images=np.zeros((4000, 64, 64), dtype=np.uint8),
        labels=np.arange(4000) % 2,
    )
    assert bomb.stat().st_size < 1 << 17
    with pytest.raises(BadData, match=r"would take 16,\d+,\d+ bytes; the limit is 1,048,576"):
        check(bomb, most_bytes=1 << 20)
    assert check(bomb).num_train == 4000


def test_an_archive_cannot_hide_a_large_directory(tmp_path: Path) -> None:
    """Behind the short record at its end there may be a long one, which zipfile would obey."""
    path = saved(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    content = path.read_bytes()
    path.write_bytes(content[:-22] + b"PK\x06\x07" + bytes(16) + content[-22:])
    with pytest.raises(BadData, match="it does not end like a zip archive"):
        check(path)


def test_an_array_longer_than_a_piece_is_whole(tmp_path: Path) -> None:
    pixels = RNG.random((50, 96, 96), dtype=np.float64)
    assert pixels.nbytes > 3 * PIECE_BYTES
    path = saved(tmp_path / "a.npz", packed=True, images=pixels, labels=np.arange(50) % 2)
    images = opened(path, tmp_path, image_shape=[96, 96], classes=2)
    assert np.array_equal(images.pixels[..., 0], pixels.astype(np.float32))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"image_shape": [5, 6]}, "has images of 6 x 5 x 1, but data.image_shape says 5 x 6 x 1"),
        (
            {"image_shape": [6, 5, 3]},
            "has images of 6 x 5 x 1, but data.image_shape says 6 x 5 x 3",
        ),
        ({"classes": 2}, "has labels up to 2, but data.classes is 2; make it 3 or more"),
    ],
)
def test_images_unlike_the_plan_are_told(data: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    with pytest.raises(BadData, match=f"dataset mine {said}"):
        open_windows(image_plan(path, **data), tmp_path)


def test_text_is_not_read_as_images_nor_images_as_text(tmp_path: Path) -> None:
    text, npz = tmp_path / "text", saved(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    text.write_text("a text " * 100)
    asks_images = image_plan(text).model_copy(update={"dataset_format": "text"})
    with pytest.raises(BadData, match="dataset mine holds text, but mlp reads images"):
        open_windows(asks_images, tmp_path)
    asks_text = make_run_plan(make_spec(), dataset_path=str(npz), dataset_format="npz")
    with pytest.raises(BadData, match="holds images, but gpt reads text"):
        open_windows(asks_text, tmp_path)


def test_digits_without_scikit_learn_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BadData, match=r"\(ImportError: none here\); install the platform"):
        open_windows(image_plan(None), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
