"""Every line and byte once, whatever is lost, cut or damaged on the way."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running import wait_for
from tests.worker.fake_api import TOKEN, FakeApi
from tests.worker.nodes import make_order
from worker.node.api_client import ApiClient
from worker.node.attempts import Attempt, Key, NodeFolder
from worker.shipping import spool as spools
from worker.shipping.spool import (
    IDLE_EVERY_S,
    LONGEST_PAUSE_S,
    LOOK_EVERY_S,
    MAX_LOG_BYTES,
    Spool,
    read_lines,
    read_piece,
)

KEY = Key("job_a", 1)


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    folder = NodeFolder(tmp_path / "node")
    folder.create()
    return folder


@pytest.fixture
def attempt(folder: NodeFolder) -> Attempt:
    return folder.begin(make_order())


@pytest.fixture
def make_spool(api: FakeApi, folder: NodeFolder) -> Iterator[Callable[[], Spool]]:
    """Makes spools that know nothing but the folder."""
    clients: list[ApiClient] = []

    def make() -> Spool:
        clients.append(ApiClient(api.url, TOKEN))
        return Spool(
            folder, clients[-1], threading.Event(), threading.Event(), shipped=lambda: None
        )

    yield make
    for client in clients:
        client.close()


def write(path: Path, *lines: Any) -> None:
    with path.open("a") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


def test_a_line_without_its_end_waits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    first = list(read_lines(path, 0))
    assert [batch.lines for batch in first] == [[{"step": 1}]]
    with path.open("ab") as file:
        file.write(b'ss": 2.0}\n')
    rest = list(read_lines(path, first[-1].end))
    assert [batch.lines for batch in rest] == [[{"step": 2, "loss": 2.0}]]


def test_garbage_has_no_number_and_batches_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'no\n[1]\n{"step": 1}\n{"loss": 1}\n{"step": 2, "x": {}}\n\xff\n{"step": 3}\n'
    )
    assert [batch.lines for batch in read_lines(path, 0)] == [[{"step": 1}, {"step": 3}]]
    assert [batch.lines for batch in read_lines(path, 0, max_lines=1)][:2] == [
        [{"step": 1}],
        [{"step": 3}],
    ]


def test_half_a_character_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes("schön".encode()[:-2])
    assert read_piece(path, 0, last=False) == (3, "sch")
    assert read_piece(path, 0, last=True) == (4, "sch\N{REPLACEMENT CHARACTER}")
    path.write_bytes(b"a\0b\xff")
    assert read_piece(path, 0, last=False) == (4, "a\ufffdb\ufffd")
    path.write_bytes(b"x" * (MAX_LOG_BYTES + 5))
    assert read_piece(path, 0, last=False) == (MAX_LOG_BYTES, "x" * MAX_LOG_BYTES)
    assert read_piece(path, MAX_LOG_BYTES + 5, last=True) is None


def test_lines_arrive_once_though_answers_are_lost_and_the_spool_forgets(
    api: FakeApi, make_spool: Callable[[], Spool], attempt: Attempt
) -> None:
    write(attempt.metrics, *({"step": step, "loss": 1.0} for step in range(1, 6)))
    make_spool().ship_all()
    write(attempt.metrics, *({"step": step, "loss": 1.0} for step in range(6, 9)))
    forgetful = make_spool()  # no shipped.json was written: it begins at line 0
    forgetful.ship_all()
    assert api.steps(KEY) == [1, 2, 3, 4, 5, 6, 7, 8]
    forgetful.ship_all()
    assert api.steps(KEY) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_api_that_answers_slowly_is_asked_less_often(
    api: FakeApi,
    make_spool: Callable[[], Spool],
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spool, api.answers_after_s = make_spool(), 0.2
    write(attempt.metrics, {"step": 1, "loss": 1.0})
    (attempt.path / "logs" / "rank-0").mkdir(parents=True)
    (attempt.path / "logs" / "rank-0" / "stdout.log").write_text("step 1\n")
    assert 2.0 <= spool.ship_all() <= LONGEST_PAUSE_S  # ten answers, though two were waited for
    assert spool.ship_all() == LOOK_EVERY_S  # nothing was asked
    monkeypatch.setattr(spools, "ANSWERS", 1000.0)
    write(attempt.metrics, {"step": 2, "loss": 1.0})
    assert spool.ship_all() == LONGEST_PAUSE_S


def test_an_attempt_that_nobody_watches_rests_until_somebody_does_or_it_ends(
    api: FakeApi, make_spool: Callable[[], Spool], attempt: Attempt
) -> None:
    spool, api.ship_after = make_spool(), "60"
    write(attempt.metrics, {"step": 1, "loss": 1.0})
    spool.ship_all()
    write(attempt.metrics, {"step": 2, "loss": 1.0})
    assert spool.ship_all() == IDLE_EVERY_S
    assert api.steps(KEY) == [1]
    [backlog] = spool.backlogs.values()
    backlog.hurry()
    spool.ship_all()
    write(attempt.metrics, {"step": 3, "loss": 1.0})
    spool.ship_all()  # the API may not have heard of the viewer when it answered
    assert api.steps(KEY) == [1, 2, 3]
    backlog.hurries_until = 0.0
    write(attempt.metrics, {"step": 4, "loss": 1.0})
    spool.ship_all()
    assert api.steps(KEY) == [1, 2, 3]
    attempt.exit.write_text("{}")
    spool.ship_all()
    spool.ship_all()
    assert api.steps(KEY) == [1, 2, 3, 4]
    assert backlog.shipped.complete


def test_the_first_line_does_not_wait_for_the_pause_after_the_launchers_output(
    api: FakeApi, make_spool: Callable[[], Spool], attempt: Attempt
) -> None:
    spool, api.ship_after = make_spool(), "60"
    attempt.start_file.write_text("{}")
    attempt.launcher_logs.mkdir(parents=True, exist_ok=True)
    (attempt.launcher_logs / "stdout.log").write_text("begins\n")
    spool.ship_all()
    assert api.logs
    write(attempt.metrics, {"step": 1, "loss": 1.0})
    spool.ship_all()
    assert api.steps(KEY) == [1]


def test_a_nudge_ends_the_pauses_and_the_end_of_the_worker_does(
    api: FakeApi, make_spool: Callable[[], Spool], attempt: Attempt
) -> None:
    spool, api.ship_after = make_spool(), "60"
    write(attempt.metrics, {"step": 1, "loss": 1.0})
    thread = threading.Thread(target=spool.run)
    thread.start()
    try:
        wait_for(lambda: api.steps(KEY) == [1], what="the first line")
        write(attempt.metrics, {"step": 2, "loss": 1.0})
        spool.nudge.set()
        wait_for(lambda: api.steps(KEY) == [1, 2], what="the second line")
        [backlog] = spool.backlogs.values()
        backlog.hurries_until = 0.0
        write(attempt.metrics, {"step": 3, "loss": 1.0})
    finally:
        spool.stop.set()
        spool.nudge.set()
        thread.join(10)
    assert api.steps(KEY) == [1, 2, 3]


def test_each_rank_of_the_node_tells_its_own_lines(
    api: FakeApi, make_spool: Callable[[], Spool], attempt: Attempt
) -> None:
    write(attempt.metrics, {"step": 1, "loss": 1.0})
    write(attempt.rank_metrics(3), {"step": 1, "cpu_pct": 90.0}, {"step": 7, "cpu_pct": 80.0})
    (attempt.path / "metrics-rank-x.jsonl").write_text("nobody's")
    make_spool().ship_all()
    make_spool().ship_all()  # forgetful
    assert api.steps(KEY) == [1]
    assert [line["step"] for line in api.rank_lines[3][KEY]] == [1, 7]
    assert list(api.rank_lines) == [3]


def test_an_api_that_was_restored_from_a_backup_gets_its_lines_again(
    api: FakeApi, make_spool: Callable[[], Spool], attempt: Attempt
) -> None:
    spool = make_spool()
    write(attempt.metrics, *({"step": step, "loss": 1.0} for step in range(1, 11)))
    spool.ship_all()
    del api.lines[KEY][4:]
    write(attempt.metrics, {"step": 11, "loss": 1.0})
    spool.ship_all()
    assert api.steps(KEY) == list(range(1, 12))


def test_a_disk_error_of_one_attempt_leaves_the_others_alone(
    api: FakeApi, make_spool: Callable[[], Spool], folder: NodeFolder, attempt: Attempt
) -> None:
    attempt.metrics.mkdir()  # reading it is an OSError
    other = folder.begin(make_order("job_b"))
    write(other.metrics, {"step": 1, "loss": 1.0})
    spool = make_spool()
    spool.ship_all()
    assert api.steps(Key("job_b", 1)) == [1]
    attempt.metrics.rmdir()
    write(attempt.metrics, {"step": 1, "loss": 1.0})
    spool.ship_all()
    assert api.steps(KEY) == [1]


def test_a_state_file_that_cannot_be_written_is_only_a_delay(
    api: FakeApi, make_spool: Callable[[], Spool], attempt: Attempt
) -> None:
    write(attempt.metrics, {"step": 1, "loss": 1.0})
    attempt.exit.write_text("{}")
    attempt.shipped_file.mkdir()
    spool = make_spool()
    spool.ship_all()
    spool.ship_all()
    assert api.steps(KEY) == [1]


def test_a_stale_attempt_is_not_shipped_for_ever(
    api: FakeApi, make_spool: Callable[[], Spool], attempt: Attempt
) -> None:
    api.stale.add(KEY)
    write(attempt.metrics, {"step": 1, "loss": 1.0})
    attempt.exit.write_text("{}")
    spool = make_spool()
    spool.ship_all()
    assert spool.backlogs[KEY].shipped.complete
    assert attempt.shipped_file.exists()


def test_a_diverged_loss_is_sent_as_none(
    api: FakeApi, make_spool: Callable[[], Spool], attempt: Attempt
) -> None:
    attempt.metrics.write_text('{"step": 1, "loss": NaN, "grad_norm": Infinity}\n')
    make_spool().ship_all()
    assert api.lines[KEY] == [{"step": 1, "loss": None, "grad_norm": None}]
