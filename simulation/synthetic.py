"""Made-up workloads for the simulator, each fixed by its seed. Pure.

They stand beside recorded ones: a rule that is tuned on one trace has to hold on these too.
"""

import math
import random
import statistics
from dataclasses import replace

from simulation.traces import ONE_CLASS, TracedJob, TracedLease, Workload

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
SIZES = (1, 1, 1, 1, 2, 2, 4, 4, 8, 16)  # nodes of a job, each as likely
SHORTEST_S, LONGEST_S = 120.0, 12 * HOUR_S
LONGEST_REQUEST = 5.0  # wall time, in run times
BY_DAY, BY_NIGHT = 1.6, 0.5  # submissions, relative to the mean
USERS, SKEW = 24, 1.2  # of a Pareto distribution: a few submit most jobs


def lab(seed: int, *, days: float = 21, nodes: int = 32, load: float = 0.85) -> Workload:
    """Return the jobs of a lab that ask for `load` of its nodes' time.

    Run times are log-uniform from two minutes to twelve hours, wall times one to five times as
    long.
    """
    rng = random.Random(seed)
    mean_run_s = (LONGEST_S - SHORTEST_S) / math.log(LONGEST_S / SHORTEST_S)
    rate = load * nodes / (mean_run_s * statistics.fmean(SIZES))
    jobs, at = [], 0.0
    while at < days * DAY_S:
        by_day = 8 <= at % DAY_S / HOUR_S < 20
        at += rng.expovariate(rate * (BY_DAY if by_day else BY_NIGHT))
        run_s = math.exp(rng.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
        wall_s = run_s * rng.uniform(1, LONGEST_REQUEST)
        user = str(int(rng.paretovariate(SKEW)) % USERS)
        jobs.append(TracedJob(at, run_s, wall_s, rng.choice(SIZES), user))
    return Workload(f"lab {seed}", {ONE_CLASS: nodes}, jobs)


def with_leases(workload: Workload, share: float, *, seed: int = 1) -> Workload:
    """Return the workload with leases that book a share of its nodes' time, a day ahead.

    They begin on the hour, take 2 or 3 hours, and one to four nodes.
    """
    rng = random.Random(seed)
    hours = int(max(job.submitted_s for job in workload.jobs) / HOUR_S)
    left_s = share * sum(workload.nodes.values()) * hours * HOUR_S
    leases = []
    while left_s > 0:
        start_s, nodes = rng.randrange(24, hours) * HOUR_S, rng.randint(1, 4)
        lease = TracedLease(start_s - DAY_S, start_s, rng.choice((2, 3)) * HOUR_S, nodes)
        left_s -= lease.seconds * lease.num_nodes
        leases.append(lease)
    leases.sort(key=lambda lease: lease.booked_s)
    return replace(workload, name=f"{workload.name} + {share:.0%} leases", leases=leases)


def with_longer_wall_times(workload: Workload, most: float, *, seed: int = 1) -> Workload:
    """Return the workload with wall times one to `most` times as long."""
    rng = random.Random(seed)
    jobs = [replace(job, wall_s=job.wall_s * rng.uniform(1, most)) for job in workload.jobs]
    return replace(workload, name=f"{workload.name}, wall times up to x {most:g}", jobs=jobs)
