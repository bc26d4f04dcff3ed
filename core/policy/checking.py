"""Contradictions in a document whose fields are each valid. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

from core.base.node_names import folded
from core.base.strict_text import Path
from core.policy.local_time import UnclearTime, read_moment, zone_named
from core.policy.matching import ALL
from core.policy.sections import DAYS, Band, Day, PolicyDocument, Pool, Quota, QuotaPeriod
from core.policy.words import gpus_text

Misfit = tuple[Path, str]
"""Path of a field, and the contradiction, in words."""
MINUTES_OF_WEEK = 7 * 24 * 60


def misfits(document: PolicyDocument) -> list[Misfit]:
    """List every contradiction between fields; the document may be used only if there is none."""
    try:
        zone = zone_named(document.policy.zone)
    except ValueError as error:
        return [(("policy", "zone"), str(error))]
    return [
        *_pools(document),
        *_windows(document, zone),
        *_who(document),
        *_bands(document),
        *_quotas(document),
        *_no_show(document),
        *_end(document),
    ]


def _pools(document: PolicyDocument) -> Iterator[Misfit]:
    home: dict[str, str] = {}
    for name, hardware in document.classes.items():
        for node in hardware.nodes:
            if (other := home.setdefault(folded(node), name)) != name:
                yield ("classes", name), f"{node} is already in class {other}"
    for name, pool in document.pools.items():
        if name == ALL:
            yield ("pools", name), "`all` means every node; call the pool something else"
        if (pool.nodes is None) is (pool.class_name is None):
            yield ("pools", name), "give either its nodes or its class, not both"
        yield from _sizes(document, name, pool)


def _sizes(document: PolicyDocument, name: str, pool: Pool) -> Iterator[Misfit]:
    hardware = document.classes.get(pool.class_name or "")
    if hardware is None or "gpus" not in hardware.model_fields_set:
        return
    slots = hardware.gpus
    too_large = [size for size in pool.gpus if slots and size > slots]
    if too_large:
        yield (
            ("pools", name, "gpus"),
            f"a node of class {pool.class_name} has {gpus_text(slots)}, not {too_large[0]}",
        )


def _windows(document: PolicyDocument, zone: ZoneInfo) -> Iterator[Misfit]:
    taken: dict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
    for number, window in enumerate(document.windows):
        path: Path = ("windows", number)
        if not document.pools:
            yield path, "a window needs a pool, and there are none"
        unknown = [pool for pool in window.pool if pool not in (*document.pools, ALL)]
        if unknown:
            yield (*path, "pool"), _unknown("pool", unknown[0], document.pools)
            continue
        try:
            start, end = (read_moment(text, zone) for text in window.usable)
        except (UnclearTime, ValueError) as error:
            yield (*path, "usable"), str(error)
            continue
        if start >= end:
            yield (*path, "usable"), "it ends before it starts"
            continue
        yield from _opening(window.opens_at, end, zone, path)
        for pool in document.pools if ALL in window.pool else window.pool:
            if any(a < end and b > start for a, b in taken[pool]):
                yield (*path, "usable"), f"it overlaps an earlier window of pool {pool}"
            taken[pool].append((start, end))


def _opening(opens_at: str, end: datetime, zone: ZoneInfo, path: Path) -> Iterator[Misfit]:
    if opens_at == "now":
        return
    try:
        opens = read_moment(opens_at, zone)
    except (UnclearTime, ValueError) as error:
        yield (*path, "opens_at"), f"{error}; or write: now"
        return
    if opens >= end:
        yield (*path, "opens_at"), "booking would open after the end of the window"


def _who(document: PolicyDocument) -> Iterator[Misfit]:
    who = document.who
    if bool(who.cohorts) is not bool(who.cohort_key):
        yield (
            ("who",),
            (
                "cohort_key and cohorts must be given together: the attribute, and "
                "the days for each of its values"
            ),
        )
    if who.cohorts_enforced and not who.cohorts:
        yield ("who", "cohorts_enforced"), "there are no cohorts to enforce"


def _bands(document: PolicyDocument) -> Iterator[Misfit]:
    rests = [name for name, band in document.bands.items() if band.complement_of is not None]
    if len(rests) > 1:
        yield (
            ("bands", rests[1]),
            f"only one band can be the rest of the day, and {rests[0]} already is",
        )
    minutes: dict[int, str] = {}
    for name, band in document.bands.items():
        path: Path = ("bands", name)
        if name == ALL:
            yield path, "`all` means every hour; call the band something else"
        if (band.local is None) is (band.complement_of is None):
            yield path, "give either local or complement_of, not both"
            continue
        if band.quota is not None and band.quota not in document.quotas:
            yield (*path, "quota"), _unknown("quota", band.quota, document.quotas)
        elif band.quota is not None and not document.quotas[band.quota].one_of:
            yield (
                (*path, "quota"),
                f"quota {band.quota} has no slots (one_of), so a slot cannot be charged",
            )
        if band.complement_of is not None:
            spans = {other for other, given in document.bands.items() if given.local is not None}
            if set(band.complement_of) != spans:
                named = ", ".join(sorted(spans)) or "none"
                yield (
                    (*path, "complement_of"),
                    f"it must name all bands with local times: {named}",
                )
        elif len(set(band.local or ())) == 1:
            yield (*path, "local"), "it ends when it starts"
        else:
            for minute in _minutes(band):
                other = minutes.setdefault(minute, name)
                if other != name:
                    yield (*path, "local"), f"it overlaps {other}"
                    break


def _minutes(band: Band) -> Iterator[int]:
    """Yield the minutes of the week that lie in the band."""
    assert band.local is not None
    start, end = (int(text[:2]) * 60 + int(text[3:]) for text in band.local)
    length = (end - start) % (24 * 60)
    days = range(7) if band.days == ALL else [DAYS.index(Day(day)) for day in band.days]
    for day in days:
        for minute in range(length):
            yield (day * 24 * 60 + start + minute) % MINUTES_OF_WEEK


def _quotas(document: PolicyDocument) -> Iterator[Misfit]:
    for name, quota in document.quotas.items():
        path: Path = ("quotas", name)
        if not _is_one_limit(quota):
            yield (
                path,
                (
                    "give exactly one of one_of (slots), max_node_hours or max_gpu_hours (by band) "
                    "and a number of leases; max_gpu_hours may stand beside one_of"
                ),
            )
        if quota.max_node_hours and (parts := [n for n, p in document.pools.items() if p.gpus]):
            yield (
                (*path, "max_node_hours"),
                f"pool {parts[0]} lists gpus, so leases differ in size; use max_gpu_hours",
            )
        for at, choice in enumerate(quota.one_of):
            for index, slot in enumerate(choice.slots):
                unknown = [pool for pool in slot.pool if pool not in (*document.pools, ALL)]
                if unknown:
                    where: Path = (*path, "one_of", at, "slots", index, "pool")
                    yield where, _unknown("pool", unknown[0], document.pools)
        caps = {"max_node_hours": quota.max_node_hours, "max_gpu_hours": quota.max_gpu_hours}
        for field, by_band in caps.items():
            for band in by_band:
                if band not in (*document.bands, ALL):
                    where = (*path, field, band)
                    yield where, _unknown("band", band, (*document.bands, ALL))
        if quota.period is QuotaPeriod.NIGHT and not any(b.local for b in document.bands.values()):
            yield (*path, "period"), "there is no band with local times, so nights are not defined"


def _is_one_limit(quota: Quota) -> bool:
    numbers = (quota.max_open_leases, quota.max_future_leases, quota.max_concurrent_leases)
    given = {
        "slots": bool(quota.one_of),
        "node-hours": bool(quota.max_node_hours),
        "GPU-hours": bool(quota.max_gpu_hours),
        "leases": any(number is not None for number in numbers),
    }
    limits = {name for name, is_given in given.items() if is_given}
    return len(limits) == 1 or limits == {"slots", "GPU-hours"}


def _no_show(document: PolicyDocument) -> Iterator[Misfit]:
    rule, horizon_days = document.no_show, document.grid.horizon_days
    if rule.backfill_after_min is not None:
        path: Path = ("no_show", "backfill_after_min")
        reclaim_min = rule.reclaim_after_min
        if reclaim_min is not None and rule.backfill_after_min >= reclaim_min:
            yield (
                path,
                (f"it must be less than {reclaim_min} minutes, when the lease is taken back"),
            )
        if document.scheduling.soft_fit == "off":
            yield path, "it has no effect without soft_fit, which is off"
    if rule.penalty_days is None:
        return
    if rule.strikes is None or rule.reclaim_after_min is None:
        yield (
            ("no_show", "penalty_days"),
            (
                "it needs strikes, the number of no-shows that is too many, and "
                "reclaim_after_min, the minutes that make a no-show"
            ),
        )
    if rule.penalty_horizon_days >= horizon_days:
        yield (
            ("no_show", "penalty_horizon_days"),
            f"it must be less than grid.horizon_days, which is {horizon_days} days",
        )


def _end(document: PolicyDocument) -> Iterator[Misfit]:
    steps = document.end_of_lease
    stops = [step.at_min for step in steps if step.do == "stop"]
    grace_min = document.grid.grace_min
    if stops != [-grace_min]:
        yield (
            ("end_of_lease",),
            (
                f"it needs exactly one stop, with at_min: {-grace_min}, when the grace of "
                f"{grace_min} min begins"
            ),
        )
    saves = [step.at_min for step in steps if step.do == "checkpoint"]
    if len(saves) > 1 or any(at_min > -grace_min for at_min in saves):
        yield ("end_of_lease",), "it may have one checkpoint, before the stop"
    for number, step in enumerate(steps):
        if step.kill_after_s is None:
            continue
        if step.do != "stop":
            yield ("end_of_lease", number, "kill_after_s"), "a kill is only possible after a stop"
        elif step.kill_after_s >= max(1, grace_min * 60):
            yield ("end_of_lease", number, "kill_after_s"), "the kill must come within the grace"


def _unknown(what: str, name: str, known: object) -> str:
    assert isinstance(known, dict | tuple)
    return f"there is no {what} {name!r}. Known: {', '.join(known) or 'none'}"
