"""Folders in which libraries look for data by its usual name, made of links to a job's inputs.

Inside they are below FOLDER, writable, and hold no bytes of the inputs:

    huggingface/hub/   the cache of Hugging Face: `from_pretrained("owner/name")` copies nothing
    keras/datasets/    NAME.npz: `keras.datasets.mnist.load_data()`

Libraries of Hugging Face also ask a hub, which `worker.scripts.local_hub` is. torchvision is told a
folder by each program, mostly `data` of its own folder or `../data` beside it: a link in both leads
to the input.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from core.spec.inputs import InputKind, tree_sha256
from worker.scripts.inputs import NPZ, InputMount
from worker.scripts.sandbox import LoopbackService

FOLDER = "/job/libraries"
DATA = "data"
DATA_BESIDE = "/job/data"  # `../data` of the program's folder
HUB_FOLDER = "/job/hub"
HUB_INDEX = "index.json"
HUB_SOURCE = Path(__file__).with_name("local_hub.py")
HUB_PORT = 29_471  # in a network that nobody else is in


def revision_of(mount: InputMount) -> str:
    """Return the input's revision as hubs have it: 40 hex digits of its hash."""
    return tree_sha256((file.path, file.sha256) for file in mount.files)[:40]


def hub_kind(mount: InputMount) -> str:
    """Return the kind of repository that an input is; a checkpoint may be a saved model."""
    return "datasets" if mount.kind is InputKind.DATASET else "models"


def make_links(libraries: Path, mounts: Iterable[InputMount]) -> None:
    """Fill the folder `libraries`; its links are valid inside the sandbox only."""
    hub, keras = libraries / "huggingface" / "hub", libraries / "keras" / "datasets"
    for folder in (hub, keras):
        folder.mkdir(parents=True)
    for mount in mounts:
        repository = hub / f"{hub_kind(mount)}--{mount.name.replace('/', '--')}"
        (repository / "blobs").mkdir(parents=True)
        refs = repository / "refs"
        refs.mkdir()
        (refs / "main").write_text(revision_of(mount))
        for file in mount.files:
            link = repository / "snapshots" / revision_of(mount) / file.path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"{mount.folder}/{file.path}")
            if file.path.endswith(NPZ):
                usual = keras / f"{PurePosixPath(mount.name).name}{NPZ}"
                if not usual.is_symlink():
                    usual.symlink_to(f"{mount.folder}/{file.path}")


def link_images(data: Path, mounts: Iterable[InputMount]) -> None:
    """Let `MNIST` in a folder `data` lead to the images of an input of that name, unless the code
    has its own."""
    for mount in mounts:
        if mount.images_inside is None:
            continue
        inside = PurePosixPath(mount.images_inside)
        link = data / inside.name
        if link.parent.is_dir() or not link.parent.exists():
            link.parent.mkdir(exist_ok=True)
            if not link.exists():
                link.symlink_to(inside)


def write_index(path: Path, mounts: Iterable[InputMount]) -> None:
    """Write the index of the sandbox's hub."""
    index = {
        f"{hub_kind(mount)}/{mount.name}": {
            "folder": mount.folder,
            "revision": revision_of(mount),
            "files": {
                file.path: {"size": file.size, "sha256": file.sha256} for file in mount.files
            },
        }
        for mount in mounts
    }
    path.write_text(json.dumps(index))


def hub_service() -> LoopbackService:
    """Return the hub as a service of the sandbox."""
    source, index = f"{HUB_FOLDER}/{HUB_SOURCE.name}", f"{HUB_FOLDER}/{HUB_INDEX}"
    return LoopbackService(HUB_PORT, [sys.executable, "-I", "-S", source, index])


def variables(*, has_hub: bool) -> dict[str, str]:
    """Return the environment variables that lead libraries to these folders.

    `has_hub` is False where the sandbox has no network of its own to serve a hub on.
    """
    address = f"http://127.0.0.1:{HUB_PORT}"
    return {
        "HF_HOME": f"{FOLDER}/huggingface",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "KERAS_HOME": f"{FOLDER}/keras",
        **({"HF_ENDPOINT": address} if has_hub else {"HF_HUB_OFFLINE": "1"}),
    }
