"""Every script of examples/scripts trains on a node, in its sandbox."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from core.spec.inputs import InputKind
from core.states import Outcome
from core.wire.messages import InputFiles, StopOrder
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node
from tests.worker.script_orders import output_of, script_order
from tests.worker.scripts.test_libraries import LLAMA

EXAMPLES = Path(__file__).parents[3] / "examples" / "scripts"
pytestmark = pytest.mark.gloo


def losses(api: FakeApi, job: str) -> list[float]:
    return [line["loss"] for (name, _), lines in api.lines.items() if name == job
            for line in lines if "loss" in line]  # fmt: skip


@pytest.mark.slow
def test_digits_on_two_ranks_take_the_curve_of_one(api: FakeApi, node: Node) -> None:
    node.start()
    source = (EXAMPLES / "digits.py").read_text()
    for ranks, launcher in ((1, "python"), (2, "torchrun")):
        job = f"job_{ranks}"
        key = api.order(
            script_order(
                api, source, job, ranks=ranks, launcher=launcher, arguments=["--steps", "20"]
            )
        )
        record = api.wait_for_exit(key, within_s=150)
        assert record.outcome is Outcome.SUCCEEDED, (record, output_of(api, job))
        api.wait_for(lambda key=key: (o := api.observed(key)) is not None and o.kept)  # type: ignore[misc]
        assert [file.path for file in api.artifacts[key]] == ["checkpoint.pt"]
        del api.orders[key]
    assert len(losses(api, "job_1")) == 20
    assert losses(api, "job_2") == pytest.approx(losses(api, "job_1"), rel=1e-6)


@pytest.mark.slow
def test_digits_stop_with_a_checkpoint_and_go_on_from_it(api: FakeApi, node: Node) -> None:
    node.start()
    source = (EXAMPLES / "digits.py").read_text()
    words = ["--steps", "1000000"]
    key = api.order(script_order(api, source, ranks=2, launcher="torchrun", arguments=words))
    api.wait_for(lambda: len(losses(api, "job_script")) > 5, within_s=150)
    stop = StopOrder(reason=Outcome.PAUSED, grace_s=60)
    api.order(script_order(api, source, ranks=2, launcher="torchrun", arguments=words, stop=stop))
    record = api.wait_for_exit(key, within_s=100)
    assert record.outcome is Outcome.PAUSED, record
    assert "which is saved" in record.reason
    assert record.result is not None
    step = record.result.step
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    resume = {"step": step, "files": api.checkpoints[key, step]}
    api.conclude(key)
    again = api.order(
        script_order(
            api,
            source,
            epoch=2,
            ranks=2,
            launcher="torchrun",
            arguments=["--steps", str(step + 5)],
            resume=resume,
        )
    )
    record = api.wait_for_exit(again, within_s=150)
    assert record.outcome is Outcome.SUCCEEDED, (record, output_of(api, epoch=2))
    assert f"goes on at step {step + 1}" in output_of(api, epoch=2)
    assert [line["step"] for line in api.lines[again] if "loss" in line] == list(
        range(step + 1, step + 6)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "launcher", "needs", "arguments"),
    [
        ("gpt.py", "torchrun", "torch", ["--steps", "15"]),
        ("fabric_digits.py", "torchrun", "lightning_fabric", ["--passes", "1"]),
        ("lightning_digits.py", "torchrun", "pytorch_lightning", ["--passes", "1"]),
        ("accelerate_digits.py", "accelerate", "accelerate", ["--passes", "1"]),
        ("ranks_mpi.py", "mpirun", "mpi4py", []),
    ],
)
def test_the_example_trains_on_two_ranks(
    api: FakeApi, node: Node, name: str, launcher: str, needs: str, arguments: list[str]
) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed here")
    node.start()
    files = {name: (EXAMPLES / name).read_text()}
    key = api.order(
        script_order(api, files, ranks=2, entry=name, launcher=launcher, arguments=arguments)
    )
    record = api.wait_for_exit(key, within_s=170)
    assert record.outcome is Outcome.SUCCEEDED, (record, output_of(api))
    if launcher == "mpirun":
        assert "1 + ... + 2 = 3" in output_of(api)
        return
    assert len(losses(api, "job_script")) >= 15
    assert losses(api, "job_script")[-1] < losses(api, "job_script")[0]


@pytest.mark.slow
def test_a_llama_and_its_rows_are_found_by_their_names(api: FakeApi, node: Node) -> None:
    node.start()
    text = "".join(f'{{"text": "row {n} of the rows"}}\n' for n in range(50))
    weight = np.zeros((256, 16), np.float32)
    weights = save({"model.embed_tokens.weight": weight}, metadata={"format": "pt"})
    named = [
        InputFiles(
            kind=InputKind.MODEL,
            name="lab/tiny-llama",
            files=[
                api.add_file("config.json", json.dumps(LLAMA).encode()),
                api.add_file("model.safetensors", weights),
            ],
        ),
        InputFiles(
            kind=InputKind.DATASET,
            name="lab/rows",
            files=[api.add_file("data.jsonl", text.encode())],
        ),
    ]
    name = "fine_tune_llama.py"
    files = {name: (EXAMPLES / name).read_text()}
    key = api.order(script_order(api, files, entry=name, arguments=["--steps", "20"], inputs=named))
    record = api.wait_for_exit(key, within_s=170)
    assert record.outcome is Outcome.SUCCEEDED, (record, output_of(api))
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    assert losses(api, "job_script")[-1] < losses(api, "job_script")[0] - 0.5
    assert {file.path for file in api.artifacts[key]} >= {"config.json", "model.safetensors"}
