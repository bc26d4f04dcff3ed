"""Look-up of the things that people name on the command line.

A thing is named by its id, by four or more characters at the beginning or the end of the id, by its
name, or as @1, @2, ...: the newest, the one before it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Generic, Protocol, TypeVar

import typer

from trainyard.cli.output import short_id
from trainyard.cli.session import connect_to_complete
from trainyard.client import Trainyard
from trainyard.errors import BadInput, NotFound, TrainyardError
from trainyard.wording import counted, moment

WHOLE = re.compile(r"[a-z]+_[0-9a-z]{26}")
NEWEST = re.compile(r"@([1-9][0-9]{0,2})")
LEAST = 4  # characters of an id
MOST = 200  # of the newest things, in which those with a part of an id are looked for
SHOWN = 8  # of several that are meant
OFFERED = 30  # to the shell


class Found(Protocol):
    """Thing that can be looked up."""

    @property
    def id(self) -> str:
        """Whole id."""


Thing = TypeVar("Thing", bound=Found)


@dataclass(frozen=True)
class Things(Generic[Thing]):
    """Things of one kind, as a person names them."""

    word: str
    words: str
    """Plural of `word`."""
    command: str
    """Command that lists them."""
    newest: Callable[[Trainyard, int], Iterator[Thing]]
    """Function that returns a person's own, newest first, up to a number."""
    matching: Callable[[Trainyard, str], Iterator[Thing]]
    """Function that returns those with a text in their name or id, the newest first."""
    name: Callable[[Thing], str]
    """Function that returns the name; empty if things of this kind have none."""
    facts: Callable[[Thing], str]
    """Function that returns what tells one from another."""
    is_over: Callable[[Thing], bool]

    def id_of(self, client: Trainyard, key: str, *, changes: bool = False) -> str:
        """Return the id of the thing that is meant.

        A name stands for the newest thing that has it. With `changes`, for commands that change or
        end something, it must be the only one that is not over, or the only one at all. Raises
        NotFound, and BadInput with the candidates.
        """
        if WHOLE.fullmatch(key):
            return key
        if number := NEWEST.fullmatch(key):
            return self._nth(client, int(number[1]))
        found = list(self.matching(client, key))
        named = [one for one in found if self.name(one) == key]
        if not named:
            part = key.rpartition("_")[2]
            found = [one for one in found if _is_part(part, one.id)]
            if len(found) == 1:
                return found[0].id
            if not found:
                raise NotFound(404, code="not_found", detail=self._none(key))
            raise BadInput(self._several(key, found))
        left = [one for one in named if not self.is_over(one)]
        if not changes or len(named) == 1:
            return named[0].id
        if len(left) == 1:
            return left[0].id
        raise BadInput(self._several(key, left or named))

    def complete(self, incomplete: str) -> list[tuple[str, str]]:
        """Return what a shell offers for a beginning; nothing if the server does not answer."""
        try:
            with connect_to_complete() as client:
                found = list(self.newest(client, OFFERED))
        except TrainyardError:
            return []
        offered: dict[str, str] = {}
        for one in found:
            offered.setdefault(self.name(one) or short_id(one.id), self.facts(one))
        return [(key, facts) for key, facts in offered.items() if key.startswith(incomplete)]

    def _nth(self, client: Trainyard, number: int) -> str:
        found = list(islice(self.newest(client, number), number))
        if len(found) < number:
            raise BadInput(
                f"You have {counted(len(found), self.word, self.words)}, so there is no @{number}. "
                f"See them: {self.command}"
            )
        return found[-1].id

    def _none(self, key: str) -> str:
        return (
            f"You have no {self.word} {key!r}. Name one by its id, by {LEAST} or more characters "
            f"at the beginning or end of it, or by its name; @1 is the newest. See them: "
            f"{self.command}"
        )

    def _several(self, key: str, found: list[Thing]) -> str:
        lines = [f"  {short_id(one.id)}  {self.facts(one)}" for one in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"  and {len(found) - SHOWN:,} more")
        rows = "\n".join(lines)
        several = counted(len(found), self.word, self.words)
        return f"{key!r} may mean {several}. Name one by its id:\n{rows}"


