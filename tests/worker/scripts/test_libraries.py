"""Libraries in the sandbox find a job's inputs by the names that they use elsewhere."""

import importlib.util
import io
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from core.spec.inputs import InputKind
from core.states import Outcome
from core.wire.messages import InputFiles
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node
from tests.worker.script_orders import output_of, script_order
from worker.preparing.idx_files import write_idx
from worker.scripts.inputs import torchvision_class
from worker.scripts.sandbox import Level, why_not

ROWS = b"".join(b'{"text": "row %d"}\n' % number for number in range(100))

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "vocab_size": 256,
}

# What from_pretrained and load_dataset ask, in the order in which they do, by hand.
ASKS = """
import json, os, urllib.error, urllib.request
hub = os.environ["HF_ENDPOINT"]
def ask(path, method="GET", body=None, **headers):
    request = urllib.request.Request(hub + path, method=method, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()
status, headers, _ = ask("/lab/tiny/resolve/main/config.json", "HEAD")
print(status, headers["ETag"], len(headers["X-Repo-Commit"]), headers["Content-Length"])
print(ask("/lab/tiny/resolve/main/absent.json", "HEAD")[1]["X-Error-Code"])
about = json.loads(ask("/api/datasets/lab/rows/revision/main")[2])
print([one["rfilename"] for one in about["siblings"]], about["sha"][:4] != "")
tree = json.loads(ask(f"/api/datasets/lab/rows/tree/{about['sha']}?recursive=True")[2])
print(tree[0]["path"], tree[0]["size"])
paths = ask("/api/datasets/lab/rows/paths-info/main", "POST", b"paths=data.jsonl&expand=False")
print(json.loads(paths[2])[0]["size"])
part = ask("/datasets/lab/rows/resolve/main/data.jsonl", Range="bytes=17-32")
print(part[0], part[1]["Content-Range"], part[2])
status, headers, body = ask("/api/models/lab/absent")
print(status, headers["X-Error-Code"], json.loads(body)["error"])
print(ask("/lab/tiny/resolve/v2/config.json")[1]["X-Error-Code"])
print(ask("/datasets/lab/rows/resolve/main/../../../../etc/passwd")[0])
root = os.path.join(os.environ["HF_HOME"], "hub", "models--lab--tiny")
revision = open(os.path.join(root, "refs/main")).read()
print(os.path.realpath(os.path.join(root, "snapshots", revision, "config.json")))
"""
TRANSFORMERS = """
import os
from transformers import AutoConfig, AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("lab/tiny")
print("weight", model.model.embed_tokens.weight.sum().item())
hub = os.path.join(os.environ["HF_HOME"], "hub")
files = [os.path.join(place, name) for place, _, names in os.walk(hub) for name in names]
print("copied", sum(os.path.getsize(one) > 1000 for one in files if not os.path.islink(one)))
try:
    AutoConfig.from_pretrained("lab/absent")
except OSError as error:
    print(str(error).splitlines()[0])
"""
DATASETS = """
from datasets import load_dataset
rows = load_dataset("lab/rows")["train"]
print(rows.num_rows, rows[99], len(rows.map(lambda row: {"length": len(row["text"])})[7]))
print(sum(1 for _ in load_dataset("lab/rows", split="train", streaming=True)))
"""
# As torchvision.datasets.MNIST and keras.datasets.mnist open their files.
IMAGES = """
import os, struct
import numpy as np
for root in ("data", "../data", os.environ["TRAINYARD_INPUT_LAB_MNIST"]):
    for part in ("train", "t10k"):
        with open(os.path.join(root, "MNIST", "raw", f"{part}-images-idx3-ubyte"), "rb") as file:
            magic, *shape = struct.unpack(">IIII", file.read(16))
            print(part, magic, shape, sum(file.read()))
        with open(os.path.join(root, "MNIST", "raw", f"{part}-labels-idx1-ubyte"), "rb") as file:
            magic, count = struct.unpack(">II", file.read(8))
            print(part, magic, count, list(file.read()[:3]))
with np.load(os.path.join(os.environ["KERAS_HOME"], "datasets", "mnist.npz")) as arrays:
    print(arrays["x_train"].shape)
os.mkdir(os.path.join(os.environ["KERAS_HOME"], "models"))
"""


def run(api: FakeApi, node: Node, program: str, inputs: list[InputFiles]) -> list[str]:
    """The lines that a program prints, which succeeds."""
    key = api.order(script_order(api, program, inputs=inputs))
    record = api.wait_for_exit(key, within_s=150)
    assert record.outcome is Outcome.SUCCEEDED, (record, output_of(api))
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    return output_of(api).splitlines()


def rows(api: FakeApi) -> InputFiles:
    file = api.add_file("data.jsonl", ROWS)
    return InputFiles(kind=InputKind.DATASET, name="lab/rows", files=[file])


