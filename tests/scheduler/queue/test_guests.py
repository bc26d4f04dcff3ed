"""Guests: jobs that use the hours of somebody who has not come, and leave when they do.

A number at the end of a name is that of the case in the list of edge cases.
"""

import pytest
from sqlalchemy import select

from api.leases.lease_views import LEASES_WITH_CONTEXT, lease_views
from core.database.database import Database
from core.leases import waitlist
from core.leases.appointments import NoShow
from core.states import AttemptState, JobState, LeaseState, NodeState, Outcome
from core.tables.kinds import LeaseKind, Role
from core.tables.leases import Offer
from core.tables.nodes import Node
from core.tables.people import User
from tests.scheduler.world import World, at

STRICT = NoShow(warn_s=20 * 60, reclaim_s=30 * 60)
OPEN = "policy: {id: open, version: 1}\nno_show: {backfill_after_min: 15, reclaim_after_min: 30}\n"
LONG_ONLY = "pools: {long: {nodes: [north-01], hours: [3]}}\n"


@pytest.fixture
def world(database: Database) -> World:
    made = World(database, at(10))
    made.apply(OPEN)
    return made


def begun(world: World, hours: int = 3, no_show: NoShow | None = STRICT) -> str:
    """A lease of ada's, who does not come to it at 11:00."""
    lease_id = world.book(world.node(), at(11), hours, no_show=no_show)
    world.go(at(11))
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE
    return lease_id


def test_who_comes_late_gets_the_node_back_and_the_guest_goes_on_later_57(world: World) -> None:
    lease_id = begun(world)
    guest = world.job(user="bob", wall="2h")
    assert world.go(at(11, 14, 59)) == []
    assert world.go(at(11, 15)) == [guest]
    assert world.attempt(guest).lease_id == lease_id
    world.runs(guest)
    assert world.go(at(11, 19)) == []

    mine = world.job(user="ada", lease=lease_id)
    assert world.go(at(11, 20)) == []
    stopping = world.get_job(guest)
    assert stopping.state is JobState.STOPPING
    assert world.attempt(guest).stop_reason is Outcome.PREEMPTED
    assert "the owner of these hours on north-01 has come" in stopping.reason
    waits = world.get_job(mine)
    assert waits.reason_code == "lease_lent"
    assert waits.predicted_start is not None
    assert waits.predicted_start <= at(11, 22)

    world.now = at(11, 21)
    world.exits(guest, Outcome.PREEMPTED)
    assert world.get_job(guest).state is JobState.QUEUED
    assert world.go(at(11, 21)) == [mine]
    assert world.attempt(mine).lease_id == lease_id
    world.runs(mine)
    assert world.go(at(11, 31)) == []  # neither taken back nor shared
    lease = world.get_lease(lease_id)
    assert (lease.state, lease.settled_as) == (LeaseState.ACTIVE, "")


def wish(world: World, *, first: int, hours: int = 1, user: str = "ada") -> None:
    """Somebody waits for a node of the class, from some hour on."""
    with world.database.write() as session:
        waitlist.join(
            session,
            f"user_{user}",
            node_class="cpu2",
            node_id=None,
            first_start=at(first),
            last_start=at(first),
            hours=hours,
            now=world.now,
        )


def guest_of(world: World, *, wall: str = "2h") -> tuple[str, str]:
    """A lease of ada's from 11:00 to 14:00, and bob's job that is a guest in it at 11:15."""
    lease_id = begun(world)
    guest = world.job(user="bob", wall=wall)
    assert world.go(at(11, 15)) == [guest]
    world.runs(guest)
    return lease_id, guest


def test_a_guest_does_not_make_up_for_its_host_57(world: World) -> None:
    lease_id, _ = guest_of(world)
    world.go(at(11, 30))
    lease = world.get_lease(lease_id)
    assert (lease.state, lease.settled_as) == (LeaseState.ENDED, "no_show")


