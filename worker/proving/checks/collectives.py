"""collectives: the full preflight on 2 and on all ranks, and the bandwidth of the links."""

from strategies.plan.gpus import known_gpu
from strategies.plan.trust.preflight_report import Report
from worker.proving.bench import Bench
from worker.proving.finding import Finding, all_of

FLOOR = 0.7  # of the link's bandwidth in the data sheet
MIB = 1 << 20


def look(bench: Bench) -> Finding:
    """Test every collective with its numbers and its speed."""
    bench.require_ranks(2)
    reports = {
        ranks: Report.model_validate(
            bench.measure("strategies.train.trust.preflight", ranks=ranks, flag="--report")
        )
        for ranks in sorted({2, bench.ranks})
    }
    gpu = known_gpu(bench.hardware.model)
    return judge(reports, link_gb_per_s=None if gpu is None else gpu.link_gb_per_s)


def judge(reports: dict[int, Report], *, link_gb_per_s: float | None) -> Finding:
    """Return whether all collectives are right and, where the link is known, fast enough."""
    wrong, slow = [], []
    figures: dict[str, float] = {}
    for ranks, report in reports.items():
        wrong += [f"{ranks} ranks: {finding}" for finding in report.failures]
        slow += [f"{ranks} ranks: {finding}" for finding in report.slow]
        if report.missing is not None:
            continue
        bandwidth = bus_bandwidth(report)
        figures[f"bus_{ranks}_ranks_gb_per_s"] = bandwidth
        if link_gb_per_s is not None and bandwidth < FLOOR * link_gb_per_s:
            wrong.append(
                f"{ranks} ranks: {bandwidth:.0f} GB/s of the link's {link_gb_per_s:.0f} GB/s"
            )
    on_gpus = any(report.backend == "nccl" for report in reports.values())
    if on_gpus:
        wrong += slow
    number = sum(len(report.timings) for report in reports.values())
    speed = ", ".join(f"{value:.3g} GB/s" for value in figures.values())
    well = f"{number} checks of collectives are right; bus bandwidth {speed}."
    if slow and not on_gpus:  # cores are shared with other programs
        well = f"{well} Not judged on CPU slots: {slow[0]}."
    return all_of(wrong, well, figures)


def bus_bandwidth(report: Report) -> float:
    """Return the highest bandwidth of a large all-reduce, in 10^9 bytes per second."""
    return max(
        row.bus_gb_per_s
        for row in report.timings
        if row.check.collective == "all_reduce" and row.check.size_bytes >= MIB
    )
