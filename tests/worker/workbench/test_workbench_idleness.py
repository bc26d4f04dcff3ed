"""Idleness of a workbench: what shows that it is used, and what its porter says."""

import time
from pathlib import Path

import pytest

from core.wire.frames import FrameKind, idle_in, pack
from tests.worker.workbench.test_porter import Gate
from worker.workbench.idleness import IDLE_AFTER, SignsOfUse, shows_use

BEFORE = SignsOfUse(at=100.0, processor_s=7.0, kernels={"k": "10:00:01"}, has_busy_kernel=False)


@pytest.mark.parametrize(
    ("now", "is_use"),
    [
        (BEFORE._replace(at=105.0), False),
        (BEFORE._replace(at=105.0, processor_s=7.2), False),  # JupyterLab by itself
        (BEFORE._replace(at=105.0, processor_s=7.6), True),
        (BEFORE._replace(at=105.0, processor_s=2.0), False),  # a program has ended
        (BEFORE._replace(at=105.0, has_busy_kernel=True), True),
        (BEFORE._replace(at=105.0, kernels={"k": "10:00:04"}), True),  # a short cell
        (BEFORE._replace(at=105.0, kernels={"k": "10:00:01", "new": "10:00:01"}), True),
        (BEFORE._replace(at=105.0, kernels={}), False),
    ],
)
def test_what_shows_use(now: SignsOfUse, is_use: bool) -> None:
    assert shows_use(BEFORE, now) is is_use


@pytest.mark.slow
def test_a_porter_says_when_nobody_types_and_at_the_next_key(tmp_path: Path) -> None:
    gate = Gate(tmp_path, **{IDLE_AFTER: "2"})
    try:
        gate.open(1)
        gate.type(1, "echo he''re\n")
        gate.wait_for(1, "here")
        typed_at = time.monotonic()
        report = idle_in(gate.hear(0).content)
        assert (report.is_idle, report.after_s) == (True, 2)
        assert time.monotonic() - typed_at > 1.5
        gate.say(pack(FrameKind.HELLO, 99))  # another API process has the tunnel now
        assert gate.hear(99).kind is FrameKind.HELLO
        assert idle_in(gate.hear(0).content).is_idle
        gate.say(pack(FrameKind.STIRRED, 0))  # a key in JupyterLab
        assert not idle_in(gate.hear(0).content).is_idle
        assert idle_in(gate.hear(0).content).is_idle
        gate.open(2)
        gate.type(2, "x")
        assert not idle_in(gate.hear(0).content).is_idle
    finally:
        gate.close()


def test_a_program_that_computes_is_use_without_a_key(tmp_path: Path) -> None:
    gate = Gate(tmp_path, **{IDLE_AFTER: "1"})
    try:
        gate.open(1)
        gate.type(1, "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo do''ne\n")
        gate.wait_for(1, "i=0")
        began_at = time.monotonic()
        gate.link.settimeout(60)
        kinds = []
        while not kinds or kinds[-1] is not FrameKind.IDLE:
            kinds.append(gate.hear_any().kind)
        assert FrameKind.DATA in kinds, "it was idle while a program computed"
        assert time.monotonic() - began_at > 1
    finally:
        gate.close()