def _is_part(part: str, thing_id: str) -> bool:
    own = thing_id.rpartition("_")[2]
    return len(part) >= LEAST and (own.startswith(part) or own.endswith(part))


JOBS = Things(
    "job",
    "jobs",
    "trainyard jobs",
    newest=lambda client, limit: client.jobs.list(limit=limit),
    matching=lambda client, key: client.jobs.list(search=key.rpartition("_")[2], limit=MOST),
    name=lambda job: job.name,
    facts=lambda job: f"{job.name}, {job.state}, {moment(job.created_at)}",
    is_over=lambda job: job.is_final,
)
LEASES = Things(
    "lease",
    "leases",
    "trainyard leases list",
    newest=lambda client, limit: client.leases.list(limit=limit),
    matching=lambda client, _: client.leases.list(limit=MOST),
    name=lambda _: "",
    facts=lambda lease: f"{lease.node}, {lease.state}, {moment(lease.hold_start)}",
    is_over=lambda lease: lease.state not in ("booked", "active", "ending"),
)
STUDIES = Things(
    "study",
    "studies",
    "trainyard studies list",
    newest=lambda client, limit: client.studies.list(limit=limit),
    matching=lambda client, _: client.studies.list(limit=MOST),
    name=lambda study: study.name,
    facts=lambda study: f"{study.name}, {moment(study.created_at)}",
    is_over=lambda study: study.is_final,
)
AGENDAS = Things(
    "agenda",
    "agendas",
    "trainyard agenda list",
    newest=lambda client, limit: client.agendas.list(limit=limit),
    matching=lambda client, _: client.agendas.list(limit=MOST),
    name=lambda agenda: agenda.name,
    facts=lambda agenda: f"{agenda.name}, {moment(agenda.created_at)}",
    is_over=lambda agenda: agenda.is_final,
)
WAITS = Things(
    "waitlist entry",
    "waitlist entries",
    "trainyard leases waitlist",
    newest=lambda client, limit: islice(client.waitlist.list(), limit),
    matching=lambda client, _: client.waitlist.list(),
    name=lambda _: "",
    facts=lambda wait: f"{wait.node or wait.node_class}, {wait.state}, {moment(wait.first_start)}",
    is_over=lambda wait: wait.state not in ("waiting", "offered"),
)
TOKENS = Things(
    "token",
    "tokens",
    "trainyard tokens",
    newest=lambda client, limit: islice(client.tokens.list(), limit),
    matching=lambda client, _: client.tokens.list(),
    name=lambda token: token.name,
    facts=lambda token: f"{token.name}, {moment(token.created_at)}",
    is_over=lambda token: token.revoked_at is not None,
)
NAMED = "Its id, a part of that, its name, or @1 for the newest."

JobKey = Annotated[str, typer.Argument(metavar="JOB", help=NAMED, autocompletion=JOBS.complete)]
LeaseKey = Annotated[
    str,
    typer.Argument(
        metavar="LEASE",
        help="Its id, a part of that, or @1 for the one booked last.",
        autocompletion=LEASES.complete,
    ),
]
StudyKey = Annotated[
    str, typer.Argument(metavar="STUDY", help=NAMED, autocompletion=STUDIES.complete)
]
AgendaKey = Annotated[
    str, typer.Argument(metavar="AGENDA", help=NAMED, autocompletion=AGENDAS.complete)
]
WaitKey = Annotated[
    str,
    typer.Argument(
        metavar="ENTRY",
        help="Its id, a part of that, or @1 for the newest.",
        autocompletion=WAITS.complete,
    ),
]
TokenKey = Annotated[
    str, typer.Argument(metavar="TOKEN", help=NAMED, autocompletion=TOKENS.complete)
]