def test_a_guest_goes_on_in_a_walk_in_when_the_lease_is_taken_back(world: World) -> None:
    lease_id, guest = guest_of(world)
    before = world.attempt(guest)
    assert world.go(at(11, 30)) == []
    stays = world.attempt(guest)
    assert (stays.id, stays.state) == (before.id, AttemptState.RUNNING)
    walk_in = world.lease_of(guest)
    assert (walk_in.user_id, walk_in.kind) == ("user_bob", LeaseKind.WALK_IN)
    assert (walk_in.hold_start, walk_in.hold_end) == (at(11, 30), at(14))
    assert {part.lease_id for part in world.parts(guest)} == {walk_in.id}
    lease = world.get_lease(lease_id)
    assert (lease.hold_start, lease.charged_end) == (at(11), at(11, 30))
    assert lease.counts
    assert walk_in.charged_end is None
    assert "stayed" in list(world.events(guest))
    assert world.bells.nodes[-1] == "north-01"  # it is told its new deadlines

    late = world.job(user="ada", lease=lease_id)
    world.go(at(11, 31))
    assert world.get_job(guest).state is JobState.RUNNING  # nobody is recalled any more
    assert world.get_job(late).state is JobState.QUEUED
    world.now = at(13)
    world.exits(guest)
    assert world.go(at(13)) == [late]
    assert (world.get_lease(walk_in.id).charged_end) == at(13)


def test_it_has_them_no_longer_than_its_wall_time_needs(world: World) -> None:
    _, guest = guest_of(world, wall="1h")
    world.go(at(11, 30))
    assert world.lease_of(guest).hold_end == at(13)  # 12:15 and grace


def test_it_has_them_no_longer_than_the_lease_would_have_had_them(world: World) -> None:
    _, guest = guest_of(world, wall="8h")
    world.go(at(11, 30))
    assert world.lease_of(guest).hold_end == at(14)
    world.go(at(13, 54))
    assert world.get_job(guest).state is JobState.RUNNING
    world.go(at(13, 55))
    assert world.attempt(guest).stop_reason is Outcome.LEASE_ENDED


@pytest.mark.parametrize(("first", "stays"), [(12, False), (13, False), (14, True)])
def test_who_waits_for_the_hours_is_offered_them_and_the_guest_leaves(
    world: World, first: int, stays: bool
) -> None:
    lease_id, guest = guest_of(world)
    world.book(world.node("north-02"), at(12), 10)  # what else there is of the class
    world.book(world.get_lease(lease_id).node_id, at(14), 8)
    wish(world, first=first, user="bob")
    world.go(at(11, 30))
    assert world.get_job(guest).state is (JobState.RUNNING if stays else JobState.STOPPING)
    if not stays:
        world.now = at(11, 31)
        world.exits(guest, Outcome.LEASE_ENDED)
        world.go(at(11, 31))
        with world.database.read() as session:
            (made,) = session.scalars(select(Offer)).all()
        assert made.hold_start == at(first)


def test_hours_that_somebody_may_not_have_are_not_kept_for_them(world: World) -> None:
    _, guest = guest_of(world)
    world.apply(OPEN.replace("version: 1", "version: 2") + LONG_ONLY)
    wish(world, first=12, hours=1)
    world.go(at(11, 30))
    assert world.get_job(guest).state is JobState.RUNNING


def test_a_guest_that_may_not_walk_in_leaves_and_goes_on_later(world: World) -> None:
    lease_id, guest = guest_of(world)
    world.apply(OPEN.replace("version: 1", "version: 2") + "walk_in: {allowed: false}\n")
    world.go(at(11, 30))
    lease = world.get_lease(lease_id)
    assert (lease.state, lease.settled_as) == (LeaseState.ENDING, "no_show")
    assert (lease.hold_end, lease.charged_end) == (at(12), at(14))
    assert world.get_job(guest).state is JobState.STOPPING
    world.apply(OPEN.replace("version: 1", "version: 3"))
    world.now = at(11, 31)
    world.exits(guest, Outcome.LEASE_ENDED)
    assert world.go(at(11, 31)) == [guest]  # in what is left, as a walk-in
    assert world.lease_of(guest).user_id == "user_bob"


