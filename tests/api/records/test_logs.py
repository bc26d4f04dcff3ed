"""Logs: every byte once, lines whole, by rank, attempt and search."""

import tracemalloc
from datetime import datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from api.records import log_store
from api.records.log_store import LONGEST_LINE, LogCursor, LogFilter, Piece
from core.base.clock import utc_now
from core.database.database import Database
from core.tables.jobs import Attempt
from tests.api.conftest import World
from tests.api.running_jobs import running_job
from tests.api.shapes import exit_record, heartbeat


class Output:
    """One rank's output file, sent piece by piece."""

    def __init__(self, world: World, job_id: str, rank: int = 0, stream: str = "stdout") -> None:
        self.world = world
        self.about = {"job_id": job_id, "epoch": 1, "rank": rank, "stream": stream}
        self.sent = 0

    def say(self, text: str) -> int:
        raw = text.encode()
        answer = self.send(self.sent, text, len(raw))
        self.sent += len(raw)
        return answer

    def send(self, first_byte: int, content: str, size: int) -> int:
        batch = {**self.about, "first_byte": first_byte, "size": size, "content": content}
        answer = self.world.node.post("/v1/node/logs", json=batch)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["next_byte"])


def page(world: World, job_id: str, **params: Any) -> dict[str, Any]:
    answer = world.ann.get(f"/v1/jobs/{job_id}/logs", params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def texts(view: dict[str, Any]) -> list[str]:
    return [line["text"] for line in view["lines"]]


def test_lines_come_back_whole_and_once_however_they_were_cut(world: World) -> None:
    job_id = running_job(world)
    out = Output(world, job_id)
    assert out.say("one\ntw") == 6
    assert out.send(0, "one\ntw", 6) == 6  # all of it again
    assert out.send(4, "two\nth", 6) == 10  # overlapping: its first two bytes are known
    out.sent = 10
    assert out.send(50, "far away\n", 9) == 10  # a gap: go back
    first = page(world, job_id)
    assert texts(first) == ["one", "two"]  # "th" is still growing
    out.say("ree\nfour\n")
    second = page(world, job_id, cursor=first["cursor"])
    assert texts(second) == ["three", "four"]
    assert [line["line"] for line in second["lines"]] == [2, 3]
    assert texts(page(world, job_id)) == ["one", "two", "three", "four"]
    assert texts(page(world, job_id, cursor=second["cursor"])) == []


def test_the_last_line_without_an_end_is_shown_when_the_attempt_is_over(world: World) -> None:
    job_id = running_job(world)
    out = Output(world, job_id, stream="stderr")
    out.say("Traceback\nValueError: no")
    before = page(world, job_id)
    assert texts(before) == ["Traceback"]
    record = exit_record(job_id, outcome="user_error", reason="Rank 0 failed.", result=None)
    seen = {"job_id": job_id, "epoch": 1, "phase": "exited", "exit": record}
    world.node.post("/v1/node/heartbeat", json=heartbeat(seen))
    out.say(" such file")  # what was left in the spool
    assert texts(page(world, job_id, cursor=before["cursor"])) == ["ValueError: no such file"]


def test_ranks_streams_search_tail_and_pages(world: World) -> None:
    job_id = running_job(world)
    for number in range(10):
        for rank in (0, 1):
            Output.say(outputs(world, job_id, rank, number), f"rank {rank} step {number}\n")
    everything = page(world, job_id)
    assert everything["ranks"] == [0, 1]
    assert len(everything["lines"]) == 20
    assert texts(page(world, job_id, rank=1)) == [f"rank 1 step {n}" for n in range(10)]
    assert texts(page(world, job_id, search="STEP 3")) == ["rank 0 step 3", "rank 1 step 3"]
    assert texts(page(world, job_id, tail=3)) == texts(everything)[-3:]
    assert texts(page(world, job_id, attempt=2)) == []

    got: list[str] = []
    cursor = None
    while True:
        part = page(world, job_id, limit=3, **({"cursor": cursor} if cursor else {}))
        got += texts(part)
        cursor = part["cursor"]
        if not part["has_more"]:
            break
    assert got == texts(everything)


def outputs(world: World, job_id: str, rank: int, number: int) -> Output:
    out = Output(world, job_id, rank)
    out.sent = sum(len(f"rank {rank} step {n}\n") for n in range(number))
    return out


def test_hostile_output_is_kept_as_text(world: World) -> None:
    job_id = running_job(world)
    out = Output(world, job_id)
    out.say("a\x00b\x1b[31m<script>\r\nnext\n")
    assert texts(page(world, job_id)) == ["a\N{REPLACEMENT CHARACTER}b\x1b[31m<script>", "next"]
    assert out.send(out.sent, "\N{REPLACEMENT CHARACTER}\n", 2) == out.sent + 2  # a wrong byte
    assert texts(page(world, job_id))[-1] == "\N{REPLACEMENT CHARACTER}"


def test_a_line_that_never_ends_is_broken(world: World) -> None:
    job_id = running_job(world)
    out = Output(world, job_id)
    for _ in range(3):
        out.say("x" * 40_000)
    lines = texts(page(world, job_id))
    assert len(lines) == 1
    assert LONGEST_LINE <= len(lines[0]) <= 2 * LONGEST_LINE


def test_one_line_costs_the_memory_of_few_chunks(world: World) -> None:
    job_id = running_job(world)
    out = Output(world, job_id)
    for _ in range(64):
        out.say(("x" * 1023 + "\n") * 128)
    tracemalloc.start()
    try:
        assert len(page(world, job_id, limit=1)["lines"]) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 << 20, "of 8 MiB"


def test_a_page_of_long_lines_ends_early_and_the_next_one_goes_on(world: World) -> None:
    job_id = running_job(world)
    out = Output(world, job_id)
    sent = [f"{number:02}" + "x" * (LONGEST_LINE - 10) for number in range(40)]
    for first in range(0, len(sent), 8):
        out.say("\n".join(sent[first : first + 8]) + "\n")
    view = page(world, job_id, limit=5000)
    assert (len(view["lines"]), view["has_more"]) == (16, True)
    read = texts(view)
    while view["has_more"]:
        view = page(world, job_id, limit=5000, cursor=view["cursor"])
        assert len(view["lines"]) <= 16
        read += texts(view)
    assert read == sent
    assert texts(page(world, job_id, tail=5000)) == sent[-16:]
    assert texts(page(world, job_id, tail=3)) == sent[-3:]


def test_a_wrong_cursor_is_refused(world: World) -> None:
    job_id = running_job(world)
    answer = world.ann.get(f"/v1/jobs/{job_id}/logs", params={"cursor": "what"})
    assert (answer.status_code, answer.json()["param"]) == (422, "cursor")


PIECES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["a", "b\n", "\n", "cc\nd", "e\nf\n", "g\n\nh"])),
    max_size=25,
)


