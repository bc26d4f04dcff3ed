"""Frames of a workbench's tunnel: one message each, and anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.wire.frames import (
    MAX_CONTENT,
    BadFrame,
    Frame,
    FrameKind,
    credit_in,
    pack,
    pack_credit,
    pack_resize,
    size_in,
    unpack,
)

NUMBERS = st.integers(0, 2**64 - 1)


@given(kind=st.sampled_from(FrameKind), stream=NUMBERS, content=st.binary(max_size=300))
def test_a_frame_comes_out_as_it_went_in(kind: FrameKind, stream: int, content: bytes) -> None:
    assert unpack(pack(kind, stream, content)) == Frame(kind, stream, content)


@given(message=st.binary(max_size=60))
def test_what_is_not_a_frame_is_refused_and_nothing_else_happens(message: bytes) -> None:
    try:
        kind, stream, content = unpack(message)
    except BadFrame:
        return
    assert pack(kind, stream, content) == message


def test_a_message_longer_than_any_frame_is_refused() -> None:
    longest = pack(FrameKind.DATA, 1, bytes(MAX_CONTENT))
    assert len(unpack(longest).content) == MAX_CONTENT
    with pytest.raises(BadFrame, match="bytes"):
        unpack(longest + b"x")


def test_credit_and_sizes_have_four_bytes() -> None:
    assert credit_in(unpack(pack_credit(7, 131_072)).content) == 131_072
    assert size_in(unpack(pack_resize(7, 50, 132)).content) == (50, 132)
    for wrong in (b"", b"123", b"12345"):
        with pytest.raises(BadFrame):
            credit_in(wrong)
        with pytest.raises(BadFrame):
            size_in(wrong)
