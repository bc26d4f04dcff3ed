"""The check of uploaded texts, and the store, without HTTP."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.files.dataset_check import DatasetCheck
from api.files.store import Store
from api.web.errors import InvalidRequest
from core.base.errors import BadRequest, ServiceError


@given(st.text(min_size=1).filter(lambda text: "\0" not in text), st.data())
def test_a_text_is_counted_the_same_however_it_is_cut(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    check = DatasetCheck(is_jsonl=False)
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    for part in parts:
        check.feed(part)
    check.finish()
    assert check.characters == len(text)
    assert check.lines == text.count("\n") + (not text.endswith("\n"))


@given(st.binary(max_size=60), st.booleans(), st.integers(0, 60))
@example(b"\xff\x00", False, 1)
def test_no_bytes_break_the_check(raw: bytes, is_jsonl: bool, cut: int) -> None:
    def run(parts: list[bytes]) -> tuple[str, str]:
        check = DatasetCheck(is_jsonl=is_jsonl)
        try:
            for part in parts:
                check.feed(part)
            check.finish()
        except ServiceError as refused:
            return refused.code, refused.message
        return "kept", f"{check.lines} {check.characters} {check.warnings}"

    whole, pieces = run([raw]), run([raw[:cut], raw[cut:]])
    if {whole[0], pieces[0]} == {"binary", "not_utf8"}:
        return  # it is both, and what a piece has of it is said
    assert whole == pieces  # also the byte and line in the message


def test_every_form_of_a_row_is_taken_and_wrong_lines_are_named() -> None:
    lines = [
        '{"text": "abc"}',
        '{"prompt": "2 + 2 =", "completion": " 4"}',
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
    ]
    check = DatasetCheck(is_jsonl=True)
    check.feed("\n".join(lines).encode())
    check.finish()
    assert check.lines == 3
    wrong = [*lines, '{"messages": [{"role": "user", "content": "a"}]}', '{"prompt": "a"}']
    check = DatasetCheck(is_jsonl=True)
    check.feed("\n".join(wrong).encode())
    with pytest.raises(InvalidRequest) as refused:
        check.finish()
    assert [(item.param, item.code) for item in refused.value.items] == [
        ("body.4", "wrong_row"),
        ("body.5", "wrong_row"),
    ]
    assert "line 4 has no message of the assistant" in refused.value.items[0].message


def test_a_file_is_kept_by_its_content_or_not_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with store.incoming_file() as incoming:
        incoming.write(b"abc")
        kept = incoming.seal()
        incoming.move()
    assert kept.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert store.path(kept.sha256).read_bytes() == b"abc"
    with store.incoming_file() as incoming:
        incoming.write(b"abd")
        with pytest.raises(BadRequest, match="not ba78"):
            incoming.seal(expected_sha256=kept.sha256)
    with store.incoming_file() as incoming:
        incoming.write(b"given up")
    assert not list(store.incoming.iterdir())
    for wrong in ("../../etc/passwd", "A" * 64, "", f"{kept.sha256}\n"):
        with pytest.raises(ValueError, match="SHA-256"):
            store.path(wrong)
