"""Inputs of a script on this node: their entries in the cache, and their places in the sandbox.

An entry is named by the hash of its content, so that a node has one copy however many jobs read it:
a dataset's file is shared with recipes that train on it, a model's folder with those that start
from it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from core.spec.inputs import InputKind, folder, tree_sha256, variable
from core.wire.messages import FileRef, InputFiles
from worker.node.attempts import StateFile

NPZ = ".npz"
# By the last part of a name, without hyphens and underscores.
TORCHVISION_CLASSES = {"mnist": "MNIST", "fashionmnist": "FashionMNIST", "kmnist": "KMNIST"}


class InputMount(StateFile):
    """An input in a script's sandbox, read-only."""

    kind: InputKind
    name: str
    """Name by which the script asks for it."""
    entry: str
    """Path of its entry in the node's cache."""
    inside: str
    """Path of the entry inside: of the input's folder, or of the only file in it."""
    files: tuple[FileRef, ...]
    images: str | None = None
    """Path in the cache of the same images as torchvision reads them, if they are named like one of
    its datasets."""

    @property
    def folder(self) -> str:
        return folder(self.name)

    @property
    def images_inside(self) -> str | None:
        """Path inside of the folder that torchvision is given the parent of."""
        return f"{self.folder}/{torchvision_class(self.name)}" if self.images else None

    @property
    def binds(self) -> list[tuple[Path, str]]:
        """Pairs of cache entry and path inside."""
        pairs = [(Path(self.entry), self.inside)]
        if self.images is not None and self.images_inside is not None:
            pairs.append((Path(self.images), f"{self.images_inside}/raw"))
        return pairs


def torchvision_class(name: str) -> str | None:
    """Return torchvision's class for the input `name`, such as `zalando/fashion-mnist`; None if it
    has none with such files."""
    return TORCHVISION_CLASSES.get(
        PurePosixPath(name).name.lower().replace("-", "").replace("_", "")
    )


def file_entry(cache: Path, sha256: str) -> Path:
    """Return the cache entry of one file."""
    return cache / f"sha256-{sha256}"


def folder_entry(cache: Path, files: Sequence[FileRef]) -> Path:
    """Return the cache entry of a folder of files."""
    return cache / f"files-{tree_sha256((file.path, file.sha256) for file in files)}"


def mount_of(cache: Path, one: InputFiles) -> InputMount:
    """Return the mount of an input, present in the cache or not."""
    inside, images = folder(one.name), None
    if one.is_file:
        [file] = one.files
        entry, inside = file_entry(cache, file.sha256), f"{inside}/{file.path}"
        if file.path.endswith(NPZ) and torchvision_class(one.name) is not None:
            images = str(cache / f"idx-{file.sha256}")
    else:
        entry = folder_entry(cache, one.files)
    return InputMount(
        kind=one.kind,
        name=one.name,
        entry=str(entry),
        inside=inside,
        files=tuple(one.files),
        images=images,
    )


def variables(mounts: Iterable[InputMount]) -> dict[str, str]:
    """Return the environment variables that hold the paths of the inputs' folders."""
    return {variable(mount.name): mount.folder for mount in mounts}


def let_read(entry: Path) -> None:
    """Make an entry readable by the script's user and writable by nobody, whatever the umask."""
    for path in [entry, *entry.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o444)
