"""A log without end costs the disk and the API a bounded part, and says what it leaves out."""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from strategies.plan.durable_files import json_bytes
from tests.worker.fake_api import TOKEN, FakeApi
from tests.worker.nodes import make_order
from worker.node.api_client import ApiClient
from worker.node.attempts import Attempt, Key, NodeFolder, StartFile
from worker.ranks.log_cap import Gap, LogCap, gap_of, note_of
from worker.shipping.spool import Spool

CAP = 64 << 10
KEY = Key("job_a", 1)


def lines(first: int, last: int) -> bytes:
    """Lines of 16 bytes each, numbered."""
    return b"".join(b"line %10d\n" % number for number in range(first, last))


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank-0" / "stdout.log"
    path.parent.mkdir()
    return path


def test_the_middle_of_a_log_goes_back_to_the_disk_while_it_grows(
    tmp_path: Path, log: Path
) -> None:
    told: list[str] = []
    cap = LogCap(tmp_path, CAP, told.append)
    written = 0
    with log.open("ab", buffering=0) as file:
        for _ in range(100):
            file.write(lines(written, written + 1000))
            written += 1000
            cap.trim()
            assert on_disk(log) <= 2 * CAP + 2 * 4096  # whole blocks at both edges
    assert log.stat().st_size == written * 16
    content = log.read_bytes()
    assert content[: CAP // 2] == lines(0, CAP // 32)
    assert content[-CAP // 2 :] == lines(written - CAP // 32, written)
    assert len(told) == 1
    assert told[0].startswith("rank-0/stdout.log is longer than 64.0 KiB")


def test_a_log_that_is_short_enough_is_left_alone(tmp_path: Path, log: Path) -> None:
    log.write_bytes(lines(0, CAP // 16))
    LogCap(tmp_path, CAP, pytest.fail).trim()
    assert log.read_bytes() == lines(0, CAP // 16)
    assert gap_of(log, CAP, is_final=True) is None
    assert gap_of(log.with_name("none.log"), CAP, is_final=True) is None


def test_what_is_left_out_begins_and_ends_between_two_lines(log: Path) -> None:
    log.write_bytes(b"x" + lines(0, CAP))
    known = gap_of(log, CAP, is_final=False)
    assert known == Gap(CAP // 2 - 15, None)  # its end is known when the log has ended
    gap = gap_of(log, CAP, is_final=True)
    assert gap is not None
    assert gap.start == CAP // 2 - 15
    assert gap.end is not None
    content = log.read_bytes()
    assert content[: gap.start].endswith(b"\n")
    assert content[gap.end :].startswith(b"line ")
    assert len(content) - gap.end <= CAP // 2
    log.write_bytes(b"x" * 4 * CAP)  # no line anywhere
    assert gap_of(log, CAP, is_final=True) == Gap(CAP // 2, 4 * CAP - CAP // 2)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    folder = NodeFolder(tmp_path / "node")
    folder.create()
    attempt = folder.begin(make_order())
    start = StartFile(
        job_id=KEY.job_id,
        epoch=KEY.epoch,
        node="n1",
        trainer="fake_trainer",
        launcher="warm",
        ranks=1,
        threads=1,
        log_bytes=CAP,
    )
    attempt.start_file.write_bytes(json_bytes(start))
    attempt.rank_logs(0).mkdir(parents=True)
    return attempt


@pytest.fixture
def spool(api: FakeApi, attempt: Attempt) -> Iterator[Spool]:
    client = ApiClient(api.url, TOKEN)
    folder = NodeFolder(attempt.path.parents[1])
    yield Spool(folder, client, threading.Event(), threading.Event(), shipped=lambda: None)
    client.close()


def test_the_api_gets_the_beginning_live_and_the_end_with_the_exit(
    api: FakeApi, attempt: Attempt, spool: Spool
) -> None:
    log = attempt.rank_logs(0) / "stdout.log"
    log.write_bytes(lines(0, 20_000))
    LogCap(attempt.launcher_logs.parent, CAP, lambda _: None).trim()
    spool.ship_all()
    name = (KEY, 0, "stdout")
    assert api.logs[name].encode() == lines(0, CAP // 32)
    with log.open("ab") as file:
        file.write(lines(20_000, 30_000))
    attempt.exit.write_text("{}")
    spool.ship_all()
    whole = api.logs[name]
    left_out = re.search(r"\n\[([\d,]+) bytes are left out here", whole)
    assert left_out is not None
    number = int(left_out[1].replace(",", ""))
    head, tail = whole.split(note_of(number, CAP))
    assert head.encode() == lines(0, CAP // 32)
    assert tail.encode() == lines(30_000 - CAP // 32 + 1, 30_000)
    assert len(head) + number + len(tail) == os.stat(log).st_size == api.log_bytes[name]


def test_a_log_that_grows_longer_than_was_sent_loses_nothing_that_is_kept(
    api: FakeApi, attempt: Attempt, spool: Spool
) -> None:
    log = attempt.rank_logs(0) / "stdout.log"
    log.write_bytes(lines(0, 4000))
    spool.ship_all()
    with log.open("ab") as file:
        file.write(lines(4000, 5000))
    attempt.exit.write_text("{}")
    spool.ship_all()
    assert api.logs[KEY, 0, "stdout"].encode() == lines(0, 5000)
