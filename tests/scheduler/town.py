"""A town in which anything may happen in any order, and what must hold whatever happens.

The real cycle on a real database, people who book under a policy with quotas, and fake nodes that
obey as the worker does: they start what is wanted, stop what is not, and stop by themselves when
the owner's hours are over.
"""

import os
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.orm import Session, defer

from api.leases import booking
from api.leases.schemas import Block
from api.web.bells import Bells
from api.web.identity import Person
from core.base.errors import Conflict, ServiceError
from core.database.database import Database
from core.jobs import attempts
from core.jobs.gang_exit import PartEnd
from core.leases import appointments, leases, node_slots, waitlist
from core.leases.active_policies import fingerprint
from core.leases.adjacent import stopped_with
from core.leases.situation import Judge
from core.policy.grid import HOUR, hour_ceiling, usable_end
from core.states import (
    LIVE_ATTEMPT,
    LIVE_JOB,
    LIVE_LEASE,
    TERMINAL_JOB,
    WAITING_JOB,
    AttemptState,
    Desired,
    JobState,
    LeaseState,
    NodeState,
    Outcome,
    Phase,
    Sharing,
)
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import (
    AppointmentKind,
    LeaseKind,
    OfferState,
    Role,
    Scope,
    SlotState,
    WaitState,
)
from core.tables.leases import Appointment, Lease, Offer, Wait
from core.tables.nodes import Node, NodeSlot
from core.tables.policies import AppliedPolicy
from core.transitions import advance
from core.wire.messages import (
    ExitRecord,
)
from tests.core.holds import OVERBOOKED, OVERBOOKED_SINCE, SLOTS_WRONG
from tests.scheduler.world import CPU2, CPU8, NOON, World

# Thousands of commits, and what survives a power cut is not the question here.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TICK_S = 661.0  # more than the 10 min of a mass silence, and never a full hour
KILLED_AFTER = timedelta(seconds=30)  # of the usable end: the shim's own deadline
BACKFILLED_AFTER = timedelta(minutes=10)
SLOTS = {hardware.class_name: hardware.slots for hardware in (CPU2, CPU8)}
USERS = ("ada", "bob")
JOBS, LEASES, WISHES = 12, 8, 2  # at a time
ID_OF_SOMETHING = re.compile(r"\b(job|lease|agenda|wait|offer)_[0-9a-z]{20,}")
LATELY = timedelta(hours=12)  # what is older has been looked at often enough
NEW_YORK = ZoneInfo("America/New_York")
LONG = ("n-0", "n-1")
"""By day and person one block of 3 hours on one of these, or two of 2 hours anywhere; one more of
up to 3 hours each night."""
POLICY = """
policy: {id: town, version: 1, zone: America/New_York}
pools:
  long: {nodes: [n-0, n-1], hours: [1, 2, 3]}
  short: {nodes: [n-2, n-3], hours: [1, 2]}
bands:
  overnight: {local: ["01:00", "07:00"], days: all, quota: extra, hours: [1, 2, 3]}
  daytime: {complement_of: overnight, quota: main}
walk_in: {allowed: true, charged: false}
quotas:
  main:
    period: day
    one_of:
      - {name: one-long, slots: [{pool: long, hours: 3}]}
      - {name: two-short, slots: [{pool: all, hours: 2}, {pool: all, hours: 2}]}
  extra: {period: night, one_of: [{name: night, slots: [{pool: all, hours: 3}]}]}
no_show: {warn_before_reclaim_min: 10, backfill_after_min: 10, reclaim_after_min: 30}
"""
PARTS = POLICY.replace(
    "hours: [1, 2, 3]}\n  short", "gpus: [1, 2, 4, 8], hours: [1, 2, 3]}\n  short"
)
PARTS = PARTS.replace("[n-2, n-3], hours", "[n-2, n-3], gpus: [1, 2, 4, 8], hours")
"""The same, and sells parts of the nodes."""
WHOLE_EVERY = 50  # checks: in between only what may have changed is looked at
NOT_OVER = tuple(state for state in JobState if state not in TERMINAL_JOB)
IN_LINE = (WaitState.WAITING, WaitState.OFFERED)

