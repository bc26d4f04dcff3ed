"""A script of a user's own on a node: it runs unchanged, and what it leaves is kept."""

from core.states import Outcome
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node
from tests.worker.scripts import output_of, script_order

HELLO = """
import os, sys, pathlib
from trainyard.run import log
print("hello", sys.argv[1:], os.environ["MOOD"], os.getcwd())
for step in range(1, 6):
    log(step=step, loss=1 / step)
pathlib.Path(os.environ["TRAINYARD_OUTPUT"], "model.txt").write_text("weights")
"""


def test_a_script_runs_unchanged_and_what_it_leaves_is_kept(api: FakeApi, node: Node) -> None:
    node.start()
    key = api.order(
        script_order(api, HELLO, arguments=["--lr", "1e-3"], environment={"MOOD": "fine"})
    )
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SUCCEEDED, (
        record,
        output_of(api),
        node.log.read_text()[-3000:],
    )
    assert record.reason == "The script ended well, after 5 steps."
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    assert "hello ['--lr', '1e-3'] fine /job/code" in output_of(api)
    assert [line["loss"] for line in api.lines[key]] == [1 / step for step in range(1, 6)]
    [artifact] = api.artifacts[key]
    assert api.files[artifact.sha256] == b"weights"
    assert {file.path for file in api.checkpoints[key, 5]} == {"model.txt", "manifest.json"}
