"""What a person sees while a job runs, with and without a terminal."""

import io
import threading
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, streamed
from trainyard import Trainyard
from trainyard.progress import MAX_LOSSES, JobProgress, follow, losses_of, plain_line, render
from trainyard.summary import show_summary
from trainyard.transport.decoding import decode
from trainyard.transport.stream import StreamEvent
from trainyard.views import Job

JOB = f"GET /v1/jobs/{d.JOB_ID}"
STREAM = f"{JOB}/stream"
NOW = datetime(2026, 11, 21, 10, 57, 30, tzinfo=UTC)
HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]name[/]"


def a_console(*, terminal: bool, width: int = 100) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=width,
        color_system=None,
        legacy_windows=False,
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drawn(watched: JobProgress, *, width: int = 100) -> str:
    console = a_console(terminal=False, width=width)
    console.print(render(watched, NOW, width=width))
    return written(console)


def watched(**changes: object) -> JobProgress:
    return JobProgress(decode(Job, {**d.running(120, 2.5), **changes}))


def metrics(*pairs: tuple[int, float]) -> dict[str, object]:
    return {"epoch": 1, "rank": 0, "lines": [{"step": s, "loss": loss} for s, loss in pairs]}


def whole_run() -> Answer:
    return streamed(
        ("1", "event", d.event(1, "Queued: waits for the scheduler.")),
        ("2", "job", d.job()),
        ("3", "event", d.event(2, "Running on this-machine with the warm launcher.")),
        ("4", "metrics", metrics((1, 5.5), (120, 2.5))),
        ("5", "job", d.running(120, 2.5)),
        ("6", "event", d.event(3, "Checkpoint of step 400 is safe.", "checkpoint")),
        ("7", "end", d.ended()),
    )


def test_without_a_terminal_there_are_plain_lines(server: FakeServer, client: Trainyard) -> None:
    server.answer(JOB, as_json(d.job()), as_json(d.ended()))
    server.answer(STREAM, whole_run())
    console = a_console(terminal=False)
    final = follow(client, d.JOB_ID, console, clock=lambda: NOW)
    assert final.succeeded
    assert final.losses == (5.5, 2.5, 1.83)
    text = written(console)
    assert "gpt-ddp" in text
    assert "Running on this-machine with the warm launcher." in text
    assert "Checkpoint of step 400 is safe." in text
    assert "\x1b" not in text


def test_on_a_terminal_the_display_is_redrawn_and_then_gone(
    server: FakeServer, client: Trainyard
) -> None:
    server.answer(JOB, as_json(d.job()), as_json(d.ended()))
    server.answer(STREAM, whole_run())
    console = a_console(terminal=True)
    assert follow(client, d.JOB_ID, console, clock=lambda: NOW).succeeded
    text = written(console)
    assert "Running on this-machine with the warm launcher." in text
    assert "\x1b[?25h" in text  # the cursor is visible again


def test_a_restart_of_the_server_is_said_and_survived(
    server: FakeServer, client: Trainyard
) -> None:
    server.answer(JOB, as_json(d.job()), as_json(d.ended()))
    server.answer(
        STREAM,
        streamed(("1", "job", d.running(100, 3.0))),
        Answer(cut=True),
        streamed(("2", "end", d.ended())),
    )
    console = a_console(terminal=False)
    assert follow(client, d.JOB_ID, console).succeeded
    text = written(console)
    assert "Connection to the server lost; reconnecting" in text
    assert "Connected again." in text


def test_following_late_fetches_the_curve_so_far(server: FakeServer, client: Trainyard) -> None:
    server.answer(JOB, as_json(d.running(390, 2.0)), as_json(d.ended()))
    server.answer(
        f"{JOB}/metrics", as_json({**d.METRICS, "series": [{**d.SERIES, "steps": [1, 200, 390]}]})
    )
    server.answer(STREAM, streamed(("1", "metrics", metrics((200, 9.9))), ("2", "end", d.ended())))
    assert follow(client, d.JOB_ID, a_console(terminal=False)).losses == (5.5, 1.8, 1.83)


def test_the_bar_tells_step_loss_speed_and_eta() -> None:
    state = watched()
    state.take(StreamEvent("metrics", metrics((1, 5.5), (2, 4.0), (3, 3.0))))
    text = drawn(state)
    assert "step 120/400" in text
    assert "30%" in text
    assert "loss 2.5 █" in text
    assert "10,240 tokens/s" in text
    assert "ETA 28 s" in text  # 280 steps of 1,024 tokens at 10,240 tokens/s
    assert "elapsed 30 s" in text