# Built once, and mostly asked for columns: to build a query takes longer than to ask it.
JOBS_LEFT = select(Job.id, Job.state, Job.epoch, Job.user_id, Job.reason).where(
    Job.state.in_(NOT_OVER)
)
LEASES_LEFT = select(Lease.id).where(Lease.state.in_(LIVE_LEASE))
WAITS_LEFT = select(Wait.id).where(Wait.state.in_(IN_LINE))
SENTENCES = {
    Job: select(Job.id, Job.reason).where(Job.state.in_(NOT_OVER)),
    Lease: select(Lease.id, Lease.reason).where(Lease.state.in_(LIVE_LEASE)),
    Wait: select(Wait.id, Wait.reason).where(Wait.state.in_(IN_LINE)),
    Node: select(Node.id, Node.reason),
}
"""What the rows say that are not over."""
SENTENCES_OF = {
    table: select(table.reason).where(table.id.in_(bindparam("ids", expanding=True)))
    for table in (Job, Lease, Wait)
}
EVER_SAID = tuple(select(table.reason) for table in SENTENCES)
ON_THE_NODES = (
    select(Attempt, AttemptPart, Job, Lease)
    .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
    .join(Job, Job.id == Attempt.job_id)
    .join(Lease, Lease.id == AttemptPart.lease_id)
    .where(Attempt.state.in_(LIVE_ATTEMPT))
    .order_by(Attempt.assigned_at, Attempt.id, AttemptPart.position)
    .options(defer(Job.spec), defer(Job.plan))  # long documents, which a report seldom needs
)
GUESTS = (
    select(AttemptPart.attempt_id, AttemptPart.node_id, Lease)
    .join(Attempt, Attempt.id == AttemptPart.attempt_id)
    .join(Job, Job.id == Attempt.job_id)
    .join(Lease, Lease.id == AttemptPart.lease_id)
    .where(
        Attempt.state.in_(LIVE_ATTEMPT),
        AttemptPart.ended_at.is_(None),
        Job.user_id != Lease.user_id,
    )
)
SLOTS_HELD = select(NodeSlot.lease_id, NodeSlot.node_id, NodeSlot.slot).where(
    NodeSlot.lease_id.is_not(None)
)
LIVE_PARTS = (
    select(AttemptPart.node_id, AttemptPart.slots, Job.user_id)
    .add_columns(AttemptPart.lease_id, Lease.state, Lease.node_id.label("lease_on"))
    .join(Attempt, Attempt.id == AttemptPart.attempt_id)
    .join(Job, Job.id == Attempt.job_id)
    .join(Lease, Lease.id == AttemptPart.lease_id)
    .where(Attempt.state.in_(LIVE_ATTEMPT), AttemptPart.ended_at.is_(None))
)
SLOTS_OF_ACTIVE = (
    select(Lease.id, Lease.node_id, NodeSlot.slot)
    .join(NodeSlot, NodeSlot.lease_id == Lease.id)
    .where(Lease.state == LeaseState.ACTIVE)
)
CHARGED = (
    select(Lease.node_id, Lease.num_slots, Lease.hold_start, Lease.hold_end, Lease.charged_end)
    .where(
        Lease.counts,
        Lease.kind == LeaseKind.BOOKED,
        Lease.booked_node_id.is_(None),
        Lease.hold_end > bindparam("since"),
    )
    .order_by(Lease.node_id, Lease.hold_start)
)
TO_HAPPEN = (
    select(Appointment.kind, Appointment.generation, Appointment.due_at)
    .add_columns(Lease.state, Lease.generation.label("lease_generation"), Lease.hold_end)
    .join(Lease, Lease.id == Appointment.lease_id)
    .where(Appointment.state.in_(appointments.OPEN))
)
LIVE_ATTEMPTS = (
    select(Attempt.job_id, Attempt.epoch, Lease.user_id, Lease.kind)
    .join(Lease, Lease.id == Attempt.lease_id)
    .where(Attempt.state.in_(LIVE_ATTEMPT))
)
SLOTS_OF_JOBS = (
    select(AttemptPart.node_id, Attempt.job_id, Attempt.epoch, AttemptPart.slots)
    .join(Attempt, Attempt.id == AttemptPart.attempt_id)
    .where(Attempt.job_id.in_(bindparam("job_ids", expanding=True)))
)
TOLD = select(Job.reason_code, Job.reason, Job.predicted_start).where(Job.state == JobState.QUEUED)
HOPELESS = select(Wait.id).where(
    Wait.state == WaitState.WAITING, Wait.last_start < bindparam("soon")
)
OVERDUE = select(Offer.id).where(
    Offer.state == OfferState.OPEN, Offer.expires_at < bindparam("soon")
)


@dataclass
class FakeNode:
    """A machine: what runs on it, and what it has still to tell."""

    id: str
    heard_at: datetime
    boot: int = 1
    connected: bool = True
    leaks: bool = False
    said_dirty: frozenset[int] = frozenset()
    """Slots that it said to be dirty when it was heard last."""
    running: dict[tuple[str, int], datetime] = field(default_factory=dict)
    """(job, epoch) -> when its shim kills it, whatever anybody says."""
    exits: dict[tuple[str, int], Outcome] = field(default_factory=dict)


