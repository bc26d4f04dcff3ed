"""`trainyard status`, also `trainyard` alone: where one stands, and what to do next."""

from collections.abc import Iterator, Sequence

from trainyard.cli.finding import JOBS, LEASES
from trainyard.cli.output import AsJson, print_json, print_table, say, short_id, state_text
from trainyard.cli.session import connect
from trainyard.views import Job, Lease, Me, Wait
from trainyard.wording import moment, number, part_of, steps_text

RECENT = 5
MOST_LEASES = 20


def status(as_json: AsJson = False) -> None:
    """Show where you stand: your jobs, leases and offers, and what to do next."""
    with connect() as client:
        me = client.me()
        jobs = list(JOBS.newest(client, RECENT))
        leases = [one for one in LEASES.newest(client, MOST_LEASES) if not LEASES.is_over(one)]
        offers = [one for one in client.waitlist.list() if _is_open(one)]
        url = client.url
    if as_json:
        print_json(
            {
                "me": me.raw,
                "jobs": [job.raw for job in jobs],
                "leases": [lease.raw for lease in leases],
                "offers": [offer.raw for offer in offers],
            }
        )
        return
    say(f"{me.user.name} at {url}: {me.running} running, {me.queued} waiting.")
    if jobs:
        say("")
        _show_jobs(jobs)
    if leases:
        say("")
        _show_leases(leases)
    say("")
    for line in next_steps(me, jobs, leases, offers):
        say(line)


def next_steps(
    me: Me, jobs: Sequence[Job], leases: Sequence[Lease], offers: Sequence[Wait]
) -> Iterator[str]:
    """Yield what to do next, the most urgent first, with its command."""
    for offer in offers:
        assert offer.offer is not None
        yield (
            f"Hours on {offer.offer.node} are yours until {moment(offer.offer.expires_at)}: "
            f"trainyard leases waitlist accept {short_id(offer.id)}"
        )
    for lease in leases:
        if lease.state == "active" and not me.running:
            yield (
                f"Your lease on {lease.node} runs without a job: "
                f"trainyard submit FILE --lease {short_id(lease.id)}"
            )
    live = [job for job in jobs if not job.is_final]
    if live:
        yield f"Watch {live[0].name}: trainyard follow {short_id(live[0].id)}"
    elif not jobs:
        yield "Submit your first job: trainyard submit FILE --follow"
        yield "See whether it fits before: trainyard plan FILE"
    elif jobs[0].state == "failed":
        yield f"See why {jobs[0].name} failed: trainyard show {short_id(jobs[0].id)}"
        yield f"Run it again: trainyard clone {short_id(jobs[0].id)}"
    elif jobs[0].state == "succeeded":
        yield f"See what {jobs[0].name} left: trainyard artifacts {short_id(jobs[0].id)}"
    if jobs and not leases:
        yield "Book a node for certain hours: trainyard leases book 14:00 2 --class CLASS"
    yield "All commands: trainyard --help"


def _is_open(wait: Wait) -> bool:
    return wait.offer is not None and wait.offer.state == "open"


def _show_jobs(jobs: Sequence[Job]) -> None:
    print_table(
        ["job", "name", "state", "step", "loss", "submitted"],
        (
            (
                short_id(job.id),
                job.name,
                state_text(job.state),
                steps_text(job.step, job.steps, separator="/"),
                number(job.loss),
                moment(job.created_at),
            )
            for job in jobs
        ),
        empty="",
        right=["step", "loss"],
        least=["loss", "submitted"],
    )


def _show_leases(leases: Sequence[Lease]) -> None:
    print_table(
        ["lease", "on", "state", "from", "jobs stop at"],
        (
            (
                short_id(lease.id),
                part_of(lease.node, None if lease.whole else lease.gpus),
                state_text(lease.state),
                moment(lease.hold_start),
                moment(lease.usable_end),
            )
            for lease in leases
        ),
        empty="",
    )
