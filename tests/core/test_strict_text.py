"""The strict loader of job texts."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.base.strict_text import BadText, parse

YAML, JSON = "application/yaml", "application/json"
BOMB = "a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]\n"


def test_yaml_and_json_say_the_same() -> None:
    yaml = b"name: run\nmodel: {layers: 4, heads: null}\nlist: [1, 2.5, true, '3']\nlr: 2e-3\n"
    json = b"""{"name": "run", "model": {"layers": 4, "heads": null},
               "list": [1, 2.5, true, "3"], "lr": 0.002}"""
    assert parse(yaml, YAML).value == parse(json, JSON).value


def test_lines_are_those_of_the_fields() -> None:
    text = parse(b"# a comment\nname: run\nmodel:\n  layers: 4\n  heads: [1,\n    2]\n", YAML)
    assert text.lines["name",] == 2
    assert text.lines["model", "layers"] == 4
    assert text.lines["model", "heads", 1] == 6


@pytest.mark.parametrize(
    ("body", "line", "word"),
    [
        (BOMB, 1, "aliases"),
        ("a: 1\nb: &anchor 2\n", 2, "anchors"),
        ("a: 1\nb: !!python/object/apply:os.system ['true']\n", 2, "tags"),
        ("a: !custom 1\n", 1, "tags"),
        ("a: 1\nb: 2\na: 3\n", 3, "twice"),
        ("a: 1\n---\nb: 2\n", 2, "document"),
        ("a: [1, 2\nb: 3\n", 2, "not valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML"),
        ("? [a, b]\n: 1\n", 1, "plain text"),
        ("a: " + "[" * 40 + "]" * 40, 1, "deep"),
        ("- a\n- b\n", 0, "mapping"),
        ("", 0, "mapping"),
        ("just text", 0, "mapping"),
    ],
)
def test_yaml_that_is_not_plain_data_is_refused_with_its_line(
    body: str, line: int, word: str
) -> None:
    with pytest.raises(BadText) as caught:
        parse(body.encode(), YAML)
    assert word in caught.value.message
    if line:
        assert f"ine {line}" in caught.value.message


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": {"b": 1, "b": 2}}', "b is given twice"),
        (b'{"a": ' + b"1" * 5000 + b"}", "digit"),
        (b"[" * 100_000, "deep"),
        (b"[1]", "object"),
        (b"{", "line 1"),
        (b'{"a": "\xff"}', "byte 7"),
    ],
)
def test_json_that_is_not_strict_is_refused(body: bytes, word: str) -> None:
    with pytest.raises(BadText) as caught:
        parse(body, JSON)
    assert word in caught.value.message


def test_other_media_types_are_refused_by_name() -> None:
    with pytest.raises(BadText, match="text/csv"):
        parse(b"a,b", "text/csv; charset=utf-8")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("2026-11-21", "2026-11-21"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-7", -7),
        ("'7'", "7"),
        ("~", None),
    ],
)
def test_plain_scalars_are_read_as_yaml_1_2(text: str, value: object) -> None:
    read = parse(f"a: {text}\n".encode(), YAML).value["a"]
    assert read == value
    assert type(read) is type(value)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_loader(body: bytes) -> None:
    for kind in (YAML, JSON):
        with suppress(BadText):
            parse(body, kind)


@given(st.text(max_size=200))
def test_no_text_breaks_the_loader(text: str) -> None:
    body = text.encode("utf-8", "surrogatepass")
    for kind in (YAML, JSON):
        with suppress(BadText):
            parse(body, kind)
