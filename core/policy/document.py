"""A policy as its author writes it: one YAML document, read strictly. Pure.

`docs/policies.md` explains every field in plain words; `examples/policies/course.yaml` uses them.
Whole sections may be left out: their defaults are as generous as DEFAULT.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from functools import cached_property
from zoneinfo import ZoneInfo

from pydantic import ValidationError

from core.base.errors import BadRequest
from core.base.node_names import is_one_of
from core.base.strict_text import Flaw, flaws, line_of, parse_yaml
from core.policy.bands import BandClock, LocalSpan
from core.policy.checking import misfits
from core.policy.grid import Timetable
from core.policy.local_time import read_moment
from core.policy.matching import ALL
from core.policy.memory import Memory
from core.policy.sections import DAYS, Day, Header, PolicyDocument, Quota, WindowRule
from core.policy.verdict import Member, NodeRef

EVER = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))


@dataclass(frozen=True)
class Window:
    """Time in which leases may lie on the nodes of some pools, and start of its booking."""

    pools: tuple[str, ...]
    start: datetime
    end: datetime
    opens_at: datetime | None
    """Start of booking; None: booking is open."""


class Policy(PolicyDocument):
    """A document that was checked, and the values derived from it."""

    @property
    def id(self) -> str:
        return self.policy.id

    @property
    def version(self) -> int:
        return self.policy.version

    @cached_property
    def charged_quotas(self) -> frozenset[str]:
        """Names of the quotas to which the hours of some band are charged."""
        named = {band.quota for band in self.bands.values() if band.quota is not None}
        return frozenset(named if self.bands else {"main"})

    @cached_property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.policy.zone)

    @cached_property
    def clock(self) -> BandClock:
        """Bands, days and weeks in the policy's zone."""
        rest = [name for name, band in self.bands.items() if band.complement_of is not None]
        return BandClock(self.zone, tuple(self._local_spans()), rest[0] if rest else None)

    @cached_property
    def times(self) -> tuple[Window, ...]:
        """The windows, in UTC; none means that leases may lie at any time."""
        return tuple(
            Window(
                pools=tuple(self.pools) if ALL in window.pool else window.pool,
                start=read_moment(window.usable[0], self.zone),
                end=read_moment(window.usable[1], self.zone),
                opens_at=(
                    None if window.opens_at == "now" else read_moment(window.opens_at, self.zone)
                ),
            )
            for window in self.windows
        )

    @cached_property
    def whole(self) -> tuple[datetime, datetime]:
        """Start of the first window and end of the last one: the period `window` of quotas."""
        starts, ends = [w.start for w in self.times], [w.end for w in self.times]
        return min(starts, default=EVER[0]), max(ends, default=EVER[1])

    @cached_property
    def timetable(self) -> Timetable:
        """Seconds before the end of a lease at which its jobs are told, saved and stopped."""
        before_s = {step.do: -step.at_min * 60 for step in self.end_of_lease}
        stop = next(step for step in self.end_of_lease if step.do == "stop")
        notices = [-step.at_min * 60 for step in self.end_of_lease if step.do == "notify"]
        return Timetable(
            checkpoint_s=before_s.get("checkpoint", before_s["stop"]),
            stop_s=before_s["stop"],
            kill_after_stop_s=stop.kill_after_s or Timetable.kill_after_stop_s,
            notify_s=tuple(notices),
        )

    def judges(self, node: NodeRef) -> bool:
        """Return True if the node is one of this policy's; one without pools is for every node."""
        return not self.pools or bool(self.pools_of(node))

    def is_usable(
        self, node: NodeRef, start: datetime, end: datetime, *, num_slots: int | None = None
    ) -> bool:
        """Return True if [start, end) lies in one window for leases of this size on the node."""
        pools = set(self.pools_for(node, num_slots))
        return not self.windows or any(
            window.start <= start and end <= window.end and pools & set(window.pools)
            for window in self.times
        )

    def lets_in(self, member: Member) -> bool:
        """Return True if the policy is for this person; staff may always book."""
        group = self.who.group
        return group is None or member.is_staff or bool(member.groups & set(group))

    def pools_of(self, node: NodeRef) -> tuple[str, ...]:
        """Return the names of the pools that the node belongs to."""
        known = self._pools_by_node.get(node)
        if known is None:
            known = tuple(name for name in self.pools if self.covers(name, node))
            self._pools_by_node[node] = known
        return known

    def sizes(self, node: NodeRef) -> tuple[int, ...]:
        """Return the numbers of slots that one lease on the node may have, ascending.

        Only all of the node where no pool lists sizes.
        """
        known = self._sizes_by_node.get(node)
        if known is None:
            pools = [self.pools[name] for name in self.pools_of(node)]
            listed = {size for pool in pools for size in pool.gpus or (node.slots,)}
            fitting = {size for size in listed if size <= node.slots}
            known = tuple(sorted(fitting)) if pools else (node.slots,)
            self._sizes_by_node[node] = known
        return known

    def pools_for(self, node: NodeRef, num_slots: int | None = None) -> tuple[str, ...]:
        """Return the names of the node's pools that sell leases of this size, None being all of it.

        If none does, all pools of the node: such a lease was granted by other rules.
        """
        key = (node, num_slots)
        known = self._pools_by_size.get(key)
        if known is None:
            size = node.size(num_slots)
            mine = self.pools_of(node)
            selling = (name for name in mine if size in (self.pools[name].gpus or (node.slots,)))
            known = self._pools_by_size[key] = tuple(selling) or mine
        return known

    def pool_hours(self, node: NodeRef, num_slots: int | None = None) -> tuple[int, ...]:
        """Return the lengths of blocks of this size on the node, ascending.

        They hold where no band lists its own.
        """
        key = (node, num_slots)
        known = self._hours_by_size.get(key)
        if known is None:
            pools = self.pools_for(node, num_slots)
            listed = {hours for name in pools for hours in self.pools[name].hours}
            known = tuple(sorted(listed)) or tuple(range(1, self.grid.max_block_hours + 1))
            self._hours_by_size[key] = known
        return known

    def lengths(self, node: NodeRef, num_slots: int | None = None) -> tuple[int, ...]:
        """Return the lengths of blocks of this size on the node at any time of day, ascending."""
        bands = self.bands.values()
        listed = {hours for band in bands for hours in band.hours}
        is_all_day = any(band.complement_of is not None for band in bands)
        if not is_all_day or not all(band.hours for band in bands):
            listed.update(self.pool_hours(node, num_slots))
        return tuple(sorted(listed))

    def covers(self, pool_name: str, node: NodeRef) -> bool:
        """Return True if the node belongs to the pool."""
        pool = self.pools[pool_name]
        if pool.nodes is not None:
            return is_one_of(node.name, pool.nodes)
        listed = self.classes.get(pool.class_name or "")
        return is_one_of(node.name, listed.nodes) if listed else node.class_name == pool.class_name

    def with_windows(self, windows: Sequence[WindowRule]) -> "Policy":
        """Return a policy with the same rules and other windows."""
        return self.with_parts(windows=tuple(windows))

    def with_parts(self, **parts: object) -> "Policy":
        """Return a policy with other sections in place of some; nothing derived is kept."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return Policy.model_construct(**{**fields, **parts})

    @cached_property
    def memory(self) -> Memory:
        """Cache of the intermediate results of evaluate() under this policy."""
        return Memory()

    @cached_property
    def _pools_by_node(self) -> dict[NodeRef, tuple[str, ...]]:
        return {}

    @cached_property
    def _sizes_by_node(self) -> dict[NodeRef, tuple[int, ...]]:
        return {}

    @cached_property
    def _pools_by_size(self) -> dict[tuple[NodeRef, int | None], tuple[str, ...]]:
        return {}

    @cached_property
    def _hours_by_size(self) -> dict[tuple[NodeRef, int | None], tuple[int, ...]]:
        return {}

    def _local_spans(self) -> Iterator[LocalSpan]:
        for name, band in self.bands.items():
            if band.local is None:
                continue
            start, end = (time.fromisoformat(text) for text in band.local)
            days = DAYS if band.days == ALL else band.days
            yield LocalSpan(name, start, end, frozenset(DAYS.index(Day(day)) for day in days))


class BadPolicy(BadRequest):
    """The document is not a valid policy; `flaws` says where and why."""

    code = "bad_policy"
    title = "Bad policy"

    def __init__(self, found: list[Flaw]) -> None:
        more = f" ({len(found) - 1} more below.)" if len(found) > 1 else ""
        super().__init__(f"{found[0].message}{more}", param=found[0].param)
        self.flaws = found


def policy_for(member: Member, node: NodeRef, policies: Sequence[Policy]) -> Policy:
    """Return the one policy of several that judges this person on this node.

    Of the policies that name the node, the first that is for this person, or else the first of all:
    its refusal tells whom it is for. A node that no policy names is judged by DEFAULT.
    """
    naming = [policy for policy in policies if policy.judges(node)]
    welcoming = (policy for policy in naming if policy.lets_in(member))
    return next(welcoming, naming[0] if naming else DEFAULT)


def policy_of(node: NodeRef, policies: Sequence[Policy]) -> Policy:
    """Return the policy by which the queue uses a node, for every user: the first that names it."""
    return next((policy for policy in policies if policy.judges(node)), DEFAULT)


def load(text: str) -> Policy:
    """Load the policy in `text` (YAML). Raises BadText or BadPolicy, with lines."""
    read = parse_yaml(text, quoted_clocks=True)
    try:
        policy = Policy.model_validate(read.value)
    except ValidationError as error:
        raise BadPolicy(flaws(error.errors(), lines=read.lines)) from error
    found = []
    for path, message in misfits(policy):
        param = ".".join(str(part) for part in path)
        line = line_of(path, read.lines)
        where = f" (line {line})" if line else ""
        found.append(Flaw(param, "does_not_fit", f"{param}{where}: {message.removesuffix('.')}."))
    if found:
        raise BadPolicy(found)
    return policy


DEFAULT = Policy(
    policy=Header(id="default", version=0),
    quotas={"open": Quota(max_open_leases=5)},
)
"""Policy of a node that no applied policy names."""
