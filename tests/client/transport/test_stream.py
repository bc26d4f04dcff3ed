"""The live stream goes on where it broke, and gives up only when patience ends."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, refused, streamed
from trainyard import ConnectionFailed, NotFound, NotSignedIn, Trainyard, UnexpectedAnswer
from trainyard.transport.stream import StreamEvent, follow_stream

PATH = f"/v1/jobs/{d.JOB_ID}/stream"
ROUTE = f"GET {PATH}"


def kinds(events: Iterator[StreamEvent]) -> list[str]:
    return [event.kind for event in events]


def test_events_come_until_the_end(server: FakeServer, client: Trainyard) -> None:
    server.answer(
        ROUTE,
        streamed(
            ("1", "job", d.job()),
            ("2", "metrics", {"epoch": 1, "rank": 0, "lines": [{"step": 1, "loss": 5.5}]}),
            ("3", "end", d.ended()),
        ),
    )
    events = list(client.jobs.stream(d.JOB_ID))
    assert [(event.kind, event.id) for event in events] == [
        ("job", "1"),
        ("metrics", "2"),
        ("end", "3"),
    ]
    assert events[1].data["lines"] == [{"step": 1, "loss": 5.5}]
    assert server.asked[0].headers["accept"] == "text/event-stream"
    assert "last-event-id" not in server.asked[0].headers


def test_a_broken_line_goes_on_after_the_last_event(server: FakeServer, client: Trainyard) -> None:
    server.answer(
        ROUTE,
        streamed(("7~x", "job", d.job())),
        Answer(cut=True),
        refused(503, "unavailable", "Starting."),
        streamed(("9~x", "end", d.ended())),
    )
    assert kinds(client.jobs.stream(d.JOB_ID)) == ["job", "disconnected", "reconnected", "end"]
    places = [asked.headers.get("last-event-id") for asked in server.of(ROUTE)]
    assert places == [None, "7~x", "7~x", "7~x"]


def test_a_stream_can_begin_at_a_place(server: FakeServer, client: Trainyard) -> None:
    server.answer(ROUTE, streamed(("9", "end", d.ended())))
    list(client.jobs.stream(d.JOB_ID, last_event_id="4"))
    assert server.asked[0].headers["last-event-id"] == "4"


def test_patience_ends(server: FakeServer, client: Trainyard) -> None:
    server.answer(ROUTE, streamed(("1", "job", d.job())), Answer(cut=True))
    ticks = count(step=20.0)
    events = follow_stream(client.connection, PATH, patience_s=300, monotonic=lambda: next(ticks))
    assert [next(events).kind, next(events).kind] == ["job", "disconnected"]
    with pytest.raises(ConnectionFailed):
        next(events)


def test_an_old_line_that_ends_in_good_order_is_not_told(
    server: FakeServer, client: Trainyard
) -> None:
    server.answer(ROUTE, streamed(("1", "job", d.job())), streamed(("2", "end", d.ended())))
    hours = count(step=3600.0)
    events = follow_stream(client.connection, PATH, monotonic=lambda: next(hours))
    assert kinds(events) == ["job", "end"]
    assert server.asked[1].headers["last-event-id"] == "1"


def test_waits_between_tries_grow_and_stay_below_the_cap(
    server: FakeServer, client: Trainyard, waits: list[float]
) -> None:
    broken = [Answer(cut=True)] * 8
    server.answer(ROUTE, *broken, streamed(("1", "end", d.ended())))
    assert kinds(client.jobs.stream(d.JOB_ID)) == ["disconnected", "reconnected", "end"]
    assert len(waits) == 8
    assert waits[0] <= 0.25
    assert 2.0 <= waits[-1] <= 4.0


@pytest.mark.parametrize(("status", "kind"), [(401, NotSignedIn), (404, NotFound)])
def test_a_refusal_is_not_tried_again(
    server: FakeServer, client: Trainyard, status: int, kind: type[Exception]
) -> None:
    server.answer(ROUTE, refused(status, "no", "No."))
    with pytest.raises(kind):
        list(client.jobs.stream(d.JOB_ID))
    assert len(server.asked) == 1


def test_something_else_than_a_stream_is_told(server: FakeServer, client: Trainyard) -> None:
    server.answer(ROUTE, as_json({}))
    with pytest.raises(UnexpectedAnswer, match="no event stream"):
        list(client.jobs.stream(d.JOB_ID))


def test_an_event_that_is_no_json_is_told(server: FakeServer, client: Trainyard) -> None:
    server.answer(ROUTE, Answer(200, b"event: job\ndata: {oops\n\n", "text/event-stream"))
    with pytest.raises(UnexpectedAnswer, match="text that is not JSON"):
        list(client.jobs.stream(d.JOB_ID))