def test_a_guest_leaves_a_node_that_is_drained(world: World) -> None:
    lease_id, guest = guest_of(world)
    with world.database.write() as session:
        node = session.get_one(Node, world.get_lease(lease_id).node_id)
        node.state = NodeState.DRAINING
    world.go(at(11, 30))
    assert world.get_job(guest).state is JobState.STOPPING


def test_a_gang_goes_on_on_all_its_nodes_or_leaves_them_all(world: World) -> None:
    nodes = [world.node(name) for name in ("north-01", "north-02")]
    leases = [world.book(node, at(11), 3, no_show=STRICT) for node in nodes]
    world.go(at(11))
    gang = world.job(user="bob", wall="2h", nodes=2)
    assert world.go(at(11, 15)) == [gang]
    world.runs(gang)
    world.go(at(11, 30))
    assert world.get_job(gang).state is JobState.RUNNING
    mine = {part.lease_id for part in world.parts(gang)}
    assert len(mine) == 2
    assert not mine & set(leases)
    assert {world.get_lease(each).kind for each in mine} == {LeaseKind.WALK_IN}
    world.now = at(12)
    world.exits(gang)
    world.go(at(12))
    assert {world.get_lease(each).state for each in mine} == {LeaseState.ENDED}


def test_a_gang_that_may_stay_on_one_node_only_leaves_both(world: World) -> None:
    nodes = [world.node(name) for name in ("north-01", "north-02")]
    for node in nodes:
        world.book(node, at(11), 3, no_show=STRICT)
    world.go(at(11))
    gang = world.job(user="bob", wall="2h", nodes=2)
    world.go(at(11, 15))
    world.runs(gang)
    with world.database.write() as session:
        session.get_one(Node, nodes[1]).state = NodeState.DRAINING
    world.go(at(11, 30))
    assert world.get_job(gang).state is JobState.STOPPING
    assert world.attempt(gang).stop_reason is Outcome.LEASE_ENDED
    world.exits(gang, Outcome.LEASE_ENDED)
    world.go(at(11, 31))
    assert world.get_job(gang).state is JobState.QUEUED  # one free node is too few
    assert world.lease_of(gang).state is LeaseState.ENDED


def test_one_lease_has_the_guests_of_one_person(world: World) -> None:
    with world.database.write() as session:
        session.add(User(id="user_eve", name="eve", role=Role.USER, created_at=world.now))
    lease_id = world.book(world.node("north-01", "cpu8"), at(11), 3, no_show=STRICT)
    world.go(at(11))
    first, eves, second = (world.job(user=user, wall="1h") for user in ("bob", "eve", "bob"))
    assert world.go(at(11, 15)) == [first, second]
    for job in (first, second):
        world.runs(job)
    assert world.go(at(11, 16)) == []
    world.go(at(11, 30))
    assert world.lease_of(first).id == world.lease_of(second).id != lease_id
    assert world.get_job(eves).state is JobState.QUEUED


def test_a_guest_that_ends_leaves_the_lease_to_its_owner(world: World) -> None:
    lease_id = begun(world)
    guest = world.job(user="bob", wall="2h")
    world.go(at(11, 15))
    world.exits(guest)
    world.go(at(11, 16))
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE
    mine = world.job(user="ada", lease=lease_id)
    assert world.go(at(11, 17)) == [mine]


def test_a_lease_without_reclaim_hosts_guests_to_its_end(world: World) -> None:
    lease_id = begun(world, 1, None)
    guest = world.job(user="bob", wall="2h")
    assert world.go(at(11, 15)) == [guest]
    world.runs(guest)
    world.go(at(11, 54))
    assert world.get_job(guest).state is JobState.RUNNING
    world.go(at(11, 55))
    assert world.get_lease(lease_id).state is LeaseState.ENDING
    assert world.attempt(guest).stop_reason is Outcome.LEASE_ENDED


