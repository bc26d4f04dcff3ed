"""What a lease costs that was not used to its end.

A number at the end of a name is that of the case in the list of edge cases.
"""

from datetime import UTC, datetime, timedelta

import pytest

from core.leases.settlement import freed_from, of_cancel, of_release
from core.policy.sections import Cancel, EarlyRelease

THREE = datetime(2026, 2, 20, 15, tzinfo=UTC)
SIX = THREE + timedelta(hours=3)
MINUTE = timedelta(minutes=1)
COURSE = Cancel(
    refund_if_before_start_min=120,
    late_cancel="charge_unless_rebooked",
    early_release=EarlyRelease(charge="block", refund_if_rebooked=True),
)


@pytest.mark.parametrize(
    ("minutes", "counts", "settled_as"),
    [(121, False, "cancelled"), (120, False, "cancelled"), (119, True, "late_cancel")],
)
def test_two_hours_before_its_start_a_lease_is_given_back_for_nothing_40(
    minutes: int, counts: bool, settled_as: str
) -> None:
    settled = of_cancel(THREE, now=THREE - minutes * MINUTE, rules=COURSE, by="ann")
    assert (settled.counts, settled.settled_as) == (counts, settled_as)
    assert settled.refund_if_rebooked is counts
    said = "Its hours count unless others book them." if counts else "Its hours do not count."
    assert settled.message.endswith(said)


@pytest.mark.parametrize(
    ("released_at", "freed"),
    [
        (THREE + 80 * MINUTE, THREE + 2 * 60 * MINUTE),  # 16:20: cleaned well before 17:00
        (THREE + 115 * MINUTE, THREE + 2 * 60 * MINUTE),  # 16:55: the grace fits exactly
        (THREE + 118 * MINUTE, SIX),  # 16:58: cleaning does not fit before 17:00
    ],
)
def test_hours_are_free_from_the_next_one_that_leaves_room_for_cleaning_43_44(
    released_at: datetime, freed: datetime
) -> None:
    found = freed_from(released_at, grace_s=300)
    assert found == freed
    settled = of_release(SIX, freed_from=found, rules=COURSE, by="ann")
    assert settled.counts
    if freed == SIX:
        assert settled.message.endswith("No whole hour of it is left to refund.")
        assert not settled.refund_if_rebooked
    else:
        assert (settled.forfeited_end, settled.refund_if_rebooked) == (SIX, True)