@pytest.mark.parametrize(
    "level", [Level.BUBBLEWRAP, pytest.param(Level.NAMESPACES, marks=pytest.mark.slow)]
)
def test_the_hub_of_a_sandbox_answers_as_the_real_one(
    api: FakeApi, node: Node, level: Level
) -> None:
    if why_not(level):
        pytest.skip(why_not(level))
    node.start(warm=False, TRAINYARD_SANDBOX=level)
    config = api.add_file("config.json", b'{"model_type": "llama"}')
    tiny = InputFiles(kind=InputKind.MODEL, name="lab/tiny", files=[config])
    assert run(api, node, ASKS, [tiny, rows(api)]) == [
        f'200 "{config.sha256}" 40 23',
        "EntryNotFound",
        "['data.jsonl'] True",
        f"data.jsonl {len(ROWS)}",
        str(len(ROWS)),
        f"206 bytes 17-32/{len(ROWS)} {ROWS[17:33]!r}",
        "404 RepoNotFound lab/absent is not among this job's inputs (models)",
        "RevisionNotFound",
        "404",
        "/job/inputs/lab/tiny/config.json",
    ]


@pytest.mark.slow
def test_from_pretrained_finds_a_model_by_its_hub_name_and_copies_nothing(
    api: FakeApi, node: Node
) -> None:
    weight = np.arange(256 * 16, dtype=np.float32).reshape(256, 16) % 7
    files = [
        api.add_file("config.json", json.dumps(LLAMA).encode()),
        api.add_file(
            "model.safetensors",
            save({"model.embed_tokens.weight": weight}, metadata={"format": "pt"}),
        ),
    ]
    node.start(warm=False)
    said = run(
        api, node, TRANSFORMERS, [InputFiles(kind=InputKind.MODEL, name="lab/tiny", files=files)]
    )
    assert f"weight {float(weight.sum())}" in said
    assert "copied 0" in said
    assert any("lab/absent is not a" in line for line in said)


@pytest.mark.slow
def test_load_dataset_finds_a_dataset_by_its_hub_name(api: FakeApi, node: Node) -> None:
    if importlib.util.find_spec("datasets") is None:
        pytest.skip("the package datasets is no dependency of the platform; install it to run this")
    node.start(warm=False)
    said = run(api, node, DATASETS, [rows(api)])
    assert "100 {'text': 'row 99'} 2" in said
    assert "100" in said


def archive(**changes: object) -> bytes:
    """Images as Keras publishes MNIST, of a few."""
    numbers = np.random.default_rng(3)
    arrays = {
        "x_train": numbers.integers(0, 256, (6, 4, 5), dtype=np.uint8),
        "y_train": np.array([3, 1, 2, 0, 1, 2], dtype=np.uint8),
        "x_test": numbers.integers(0, 256, (2, 4, 5), dtype=np.uint8),
        "y_test": np.array([1, 0], dtype=np.int64),
        **changes,
    }
    content = io.BytesIO()
    np.savez(content, **{name: array for name, array in arrays.items() if array is not None})  # type: ignore[arg-type]
    return content.getvalue()


def test_torchvision_and_keras_find_images_in_their_usual_folders(api: FakeApi, node: Node) -> None:
    content = archive()
    with np.load(io.BytesIO(content)) as arrays:
        sums = int(arrays["x_train"].sum()), int(arrays["x_test"].sum())
    node.start(warm=False)
    file = api.add_file("data.npz", content)
    mnist = InputFiles(kind=InputKind.DATASET, name="lab/mnist", files=[file])
    once = [
        f"train 2051 [6, 4, 5] {sums[0]}",
        "train 2049 6 [3, 1, 2]",
        f"t10k 2051 [2, 4, 5] {sums[1]}",
        "t10k 2049 2 [1, 0]",
    ]
    assert run(api, node, IMAGES, [mnist]) == [*once, *once, *once, "(6, 4, 5)"]


def test_only_images_like_mnist_become_its_files(tmp_path: Path) -> None:
    for number, changes in enumerate(
        (
            {"x_test": None, "y_test": None},
            {"x_train": np.zeros((6, 4, 5, 3), "u1"), "x_test": np.zeros((2, 4, 5, 3), "u1")},
            {"x_train": np.zeros((6, 4, 5), "f4"), "x_test": np.zeros((2, 4, 5), "f4")},
        )
    ):
        path, folder = tmp_path / f"{number}.npz", tmp_path / f"idx-{number}"
        path.write_bytes(archive(**changes))
        write_idx(path, folder)
        assert list(folder.iterdir()) == []
    assert torchvision_class("zalando/fashion-mnist") == "FashionMNIST"
    assert torchvision_class("mnist-of-mine") is None
