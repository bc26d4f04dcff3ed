"""Numbers, sizes and spans as the pages write them."""

import pytest

from dashboard import formats


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [
        (None, 4, "\u2013"),
        (float("nan"), 4, "nan"),
        (0, 4, "0"),
        (1.0211, 4, "1.021"),
        (12.304, 4, "12.30"),
        (0.64123, 4, "0.641"),
        (119156.4, 4, "119,156"),
        (0.0003, 4, "3.0e-4"),
        (0.002, 3, "2.0e-3"),
        (-0.5, 3, "-0.50"),
        (2_000_000, 4, "2.0e6"),
    ],
)
def test_a_decimal_has_its_significant_digits(number: float | None, digits: int, text: str) -> None:
    assert formats.decimal(number, digits) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "\u2013"), (0, "0"), (8.4e-5, "< 0.01"), (0.02, "0.02"), (24.26, "24.3")],
)
def test_a_trace_of_hours_has_no_exponent(number: float | None, text: str) -> None:
    assert formats.hours(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\u2013"),
        (0, "0 s"),
        (0.00038, "0.4 ms"),
        (0.47, "470 ms"),
        (59.6, "1 min"),
        (6360, "1 h 46 min"),
        (3600, "1 h"),
        (90061, "1 d 1 h"),
        (-5, "0 s"),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert formats.span(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (None, ("\u2013", "")),
        (1, ("1", "byte")),
        (1023, ("1023", "bytes")),
        (1536, ("1.5", "KiB")),
        (16 * 1024**2, ("16.0", "MiB")),
        (81 * 1024**3, ("81.0", "GiB")),
    ],
)
def test_a_size_is_in_binary_units(num_bytes: int | None, shown: tuple[str, str]) -> None:
    assert formats.size(num_bytes) == shown


def test_small_memory_is_in_mib() -> None:
    assert formats.gib(63.04) == ("63.0", "GiB")
    assert formats.gib(0.394) == ("0.39", "GiB")
    assert formats.gib(5 / 1024) == ("5.0", "MiB")


def test_100_per_cent_means_all_of_it() -> None:
    assert formats.percent(399, 400) == 99
    assert formats.percent(400, 400) == 100
    assert formats.percent(1, 0) == 0


def test_control_and_direction_characters_are_spelled_out() -> None:
    assert formats.visible("a\x1b[31mb\u202ec\td") == "a[U+001B][31mb[U+202E]c\td"
