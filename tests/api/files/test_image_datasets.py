"""Datasets of images: checked when they are all here, kept, planned with, given to a node."""

import io
from typing import Any

import numpy as np
import pytest

from tests.api.conftest import World
from tests.api.shapes import heartbeat, job_spec, place

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

PIXELS = np.arange(40 * 6 * 5, dtype=np.uint8).reshape(40, 6, 5)
LABELS = np.arange(40) % 4
CNN = {"name": "cnn", "layers": 2, "width": 8}
KNOWN = {"image_shape": [6, 5], "classes": 4}


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def upload(world: World, content: bytes, name: str = "mine") -> Any:
    return world.ann.post("/v1/datasets", params={"name": name, "format": "npz"}, content=content)


def job_on(data: dict[str, Any], model: dict[str, Any] = CNN) -> dict[str, Any]:
    return {**job_spec(), "model": model, "data": data}


def test_images_are_kept_planned_with_and_given_to_a_node(world: World) -> None:
    content = npz(x_train=PIXELS, y_train=LABELS, x_test=PIXELS[:7], y_test=LABELS[:7])
    answer = upload(world, content)
    assert answer.status_code == 201, answer.text
    dataset = answer.json()
    assert dataset["images"] == {
        "count": 40,
        "tests": 7,
        "image_shape": [6, 5, 1],
        "classes": 4,
    }
    assert (dataset["format"], dataset["lines"], dataset["size"]) == ("npz", None, len(content))
    preview = world.ann.get("/v1/datasets/mine/preview").json()
    assert preview["text"] == (
        "40 training images, and 7 test images: 6 x 5 pixels, 1 channel, 4 classes.\n"
    )
    made = world.ann.post("/v1/jobs", json=job_on({"dataset": "mine", **KNOWN}))
    assert made.status_code == 201, made.text
    assert made.json()["plan"]["unit"] == "images"
    assert made.json()["spec"]["model"]["heads"] is None
    place(world.database, made.json()["id"])
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert order["dataset_format"] == "npz"
    fetched = world.node.get(f"/v1/node/files/{order['dataset']['sha256']}")
    assert fetched.content == content


def test_the_digits_are_built_in(world: World) -> None:
    digits = world.ann.get("/v1/datasets/digits").json()
    assert (digits["built_in"], digits["format"], digits["images"]["count"]) == (True, "npz", 1797)
    assert "8 x 8 pixels" in world.ann.get("/v1/datasets/digits/preview").json()["text"]
    assert upload(world, npz(images=PIXELS, labels=LABELS), "digits").status_code == 409
    made = world.ann.post("/v1/jobs", json=job_on({"dataset": "digits"})).json()
    place(world.database, made["id"])
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert (order["dataset"], order["dataset_format"]) == (None, "npz")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it does not end like a zip archive"),
        (b"a text", "it does not end like a zip archive"),
        (npz(a=PIXELS), "has a; it needs images and labels"),
        (npz(images=PIXELS, labels=LABELS[:9]), "40 images, but 9 labels"),
        (npz(images=PIXELS, labels=LABELS - 1), r"labels[0] is -1; labels are from 0 to 65,535"),
        (npz(images=PIXELS[:, 0], labels=LABELS), "images (40, 5) must be (N, height, width)"),
        (npz(images=PIXELS, labels=np.array([{}] * 40)), "labels holds Python objects"),
    ],
)
def test_a_file_that_holds_no_images_is_refused_with_the_numbers(
    world: World, content: bytes, said: str
) -> None:
    refused = upload(world, content)
    assert refused.status_code == 422
    problem = refused.json()
    assert problem["code"] == "bad_images"
    assert said in problem["detail"]
    assert world.ann.get("/v1/datasets/mine").status_code == 404
    assert list(world.store.incoming.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        (
            {"name": "gpt", "layers": 1, "width": 8, "heads": 2},
            {"dataset": "mine", "sequence_length": 8},
            "'mine' holds images, which model gpt cannot read. Use mlp or cnn.",
        ),
        (CNN, {"dataset": "poem", **KNOWN}, "'poem' holds text, which model cnn cannot read"),
        (CNN, {"dataset": "mine"}, "data.image_shape: the planner does not read the images"),
        ({"name": "gpt", "layers": 1, "width": 8}, {"dataset": "poem"}, "model.heads: this field"),
        (
            {"name": "gpt", "layers": 1, "width": 8, "heads": 2},
            {"dataset": "poem"},
            "data.sequence_length: this field is required.",
        ),
    ],
)
def test_a_job_that_cannot_read_its_dataset_is_refused(
    world: World, model: dict[str, Any], data: dict[str, Any], said: str
) -> None:
    assert upload(world, npz(images=PIXELS, labels=LABELS)).status_code == 201
    params = {"name": "poem", "format": "text"}
    assert world.ann.post("/v1/datasets", params=params, content=b"a poem").status_code == 201
    refused = world.ann.post("/v1/jobs", json=job_on(data, model))
    assert 400 <= refused.status_code < 500
    assert said in refused.text.replace('\\"', '"')
