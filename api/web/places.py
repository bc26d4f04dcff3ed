"""Places of requests in lanes (`api.middleware.lanes`), and how a request changes its lane."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from starlette.requests import Request
from starlette.types import Receive

PLACE = "trainyard.place"  # of a request, in its ASGI scope


class LaneKind(StrEnum):
    """Purpose of a request; each has a lane."""

    HEARTBEATS = "heartbeats"
    WHOLE_BEATS = "whole_beats"
    NODES = "nodes"
    TELEMETRY = "telemetry"
    NODE_FILES = "node_files"
    CLICKS = "clicks"
    SUBMISSIONS = "submissions"
    VERDICTS = "verdicts"
    SIGN_INS = "sign_ins"
    PROVIDER = "provider"
    READS = "reads"
    LONG_READS = "long_reads"
    BACKGROUND = "background"
    STREAMS = "streams"
    FILES = "files"


class LaneOfPlaces(Protocol):
    """Lane as its places know it."""

    async def enter(self, person: str, receive: Receive | None) -> None:
        """Take a place for a person; raise if there is none."""

    def leave(self) -> None:
        """Give a place back."""


class Place:
    """Place of one request: in one lane, or in none before it has one and once it is given back."""

    def __init__(self, lanes: Mapping[LaneKind, LaneOfPlaces], person: str) -> None:
        self._lanes = lanes
        self._person = person
        self._lane: LaneOfPlaces | None = None

    async def take(self, kind: LaneKind, receive: Receive | None = None) -> None:
        """Give the place back, if there is one, and take one in a lane (`Lane.enter`)."""
        self.leave()
        await self._lanes[kind].enter(self._person, receive)
        self._lane = self._lanes[kind]

    def leave(self) -> None:
        """Give the place back, if there is one."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.leave()


def place_of(request: Request) -> Place:
    """Return the place of a request, with which it may change its lane."""
    place: Place = request.scope[PLACE]
    return place
