"""Plain submissions: those that wait together are read and planned together, in one thread.

Each alone would take a thread, a session, a look at its token and at the node classes, and a trip
to Redis: more than all the rest of it. While a group is written, the next one is planned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastapi import Request
from sqlalchemy.orm import Session

from api.jobs.plan_cache import Offers
from api.jobs.queueing import NewJob, plan_new, queue
from api.jobs.schemas import JobView
from api.jobs.submission import read_spec
from api.web.auth import SentTokens
from api.web.groups import Groups, attempt
from api.web.idempotency import KeyedRequest, keyed
from api.web.identity import Person
from api.web.process import Process
from api.web.rate_limits import LimitState, RateLimited
from core.base import tracing
from core.base.errors import ServiceError
from core.base.strict_text import parse
from core.spec.spec import AnyJobSpec

Planned = tuple[NewJob, LimitState]
"""A job that can be queued, and the standing of its sender."""


@dataclass(frozen=True)
class SentJob:
    """A request with a token, and its body: a job."""

    request: Request
    body: bytes


@dataclass(frozen=True)
class ReadJob:
    """A job that a person asks for."""

    person: Person
    spec: AnyJobSpec
    sent: KeyedRequest


class PlainSubmissions(Groups[SentJob, Planned | ServiceError]):
    """Plain submissions of this process that wait to be planned."""


async def submit(process: Process, job: SentJob) -> tuple[JobView, LimitState]:
    """Plan and queue a job, together with those that others send at this moment.

    Raises what `signed_in`, `read_spec` and `queueing` raise, and RateLimited.
    """

    def plan(jobs: Sequence[SentJob]) -> Sequence[Planned | ServiceError]:
        return plan_together(process, jobs)

    planned = await process.service(PlainSubmissions).write(job, plan)
    if isinstance(planned, ServiceError):
        raise planned
    new, standing = planned
    view = await queue(process, replace(new, traceparent=tracing.here()))
    return view, standing


def plan_together(process: Process, jobs: Sequence[SentJob]) -> Sequence[Planned | ServiceError]:
    """Plan jobs of any senders, in their order; return the plan or the refusal of each."""
    with process.read() as session:
        tokens = SentTokens(session, process, [job.request for job in jobs])
        read = [attempt(_read, tokens, job) for job in jobs]
        senders = [one.person.id for one in read if isinstance(one, ReadJob)]
        standings = iter(process.limits.count_submissions(senders))
        offers = Offers(session)
        return [
            attempt(_plan, session, process, one, next(standings), offers)
            if isinstance(one, ReadJob)
            else one
            for one in read
        ]


def _read(tokens: SentTokens, job: SentJob) -> ReadJob:
    person, headers = tokens.enter(job.request), job.request.headers
    spec = read_spec(parse(job.body, headers.get("content-type", "")))
    key, path = headers.get("idempotency-key"), job.request.scope["path"]
    return ReadJob(person, spec, keyed(person, key, path, job.body))


def _plan(
    session: Session,
    process: Process,
    job: ReadJob,
    standing: LimitState | RateLimited,
    offers: Offers,
) -> Planned:
    if isinstance(standing, RateLimited):
        raise standing
    return plan_new(session, process, job.person, job.spec, job.sent, offers=offers), standing
