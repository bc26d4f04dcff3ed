"""A script of a user's own on a node: it runs unchanged, and what it leaves is kept."""

import pytest

from core.states import Outcome
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node
from tests.worker.script_orders import output_of, script_order
from worker.ranks.launch import TUNABLES, huge_pages

HELLO = """
import os, sys, pathlib
from trainyard.run import log
print("hello", sys.argv[1:], os.environ["MOOD"], os.getcwd())
print("allocates by", os.environ["GLIBC_TUNABLES"])
for step in range(1, 6):
    log(step=step, loss=1 / step)
pathlib.Path(os.environ["TRAINYARD_OUTPUT"], "model.txt").write_text("weights")
"""


def test_a_script_runs_unchanged_and_what_it_leaves_is_kept(api: FakeApi, node: Node) -> None:
    node.start(warm=False)
    key = api.order(
        script_order(api, HELLO, arguments=["--lr", "1e-3"], environment={"MOOD": "fine"})
    )
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SUCCEEDED, (
        record,
        output_of(api),
        node.log.read_text()[-3000:],
    )
    assert record.reason == "The script ended with exit code 0, after 5 steps."
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    assert "hello ['--lr', '1e-3'] fine /job/code" in output_of(api)
    assert f"allocates by {huge_pages()[TUNABLES]}" in output_of(api)
    assert [line["loss"] for line in api.lines[key]] == [1 / step for step in range(1, 6)]
    [artifact] = api.artifacts[key]
    assert api.files[artifact.sha256] == b"weights"
    assert {file.path for file in api.checkpoints[key, 5]} == {"model.txt", "manifest.json"}


# As public trainers of small models go about it: several ranks only where RANK says so, and data
# that a program of their own has prepared into a folder that .gitignore names.
TRAINER = """
import os, torch
if int(os.environ.get("RANK", -1)) != -1:
    torch.distributed.init_process_group("gloo")
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
else:
    names = {"LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    print("alone", sorted(names & set(os.environ)))
with open(os.path.join("data", "x", "train.bin"), "rb") as file:
    print("tokens", len(file.read()))
"""


@pytest.mark.slow
def test_a_trainer_that_looks_for_rank_runs_alone_under_python(api: FakeApi, node: Node) -> None:
    node.start(warm=False)
    files = {"train.py": TRAINER, "data/x/train.bin": "12345"}
    key = api.order(script_order(api, files))
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SUCCEEDED, (record, output_of(api))
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    assert output_of(api).splitlines()[:2] == ["alone []", "tokens 5"]


@pytest.mark.gloo
@pytest.mark.slow
def test_a_missing_file_is_named_with_what_left_it_out_under_both_launchers(
    api: FakeApi, node: Node
) -> None:
    """Once its ranks have met, torch marks every line of an exception with the rank."""
    node.start(warm=False)
    for launcher in ("python", "torchrun"):
        key = api.order(
            script_order(api, TRAINER, f"job_{launcher}", launcher=launcher, left_out=["data/"])
        )
        record = api.wait_for_exit(key)
        assert record.outcome is Outcome.USER_ERROR
        assert record.reason.endswith(
            "failed with exit code 1 before its first step: FileNotFoundError: [Errno 2] No such "
            "file or directory: 'data/x/train.bin'. An ignore file kept data/x/train.bin out of "
            "the archive; submit again with --include data/x."
        ), record
