"""The gap rule, and what it saves: the densities at which random booking jams."""

import random
from statistics import mean

import pytest

from core.policy.gaps import cut_up, lost_beside, wasted
from core.policy.grid import HOUR
from tests.core.policy.asking import LONG, SINGLE, Span, ask, codes, local, policy

HARD = policy(("gaps: {mode: soft", "gaps: {mode: hard"))


def jam(length_h: int, lengths: tuple[int, ...], *, rule: bool, rounds: int = 60) -> float:
    """Share of a run that is booked when no further block fits, tried at random places.

    With the rule every accepted block must pass `lost_beside`.
    """
    start = local("02-21 00:00")
    chance = random.Random(7)
    shares = []
    for _ in range(rounds):
        taken: list[tuple[int, int]] = []
        tries = [(at, k) for k in lengths for at in range(length_h - k + 1)]
        chance.shuffle(tries)
        accepted = True
        while accepted:  # a block that is refused now may be fine once its neighbours are there
            accepted = False
            for at, k in tries:
                if any(a < at + k and b > at for a, b in taken):
                    continue
                first = max([0, *(b for _, b in taken if b <= at)])
                last = min([length_h, *(a for a, _ in taken if a >= at + k)])
                lost = lost_beside(
                    start + at * HOUR,
                    start + (at + k) * HOUR,
                    (start + first * HOUR, start + last * HOUR),
                    lengths=lengths,
                )
                if not rule or not lost:
                    taken.append((at, at + k))
                    accepted = True
        shares.append(sum(b - a for a, b in taken) / length_h)
    return mean(shares)


@pytest.mark.parametrize(
    ("length_h", "lengths", "measured"),
    [
        (18, (3,), 0.789),
        (18, (2,), 0.846),
        (18, (2, 3), 0.880),
        (168, (3,), 0.829),
        (168, (2,), 0.864),
    ],
)
def test_random_booking_jams_early_and_with_the_rule_never(
    length_h: int, lengths: tuple[int, ...], measured: float
) -> None:
    rounds = 150 if length_h == 18 else 4
    assert jam(length_h, lengths, rule=False, rounds=rounds) == pytest.approx(measured, abs=0.04)
    assert jam(length_h, lengths, rule=True, rounds=min(rounds, 20)) == 1.0


def test_what_blocks_can_fill() -> None:
    assert [wasted(hours, (2, 3)) for hours in range(6)] == [0, 1, 0, 0, 0, 0]
    assert [wasted(hours, (3,)) for hours in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert wasted(5, ()) == 5


def test_a_single_hour_that_is_left_over_is_a_warning_or_a_refusal() -> None:
    before = Span(local("02-21 12:00"), local("02-21 14:00"), "lease_bob")
    soft = ask(LONG, "02-21 15:00", 3, holds=(before,))
    assert codes(soft) == []
    assert [(r.code, r.numbers["lost_hours"]) for r in soft.warnings if r.code != "cohort_day"] == [
        ("leaves_gap", 1)
    ]
    hard = ask(LONG, "02-21 15:00", 3, holds=(before,), rules=HARD)
    assert codes(hard) == ["leaves_gap"]
    assert codes(ask(LONG, "02-21 14:00", 3, holds=(before,), rules=HARD)) == []
    assert codes(ask(LONG, "02-21 16:00", 3, holds=(before,), rules=HARD)) == []


def test_a_run_in_which_every_place_loses_an_hour_may_be_taken() -> None:
    before = Span(local("02-21 12:00"), local("02-21 14:00"), "lease_bob")
    after = Span(local("02-21 17:00"), local("02-21 19:00"), "lease_eve")
    holds = (before, after)  # three free hours, and blocks of two
    assert codes(ask(SINGLE, "02-21 14:00", 2, holds=holds, rules=HARD)) == []
    assert codes(ask(SINGLE, "02-21 15:00", 2, holds=holds, rules=HARD)) == []


def test_blocks_of_two_kinds_do_not_excuse_the_longer_one() -> None:
    before = Span(local("02-21 01:00"), local("02-21 03:00"), "lease_bob")
    after = Span(local("02-21 07:00"), local("02-21 10:00"), "lease_eve")
    holds = (before, after)  # four free hours of the night: two blocks of two
    assert codes(ask(LONG, "02-21 03:00", 3, holds=holds, rules=HARD)) == ["leaves_gap"]
    assert codes(ask(LONG, "02-21 03:00", 2, holds=holds, rules=HARD)) == []


def test_without_a_list_the_block_lengths_say_what_is_useless() -> None:
    rules = policy(
        ("gaps: {mode: soft, never_leave_hours: [1]}              #", "gaps: {mode: hard} #")
    )
    before = Span(local("02-21 08:00"), local("02-21 10:00"), "lease_bob")
    after = Span(local("02-21 19:00"), local("02-21 22:00"), "lease_eve")
    found = {
        hour: codes(ask(LONG, f"02-21 {hour}:00", 3, holds=(before, after), rules=rules))
        for hour in range(10, 17)
    }
    # Nine free hours and only blocks of three: 10, 13 and 16 o'clock leave none over.
    assert [hour for hour, refused in found.items() if not refused] == [10, 13, 16]


def test_hours_that_time_takes_anyway_are_no_gap() -> None:
    now = local("02-21 14:30")
    before = Span(local("02-21 12:00"), local("02-21 14:00"), "lease_bob")
    assert codes(ask(LONG, "02-21 15:00", 3, holds=(before,), rules=HARD, now=now)) == [
        "leaves_gap"
    ]
    long_ago = Span(local("02-21 10:00"), local("02-21 12:00"), "lease_bob")
    assert codes(ask(LONG, "02-21 15:00", 3, holds=(long_ago,), rules=HARD, now=now)) == []


def test_a_block_cuts_up_least_where_it_fills_a_gap_then_where_it_touches_something() -> None:
    now = local("02-21 00:00")
    held = [(now + a * HOUR, now + b * HOUR) for a, b in ((4, 6), (9, 12), (20, 22))]

    def cost(at: int) -> tuple[int, float]:
        sides, left = cut_up(now + at * HOUR, now + (at + 3) * HOUR, held, first=now)
        return sides, left / HOUR

    starts = [at for at in range(22) if not any(a < at + 3 and b > at for a, b in ((4, 6),))]
    free = [at for at in starts if at in (0, 1, 6, 12, 13, 17)]
    assert sorted(free, key=cost) == [6, 0, 1, 12, 17, 13]
    assert cost(6) == (0, 0)
    assert cost(0) == (1, 1)  # hours that are over are nobody's
    assert cut_up(now + 22 * HOUR, now + 25 * HOUR, held, first=now)[0] == 1
