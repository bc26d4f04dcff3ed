"""Result of a check, and the ways in which one ends early."""

from collections.abc import Mapping
from typing import NamedTuple

from strategies.plan.trust.proof import Verdict

Figures = Mapping[str, float]
NOTHING_MEASURED: Figures = {}


class Finding(NamedTuple):
    """Result of a check."""

    verdict: Verdict
    sentence: str
    figures: Figures = NOTHING_MEASURED


class CheckSkipped(Exception):
    """Check that can't run here; the message is the reason."""


class CheckFailed(Exception):
    """Check that found something wrong before its end; the message is the sentence."""


class OutOfTime(Exception):
    """Check that has used up its time."""


def passed(sentence: str, figures: Figures | None = None) -> Finding:
    """Return a finding that all is well."""
    return Finding("passed", sentence, figures or {})


def failed(sentence: str, figures: Figures | None = None) -> Finding:
    """Return a finding that something is wrong."""
    return Finding("failed", sentence, figures or {})


def all_of(wrong: list[str], well: str, figures: Figures) -> Finding:
    """Return `failed` with what is wrong, or `passed` with the sentence `well` if nothing is."""
    if not wrong:
        return passed(well, figures)
    more = f"; and {len(wrong) - 4} more" if len(wrong) > 4 else ""
    return failed(f"{'; '.join(wrong[:4])}{more}.", figures)
