"""Report of a preflight: a row per check, and the ranks that are wrong, slow or missing."""

from enum import IntEnum

from pydantic import BaseModel, ConfigDict


class Verdict(IntEnum):
    """Worst of the findings; also the exit code of the command."""

    HEALTHY = 0
    WRONG_VALUES = 10
    SLOW_RANK = 11
    RANKS_MISSING = 12


class ReportPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Check(ReportPart):
    """One collective with one operation, dtype and size."""

    collective: str
    operation: str | None
    dtype: str
    size_bytes: int

    def __str__(self) -> str:
        details = [self.operation, self.dtype, size_text(self.size_bytes)]
        return f"{self.collective} ({', '.join(text for text in details if text)})"


class Timing(ReportPart):
    """Duration of a check, and the rank that it waited for."""

    check: Check
    right: bool
    p50_ms: float
    p95_ms: float
    bus_gb_per_s: float
    """Bandwidth of the busiest link in 10^9 bytes per second."""
    slowest_rank: int


class WrongValue(ReportPart):
    """First number of a rank's result that differs from the expected one."""

    check: Check
    rank: int
    index: int
    expected: float
    got: float | None
    """Received number; None: not finite."""

    def __str__(self) -> str:
        got = "nan or infinity" if self.got is None else f"{self.got:g}"
        return (
            f"rank {self.rank} received {got} instead of {self.expected:g} "
            f"at index {self.index:,} of {self.check}"
        )


class OtherBits(ReportPart):
    """Rank that ends with other bits than rank 0 after the same all-reduce of random numbers."""

    rank: int
    dtype: str

    def __str__(self) -> str:
        return (
            f"the result of rank {self.rank} differs from that of rank 0 after an "
            f"all_reduce ({self.dtype})"
        )


class SlowRank(ReportPart):
    """Rank that takes much longer than the others for the same work."""

    rank: int
    what: str
    ms: float
    usual_ms: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is slow: {self.what} takes it {self.ms:.2f} ms, "
            f"the others {self.usual_ms:.2f} ms"
        )


class Missing(ReportPart):
    """Ranks that died, hang or are out of step. Empty: a check failed on all of them alike."""

    ranks: list[int]
    why: str

    def __str__(self) -> str:
        return self.why


class Report(ReportPart):
    """Result of a preflight, the same on every rank that took part to its end."""

    device: str
    backend: str
    torch: str
    ranks: list[str]
    """Machine and process of each rank."""
    seconds: float
    timings: list[Timing]
    wrong: list[WrongValue] = []
    other_bits: list[OtherBits] = []
    slow: list[SlowRank] = []
    missing: Missing | None = None
    transport: str | None = None
    """Sentence about the transports that the backend chose; None: not known."""
    warnings: list[str] = []
    """Sentences about the transport; they do not change the verdict."""

    @property
    def verdict(self) -> Verdict:
        """Worst finding."""
        if self.missing is not None:
            return Verdict.RANKS_MISSING
        if self.wrong or self.other_bits:
            return Verdict.WRONG_VALUES
        return Verdict.SLOW_RANK if self.slow else Verdict.HEALTHY

    @property
    def failures(self) -> list[str]:
        """Sentences about findings that no job can run with, worst first."""
        missing = [] if self.missing is None else [str(self.missing)]
        return [*missing, *(str(found) for found in (*self.wrong, *self.other_bits))]

    @property
    def findings(self) -> list[str]:
        """Failures, then slow ranks, as sentences."""
        return [*self.failures, *(str(found) for found in self.slow)]


def size_text(size: int) -> str:
    """Return a size as `1 MiB`, `16 KiB`, `1,000 B`."""
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size:,} B"