def test_while_it_waits_the_reason_and_start_are_shown() -> None:
    start = (NOW + timedelta(minutes=5)).isoformat()
    text = drawn(
        JobProgress(
            decode(Job, d.job(reason="Waits for job_x on this-machine.", predicted_start=start))
        )
    )
    assert "queued, 30 s since it was submitted" in text
    assert "Waits for job_x on this-machine." in text
    assert "Predicted start" in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_display_is_never_wider_than_the_terminal(width: int) -> None:
    for state in (watched(), JobProgress(decode(Job, d.job(reason="long " * 60)))):
        assert all(len(line) <= width for line in drawn(state, width=width).splitlines())


@pytest.mark.parametrize("terminal", [True, False])
def test_hostile_text_is_inert(server: FakeServer, client: Trainyard, terminal: bool) -> None:
    hostile = {"name": HOSTILE, "reason": HOSTILE, "result": {**d.RESULT, "sample": HOSTILE}}
    server.answer(JOB, as_json({**d.job(), **hostile}), as_json({**d.ended(), **hostile}))
    server.answer(
        STREAM,
        streamed(
            ("1", "event", d.event(1, HOSTILE)),
            ("2", "job", {**d.running(3, 2.0), **hostile}),
            ("3", "end", {**d.ended("failed"), **hostile}),
        ),
    )
    console = a_console(terminal=terminal)
    final = follow(client, d.JOB_ID, console)
    show_summary(final.job, console)
    text = written(console)
    assert "\x1b[2J" not in text
    assert "\x1b]" not in text
    assert "[bold red]name[/]" in text


def test_a_second_try_keeps_the_curve_going() -> None:
    state = watched()
    state.take(StreamEvent("metrics", metrics((100, 3.0), (120, 2.5))))
    state.take(
        StreamEvent("metrics", {"epoch": 2, "rank": 0, "lines": [{"step": 101, "loss": 9.0}]})
    )
    state.take(StreamEvent("metrics", metrics((121, 2.4))))
    assert state.losses == [3.0, 2.5, 2.4]


def test_an_event_that_comes_twice_is_said_once() -> None:
    state = watched()
    assert len(state.take(StreamEvent("event", d.event(7, "Started.")))) == 1
    assert state.take(StreamEvent("event", d.event(7, "Started."))) == []


def test_job_and_attempt_that_say_the_same_are_heard_once() -> None:
    state = watched()
    assert len(state.take(StreamEvent("event", d.event(7, "Training.")))) == 1
    assert state.take(StreamEvent("event", d.event(8, "Training."))) == []
    assert len(state.take(StreamEvent("event", d.event(9, "Saved.")))) == 1


def test_a_long_curve_is_thinned() -> None:
    state = watched()
    for step in range(10_000):
        state.add_loss(step, float(step))
    assert len(state.losses) <= MAX_LOSSES
    assert state.losses[0] == 0.0


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"lines": None}, {"lines": [None, {"step": "x", "loss": 1}, {"step": 1}]}],
)
def test_lines_without_a_loss_are_passed_over(document: object) -> None:
    assert list(losses_of(document)) == []


def test_a_plain_line_tells_the_same() -> None:
    assert plain_line(watched()) == (
        "running  step 120/400  30%  loss 2.5  10,240 tokens/s  ETA 28 s"
    )


def test_the_summary_tells_loss_speed_time_checkpoint_and_sample() -> None:
    console = a_console(terminal=False)
    show_summary(decode(Job, d.ended()), console, losses=[5.5, 3.0, 1.8])
    text = written(console)
    for part in (
        "gpt-ddp succeeded",
        "5.56 → 1.83, 1.9 on held-out data  █▃▁",
        "400 of 400",
        "12,346 tokens/s",
        "33 s of training, 41 s in all",
        f"step-000400; trainyard download {d.JOB_ID} step-000400",
        "class Foo:",
    ):
        assert part in text


def test_the_summary_of_a_failed_job_tells_why() -> None:
    console = a_console(terminal=False)
    show_summary(decode(Job, {**d.ended("failed"), "result": None}), console)
    assert "gpt-ddp failed" in written(console)
    assert "Rank 1 was killed." in written(console)


def test_the_display_lives_while_the_stream_is_silent(
    server: FakeServer, client: Trainyard
) -> None:
    release = threading.Event()
    server.answer(JOB, as_json(d.job()), as_json(d.ended()))
    server.answer(
        STREAM,
        streamed(("1", "job", d.running(100, 3.0)), hold=release),
        streamed(("2", "end", d.ended())),
    )
    console = a_console(terminal=True)
    frames = threading.Event()
    ticks = [NOW + timedelta(seconds=i) for i in range(1000)]

    def clock() -> datetime:
        if len(ticks) < 990:
            frames.set()
        return ticks.pop(0)

    follower = threading.Thread(
        target=follow, args=(client, d.JOB_ID, console), kwargs={"clock": clock}
    )
    follower.start()
    assert frames.wait(30), "the display was not redrawn while nothing came"
    release.set()
    follower.join(30)
    assert not follower.is_alive()
