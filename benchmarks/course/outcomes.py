"""What came out of a scenario, against what was wanted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.course.records import Records, lines, spread
from benchmarks.ratios import percentile

HEALTHY_S = 0.5


@dataclass(frozen=True)
class Fact:
    """One figure, its goal, and whether it was met; None where there is no goal."""

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
    """Per cent of one core, by process."""
    memory: Mapping[str, float]
    """MiB, by process."""

    def as_markdown(self) -> str:
        """A section of the page."""
        facts = "\n".join(
            f"| {fact.what} | {fact.value} | {fact.goal} | {_word(fact.met)} |"
            for fact in self.facts
        )
        waits = "\n".join(f"| {what} | {value} |" for what, value in lines(self.records))
        counts = ", ".join(f"{what} {count}" for what, count in sorted(self.records.counts.items()))
        errors = ", ".join(f"{what} {count}" for what, count in sorted(self.records.errors.items()))
        return (
            f"### {self.title}, {self.kind}\n\n"
            f"| what | measured | goal | met |\n|---|---|---|---|\n{facts}\n\n"
            f"CPU, per cent of one core: {_shares(self.cpu)}. Memory (PSS), MiB: "
            f"{_shares(self.memory)}. Load before: {self.load_before:.1f}. "
            f"Refusals: {counts or 'none'}. Errors: {errors or 'none'}.\n\n"
            f"| waited for (times) | median / p99 / max, ms |\n|---|---|\n{waits}\n"
        )


def below(what: str, seconds: Sequence[float], goal_s: float, share: float = 0.99) -> Fact:
    """The share of them that lies below a goal; the figure is median / p99 / max."""
    met = bool(seconds) and percentile(seconds, share) < goal_s
    word = "max" if share == 1.0 else f"p{100 * share:.0f}"
    return Fact(what, f"{spread(seconds)} ms", f"{word} < {1000 * goal_s:,.0f} ms", met)


def none_of(what: str, errors: Counter[str]) -> Fact:
    """Nothing of the kind may have happened."""
    number = sum(errors.values())
    return Fact(what, str(number), "0", number == 0)


def health_facts(records: Records) -> list[Fact]:
    """Heartbeats and health checks, in whatever storm."""
    return [
        below("node's heartbeat", records.of("node's heartbeat"), HEALTHY_S, 1.0),
        below("/readyz", records.of("/readyz"), HEALTHY_S, 1.0),
    ]


def _word(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "**no**"


def _shares(found: Mapping[str, float]) -> str:
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {value:.0f}" for name, value in ordered)
