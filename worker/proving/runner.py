"""Runner of the checks: one after the other, each within its time, whatever it does."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from strategies.plan.trust.proof import CheckName, CheckResult
from worker.proving.bench import Bench
from worker.proving.finding import CheckFailed, CheckSkipped, Finding, OutOfTime, failed

log = structlog.get_logger()


class Check(NamedTuple):
    """One check: its name, its function, and the seconds that it may take on a node with GPUs."""

    name: CheckName
    look: Callable[[Bench], Finding]
    limit_s: float


class Progress(NamedTuple):
    """Event for the display: a check begins (without a result) or has ended."""

    number: int
    total: int
    check: Check
    result: CheckResult | None = None


def run_checks(
    checks: Iterable[Check], bench: Bench, tell: Callable[[Progress], None]
) -> list[CheckResult]:
    """Run the checks in order; return a result of each. A failure of one does not stop others."""
    checks, results = list(checks), []
    for number, check in enumerate(checks, 1):
        tell(Progress(number, len(checks), check))
        result = run_check(check, bench)
        results.append(result)
        tell(Progress(number, len(checks), check, result))
    return results


def run_check(check: Check, bench: Bench) -> CheckResult:
    """Run one check within its time; end and delete everything that it started."""
    limit_s = check.limit_s * bench.slowness
    began = time.monotonic()
    bench.ends_at = began + limit_s
    try:
        found = check.look(bench)
    except CheckSkipped as reason:
        found = Finding("skipped", str(reason))
    except CheckFailed as what:
        found = failed(f"{upper_first(str(what)).rstrip('.')}.")
    except OutOfTime:
        found = failed(f"Not finished within {limit_s:.0f} s; it was ended.")
    except Exception as error:  # the edge of a check: recorded as its failure
        log.exception("check_failed", check=check.name)
        found = failed(f"The check itself failed: {type(error).__name__}: {error}"[:500])
    finally:
        bench.clear()
    return CheckResult(
        name=check.name,
        verdict=found.verdict,
        sentence=found.sentence[:2000],
        seconds=round(time.monotonic() - began, 2),
        figures={name: float(f"{value:.6g}") for name, value in found.figures.items()},
    )


def upper_first(text: str) -> str:
    """Return the text with a capital letter in front."""
    return text[:1].upper() + text[1:]