def test_only_what_can_be_stopped_is_let_in_and_only_where_it_is_worth_it(world: World) -> None:
    begun(world, 1, None)
    whole = world.job(user="bob", wall="2h", checkpointable=False)
    own = world.job(user="ada", wall="2h")
    assert world.go(at(11, 24)) == []
    assert world.get_job(whole).state is JobState.QUEUED
    assert world.get_job(own).state is JobState.QUEUED  # ada's lease runs what names it
    saves = world.job(user="bob", wall="2h")
    assert world.go(at(11, 25)) == [saves]
    world.exits(saves, Outcome.PREEMPTED)
    assert world.go(at(11, 26)) == []  # 29 minutes are left


def test_a_lease_that_was_used_takes_no_guests_while_it_rests(world: World) -> None:
    lease_id = begun(world)
    mine = world.job(user="ada", lease=lease_id)
    assert world.go(at(11, 1)) == [mine]
    world.exits(mine)
    world.job(user="bob", wall="2h")
    assert world.go(at(11, 40)) == []


def test_minutes_without_the_node_do_not_count_against_its_owner(world: World) -> None:
    lease_id = begun(world)
    with world.database.write() as session:
        lease = session.merge(world.get_lease(lease_id))
        lease.unusable_s = 600
    guest = world.job(user="bob", wall="2h")
    assert world.go(at(11, 24)) == []
    assert world.go(at(11, 25)) == [guest]


def test_a_guest_needs_what_a_walk_in_needs_of_the_policy(world: World) -> None:
    world.apply(OPEN.replace("version: 1", "version: 2") + "walk_in: {allowed: false}\n")
    begun(world)
    guest = world.job(user="bob", wall="2h")
    for second in (0, 1):
        assert world.go(at(11, 15, second)) == []
    assert world.get_job(guest).reason_code == "walk_in_refused"


def test_without_the_rule_nobody_is_let_in(world: World) -> None:
    world.apply("policy: {id: open, version: 2}\nno_show: {reclaim_after_min: 30}\n")
    begun(world)
    world.job(user="bob", wall="2h")
    assert world.go(at(11, 29)) == []


def test_a_gang_is_let_in_where_all_its_nodes_are_idle_and_leaves_whole(world: World) -> None:
    nodes = [world.node(name) for name in ("north-01", "north-02")]
    first, second = (world.book(node, at(11), 3, no_show=STRICT) for node in nodes)
    world.go(at(11))
    gang = world.job(user="bob", wall="2h", nodes=2)
    assert world.go(at(11, 15)) == [gang]
    assert {part.lease_id for part in world.parts(gang)} == {first, second}
    world.runs(gang)
    mine = world.job(user="ada", lease=second)
    assert world.go(at(11, 20)) == []
    assert world.get_job(gang).state is JobState.STOPPING
    world.now = at(11, 21)
    world.exits(gang, Outcome.PREEMPTED)
    assert world.go(at(11, 21)) == [mine]  # one idle node is too few for the gang


def test_a_guest_that_has_not_started_is_recalled_too(world: World) -> None:
    lease_id = begun(world)
    guest = world.job(user="bob", wall="2h")
    world.go(at(11, 15))
    mine = world.job(user="ada", lease=lease_id)
    world.go(at(11, 15, 1))
    assert world.get_job(guest).state is JobState.STOPPING
    world.exits(guest, Outcome.PREEMPTED)
    assert world.go(at(11, 15, 3)) == [mine]


def test_the_owner_is_shown_no_jobs_of_others(world: World) -> None:
    lease_id = begun(world)
    guest = world.job(user="bob", wall="2h")
    world.go(at(11, 15))
    with world.database.read() as session:
        (row,) = session.execute(LEASES_WITH_CONTEXT).all()
        (view,) = lease_views(session, [row])
    assert view.id == lease_id
    assert view.jobs == []
    assert "guest" in list(world.events(guest))
