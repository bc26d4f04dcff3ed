"""Compressed datasets: checked by what they hold, with lines, and no bomb goes off."""

import gzip
import json
from collections.abc import Callable

import pytest
import zstandard

from api.files.text_check import TextCheck
from api.web.errors import InvalidRequest
from core.base.errors import BadRequest
from tests.api.conftest import World
from tests.api.files.test_uploads import begin, finish, send, sent_whole

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PACKS = {"gz": gzip.compress, "zst": zstandard.compress}
both = pytest.mark.parametrize("ending", ["gz", "zst"])
Pack = Callable[[bytes], bytes]


def lines(count: int) -> bytes:
    return "".join(json.dumps({"text": f"line {n} é"}) + "\n" for n in range(count)).encode()


def checked(content: bytes, *, is_jsonl: bool = True, size: int = 7) -> TextCheck:
    check = TextCheck(is_jsonl=is_jsonl)
    for at in range(0, len(content), size):
        check.feed(content[at : at + size])
    check.finish()
    return check


@both
def test_lines_are_counted_and_mistakes_named_by_their_line(ending: str) -> None:
    pack = PACKS[ending]
    report = checked(pack(lines(30)) + pack(lines(20))).report()
    assert (report["lines"], report["warnings"]) == (50, [])
    assert report["compression"] == {"gz": "gzip", "zst": "zstd"}[ending]
    assert (
        checked(lines(3)).report() | {"lines": 3, "compression": None} == checked(lines(3)).report()
    )
    with pytest.raises(InvalidRequest) as refused:
        checked(pack(lines(30) + b"nonsense\n"))
    assert refused.value.items[0].param == "body.31"
    with pytest.raises(BadRequest, match=r"byte 9 \(line 1\) is NUL"):
        checked(pack(b"some text\0"), is_jsonl=False)
    with pytest.raises(BadRequest, match=r"is not readable .*: it ends early"):
        checked(pack(lines(30))[:-2])
    with pytest.raises(BadRequest, match="The text is empty"):
        checked(pack(b""))
    with pytest.raises(BadRequest, match="is not readable"):
        checked(pack(lines(30)) + b"something else")


@both
def test_a_bomb_is_refused_before_it_is_unpacked(ending: str) -> None:
    packed = PACKS[ending](b"all work and no play " * (200 << 20 >> 4))
    check = TextCheck(is_jsonl=False)
    with pytest.raises(BadRequest, match="unpack to more than 64 times") as refused:
        check.feed(packed)
    assert refused.value.code == "unpacks_to_too_much"
    assert check.content.characters < 110 << 20


@on_sqlite
@both
def test_a_compressed_dataset_is_kept_shown_and_named(world: World, ending: str) -> None:
    content = PACKS[ending](lines(40))
    asked = {"name": "packed", "format": "jsonl"}
    made = world.ann.post("/v1/datasets", params=asked, content=content)
    assert made.status_code == 201, made.text
    assert (made.json()["lines"], made.json()["size"]) == (40, len(content))
    assert [file["path"] for file in made.json()["files"]] == [f"data.jsonl.{ending}"]
    shown = world.ann.get("/v1/datasets/packed/rows", params={"count": 2}).json()["rows"]
    assert [row["pieces"][0]["text"] for row in shown] == ["line 0 é", "line 1 é"]
    beginning = world.ann.get("/v1/datasets/packed/preview", params={"num_bytes": 10}).json()
    assert beginning == {"text": '{"text": "', "is_all": False}
    wrong = world.ann.post(
        "/v1/datasets",
        params={"name": "wrong", "format": "jsonl"},
        content=PACKS[ending](lines(2) + b"{}\n"),
    )
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["param"] == "body.3"


@on_sqlite
def test_compressed_shards_arrive_in_parts(world: World) -> None:
    packed = zstandard.compress(lines(300))
    begun = begin(world, len(packed), path="a.jsonl.zst", format="jsonl").json()["id"]
    assert send(world, begun, 0, packed[:3]).status_code == 204
    assert send(world, begun, 3, packed[3:100]).status_code == 204
    assert send(world, begun, 100, packed[100:]).status_code == 204
    assert finish(world, begun, packed).status_code == 204
    other = sent_whole(world, gzip.compress(lines(5)), "b.jsonl.gz", "jsonl")
    plain = sent_whole(world, lines(7), "c.jsonl", "jsonl")
    made = world.ann.post(
        "/v1/datasets/uploaded", json={"name": "shards", "uploads": [begun, other, plain]}
    )
    assert made.status_code == 201, made.text
    assert made.json()["lines"] == 312
    liar = sent_whole(world, gzip.compress(lines(6)), "d.jsonl", "jsonl")
    refused = world.ann.post("/v1/datasets/uploaded", json={"name": "liar", "uploads": [liar]})
    assert (refused.status_code, refused.json()["code"]) == (422, "wrong_ending")
    assert "d.jsonl is gzip. Give it the ending .gz." in refused.json()["detail"]
