"""Orders that run a script of a user's own."""

import io
import zipfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from core.spec.script import Script, plan_script
from core.spec.spec import Launcher
from core.states import Outcome
from core.wire.messages import Deadlines, Order
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import HARDWARE, HOUR
from worker.scripts.sandbox import find_level


def packed(files: Mapping[str, str]) -> bytes:
    """A zip archive of texts by path."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return content.getvalue()


def script_order(
    api: FakeApi,
    source: str | Mapping[str, str],
    job: str = "job_script",
    epoch: int = 1,
    *,
    ranks: int = 1,
    stop_in_s: float = HOUR,
    kill_after_s: float = 30.0,
    **other: Any,
) -> Order:
    """An order for `source`: the text of train.py, or the files of an archive with one.

    Skips the test on a machine that can't shut a script in.
    """
    if why_no_sandbox():
        pytest.skip(f"no sandbox can be built here: {why_no_sandbox()}")
    files = {"train.py": source} if isinstance(source, str) else source
    code = api.add_file("code.zip", packed(files))
    taken = {name: other.pop(name) for name in list(other) if name in Script.model_fields}
    script = Script.model_validate(
        {"entry": "train.py", "launcher": "python", "code": code.sha256, **taken}
    )
    return Order(
        job_id=job,
        epoch=epoch,
        spec=script,
        plan=plan_script(script, nodes=1, ranks_per_node=ranks, hardware=HARDWARE),
        launcher=Launcher(script.launcher),
        code=code,
        deadlines=Deadlines(
            checkpoint_in_s=HOUR,
            stop_in_s=stop_in_s,
            stop_reason=Outcome.LEASE_ENDED,
            kill_in_s=stop_in_s + kill_after_s,
        ),
        **{"dataset": None, "resume": None, **other},
    )


@cache
def why_no_sandbox() -> str:
    """Why a worker of this machine would refuse scripts; empty where it would not."""
    found = find_level()
    return "" if found.level else found.reason


def output_of(api: FakeApi, job: str = "job_script", epoch: int = 1) -> str:
    """What the first rank has printed, as the API was told."""
    return "".join(
        api.logs.get(((job, epoch), 0, stream), "")  # type: ignore[call-overload]
        for stream in ("stdout", "stderr")
    )
