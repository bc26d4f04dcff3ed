"""A request in the light of its policy: the facts that all rules need, worked out once."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property

from core.policy.bands import BandPosition, Crossing, whole_hours
from core.policy.document import Policy, Window
from core.policy.grid import HOUR, hold_end, hour_ceiling, hour_floor, usable_end
from core.policy.local_time import show, stamp
from core.policy.matching import ALL, CountedLease
from core.policy.memory import Known
from core.policy.sections import BackToBack, Quota, QuotaPeriod, QuotaScope
from core.policy.verdict import (
    BookingRequest,
    Grant,
    HourUnit,
    LeaseFact,
    QuotaCharge,
    RequestKind,
    Situation,
    Span,
)

LONGEST = timedelta(days=8)  # hold whose band is computed; longer ones are refused anyway
WALK_IN = "walk_in"
Key = bool | date | tuple[int, int]


@dataclass(frozen=True)
class QuotaUse:
    """A counted lease, or several that touch, and the quota and hours that it takes."""

    facts: tuple[LeaseFact, ...]
    """Leases that it consists of; empty for the request itself."""
    counted: CountedLease
    place: BandPosition
    quota: str | None

    @property
    def hours(self) -> int:
        return self.counted.hours


@dataclass(frozen=True)
class Case:
    """One request, situation and policy."""

    request: BookingRequest
    situation: Situation
    policy: Policy
    start: datetime
    end: datetime
    """End of the hold, even if the usable end was given."""
    own: tuple[LeaseFact, ...]
    """The member's leases, without those that the request replaces."""
    holds: tuple[Span, ...]

    @classmethod
    def of(cls, request: BookingRequest, situation: Situation, policy: Policy) -> "Case":
        """Build it with times in UTC, without the leases that the request replaces."""
        gone = request.replaces
        grid = policy.grid
        own, holds = situation.own, situation.holds
        if gone:
            own = tuple(fact for fact in own if fact.id not in gone)
            holds = tuple(span for span in holds if span.lease_id not in gone)
        return cls(
            request=request,
            situation=situation,
            policy=policy,
            start=request.start.astimezone(UTC),
            end=hold_end(request.end, grid.grace_s, grid.anchor),
            own=own,
            holds=holds,
        )

    def at(self, start: datetime) -> "Case":
        """Return the same block at another time."""
        return replace(self, start=start, end=start + (self.end - self.start))

    @property
    def now(self) -> datetime:
        return self.situation.now

    def show(self, moment: datetime) -> str:
        """Format a moment for people, in the policy's zone."""
        return show(moment, self.policy.zone)

    def stamp(self, moment: datetime) -> str:
        """Format a moment as RFC 3339, in the policy's zone."""
        return stamp(moment, self.policy.zone)

    # ------------------------------------------------------------------------ node and time

    @cached_property
    def pools(self) -> tuple[str, ...]:
        """Names of the node's pools that sell leases of this size."""
        return self.policy.pools_for(self.request.node, self.request.num_slots)

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Windows for leases of this size on the node."""
        pools = set(self.pools)
        return tuple(window for window in self.policy.times if pools & set(window.pools))

    @property
    def is_part(self) -> bool:
        """True if it leaves slots of the node to others."""
        return self.request.size < self.request.node.slots

    @cached_property
    def place(self) -> BandPosition:
        """The hold's place in the day."""
        last = min(max(self.end, self.start + timedelta(minutes=1)), self.start + LONGEST)
        return self.policy.clock.place(self.start, last)

    @cached_property
    def pool_hours(self) -> tuple[int, ...]:
        """Block lengths by day, ascending."""
        return self.policy.pool_hours(self.request.node, self.request.num_slots)

    @cached_property
    def block_hours(self) -> tuple[int, ...]:
        """Block lengths at this time, ascending."""
        band = self.policy.bands.get(self.place.band or "")
        return tuple(sorted(band.hours)) if band and band.hours else self.pool_hours

    @cached_property
    def earliest_start(self) -> datetime:
        """The first start on the grid that may still be booked."""
        grid = self.policy.grid
        if grid.late_start and not grid.min_lead_min:
            return hour_floor(self.now, grid.anchor)
        return hour_ceiling(self.now + timedelta(minutes=grid.min_lead_min), grid.anchor)

    @property
    def usable_end(self) -> datetime:
        """Time at which its jobs would be stopped."""
        return usable_end(self.end, self.policy.grid.grace_s)

    @cached_property
    def prolonged(self) -> LeaseFact | None:
        """The lease that an extension prolongs; None for other requests."""
        replaced = [fact for fact in self.situation.own if fact.id in self.request.replaces]
        return replaced[0] if replaced else None

    # ---------------------------------------------------------------------------- exceptions

    @cached_property
    def granted(self) -> dict[str, Grant]:
        """Exceptions that hold for this start, by the reason code that they lift."""
        grants = self.request.member.exceptions
        return {grant.rule: grant for grant in grants if grant.start <= self.start < grant.end}

    def extra(self, code: str) -> int:
        """Return the number by which exceptions raise the limit of a rule, by its reason code."""
        return sum(
            grant.extra
            for grant in self.request.member.exceptions
            if grant.rule == code and grant.start <= self.start < grant.end
        )

    # --------------------------------------------------------------------------- what counts

    @cached_property
    def hours(self) -> int:
        """Whole hours of the hold; for a walk-in, those of its usable time, because its hold begins
        within an hour."""
        prolonged = self.prolonged
        walked_in = self.request.kind is RequestKind.WALK_IN or (
            self.request.kind is RequestKind.EXTENSION
            and prolonged is not None
            and prolonged.kind == WALK_IN
        )
        end = self.usable_end if walked_in else self.end
        return max(1, whole_hours(end - self.start))

    @cached_property
    def is_charged(self) -> bool:
        """True if the request counts at all."""
        return self.request.kind is not RequestKind.WALK_IN or self.policy.walk_in.charged

    @cached_property
    def mine(self) -> QuotaUse:
        """The request's own use, together with the own leases that it touches if they merge."""
        beside = self._touching
        if not beside:
            end, size = max(self.end, self.start), self.request.size
            counted = CountedLease(self.pools, self.hours, self.start, end, size)
            return self._use((), counted, self.place)
        start = min([self.start, *(fact.start for fact in beside)])
        end = max([self.end, *(fact.end for fact in beside)])
        hours = self.hours + sum(self.fact_hours(fact) for fact in beside)
        counted = CountedLease(self.pools, hours, start, max(end, start), self.request.size)
        return self._use(tuple(beside), counted, self._place_of(counted))

    @cached_property
    def merged(self) -> CountedLease | None:
        """The merged block, if the request touches own leases and merges with them; else None."""
        return self.mine.counted if self._touching else None

    @cached_property
    def charge(self) -> QuotaCharge:
        """Quota and hours that this request by itself takes."""
        place = self.place
        hours = self.hours
        if place.crosses and self.policy.crossing is Crossing.PRORATE:
            hours = min(hours, max(1, whole_hours(place.outside)))
        quota = self.mine.quota if self.is_charged else None
        return QuotaCharge(quota, hours, hours * self.request.size)

    def uses(self, scope: QuotaScope) -> list[QuotaUse]:
        """Return the leases that count under this policy, touching ones of one person merged.

        They are the member's own, or those of the member's lab.
        """
        return self.remembered(scope, "uses", lambda: self._uses(scope))

    def used_hours(self, quota: Quota, band: str, unit: HourUnit) -> int:
        """Return the hours of the member or lab in this band and in the period of the request."""
        totals = self.remembered(
            quota.scope,
            (quota.period, unit),
            lambda: self._totals(quota.scope, quota.period, unit),
        )
        return totals[band, self.key(self.mine, quota.period)]

    def remembered(self, scope: QuotaScope, what: Hashable, work: Callable[[], Known]) -> Known:
        """Return `work()`, done once for the same leases: a calendar asks for many starts."""
        facts = self.situation.own if scope is QuotaScope.USER else self.situation.lab
        lab_id = self.request.member.lab_id if scope is QuotaScope.LAB else None
        key = (scope, what, lab_id, self.request.replaces)
        return self.policy.memory.recall(key, facts, work)

    def key(self, use: QuotaUse, period: QuotaPeriod) -> Key:
        """Return the key that leases which count together in this period share."""
        if period is QuotaPeriod.WEEK:
            return self.policy.clock.week(use.counted.start)
        if period is QuotaPeriod.DAY:
            return self.policy.clock.local_date(use.counted.start)
        if period is QuotaPeriod.NIGHT:
            return use.place.night or self.policy.clock.local_date(use.counted.start)
        first, last = self.policy.whole
        return first <= use.counted.start < last

    def fact_hours(self, fact: LeaseFact) -> int:
        """Return the whole hours that a lease counts for."""
        if fact.charged_s is not None:
            return max(1, whole_hours(timedelta(seconds=fact.charged_s)))
        grace_s = self.policy.grid.grace_s
        end = usable_end(fact.end, grace_s) if fact.kind == WALK_IN else fact.end
        return max(1, whole_hours(end - fact.start))

    @cached_property
    def _touching(self) -> list[LeaseFact]:
        if self.policy.adjacency.same_user_back_to_back is not BackToBack.MERGE:
            return []
        if not any(fact.node.id == self.request.node.id for fact in self.own):
            return []
        case = LeaseFact(
            id="",
            user_id=self.request.member.id,
            lab_id=None,
            node=self.request.node,
            start=self.start,
            end=self.end,
            kind="booked",
            state=self.own[0].state,
            counts=True,
            created_at=self.now,
            num_slots=self.request.num_slots,
        )
        same = [fact for fact in self.own if fact.counts and fact.node.id == case.node.id]
        chain = next(chain for chain in _chains([*same, case]) if case in chain)
        return [fact for fact in chain if fact is not case]

    def _uses(self, scope: QuotaScope) -> list[QuotaUse]:
        return [self._use_of(chain) for chain in self._counted(scope)]

    def _totals(
        self, scope: QuotaScope, period: QuotaPeriod, unit: HourUnit
    ) -> Counter[tuple[str, Key]]:
        totals: Counter[tuple[str, Key]] = Counter()
        for use in self.uses(scope):
            key = self.key(use, period)
            hours = use.hours * (use.counted.gpus if unit is HourUnit.GPU else 1)
            totals[ALL, key] += hours
            if use.place.band is not None:
                totals[use.place.band, key] += hours
        return totals

    def _counted(self, scope: QuotaScope) -> list[tuple[LeaseFact, ...]]:
        gone, lab_id = self.request.replaces, self.request.member.lab_id
        facts = self.own
        if scope is QuotaScope.LAB:
            lab = self.situation.lab
            facts = tuple(fact for fact in lab if fact.lab_id == lab_id and fact.id not in gone)
        charged = self.policy.walk_in.charged
        counted = [
            fact
            for fact in facts
            if fact.counts and self.policy.judges(fact.node) and (charged or fact.kind != WALK_IN)
        ]
        if self.policy.adjacency.same_user_back_to_back is not BackToBack.MERGE:
            return [(fact,) for fact in counted]
        return _chains(counted)

    def _use_of(self, chain: tuple[LeaseFact, ...]) -> QuotaUse:
        first, last = chain[0], chain[-1]
        pools = self.policy.pools_for(first.node, first.num_slots)
        hours = sum(self.fact_hours(fact) for fact in chain)
        counted = CountedLease(pools, hours, first.start, last.end, first.size)
        return self._use(chain, counted, self._place_of(counted))

    def _place_of(self, counted: CountedLease) -> BandPosition:
        start, end = counted.start, max(counted.end, counted.start + HOUR / 60)
        return self.policy.clock.place(start, min(end, start + LONGEST))

    def _use(
        self, facts: tuple[LeaseFact, ...], counted: CountedLease, place: BandPosition
    ) -> QuotaUse:
        if place.crosses and self.policy.crossing is Crossing.PRORATE:
            hours = min(counted.hours, max(1, whole_hours(place.outside)))
            counted = replace(counted, hours=hours)
        band = self.policy.bands.get(place.band or "")
        if band is not None:
            quota = band.quota
        else:
            quota = "main" if not self.policy.bands and "main" in self.policy.quotas else None
        return QuotaUse(facts, counted, place, quota)


def _chains(facts: list[LeaseFact]) -> list[tuple[LeaseFact, ...]]:
    """Join leases of one person and one size on one node that touch."""
    chains: list[list[LeaseFact]] = []
    ending: dict[Hashable, list[LeaseFact]] = {}
    for fact in sorted(facts, key=lambda fact: (fact.user_id, fact.node.id, fact.start)):
        whose = (fact.user_id, fact.node.id, fact.size)
        chain = ending.pop((*whose, fact.start), None)
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(fact)
        ending[*whose, fact.end] = chain
    return [tuple(chain) for chain in chains]
