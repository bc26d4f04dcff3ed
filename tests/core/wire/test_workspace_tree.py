"""Trees of workspaces: what is a path, and why nothing in a tree leads out of it."""

import json

import pytest

from core.wire.workspace_tree import (
    BadTree,
    Blob,
    Entry,
    EntryKind,
    Tree,
    read_tree,
    require_path,
    tree_bytes,
    tree_of,
)
from core.workspaces.quota import Quota

HASH = "a" * 64
PACK = Blob(sha256="b" * 64, size=100)


def file(path: str, **fields: object) -> dict[str, object]:
    return {"path": path, "kind": "file", "sha256": HASH, "size": 1, **fields}


def folder(path: str) -> dict[str, object]:
    return {"path": path, "kind": "folder"}


def link(path: str, target: str) -> dict[str, object]:
    return {"path": path, "kind": "link", "target": target}


@pytest.mark.parametrize(
    "path",
    [
        "notes.txt",
        ".bashrc",
        "my results/rück blick.csv",
        "données/été 🚂.ipynb",
        "a\nb",
        "-rf",
        "..a",
    ],
)
def test_names_that_people_have_are_paths(path: str) -> None:
    assert require_path(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "..", "a/../b", "a//b", "a/", "./a", "a\0b", "x" * 256, "a/" * 600 + "b",
     "\udcff", "/".join("a" * 65)],
)  # fmt: skip
def test_what_leads_out_or_is_no_name_is_not_a_path(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        require_path(path)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([file("a/b")], "not in a folder"),
        ([link("a", "/etc"), file("a/passwd")], "not in a folder"),
        ([file("a"), file("a/b")], "not in a folder"),
        ([file("b"), file("a")], "order of paths"),
        ([file("a"), file("a")], "order of paths"),
        ([file("a", pack=0, offset=100)], "outside its pack"),
        ([file("a", pack=1)], "outside its pack"),
        ([file("../a")], "`..`"),
        ([{"path": "a", "kind": "file"}], "a file has a hash"),
        ([{"path": "a", "kind": "link"}], "a link has a target"),
    ],
)
def test_a_document_that_would_write_elsewhere_is_not_a_tree(
    entries: list[dict[str, object]], why: str
) -> None:
    document = {"packs": [PACK.model_dump()], "entries": entries}
    with pytest.raises(BadTree, match=why):
        read_tree(json.dumps(document).encode())


def test_equal_trees_have_one_file_and_read_back_equal() -> None:
    tree = Tree(
        packs=(PACK,),
        entries=(
            Entry(path="a", kind=EntryKind.FOLDER),
            Entry(path="a/big", kind=EntryKind.FILE, size=7, sha256=HASH),
            Entry(path="a/small", kind=EntryKind.FILE, size=3, sha256="c" * 64, pack=0, offset=97),
            Entry(path="out", kind=EntryKind.LINK, target="/etc/passwd"),
        ),
    )
    assert read_tree(tree_bytes(tree)) == tree
    assert tree.size == 10
    assert [blob.size for blob in tree.blobs] == [100, 7]


def test_an_edited_tree_has_the_folders_above_and_drops_unused_packs() -> None:
    packed = Entry(path="x", kind=EntryKind.FILE, size=3, sha256="c" * 64, pack=1)
    tree = tree_of([packed], [PACK, PACK.model_copy(update={"sha256": "d" * 64})])
    assert [pack.sha256 for pack in tree.packs] == ["d" * 64]
    added = tree.with_entries([Entry(path="a/b/c", kind=EntryKind.FILE, size=1, sha256=HASH)])
    assert list(added.by_path) == ["a", "a/b", "a/b/c", "x"]
    assert list(added.without("x").packs) == []
    assert list(added.without("a").by_path) == ["x"]
    with pytest.raises(BadTree, match="is a folder"):
        added.with_entries([Entry(path="a", kind=EntryKind.FILE, size=1, sha256=HASH)])
    with pytest.raises(BadTree, match="not in a folder"):
        added.with_entries([Entry(path="x/y", kind=EntryKind.FILE, size=1, sha256=HASH)])


def test_a_quota_names_the_number_and_the_limit_and_warns_at_nine_tenths() -> None:
    quota = Quota(max_bytes=1000, max_files=10)
    assert quota.why_refused(1000, 10) == ""
    assert "1001 bytes of at most 1000 bytes" in quota.why_refused(1001, 10)
    assert "11 files and folders of at most 10" in quota.why_refused(0, 11)
    assert quota.warning(899, 8) == ""
    assert "900 bytes of 1000 bytes" in quota.warning(900, 8)
    assert "9 of 10 files" in quota.warning(0, 9)