class Town:
    """The world, and what may happen in it."""

    def __init__(self, template: Path, classes: Iterable[str], *, in_parts: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ty-town-", dir=MEMORY))
        shutil.copy(template, self.folder / "town.db")
        self.database = Database(f"sqlite:///{self.folder / 'town.db'}")
        self.world = World(self.database, NOON + timedelta(minutes=7))
        self.people = {
            name: Person(f"user_{name}", name, Role.USER, "America/New_York", "t", frozenset(Scope))
            for name in USERS
        }
        self.jobs: list[str] = []
        self.leases: list[str] = []
        self.wishes: list[str] = []
        self.started = self.world.now
        self.schedulers = 1
        self.granted = 0
        self.stayed = 0
        self.shared = 0
        self.in_parts = in_parts
        self.slots_were: dict[str, tuple[str, frozenset[int]]] = {}
        """By active lease its node and slots at the last check."""
        self.needs: dict[str, tuple[int, int]] = {}
        """By job its nodes, and its ranks on each."""
        self.checks = 0
        self.spoke: dict[type[Job | Lease | Wait | Node], set[str]] = defaultdict(set)
        """By table the rows that were not over at the last check."""
        policy = PARTS if in_parts else POLICY
        with self.database.write() as session:
            session.add(
                AppliedPolicy(
                    policy_id="town",
                    version=1,
                    document=policy,
                    sha256=fingerprint(policy),
                    active=True,
                    applied_by="user_ada",
                    applied_at=self.world.now,
                )
            )
        self.fakes: dict[str, FakeNode] = {}
        self.class_of: dict[str, str] = {}
        self.name_of: dict[str, str] = {}
        for number, class_name in enumerate(classes):
            sharing = Sharing.FULL if in_parts else Sharing.NONE
            node_id = self.world.node(f"n-{number}", class_name, sharing=sharing)
            self.fakes[node_id] = FakeNode(node_id, heard_at=self.world.now)
            self.class_of[node_id] = class_name
            self.name_of[node_id] = f"n-{number}"

    def close(self) -> None:
        """Leave nothing behind."""
        self.database.close()
        shutil.rmtree(self.folder)

    # --------------------------------------------------------------------------- what people do

    def submit(
        self, *, wall: str, ranks: int, user: str = "ada", nodes: int = 1, leased: int | None = None
    ) -> None:
        """A job, perhaps in one of its owner's leases, or on two nodes."""
        if len(self.jobs) >= JOBS:
            return
        lease, together = None, []
        if leased is not None and self.leases:
            row = self.world.get_lease(self.leases[leased % len(self.leases)])
            user = row.user_id.removeprefix("user_")
            if nodes == 1:
                lease = row.id
            else:
                together = self.live_together(row)
        if nodes > 1 and together and len(together) != nodes:
            together = []
        job_id = self.world.job(
            wall=wall, ranks=ranks, user=user, lease=lease, nodes=nodes, leases=together
        )
        self.jobs.append(job_id)
        self.needs[job_id] = (nodes, ranks)
        self.tick(4)

    def live_together(self, row: Lease) -> list[str]:
        """The leases that were booked together with one and may be used together."""
        usable = (LeaseState.BOOKED, LeaseState.ACTIVE)
        with self.database.read() as session:
            found = session.scalars(
                select(Lease)
                .where(Lease.together == row.together, Lease.state.in_(usable))
                .order_by(Lease.id)
            ).all()
        return [lease.id for lease in found] if row.together else []

    def book(
        self,
        *,
        user: str,
        node: int,
        ahead: int,
        hours: int,
        nodes: int = 1,
        gpus: int | None = None,
    ) -> None:
        """A block, or the same on two nodes, as the policy allows."""
        if len(self.leases) >= LEASES:
            return
        names = list(self.name_of.values())
        chosen = [names[(node + more) % len(names)] for more in range(min(nodes, len(names)))]
        size = gpus if self.in_parts else None
        wanted = Block(nodes=chosen, start=self.hour(ahead), hours=hours, gpus=size)
        person = self.people[user]

        def work(session: Session) -> str:
            return booking.book(session, person, wanted, now=self.world.now)

        lease_id = self.asked(work)
        if lease_id is not None:
            self.granted += 1
            row = self.world.get_lease(lease_id)
            self.leases += self.live_together(row) or [lease_id]
            self.keeps_to_the_quotas(row)

    def share(self, *, user: str, node: int, ahead: int, hours: int, num_slots: int) -> None:
        """A block of some slots of a node; no policy sells them, and none counts them."""
        if len(self.leases) >= LEASES:
            return
        node_id = list(self.fakes)[node % len(self.fakes)]
        start = self.hour(ahead)

        def work(session: Session) -> str:
            return leases.take(
                session,
                user_id=self.people[user].id,
                node=session.get_one(Node, node_id),
                kind=LeaseKind.BOOKED,
                start=start,
                end=start + hours * HOUR,
                grace_s=300,
                now=self.world.now,
                actor="town",
                message="Booked.",
                terms=leases.Terms(is_charged=False),
                num_slots=min(num_slots, SLOTS[self.class_of[node_id]]),
            ).id

        lease_id = self.asked(work)
        if lease_id is not None:
            self.shared += 1
            self.leases.append(lease_id)

    def stay_away(self, *, user: str, node: int, hours: int) -> None:
        """A block from the next hour on, to which nobody comes, and work of others for every node:
        until it may have been taken back."""
        self.book(user=user, node=node, ahead=0, hours=hours)
        for other in USERS:
            for _ in self.fakes if other != user else ():
                self.submit(wall="3h", ranks=1, user=other)
        for _ in range(9):
            self.tick(TICK_S)

    def swap(
        self, pick: int, *, node: int, ahead: int, hours: int, gpus: int | None = None
    ) -> None:
        """Another block, perhaps of another size, for one that has not begun."""
        row = self.pick_lease(pick, LeaseState.BOOKED)
        if row is None:
            return
        names = list(self.name_of.values())
        wanted = Block(
            node=names[node % len(names)],
            start=self.hour(ahead),
            hours=hours,
            gpus=gpus if self.in_parts else None,
        )
        person = self.people[row.user_id.removeprefix("user_")]

        def work(session: Session) -> str:
            lease = booking.owned(session, row.id, person, lock=True)
            return booking.swap(session, lease, person, wanted, now=self.world.now)

        lease_id = self.asked(work)
        if lease_id is None:
            assert self.world.get_lease(row.id).state is LeaseState.BOOKED, "all or nothing"
            return
        self.leases[self.leases.index(row.id)] = lease_id
        self.keeps_to_the_quotas(self.world.get_lease(lease_id))

    def extend(self, pick: int) -> None:
        """An hour more."""
        row = self.pick_lease(pick, LeaseState.BOOKED, LeaseState.ACTIVE)
        if row is None or row.hold_end <= self.world.now:
            return
        person = self.people[row.user_id.removeprefix("user_")]

        def work(session: Session) -> str:
            lease = booking.owned(session, row.id, person, lock=True)
            booking.extend(session, lease, person, row.hold_end + HOUR, now=self.world.now)
            return lease.id

        if self.asked(work) is not None:
            self.keeps_to_the_quotas(self.world.get_lease(row.id))

    def give_back(self, pick: int) -> None:
        """Cancel a lease that is booked, release one that is active."""
        row = self.pick_lease(pick, LeaseState.BOOKED, LeaseState.ACTIVE)
        if row is None:
            return
        person = self.people[row.user_id.removeprefix("user_")]

        def work(session: Session) -> str:
            lease = booking.owned(session, row.id, person, lock=True)
            booking.give_back(session, lease, person, Bells(), now=self.world.now)
            return lease.id

        self.asked(work)

    def wish(
        self, *, user: str, class_name: str, ahead: int, hours: int, gpus: int | None = None
    ) -> None:
        """Join the waitlist, for some slots of a node or for all."""
        if len(self.wishes) >= WISHES:
            return
        with self.database.write() as session:
            self.wishes.append(
                waitlist.join(
                    session,
                    self.people[user].id,
                    node_class=class_name,
                    node_id=None,
                    first_start=self.hour(ahead),
                    last_start=self.hour(ahead + 2),
                    hours=hours,
                    num_slots=gpus if self.in_parts and gpus != SLOTS[class_name] else None,
                    now=self.world.now,
                ).id
            )

    def answer(self, pick: int, *, accept: bool) -> None:
        """Take an offer of the waitlist up, decline it, or leave the line."""
        if not self.wishes:
            return
        wait_id = self.wishes[pick % len(self.wishes)]

        def work(session: Session) -> str | None:
            made = waitlist.open_offer(session, wait_id)
            if made is None or not accept:
                waitlist.leave(session, session.get_one(Wait, wait_id), now=self.world.now)
                return None
            lease, verdict = waitlist.accept(session, made, actor=made.user_id, now=self.world.now)
            if lease is None:
                raise Conflict(verdict.reasons[0].message)
            return lease.id

        lease_id = self.asked(work)
        if lease_id is not None:
            self.granted += 1
            self.leases.append(lease_id)
            self.keeps_to_the_quotas(self.world.get_lease(lease_id))

    def steer(self, pick: int, wish: str) -> None:
        """An owner cancels, pauses or resumes a job; or it makes room for others."""
        if not self.jobs:
            return
        with self.database.write() as session:
            job = session.get_one(Job, self.jobs[pick % len(self.jobs)])
            if job.state in TERMINAL_JOB:
                return
            if wish == "resume":
                job.desired = Desired.RUN
                if job.state is JobState.PAUSED:
                    self.move(session, job, JobState.QUEUED)
                return
            if wish == "preempt":
                self.ask(session, job, Outcome.PREEMPTED)
                return
            job.desired = Desired.CANCEL if wish == "cancel" else Desired.PAUSE
            session.flush()
            target = JobState.CANCELLED if wish == "cancel" else JobState.PAUSED
            if job.state in WAITING_JOB:
                self.move(session, job, target)
            else:
                self.ask(session, job, Outcome(str(target)))

    # -------------------------------------------------------------------------- what machines do

    def end_training(self, pick: int, ending: Outcome) -> None:
        """A job that runs comes to some end on one of its nodes."""
        running = [(fake, key) for fake in self.fakes.values() for key in fake.running]
        if running:
            fake, key = running[pick % len(running)]
            del fake.running[key]
            fake.exits[key] = ending

    def trouble(self, pick: int, kind: str) -> None:
        """A node falls silent, restarts, leaks memory, is drained, or one of its slots is out of
        service; or it ends."""
        fake = self.pick_fake(pick)
        if kind == "silence":
            fake.connected = not fake.connected
        elif kind == "restart":
            fake.boot += 1
            fake.running.clear()
            fake.exits.clear()
        elif kind == "leak":
            fake.leaks = not fake.leaks
        elif kind == "slot":
            with self.database.write() as session:
                node = session.get_one(Node, fake.id)
                slot = pick % node.slots
                if not node_slots.put_back(session, node, slot):
                    node_slots.quarantine(session, node, slot, reason="Sick.", by="user_ada")
        else:
            with self.database.write() as session:
                node = session.get_one(Node, fake.id)
                to = NodeState.DRAINING if node.state is NodeState.READY else NodeState.READY
                self.send(session, node, to)

    def be_away(self, pick: int, ticks: int) -> None:
        """One node is not heard for a while, and comes back."""
        fake = self.pick_fake(pick)
        fake.connected = False
        for _ in range(ticks):
            self.tick(TICK_S)
            self.tick(31)
        fake.connected = True
        self.tick(4)

    def change_leader(self) -> None:
        """Another scheduler takes over."""
        self.world.scheduler.leadership.resign()
        self.schedulers += 1
        self.world.scheduler = self.world.new_scheduler(f"s-{self.schedulers}")

    # -------------------------------------------------------------------------- how time passes

    def tick(self, seconds: float) -> None:
        """Time passes, the shims keep their deadlines, the nodes that can report; one cycle."""
        self.world.now += timedelta(seconds=seconds)
        for fake in self.fakes.values():
            for key, deadline in list(fake.running.items()):
                if deadline <= self.world.now:
                    del fake.running[key]
                    fake.exits[key] = Outcome.LEASE_ENDED
        self.heartbeats()
        guests = self.guests()
        for job_id in self.world.cycle():
            self.was_right_to_start(job_id)
        self.who_stays_may(guests)
        self.everyone_who_waits_is_told_why()

    def guests(self) -> dict[tuple[str, str], Lease]:
        """By attempt and node the lease of somebody else that it runs in."""
        with self.database.read() as session:
            rows = session.execute(GUESTS).all()
        return {(attempt_id, node_id): lease for attempt_id, node_id, lease in rows}

    def heartbeats(self) -> None:
        """One exchange of each node that is heard, one after another."""
        heard = [fake for fake in self.fakes.values() if fake.connected]
        with self.database.write() as session:
            nodes = {node.id: node for node in session.scalars(select(Node))}
            live = defaultdict(list)
            parts = defaultdict(list)
            for attempt, part, job, lease in session.execute(ON_THE_NODES):
                live[part.node_id].append((attempt, part, job, lease))
                parts[attempt.id].append(part)
            for fake in heard:
                self.heartbeat(session, fake, nodes[fake.id], live[fake.id], parts)

    def heartbeat(
        self,
        session: Session,
        fake: FakeNode,
        node: Node,
        here: Sequence[tuple[Attempt, AttemptPart, Job, Lease]],
        parts: Mapping[str, Sequence[AttemptPart]],
    ) -> None:
        """What `api.nodes.heartbeat` and the agent make of one exchange."""
        now, boot_id = self.world.now, f"boot-{fake.boot}"
        live = {
            (attempt.job_id, attempt.epoch): (attempt, part, job)
            for attempt, part, job, _ in here
            if attempt.state in LIVE_ATTEMPT and part.ended_at is None
        }
        for key, outcome in fake.exits.items():
            if key in live:
                attempt, part, _ = live.pop(key)
                self.exit(session, attempt, part, outcome, boot_id)
        fake.exits.clear()
        strays = {key: self.slots_of(session, fake, key) for key in fake.running.keys() - live}
        left_on = frozenset(range(node.slots)) if fake.leaks else frozenset()
        dirty = left_on.union(*strays.values())
        if dirty or not node.clean:
            node_slots.set_dirty(session, node, dirty)
        for key, (attempt, part, job) in live.items():
            each = parts[attempt.id]
            if attempt.state is AttemptState.STOPPING:
                if key in fake.running:
                    del fake.running[key]
                reason = attempt.stop_reason or Outcome.PREEMPTED
                self.exit(session, attempt, part, reason, boot_id)
            elif key in fake.running:
                part.missing_since = None
                part.phase = Phase.RUNNING
                fake.running[key] = self.deadline(session, each)
                if attempt.state is AttemptState.STARTING:
                    attempts.run(session, job, attempt, now=now, actor="node")
            elif attempt.state is AttemptState.ASSIGNED or part.phase is Phase.READY:
                on = frozenset(part.slots)
                assert all(on.isdisjoint(slots) for slots in strays.values()), "others run there"
                part.boot_id = boot_id
                if self.may_start(session, attempt, part, each):
                    part.phase = Phase.STARTING
                    fake.running[key] = self.deadline(session, each)
            else:
                part.missing_since = part.missing_since or now
        for key in strays:  # it takes until after this exchange to stop them
            del fake.running[key]
        node.last_seen_at, node.boot_id = now, boot_id
        fake.said_dirty, fake.heard_at = dirty, now

    def slots_of(self, session: Session, fake: FakeNode, key: tuple[str, int]) -> frozenset[int]:
        """The slots on which an attempt runs on a node."""
        job_id, epoch = key
        part = session.scalars(
            select(AttemptPart)
            .join(Attempt, Attempt.id == AttemptPart.attempt_id)
            .where(Attempt.job_id == job_id, Attempt.epoch == epoch, AttemptPart.node_id == fake.id)
        ).one()
        return frozenset(part.slots)

    def may_start(
        self,
        session: Session,
        attempt: Attempt,
        part: AttemptPart,
        parts: Sequence[AttemptPart],
    ) -> bool:
        """Whether a node starts its ranks: of several when all are ready."""
        now = self.world.now
        part.phase = part.phase or Phase.READY
        if attempt.state is AttemptState.ASSIGNED and all(each.phase for each in parts):
            attempts.start(session, attempt, now=now, actor="node")
        if attempt.prepared_at is None and all(each.phase for each in parts):
            attempt.prepared_at = now
        return attempt.prepared_at is not None

    def deadline(self, session: Session, parts: Sequence[AttemptPart]) -> datetime:
        """When its shims kill it: as `api.nodes.orders` tells them."""
        ends = []
        for part in parts:
            lease = stopped_with(session, session.get_one(Lease, part.lease_id))
            ends.append(usable_end(lease.hold_end, lease.grace_s))
        return max(min(ends), self.world.now) + KILLED_AFTER

    # ------------------------------------------------------------------------- what always holds

    def check(self) -> None:
        """Everything that holds between any two things that happen, of what may have changed; every
        now and then of all there is."""
        self.checks += 1
        with self.database.read() as session:
            asked = session.connection()
            self.no_node_is_held_twice(asked)
            self.a_lease_keeps_its_slots(asked)
            self.no_hour_of_a_node_is_charged_twice(asked, since=self.world.now - LATELY)
            self.what_is_to_happen_belongs_to_the_lease_as_it_is(asked)
            self.a_job_is_alive_exactly_with_one_live_attempt_of_its_epoch(asked)
            self.no_machine_runs_more_than_it_has_and_no_training_runs_twice(asked)
            self.no_sentence_names_anything_by_its_id(asked)
            if self.checks % WHOLE_EVERY == 0:
                self.never_was_anything_held_twice_or_named_by_its_id(asked)

    def check_history(self) -> None:
        """The same of all that has ever happened."""
        self.check()
        with self.database.read() as session:
            asked = session.connection()
            self.never_was_anything_held_twice_or_named_by_its_id(asked)
            self.no_hour_of_a_node_is_charged_twice(asked, since=self.started)

    def no_node_is_held_twice(self, asked: Connection) -> None:
        assert asked.scalar(OVERBOOKED_SINCE, {"since": self.world.now - LATELY}) == 0
        assert asked.scalar(SLOTS_WRONG) == 0
        held = defaultdict(set)
        for row in asked.execute(SLOTS_HELD):
            held[row.lease_id, row.node_id].add(row.slot)
        live = asked.execute(LIVE_PARTS).all()
        for part in live:
            if part.state is not LeaseState.ENDED and part.lease_on == part.node_id:
                assert held[part.lease_id, part.node_id].issuperset(part.slots)
        taken = Counter((part.node_id, slot) for part in live for slot in part.slots)
        assert max(taken.values(), default=0) <= 1
        users = {(part.lease_id, part.user_id) for part in live}
        assert len(users) == len({part.lease_id for part in live}), "two users share a lease"

    def a_lease_keeps_its_slots(self, asked: Connection) -> None:
        """Whatever happens to others, an active lease keeps its slots until it ends or moves."""
        found: dict[str, set[int]] = defaultdict(set)
        rows = asked.execute(SLOTS_OF_ACTIVE).all()
        for row in rows:
            found[row.id].add(row.slot)
        now = {row.id: (row.node_id, frozenset(found[row.id])) for row in rows}
        for lease_id, (node_id, slots) in now.items():
            before = self.slots_were.get(lease_id, (node_id, slots))
            assert before[0] != node_id or before[1] == slots, (before, slots)
        self.slots_were = now

    def no_sentence_names_anything_by_its_id(self, asked: Connection) -> None:
        """Of the rows that are not over, and of those that were not at the last check."""
        said: list[str] = []
        for table, query in SENTENCES.items():
            found = {row_id: reason for row_id, reason in asked.execute(query)}
            said += found.values()
            over = self.spoke[table] - found.keys()
            if over:
                said += asked.scalars(SENTENCES_OF[table], {"ids": sorted(over)})
            self.spoke[table] = set(found)
        assert not [text for text in said if ID_OF_SOMETHING.search(text)]

    def never_was_anything_held_twice_or_named_by_its_id(self, asked: Connection) -> None:
        assert asked.scalar(OVERBOOKED) == 0
        said = [text for query in EVER_SAID for text in asked.scalars(query)]
        assert not [text for text in said if ID_OF_SOMETHING.search(text)]

    def no_hour_of_a_node_is_charged_twice(self, asked: Connection, *, since: datetime) -> None:
        """Walk-ins are not charged here: who gave the hours back still is."""
        billed: dict[str, list[tuple[datetime, datetime, int]]] = defaultdict(list)
        for lease in asked.execute(CHARGED, {"since": since}):
            slots = lease.num_slots or SLOTS[self.class_of[lease.node_id]]
            end = lease.charged_end or lease.hold_end
            billed[lease.node_id].append((lease.hold_start, end, slots))
        for node_id, spans in billed.items():
            for moment, _, _ in spans:
                at_once = sum(slots for start, end, slots in spans if start <= moment < end)
                assert at_once <= SLOTS[self.class_of[node_id]], (moment, spans)

    def what_is_to_happen_belongs_to_the_lease_as_it_is(self, asked: Connection) -> None:
        for row in asked.execute(TO_HAPPEN):
            assert row.generation == row.lease_generation
            assert row.state in LIVE_LEASE, (row.kind, row.state)
            if row.kind is AppointmentKind.END:
                assert row.due_at == row.hold_end

    def a_job_is_alive_exactly_with_one_live_attempt_of_its_epoch(self, asked: Connection) -> None:
        live = asked.execute(LIVE_ATTEMPTS).all()
        jobs = asked.execute(JOBS_LEFT).all()
        by_job = {attempt.job_id: attempt for attempt in live}
        assert len(by_job) == len(live)
        assert set(by_job) <= {job.id for job in jobs}, "an attempt outlives its job"
        for job in jobs:
            assert (job.id in by_job) is (job.state in LIVE_JOB), (job.state, job.reason)
            if job.id in by_job:
                assert by_job[job.id].epoch == job.epoch
                of_the_owner = by_job[job.id].user_id == job.user_id
                assert of_the_owner or by_job[job.id].kind is LeaseKind.BOOKED, "a guest's lease"

    def no_machine_runs_more_than_it_has_and_no_training_runs_twice(
        self, asked: Connection
    ) -> None:
        where = Counter(key for fake in self.fakes.values() for key in fake.running)
        if not where:
            return
        parts = asked.execute(SLOTS_OF_JOBS, {"job_ids": sorted({key[0] for key in where})})
        slots = {(node_id, job_id, epoch): on for node_id, job_id, epoch, on in parts}
        for fake in self.fakes.values():
            used = [slot for key in fake.running for slot in slots[fake.id, *key]]
            assert len(used) == len(set(used)), "two trainings on one slot"
            ranks = sum(self.needs[job_id][1] for job_id, _ in fake.running)
            assert ranks <= SLOTS[self.class_of[fake.id]]
        # One on several nodes trains only while it runs on all of them.
        training = [key[0] for key, count in where.items() if count >= self.needs[key[0]][0]]
        assert max(Counter(training).values(), default=0) <= 1, where

    def was_right_to_start(self, job_id: str) -> None:
        """Only ready nodes that were heard, that said they were clean, for the hours of leases."""
        job = self.world.get_job(job_id)
        for part in self.world.parts(job_id):
            lease, fake = self.world.get_lease(part.lease_id), self.fakes[part.node_id]
            assert self.world.get_node(fake.id).state is NodeState.READY
            assert fake.said_dirty.isdisjoint(part.slots)
            assert self.world.now - fake.heard_at <= timedelta(seconds=30)
            assert lease.state is LeaseState.ACTIVE
            with self.database.read() as session:
                last = stopped_with(session, lease)
            assert lease.hold_start <= self.world.now < usable_end(last.hold_end, last.grace_s)
            if lease.user_id != job.user_id:
                self.may_be_a_guest_in(lease, job)
            elif lease.kind is LeaseKind.BOOKED:
                assert lease.id in (job.lease_id, *job.spec["leases"])
            elif job.lease_id is not None:
                named = self.world.get_lease(job.lease_id)
                assert named.state not in (LeaseState.BOOKED, LeaseState.ACTIVE)

    def may_be_a_guest_in(self, lease: Lease, guest: Job) -> None:
        """Its owner has booked it and has not come, for as long as the policy says."""
        assert lease.kind is LeaseKind.BOOKED
        assert self.world.now >= lease.hold_start + BACKFILLED_AFTER
        assert lease.id not in (guest.lease_id, *guest.spec["leases"])
        with self.database.read() as session:
            theirs = session.scalars(select(Job).where(Job.user_id == lease.user_id)).all()
            ran = session.scalars(
                select(Attempt.job_id)
                .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
                .where(AttemptPart.lease_id == lease.id)
            ).all()
        for job in theirs:
            assert job.id not in ran
            assert job.state is not JobState.QUEUED or lease.id not in (
                job.lease_id,
                *job.spec["leases"],
            )

    def who_stays_may(self, guests: dict[tuple[str, str], Lease]) -> None:
        """A guest that goes on when its host's lease is taken back has a walk-in of its owner, for
        no longer than that lease, and is not started anew; nobody in line could have its hours."""
        now = self.world.now
        with self.database.read() as session:
            for (attempt_id, node_id), before in guests.items():
                part = session.scalars(
                    select(AttemptPart).where(
                        AttemptPart.attempt_id == attempt_id, AttemptPart.node_id == node_id
                    )
                ).one()
                if part.lease_id == before.id:
                    continue
                lease = session.get_one(Lease, part.lease_id)
                if lease.kind is LeaseKind.BOOKED:  # the host's next one, which touches it
                    assert (lease.user_id, lease.node_id) == (before.user_id, node_id)
                    assert lease.hold_start == before.hold_end
                    continue
                attempt = session.get_one(Attempt, attempt_id)
                job = session.get_one(Job, attempt.job_id)
                host = session.get_one(Lease, before.id)
                assert (job.epoch, attempt.state in LIVE_ATTEMPT) == (attempt.epoch, True)
                settled_as = before.settled_as or "no_show"  # a fault may have refunded it before
                assert (host.state, host.settled_as) == (LeaseState.ENDED, settled_as)
                assert (lease.user_id, lease.hold_start) == (job.user_id, now)
                assert now + KILLED_AFTER < lease.hold_end <= before.hold_end
                assert session.get_one(Node, node_id).state is NodeState.READY
                for wait in session.scalars(select(Wait).where(Wait.state == WaitState.WAITING)):
                    self.has_no_use_for(session, wait, lease)
                self.stayed += 1

    def has_no_use_for(self, session: Session, wait: Wait, lease: Lease) -> None:
        """Not of its class, or its owner may not book there or has let an offer of it pass."""
        if wait.node_class != self.class_of[lease.node_id]:
            return
        passed = session.scalars(
            select(Offer).where(Offer.wait_id == wait.id, Offer.node_id == lease.node_id)
        ).all()
        judge = Judge(session, wait.user_id, now=self.world.now)
        node = session.get_one(Node, lease.node_id)
        start = max(wait.first_start, hour_ceiling(self.world.now + timedelta(minutes=5)))
        while start <= wait.last_start and start < lease.hold_end:
            end = start + wait.hours * HOUR
            if not any(one.hold_start < end and one.hold_end > start for one in passed):
                verdict = judge.verdict(
                    node, start, end, num_slots=wait.num_slots, replaces=[lease.id]
                )
                assert not verdict.ok, (wait.id, start, end)
            start += HOUR

    def everyone_who_waits_is_told_why(self) -> None:
        """Holds after every cycle; in between a sentence may be of the moment before."""
        soon = self.world.now - timedelta(seconds=10)  # the waitlist is looked at every 5 s
        with self.database.read() as session:
            asked = session.connection()
            waiting = asked.execute(TOLD).all()
            hopeless = asked.scalars(HOPELESS, {"soon": soon}).all()
            overdue = asked.scalars(OVERDUE, {"soon": soon}).all()
        for job in waiting:
            assert job.reason_code != "submitted", job.reason
            assert len(job.reason) > 20
            assert job.reason.endswith("."), job.reason
            if job.predicted_start is not None:
                assert job.predicted_start >= self.world.now - timedelta(minutes=1)
        assert (hopeless, overdue) == ([], [])

    def keeps_to_the_quotas(self, granted: Lease) -> None:
        """Recounted from the rows, by the clock of New York and without the policy's code."""
        with self.database.read() as session:
            rows = session.scalars(
                select(Lease).where(
                    Lease.user_id == granted.user_id,
                    Lease.counts,
                    Lease.kind == LeaseKind.BOOKED,
                    Lease.hold_start > granted.hold_start - timedelta(days=2),
                    Lease.hold_start < granted.hold_start + timedelta(days=2),
                )
            ).all()
        blocks: dict[tuple[bool, date], list[tuple[str, int]]] = defaultdict(list)
        for row in rows:
            name = self.name_of[row.booked_node_id or row.node_id]
            length = (row.charged_end or row.hold_end) - row.hold_start
            if row.charged_s is not None:
                length = timedelta(seconds=row.charged_s)
            hours = max(1, -(-length // HOUR))
            blocks[period_of(row)].append((name, hours))
        is_night, _ = key = period_of(granted)
        mine = blocks[key]
        if is_night:
            assert len(mine) == 1, (key, mine)
            assert mine[0][1] <= 3, (key, mine)
            return
        one_long = len(mine) == 1 and mine[0][0] in LONG and mine[0][1] <= 3
        two_short = len(mine) <= 2 and all(hours <= 2 for _, hours in mine)
        assert one_long or two_short, (key, mine)

    def settle(self) -> None:
        """Nobody waits for ever: when all is well again, every job comes to its end."""
        for fake in self.fakes.values():
            fake.connected, fake.leaks = True, False
        for number in range(1000):  # 33 hours: leases begin up to 18 ahead
            self.mend()
            with self.database.read() as session:
                left = session.connection().execute(JOBS_LEFT).all()
            placeable = [job for job in left if self.can_ever_run(job.id)]
            if not placeable:
                break
            for fake in self.fakes.values():
                fake.exits |= dict.fromkeys(fake.running, Outcome.SUCCEEDED)
                fake.running.clear()
            self.tick(600 if number % 5 == 4 else 4)
        else:
            raise AssertionError([(job.state, job.reason) for job in placeable])
        self.forget()

    def mend(self) -> None:
        """All slots and nodes are put back into service, and all jobs are resumed."""
        with self.database.write() as session:
            out = select(NodeSlot).where(NodeSlot.state == SlotState.QUARANTINED)
            for row in session.scalars(out).all():
                node_slots.put_back(session, session.get_one(Node, row.node_id), row.slot)
            away = (NodeState.MAINTENANCE, NodeState.DRAINING)
            for node in session.scalars(select(Node).where(Node.state.in_(away))).all():
                self.send(session, node, NodeState.READY)
            for job in session.scalars(select(Job).where(Job.state == JobState.PAUSED)).all():
                job.desired = Desired.RUN
                self.move(session, job, JobState.QUEUED)

    def forget(self) -> None:
        """Jobs, leases and wishes that are over are nobody's to pick any more."""
        with self.database.read() as session:
            asked = session.connection()
            jobs = {row.id for row in asked.execute(JOBS_LEFT)}
            held = set(asked.scalars(LEASES_LEFT))
            waits = set(asked.scalars(WAITS_LEFT))
        self.jobs = [job_id for job_id in self.jobs if job_id in jobs]
        self.leases = [lease_id for lease_id in self.leases if lease_id in held]
        self.wishes = [wait_id for wait_id in self.wishes if wait_id in waits]

    # ---------------------------------------------------------------------------------- helpers

    def hour(self, ahead: int) -> datetime:
        return hour_ceiling(self.world.now) + ahead * HOUR

    def asked(self, work: Callable[[Session], str | None]) -> str | None:
        """What somebody's request gave; None if it was refused, with nothing changed."""
        try:
            with self.database.write() as session:
                return work(session)
        except ServiceError:
            return None

    def pick_lease(self, pick: int, *states: LeaseState) -> Lease | None:
        with self.database.read() as session:
            rows = session.scalars(select(Lease).where(Lease.id.in_(self.leases))).all()
        rows = sorted(rows, key=lambda row: self.leases.index(row.id))
        found = [row for row in rows if row.state in states]
        return found[pick % len(found)] if found else None

    def pick_fake(self, pick: int) -> FakeNode:
        return list(self.fakes.values())[pick % len(self.fakes)]

    def can_ever_run(self, job_id: str) -> bool:
        """A job of 4 ranks on a world of small nodes waits, and is told so."""
        num_nodes, ranks = self.needs[job_id]
        for class_name, slots in SLOTS.items():
            nodes = sum(found == class_name for found in self.class_of.values())
            if ranks <= slots and num_nodes <= nodes:
                return True
        return False

    def send(self, session: Session, node: Node, to: NodeState) -> None:
        fields = {"reason_code": "admin", "message": "By hand.", "actor": "admin"}
        advance(session, node, to, now=self.world.now, **fields)  # type: ignore[arg-type]

    def move(self, session: Session, job: Job, to: JobState) -> None:
        fields = {"reason_code": "owner", "message": "As its owner wants it.", "actor": "owner"}
        advance(session, job, to, now=self.world.now, **fields)  # type: ignore[arg-type]

    def ask(self, session: Session, job: Job, reason: Outcome) -> None:
        now = self.world.now
        attempts.ask_to_stop(session, job, reason, now=now, message="Stopping.", actor="owner")

    def exit(
        self, session: Session, attempt: Attempt, part: AttemptPart, outcome: Outcome, boot_id: str
    ) -> None:
        now = self.world.now
        record = ExitRecord(
            job_id=attempt.job_id,
            epoch=attempt.epoch,
            boot_id=boot_id,
            outcome=outcome,
            reason=f"It ended: {outcome}.",
            duration_s=min(60.0, (now - attempt.assigned_at).total_seconds()),
        )
        attempt.files_kept = part.files_kept = True
        attempts.end_part(
            session,
            session.get_one(Job, attempt.job_id),
            attempt,
            part,
            PartEnd(record),
            now=now,
            actor="node",
        )


def period_of(lease: Lease) -> tuple[bool, date]:
    """Whether a lease lies in the night, and the local date by which it is counted."""
    start = lease.hold_start.astimezone(NEW_YORK)
    end = (lease.charged_end or lease.hold_end).astimezone(NEW_YORK)
    inside = start.time() >= time(1) and end.time() <= time(7) and start.date() == end.date()
    return inside, start.date()
