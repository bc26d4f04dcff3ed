"""Numbers and times as people read them."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from trainyard.wording import (
    PastStart,
    as_moment,
    as_start,
    clock_time,
    duration,
    moment,
    number,
    part_of,
    size,
    sparkline,
)

AT = datetime(2026, 11, 21, 13, 5, 9, tzinfo=UTC)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local zone one hour east, two in summer."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_moments_are_local_and_carry_their_offset() -> None:
    assert moment(AT, now=AT + timedelta(hours=1)) == "14:05:09 +0100"
    assert moment(AT, now=AT + timedelta(days=1)) == "2026-11-21 14:05 +0100"
    assert moment(AT.replace(month=7), now=AT) == "2026-07-21 15:05 +0200"
    assert clock_time(AT) == "14:05:09"
    assert moment(None) == "-"


@pytest.mark.usefixtures("berlin")
def test_a_start_can_be_written_in_three_ways() -> None:
    assert as_moment("15:00", now=AT) == datetime(2026, 11, 21, 14, tzinfo=UTC)
    assert as_moment("14:00", now=AT) == datetime(2026, 11, 22, 13, tzinfo=UTC)  # it is 14:05
    assert as_moment("2026-11-22 14:00", now=AT) == datetime(2026, 11, 22, 13, tzinfo=UTC)
    assert as_moment("2026-11-22T14:00:00Z", now=AT) == datetime(2026, 11, 22, 14, tzinfo=UTC)
    assert as_moment("2026-11-22T14:00+05:30", now=AT).utcoffset() == timedelta(hours=5.5)


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2026-13-01 10:00", "14"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        as_moment(text, now=AT)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-5, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (97200, "1 d 3 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (12345.0, "12,345"),
        (12345.6, "12,346"),
        (1.83449, "1.834"),
        (0.00002, "2.000e-05"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(512, "512 B"), (2048, "2.0 KiB"), (15_000_000, "14.3 MiB"), (5 * 1024**4, "5.0 TiB")],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


def test_a_sparkline_falls_with_its_values() -> None:
    assert sparkline([7, 6, 5, 4, 3, 2, 1, 0]) == "█▇▆▅▄▃▂▁"
    assert sparkline([1, 1, 1]) == "▁▁▁"
    assert sparkline([1]) == ""
    assert sparkline([1, None, float("nan"), float("inf"), 2]) == "▁█"
    assert len(sparkline([float(i) for i in range(1000)], width=24)) == 24


@pytest.mark.usefixtures("berlin")
def test_a_start_that_has_passed_is_of_the_hour_that_runs_or_refused_never_tomorrow() -> None:
    assert as_start("15:00", now=AT) == datetime(2026, 11, 21, 14, tzinfo=UTC)
    assert as_start("14:00", now=AT) == datetime(2026, 11, 21, 13, tzinfo=UTC)  # it is 14:05
    assert as_start("13:06", now=AT) == datetime(2026, 11, 21, 12, 6, tzinfo=UTC)
    with pytest.raises(PastStart, match="13:00 is over today; for tomorrow write '2026-11-22 13"):
        as_start("13:00", now=AT)
    assert as_start("2026-11-20 13:00", now=AT) == datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_a_part_of_a_node_names_its_gpus() -> None:
    assert part_of("north-01", None) == "north-01"
    assert part_of("north-01", 1) == "1 GPU of north-01"
    assert part_of("north-01", 2) == "2 GPUs of north-01"
