"""Anything may happen in any order: what must hold does, and nobody waits for ever.

A state machine that hypothesis drives and shrinks, a few steps long; and long walks by a seed, for
what only shows after days of a town.
"""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.states import Outcome
from tests.scheduler.town import TICK_S, USERS, Town

CLASSES = ("cpu2", "cpu8")
WALLS = ("2min", "20min", "55min", "3h", "3h")
ENDINGS = (Outcome.SUCCEEDED, Outcome.USER_ERROR, Outcome.KILLED, Outcome.START_FAILED)
TROUBLES = ("silence", "restart", "leak", "drain", "slot")
SIZES = (None, 1, 1, 2, 4, 8)
STEERED = ("cancel", "pause", "resume", "preempt")
SETTLED_EVERY = 250  # steps of a walk
PICK = st.integers(0, 999)
PEOPLE = st.sampled_from(USERS)


class TownMachine(RuleBasedStateMachine):
    """A town, and what may happen in it."""

    template: Path
    town: Town | None = None

    @initialize(
        classes=st.lists(st.sampled_from(CLASSES), min_size=2, max_size=4),
        walls=st.lists(st.sampled_from(WALLS), min_size=1, max_size=3),
        in_parts=st.booleans(),
    )
    def begin(self, classes: list[str], walls: list[str], in_parts: bool) -> None:
        self.town = Town(self.template, classes, in_parts=in_parts)
        for wall in walls:
            self.there.submit(wall=wall, ranks=2)

    @property
    def there(self) -> Town:
        assert self.town is not None
        return self.town

    @rule(
        wall=st.sampled_from(WALLS),
        ranks=st.sampled_from([1, 1, 2, 4]),
        nodes=st.sampled_from([1, 1, 2]),
        user=PEOPLE,
        leased=st.none() | PICK,
    )
    def submit(self, wall: str, ranks: int, nodes: int, user: str, leased: int | None) -> None:
        self.there.submit(wall=wall, ranks=ranks, nodes=nodes, user=user, leased=leased)

    @rule(
        node=PICK,
        ahead=st.integers(0, 18),
        hours=st.integers(1, 3),
        nodes=st.sampled_from([1, 1, 2]),
        user=PEOPLE,
        gpus=st.sampled_from(SIZES),
    )
    def book(
        self, node: int, ahead: int, hours: int, nodes: int, user: str, gpus: int | None
    ) -> None:
        self.there.book(user=user, node=node, ahead=ahead, hours=hours, nodes=nodes, gpus=gpus)

    @rule(
        user=PEOPLE,
        node=PICK,
        ahead=st.integers(0, 18),
        hours=st.integers(1, 3),
        num_slots=st.sampled_from([1, 1, 2, 4]),
    )
    def share(self, user: str, node: int, ahead: int, hours: int, num_slots: int) -> None:
        self.there.share(user=user, node=node, ahead=ahead, hours=hours, num_slots=num_slots)

    @rule(user=PEOPLE, node=PICK, hours=st.integers(1, 3))
    def stay_away(self, user: str, node: int, hours: int) -> None:
        self.there.stay_away(user=user, node=node, hours=hours)

    @rule(
        pick=PICK,
        node=PICK,
        ahead=st.integers(0, 18),
        hours=st.integers(1, 3),
        gpus=st.sampled_from(SIZES),
    )
    def swap(self, pick: int, node: int, ahead: int, hours: int, gpus: int | None) -> None:
        self.there.swap(pick, node=node, ahead=ahead, hours=hours, gpus=gpus)

    @rule(pick=PICK, longer=st.booleans())
    def extend_or_give_back(self, pick: int, longer: bool) -> None:
        if longer:
            self.there.extend(pick)
        else:
            self.there.give_back(pick)

    @rule(
        user=PEOPLE,
        class_name=st.sampled_from(CLASSES),
        ahead=st.integers(0, 6),
        hours=st.integers(1, 3),
        gpus=st.sampled_from(SIZES),
    )
    def wish(self, user: str, class_name: str, ahead: int, hours: int, gpus: int | None) -> None:
        self.there.wish(user=user, class_name=class_name, ahead=ahead, hours=hours, gpus=gpus)

    @rule(pick=PICK, accept=st.booleans())
    def answer_an_offer(self, pick: int, accept: bool) -> None:
        self.there.answer(pick, accept=accept)

    @rule(seconds=st.sampled_from([1, 4, 20, 70]))
    def time_passes(self, seconds: int) -> None:
        self.there.tick(seconds)

    @rule(ticks=st.integers(1, 7))
    def an_hour_or_so_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.there.tick(TICK_S)

    @rule(pick=PICK, ticks=st.sampled_from([1, 2, 6]))
    def one_node_is_away_for_a_while(self, pick: int, ticks: int) -> None:
        self.there.be_away(pick, ticks)

    @rule(pick=PICK, ending=st.sampled_from(ENDINGS))
    def a_training_ends(self, pick: int, ending: Outcome) -> None:
        self.there.end_training(pick, ending)

    @rule(pick=PICK, trouble=st.sampled_from(TROUBLES))
    def a_node_gets_into_trouble_or_out_of_it(self, pick: int, trouble: str) -> None:
        self.there.trouble(pick, trouble)

    @rule(pick=PICK, wish=st.sampled_from(STEERED))
    def an_owner_changes_their_mind(self, pick: int, wish: str) -> None:
        self.there.steer(pick, wish)

    @rule()
    def another_scheduler_takes_over(self) -> None:
        self.there.change_leader()

    @invariant()
    def what_must_hold_holds(self) -> None:
        if self.town is not None:
            self.town.check()

    def teardown(self) -> None:
        if self.town is not None:
            try:
                self.town.settle()
            finally:
                self.town.close()