def test_a_line_is_opened_by_its_name_with_the_lines_around_it(world: World) -> None:
    job_id = running_job(world)
    first, second = Output(world, job_id), Output(world, job_id, rank=1, stream="stderr")
    for start in range(0, 100, 10):
        first.say("".join(f"a{number}\n" for number in range(start, start + 10)))
        second.say("".join(f"b{number}\n" for number in range(start, start + 10)))
    found = page(world, job_id, around="1.0.stdout.45", limit=20)
    assert texts(found) == [
        *(f"b{number}" for number in range(35, 40)),
        *(f"a{number}" for number in range(40, 50)),
        *(f"b{number}" for number in range(40, 45)),
    ]
    assert found["has_more"]
    assert texts(page(world, job_id, cursor=found["cursor"], limit=2)) == ["b45", "b46"]
    mine = page(world, job_id, around="1.0.stdout.45", rank=0, limit=6)
    assert texts(mine) == [f"a{number}" for number in range(42, 48)]
    others = page(world, job_id, around="1.0.stdout.45", rank=1, limit=6)
    assert texts(others) == [f"b{number}" for number in range(37, 43)]
    assert texts(page(world, job_id, around="1.1.stderr.99", limit=4)) == ["b97", "b98", "b99"]
    for wrong, status in (("1.0.stdout.100", 404), ("2.0.stdout.1", 404), ("line 7", 422)):
        answer = world.ann.get(f"/v1/jobs/{job_id}/logs", params={"around": wrong})
        assert answer.status_code == status
        assert answer.json()["param"] == "around"


def test_lines_have_the_moment_of_their_arrival_and_are_downloaded_as_text(world: World) -> None:
    job_id = running_job(world)
    before = utc_now()
    Output(world, job_id).say("one\ntwo\nhalf")
    Output(world, job_id, rank=-1, stream="stderr").say("launched\n")
    for line in page(world, job_id)["lines"]:
        assert before <= datetime.fromisoformat(line["at"]) <= utc_now()
    answer = world.ann.get(f"/v1/jobs/{job_id}/logs/text")
    assert answer.headers["content-disposition"] == f'attachment; filename="{job_id}.log"'
    lines = answer.text.splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "attempt 1 rank 0 stdout: one",
        "attempt 1 rank 0 stdout: two",
        "attempt 1 launcher stderr: launched",
    ]
    assert all(datetime.fromisoformat(line.partition(" ")[0]) >= before for line in lines)
    only = world.ann.get(f"/v1/jobs/{job_id}/logs/text", params={"rank": -1})
    assert len(only.text.splitlines()) == 1
    assert world.bob.get(f"/v1/jobs/{job_id}/logs/text").status_code == 404


def test_a_reader_who_follows_gets_each_line_once(world: World) -> None:
    job_id = running_job(world)
    with world.database.read() as session:
        attempt_id = session.scalars(select(Attempt.id)).one()
    check_followers(world.database, job_id, attempt_id)


def check_followers(database: Database, job_id: str, attempt_id: str) -> None:
    class Undo(Exception):
        pass

    @settings(max_examples=40)
    @given(PIECES)
    def follow(pieces: list[tuple[int, str]]) -> None:
        said = {0: "", 1: "", 2: ""}
        try:
            with database.write() as session:
                cursor, seen = LogCursor(), []
                places = [cursor]
                for rank, text in pieces:
                    first_byte = len(said[rank])
                    said[rank] += text
                    log_store.append(
                        session,
                        [Piece(attempt_id, rank, "stdout", first_byte, text)],
                        now=utc_now(),
                    )
                    got = log_store.read(session, job_id, cursor, wanted=LogFilter(), limit=1000)
                    seen += got.lines
                    cursor = got.cursor
                    places.append(cursor)
                for rank, text in said.items():
                    mine = [line for line in seen if line.rank == rank]
                    whole = text.split("\n")[:-1]
                    assert [line.text for line in mine] == whole
                    assert [line.line for line in mine] == list(range(len(whole)))
                # From any place to any later one: the same lines, in one bounded read.
                for place in places:
                    bounded = log_store.read(
                        session, job_id, place, wanted=LogFilter(), limit=1000, until=cursor
                    )
                    rest = log_store.read(session, job_id, place, wanted=LogFilter(), limit=1000)
                    assert bounded.lines == rest.lines
                    assert str(bounded.cursor) == str(cursor)
                raise Undo
        except Undo:
            pass

    follow()
