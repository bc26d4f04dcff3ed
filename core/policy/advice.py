"""Advice on rules that are valid but hardly meant: they never bite or can never be met. Pure."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

from core.base.node_names import is_one_of
from core.policy.document import Policy
from core.policy.grid import HOUR
from core.policy.local_time import show
from core.policy.matching import ALL
from core.policy.sections import Band, GapMode, Quota, QuotaSlot
from core.policy.verdict import NodeRef
from core.policy.words import gpus_text
from core.states import Sharing


def advice(
    policy: Policy, nodes: Sequence[NodeRef], now: datetime, *, labs: Collection[str] | None = None
) -> list[str]:
    """Return sentences for the person who applies the policy to this site; none forbids it."""
    return [
        *_nodes(policy, nodes),
        *_windows(policy, now),
        *_bands(policy),
        *_quotas(policy),
        *_grid(policy, now),
        *_gaps(policy),
        *(_shares(policy, labs) if labs is not None else ()),
    ]


def _nodes(policy: Policy, nodes: Sequence[NodeRef]) -> Iterator[str]:
    here = {node.name for node in nodes}
    for name, hardware in policy.classes.items():
        missing = [node for node in hardware.nodes if not is_one_of(node, here)]
        if missing:
            yield f"classes.{name}: there is no node {', '.join(missing)} here."
    for name, pool in policy.pools.items():
        missing = [node for node in pool.nodes or () if not is_one_of(node, here)]
        if missing:
            yield f"pools.{name}: there is no node {', '.join(missing)} here."
        elif not any(policy.covers(name, node) for node in nodes):
            yield f"pools.{name}: no node here is of class {pool.class_name}."
        else:
            yield from _sizes(policy, name, nodes)


def _sizes(policy: Policy, name: str, nodes: Sequence[NodeRef]) -> Iterator[str]:
    mine = [node for node in nodes if policy.covers(name, node)]
    for size in policy.pools[name].gpus:
        fitting = [node for node in mine if size <= node.slots]
        whole = [
            node.name for node in fitting if size < node.slots and node.sharing is Sharing.NONE
        ]
        if not fitting:
            yield f"pools.{name}: none of its nodes has {gpus_text(size)}."
        elif whole:
            yield (
                f"pools.{name}: {', '.join(whole)} cannot keep two owners apart, so "
                f"{gpus_text(size)} of it cannot be booked."
            )


def _windows(policy: Policy, now: datetime) -> Iterator[str]:
    if not policy.times:
        return
    if all(window.end <= now for window in policy.times):
        last = max(window.end for window in policy.times)
        yield f"windows: all of them ended by {show(last, policy.zone)}; nothing can be booked."
    for name in policy.pools:
        mine = [window for window in policy.times if name in window.pools]
        if not mine:
            yield f"pools.{name}: it has no window, so it can never be booked."
            continue
        shortest = min(_lengths(policy, name))
        longest_h = max((window.end - window.start) / HOUR for window in mine)
        if longest_h < shortest:
            yield f"pools.{name}: its windows are shorter than a block of {shortest} hours."
    for number, window in enumerate(policy.times):
        if window.opens_at is not None and window.opens_at > window.start:
            late = show(window.opens_at, policy.zone)
            yield f"windows.{number}: booking opens at {late}, after the window has begun."


def _bands(policy: Policy) -> Iterator[str]:
    for name, quota in policy.quotas.items():
        if quota.one_of and name not in policy.charged_quotas:
            yield f"quotas.{name}: no band is charged to it, so it has no effect."
    for name, band in policy.bands.items():
        if band.local is not None and band.hours and min(band.hours) > _length_h(band):
            yield f"bands.{name}: no block of {min(band.hours)} hours fits into it."


def _quotas(policy: Policy) -> Iterator[str]:
    for name, quota in policy.quotas.items():
        for choice in quota.one_of:
            for slot in choice.slots:
                if slot.gpus is not None and not _is_sold(slot.pool, slot.gpus, policy):
                    yield (
                        f"quotas.{name}.{choice.name}: no block of at most {gpus_text(slot.gpus)} "
                        f"can be booked on {' or '.join(slot.pool)}, so this slot can never be "
                        "used."
                    )
                elif not _can_be_met(slot, name, policy):
                    yield (
                        f"quotas.{name}.{choice.name}: no block of at most {slot.hours} hours can "
                        f"be booked on {' or '.join(slot.pool)}, so this slot can never be used."
                    )
        for limit in _zeros(quota):
            yield f"quotas.{name}: {limit} is 0, so nothing can be booked under it."


def _is_sold(names: Sequence[str], gpus: int, policy: Policy) -> bool:
    """Return False if all of these pools list larger sizes only."""
    pools = [pool for name, pool in policy.pools.items() if ALL in names or name in names]
    return not pools or any(not pool.gpus or min(pool.gpus) <= gpus for pool in pools)


def _can_be_met(slot: QuotaSlot, name: str, policy: Policy) -> bool:
    pools = list(policy.pools) if ALL in slot.pool else list(slot.pool)
    bands = [band for band in policy.bands.values() if band.quota == name]
    lengths = [band.hours for band in bands if band.hours]
    if len(lengths) < max(1, len(bands)):
        lengths += [_lengths(policy, pool) for pool in pools] or [(1,)]
    return any(min(listed) <= slot.hours for listed in lengths)


def _lengths(policy: Policy, pool: str) -> tuple[int, ...]:
    return policy.pools[pool].hours or (1,)


def _length_h(band: Band) -> float:
    assert band.local is not None
    start, end = (int(text[:2]) + int(text[3:]) / 60 for text in band.local)
    return (end - start) % 24


def _zeros(quota: Quota) -> Iterator[str]:
    for band, limit in quota.max_node_hours.items():
        if limit == 0:
            yield f"max_node_hours of {band}"
    for band, limit in quota.max_gpu_hours.items():
        if limit == 0:
            yield f"max_gpu_hours of {band}"
    if quota.max_open_leases == 0:
        yield "max_open_leases"
    if quota.max_future_leases == 0:
        yield "max_future_leases"


def _grid(policy: Policy, now: datetime) -> Iterator[str]:
    offset = now.astimezone(policy.zone).utcoffset() or timedelta(0)
    wanted = int((-offset % HOUR) / timedelta(minutes=1))
    if policy.grid.anchor_min != wanted:
        yield (
            "grid.anchor_min: blocks do not start at the full hour on clocks in "
            f"{policy.zone.key}; with {wanted} they would."
        )


def _gaps(policy: Policy) -> Iterator[str]:
    listed = {hours for pool in policy.pools.values() for hours in pool.hours}
    rule = policy.gaps
    if rule.mode is not GapMode.OFF and listed & set(rule.never_leave_hours):
        both = ", ".join(str(hours) for hours in sorted(listed & set(rule.never_leave_hours)))
        yield f"gaps.never_leave_hours: a block of {both} h can be booked, so it is not a gap."


def _shares(policy: Policy, labs: Collection[str]) -> Iterator[str]:
    missing = [name for name in policy.scheduling.shares if name not in labs]
    if missing:
        yield f"scheduling.shares: there is no lab {', '.join(missing)} here."