@pytest.mark.db
@pytest.mark.parametrize(
    ("examples", "steps"),
    [(2, 15), pytest.param(80, 40, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_no_node_twice_no_quota_exceeded_and_nobody_waits_for_ever(
    migrated_sqlite: Path, examples: int, steps: int
) -> None:
    class Machine(TownMachine):
        template = migrated_sqlite

    Machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    Machine.TestCase("runTest").runTest()


def step(town: Town, random: Random) -> None:
    """One thing that happens, as often as the others that hypothesis chooses from."""
    pick, other = random.randrange(1000), random.randrange(1000)
    user, hours = random.choice(USERS), random.randint(1, 3)
    ahead = random.randint(0, 18)
    match random.randrange(19):
        case 0 | 1:
            town.submit(
                wall=random.choice(WALLS),
                ranks=random.choice((1, 1, 2, 4)),
                nodes=random.choice((1, 1, 2)),
                user=user,
                leased=random.choice((None, pick)),
            )
        case 2 | 14 | 15:
            town.book(
                user=user,
                node=pick,
                ahead=ahead,
                hours=hours,
                nodes=random.choice((1, 1, 2)),
                gpus=random.choice(SIZES),
            )
        case 17 | 18:
            num_slots = random.choice((1, 1, 2, 4))
            town.share(user=user, node=pick, ahead=ahead, hours=hours, num_slots=num_slots)
        case 16:
            town.stay_away(user=user, node=pick, hours=hours)
        case 3:
            size = random.choice(SIZES)
            town.swap(pick, node=other, ahead=ahead, hours=hours, gpus=size)
        case 4:
            town.extend(pick)
        case 5:
            town.give_back(pick)
        case 6:
            town.wish(
                user=user,
                class_name=random.choice(CLASSES),
                ahead=ahead // 3,
                hours=hours,
                gpus=random.choice(SIZES),
            )
        case 7:
            town.answer(pick, accept=random.random() < 0.7)
        case 8:
            town.tick(random.choice((1, 4, 20, 70)))
        case 9:
            for _ in range(random.randint(1, 4)):
                town.tick(TICK_S)
        case 10:
            town.end_training(pick, random.choice(ENDINGS))
        case 11:
            town.trouble(pick, random.choice(TROUBLES))
        case 12:
            town.steer(pick, random.choice(STEERED))
        case 13:
            if random.random() < 0.2:
                town.be_away(pick, 2)
            else:
                town.change_leader()
    town.forget()
    town.check()


def walk(template: Path, seed: int, steps: int) -> Town:
    """So many steps through one town; every now and then all is well again and everybody served."""
    random = Random(seed)
    classes = [random.choice(CLASSES) for _ in range(random.randint(2, 4))]
    town = Town(template, classes, in_parts=random.random() < 0.5)
    try:
        for number in range(steps):
            step(town, random)
            if number % SETTLED_EVERY == SETTLED_EVERY - 1:
                town.settle()
        town.settle()
        town.check_history()
    except BaseException as error:
        error.add_note(f"walk({seed=}, {steps=}), at step {number}")
        raise
    finally:
        town.close()
    return town


@pytest.mark.db
@pytest.mark.parametrize(
    ("first_seed", "walks", "steps"),
    [
        (0, 1, 30),
        *(
            pytest.param(1000 * part, 10, 2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])
            for part in range(1, 11)
        ),
    ],
)
def test_days_of_a_town_leave_nobody_waiting_and_no_hour_billed_twice(
    migrated_sqlite: Path, first_seed: int, walks: int, steps: int
) -> None:
    """Ten parts of 10 walks of 2000 steps: 200,000 in all."""
    granted = sum(
        walk(migrated_sqlite, seed, steps).granted for seed in range(first_seed, first_seed + walks)
    )
    assert granted >= max(1, walks * steps // 60), "hardly anybody could book anything"
