"""Results of a scenario, compared with its goals."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.course.records import Records, lines, spread
from benchmarks.ratios import percentile

HEALTHY_S = 0.5


@dataclass(frozen=True)
class Fact:
    """One figure and its goal; `met` is True if it was reached, None if there is no goal."""

    what: str
    value: str
    goal: str
    met: bool | None


@dataclass(frozen=True)
class Outcome:
    """All figures of one scenario on one database."""

    title: str
    kind: str
    load_before: float
    facts: Sequence[Fact]
    records: Records
    cpu: Mapping[str, float]
    """Map process name -> CPU use in per cent of one core."""
    memory: Mapping[str, float]
    """Map process name -> memory (PSS) in MiB."""

    def as_markdown(self) -> str:
        """Return a section of the page: the goals, and all measurements."""
        waits = "\n".join(f"| {what} | {value} |" for what, value in lines(self.records))
        return (
            f"### {self.title}, {self.kind}\n\n{self._facts()}\n\n{self._used()}\n\n"
            f"| waited for (times) | median / p99 / max, ms |\n|---|---|\n{waits}\n"
        )

    def _facts(self) -> str:
        rows = "\n".join(
            f"| {fact.what} | {fact.value} | {fact.goal} | {_word(fact.met)} |"
            for fact in self.facts
        )
        return f"| what | measured | goal | met |\n|---|---|---|---|\n{rows}"

    def _used(self) -> str:
        return (
            f"CPU, per cent of one core: {_listed(self.cpu)}. Memory (PSS), MiB: "
            f"{_listed(self.memory)}. Load before: {self.load_before:.1f}. Refused or put off: "
            f"{_listed(self.records.counts)}. Errors: {_listed(self.records.errors)}."
        )


def below(what: str, seconds: Sequence[float], goal_s: float, share: float = 0.99) -> Fact:
    """Return a fact that is met if `share` (0 to 1) of the times lie below a goal.

    The figure is median / p99 / max.
    """
    met = bool(seconds) and percentile(seconds, share) < goal_s
    word = "max" if share == 1.0 else f"p{100 * share:.0f}"
    return Fact(what, f"{spread(seconds)} ms", f"{word} < {1000 * goal_s:,.0f} ms", met)


def none_of(what: str, errors: Counter[str]) -> Fact:
    """Return a fact that is met if no error was counted."""
    number = sum(errors.values())
    return Fact(what, str(number), "0", number == 0)


def health_facts(records: Records) -> list[Fact]:
    """Return the facts about heartbeats and health checks, which every scenario has."""
    return [
        below("node's heartbeat", records.of("node's heartbeat"), HEALTHY_S, 1.0),
        below("/readyz", records.of("/readyz"), HEALTHY_S, 1.0),
    ]


def _word(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "**no**"


def _listed(found: Mapping[str, float]) -> str:
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {value:.0f}" for name, value in ordered) or "none"
