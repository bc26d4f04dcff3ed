"""What may be forgotten: by age, by bytes, and never of a job that goes on."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.jobs.retention import (
    GIB,
    EndedJob,
    Holder,
    RetentionLimits,
    StoredCheckpoint,
    Thing,
    expired,
    surplus,
    warning,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
ALL = frozenset(Thing)


def ended(days_ago: float, has: frozenset[Thing] = ALL) -> EndedJob:
    return EndedJob("job_a", NOW - days_ago * DAY, has)


def checkpoint(
    name: str, *, days_ago: int = 1, size: int = GIB, user: str = "ann", is_last: bool = False
) -> StoredCheckpoint:
    return StoredCheckpoint(name, f"job_{name}", user, size, NOW - days_ago * DAY, is_last)


def holder(used_gib: float, limit_gib: float = 10, *users: str) -> Holder:
    return Holder("ann", frozenset(users or {"ann"}), int(used_gib * GIB), int(limit_gib * GIB))


def test_each_thing_has_its_own_age() -> None:
    limits = RetentionLimits(
        {Thing.LOGS: 30 * DAY, Thing.CHECKPOINTS: 90 * DAY, Thing.METRICS: None}
    )
    assert [due.thing for due in expired([ended(31)], limits, NOW)] == [Thing.LOGS]
    due = list(expired([ended(400)], limits, NOW))
    assert [one.thing for one in due] == [Thing.LOGS, Thing.CHECKPOINTS]
    assert due[0].why == "The job ended 400 days ago; logs are kept for 30."


def test_what_is_gone_already_is_not_deleted_again() -> None:
    limits = RetentionLimits({thing: DAY for thing in Thing})
    assert not list(expired([ended(5, frozenset())], limits, NOW))


def test_superseded_checkpoints_go_first_and_then_those_of_the_oldest_jobs() -> None:
    last, old_last = checkpoint("last", is_last=True), checkpoint("old", days_ago=9, is_last=True)
    young, middle = checkpoint("young", days_ago=2), checkpoint("middle", days_ago=5)
    chosen = surplus([holder(13)], [last, old_last, young, middle])
    assert [one.checkpoint.id for one in chosen] == ["middle", "young", "old"]


def test_no_more_goes_than_has_to_and_nothing_of_others() -> None:
    mine, others = checkpoint("mine"), checkpoint("others", user="bob", days_ago=50)
    assert [one.checkpoint.id for one in surplus([holder(10.5)], [others, mine])] == ["mine"]
    assert surplus([holder(10)], [others, mine]) == []


def test_a_lab_is_within_its_limit_by_the_checkpoints_of_all_its_members() -> None:
    chosen = surplus(
        [holder(12, 10, "ann", "bob")],
        [checkpoint("a", days_ago=1), checkpoint("b", user="bob", days_ago=7)],
    )
    assert [one.checkpoint.id for one in chosen] == ["b", "a"]


def test_what_makes_room_for_a_person_makes_room_for_every_lab_of_theirs() -> None:
    everybody = [
        Holder("Lab x", frozenset({"ann", "bob"}), 12 * GIB, 10 * GIB),
        Holder("Lab y", frozenset({"ann", "cat"}), 12 * GIB, 10 * GIB),
        Holder("ann", frozenset({"ann"}), 12 * GIB, 10 * GIB),
    ]
    chosen = surplus(everybody, [checkpoint(f"{n:02}", days_ago=n) for n in range(1, 13)])
    assert [one.checkpoint.id for one in chosen] == ["12", "11"]


def test_a_small_one_stays_where_a_large_one_has_to_go_anyway() -> None:
    small, large = checkpoint("small", days_ago=9), checkpoint("large", size=5 * GIB)
    chosen = surplus([holder(13)], [small, large])
    assert [one.checkpoint.id for one in chosen] == ["large"]


@settings(deadline=None)
@given(
    sizes=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.booleans())),
    groups=st.lists(st.frozensets(st.sampled_from("abcd"), min_size=1), max_size=5),
    limits=st.lists(st.integers(0, 40), min_size=5, max_size=5),
    further=st.integers(0, 30),
)
def test_every_limit_is_met_and_nothing_goes_that_could_have_stayed(
    sizes: list[tuple[str, int, bool]],
    groups: list[frozenset[str]],
    limits: list[int],
    further: int,
) -> None:
    """`further`: bytes that each person holds in files that are never deleted."""
    kept = [
        checkpoint(f"{n:03}", size=size, user=user, days_ago=n, is_last=is_last)
        for n, (user, size, is_last) in enumerate(sizes)
    ]

    def held(users: frozenset[str], without: Collection[str]) -> int:
        own = sum(c.size for c in kept if c.user_id in users and c.id not in without)
        return own + further * len(users)

    everybody = [
        Holder(str(n), users, held(users, ()), limits[n]) for n, users in enumerate(groups)
    ]
    gone = {one.checkpoint.id for one in surplus(everybody, kept)}
    for one in everybody:
        deletable = [c for c in kept if c.user_id in one.user_ids and c.id not in gone]
        assert held(one.user_ids, gone) <= one.limit or not deletable
    for c in kept:
        if c.id in gone:  # with it somebody would be over their limit
            others = gone - {c.id}
            holders = [one for one in everybody if c.user_id in one.user_ids]
            assert any(held(one.user_ids, others) > one.limit for one in holders)


@pytest.mark.parametrize(
    ("used", "told"),
    [(7.9, None), (8.0, "Beyond the limit, the checkpoints"), (10.1, "nothing can be uploaded")],
)
def test_the_warning_comes_before_the_limit_and_says_what_follows(
    used: float, told: str | None
) -> None:
    sentence = warning(holder(used))
    if told is None:
        assert sentence is None
    else:
        assert sentence is not None
        assert told in sentence
        assert "of 10.0 GiB" in sentence
