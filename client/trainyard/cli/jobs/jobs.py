"""Commands that list, show and control jobs."""

from collections.abc import Sequence
from typing import Annotated

import typer

from trainyard.cli.finding import JOBS, JobKey
from trainyard.cli.jobs.reports import report_words
from trainyard.cli.jobs.scripts import input_text, script_facts
from trainyard.cli.jobs.verifying import VERDICTS
from trainyard.cli.output import (
    AsJson,
    Limit,
    console,
    id_cell,
    print_answer,
    print_facts,
    print_json,
    print_list,
    print_table,
    say,
    state_text,
)
from trainyard.cli.session import connect
from trainyard.cli.times import days_of
from trainyard.summary import show_summary
from trainyard.views import Attempt, Job, Place
from trainyard.wording import counted, duration, moment, number, steps_text


def list_jobs(
    state: Annotated[str | None, typer.Option(help="Only in this state, such as running.")] = None,
    name: Annotated[str | None, typer.Option(help="Only with this text in the name.")] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Jobs of others that are shared with you.")
    ] = False,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    submitted: Annotated[
        str | None,
        typer.Option(
            metavar="DAYS",
            help="Only those submitted then: today, 'last week', 2026-11-20, or "
            "'2026-11-18 to 2026-11-20'.",
        ),
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List your jobs, newest first."""
    since, until = (None, None) if submitted is None else days_of(submitted)
    with connect() as client:
        jobs = list(
            client.jobs.list(
                state=state,
                name=name,
                tag=tag,
                since=since,
                until=until,
                shared=shared,
                limit=limit,
            )
        )
    print_list(
        jobs,
        ["id", "name", "state", "step", "loss", "submitted", "reason"],
        lambda job: (
            id_cell(job.id),
            job.name,
            state_text(job.state),
            steps_text(job.step, job.steps, separator="/"),
            number(job.loss),
            moment(job.created_at),
            job.reason,
        ),
        sentence=True,
        empty="No such jobs."
        if state or name or tag or submitted
        else "No jobs here. Submit one: trainyard submit FILE",
        right=["step", "loss"],
        least=["loss", "submitted"],
        as_json=as_json,
    )


def show(named: JobKey, as_json: AsJson = False) -> None:
    """Show a job: state with its reason, plan, attempts, result."""
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        job = client.jobs.get(job_id)
        attempts = client.jobs.attempts(job_id)
    if as_json:
        print_json({**job.raw, "attempts": [attempt.raw for attempt in attempts]})
        return
    _show_job(job, client.url)
    if attempts:
        say("")
        _show_attempts(attempts)
    if job.is_final:
        _show_result(job)


def tag_job(
    named: JobKey,
    tags: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG...]", help="Tags; none removes them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set the tags of a job, in place of those that it has."""
    with connect() as client:
        job_id = JOBS.id_of(client, named, changes=True)
        job = client.jobs.tag(job_id, tags or ())
    words = f"has the {'tag' if len(job.tags) == 1 else 'tags'} {', '.join(job.tags)}"
    print_answer(job.raw, f"{job.name} {words if job.tags else 'has no tags'}.", as_json=as_json)


def cancel(named: JobKey, as_json: AsJson = False) -> None:
    """End a job permanently; a running one saves a checkpoint first."""
    with connect() as client:
        job_id = JOBS.id_of(client, named, changes=True)
        _answer(client.jobs.cancel(job_id), as_json)


def pause(named: JobKey, as_json: AsJson = False) -> None:
    """Save a checkpoint, free the node and wait for `resume`."""
    with connect() as client:
        job_id = JOBS.id_of(client, named, changes=True)
        _answer(client.jobs.pause(job_id), as_json)


def resume(named: JobKey, as_json: AsJson = False) -> None:
    """Put a paused job back in the queue."""
    with connect() as client:
        job_id = JOBS.id_of(client, named, changes=True)
        _answer(client.jobs.resume(job_id), as_json)


def requeue(named: JobKey, as_json: AsJson = False) -> None:
    """Save a checkpoint, free the node and go back to the queue."""
    with connect() as client:
        job_id = JOBS.id_of(client, named, changes=True)
        _answer(client.jobs.requeue(job_id), as_json)


def profile(named: JobKey, as_json: AsJson = False) -> None:
    """Record a running job's next three steps; `download` the traces once it has ended."""
    with connect() as client:
        job_id = JOBS.id_of(client, named, changes=True)
        _asked(client.jobs.profile(job_id), as_json)


def snapshot(named: JobKey, as_json: AsJson = False) -> None:
    """Record what fills a running job's memory; `download` the tables once it has ended."""
    with connect() as client:
        job_id = JOBS.id_of(client, named, changes=True)
        _asked(client.jobs.snapshot(job_id), as_json)


def clone(named: JobKey, as_json: AsJson = False) -> None:
    """Submit the same job again."""
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        _answer(client.jobs.clone(job_id), as_json)


def _show_result(job: Job) -> None:
    if job.result is not None:
        say("")
        show_summary(job, console())


def _asked(job: Job, as_json: bool) -> None:
    print_answer(
        job.raw,
        f"Requested from {job.name}. Once this attempt ends: trainyard artifacts {job.id}",
        as_json=as_json,
    )


def _answer(job: Job, as_json: bool) -> None:
    if as_json:
        print_json(job.raw)
        return
    say(f"{job.id} ({job.name}) is {job.state}.")
    if job.reason:
        say(job.reason)


def _show_job(job: Job, url: str) -> None:
    predicted = moment(job.predicted_start) if job.predicted_start else None
    print_facts(
        [
            ("job", job.id),
            ("name", job.name),
            ("owner", job.user),
            ("state", state_text(job.state)),
            ("reason", job.reason),
            ("predicted start", predicted),
            ("node" if len(job.nodes) < 2 else "nodes", _places(job.nodes) or job.node),
            ("attempt", job.epoch or None),
            ("progress", f"step {steps_text(job.step, job.steps)}"),
            ("loss", None if job.loss is None else number(job.loss)),
            ("speed", job.tokens_per_s and f"{number(round(job.tokens_per_s))} {job.plan.unit}/s"),
            ("plan", f"{job.plan.strategy} on {counted(job.plan.world_size, 'rank')}"),
            *script_facts(job.spec),
            *((f"input {one.name}", input_text(one)) for one in job.inputs),
            ("certificate", job.certificate and VERDICTS.get(job.certificate.verdict)),
            ("wall time", f"{duration(job.used_s)} used of {duration(job.wall_time_s)}"),
            ("stops at", moment(job.stops_at) if job.stops_at else None),
            ("lease", job.lease),
            ("cloned from", job.cloned_from),
            ("tags", ", ".join(job.tags) or None),
            ("report", report_words(job, url) or None),
            ("submitted", moment(job.created_at)),
            ("started", moment(job.started_at) if job.started_at else None),
            ("finished", moment(job.finished_at) if job.finished_at else None),
        ]
    )


def _places(nodes: Sequence[Place]) -> str:
    """Return `north-01 (slots 0, 1), north-02 (slots 0, 1)`."""
    return ", ".join(
        f"{place.node} ({'slot' if len(place.slots) == 1 else 'slots'} "
        f"{', '.join(map(str, place.slots))})"
        for place in nodes
    )


def _show_attempts(attempts: Sequence[Attempt]) -> None:
    print_table(
        ["attempt", "node", "launcher", "state", "outcome", "first step", "ended", "reason"],
        (
            (
                attempt.epoch,
                ", ".join(place.node for place in attempt.nodes) or attempt.node,
                attempt.launcher,
                attempt.state,
                attempt.outcome,
                moment(attempt.first_step_at),
                moment(attempt.ended_at),
                attempt.reason,
            )
            for attempt in attempts
        ),
        sentence=True,
        empty="",
    )
    _show_memory(attempts[-1])
    for line in attempts[-1].last_lines[-10:]:
        say(f"  | {line}")


def _show_memory(attempt: Attempt) -> None:
    """Print planned and used memory of each rank, if the plan said that they do not fit."""
    if not attempt.memory:
        return
    print_table(
        ["rank", "phase", "planned GiB", "used GiB", ""],
        (
            (
                str(one.rank),
                phase,
                f"{planned:.2f}",
                f"{one.used_gib[phase]:.2f}" if phase in one.used_gib else "not reached",
                f"last seen here, in step {one.step}" if phase == one.phase else "",
            )
            for one in attempt.memory
            for phase, planned in one.planned_gib.items()
        ),
        empty="",
        right=["planned GiB", "used GiB"],
    )
