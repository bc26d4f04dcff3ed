"""The real trainer under both launchers: torch, gloo, checkpoints, resume."""

import io
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from core.spec.spec import Launcher
from core.states import Outcome
from core.wire.messages import StopOrder
from strategies.plan.planner import plan
from strategies.plan.spec import TrainSpec
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import HARDWARE, Node, make_order

pytestmark = pytest.mark.gloo


@pytest.fixture(scope="module")
def api() -> Iterator[FakeApi]:
    api = FakeApi()
    yield api
    api.close()


@pytest.fixture(scope="module")
def node(api: FakeApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that trains for all tests: its warm process imports torch once."""
    node = Node(tmp_path_factory.mktemp("training") / "node", api)
    node.start(trainer="strategies.train.main")
    yield node
    node.close()


def test_warm_and_torchrun_train_the_same_curve(api: FakeApi, node: Node) -> None:
    curves = []
    for job, launcher in (("job_warm", Launcher.WARM), ("job_torchrun", Launcher.TORCHRUN)):
        key = api.order(make_order(job, steps=20, launcher=launcher))
        record = api.wait_for_exit(key, within_s=150)
        assert record.outcome is Outcome.SUCCEEDED, (record, node.log.read_text())
        assert [rank.code for rank in record.ranks] == [0, 0]
        api.wait_for(lambda key=key: (o := api.observed(key)) is not None and o.kept)  # type: ignore[misc]
        curves.append([line["loss"] for line in api.lines[key] if "loss" in line])
        paths = {file.path for file in api.artifacts[key]}
        assert paths >= {"sample.txt", "model.safetensors"}
        observed = api.observed(key)
        assert observed is not None
        assert observed.launcher is launcher
        del api.orders[key]
    assert len(curves[0]) == 20
    assert curves[0][0] == pytest.approx(math.log(256), rel=0.1)
    assert curves[0] == pytest.approx(curves[1], rel=1e-6)


def test_a_stopped_training_goes_on_from_the_store(api: FakeApi, node: Node) -> None:
    key = api.order(make_order("job_stopped", steps=5000))
    api.wait_for_step(key, 5, within_s=120)
    stop = StopOrder(reason=Outcome.PREEMPTED, grace_s=60)
    api.order(make_order("job_stopped", steps=5000, stop=stop))
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.PREEMPTED, record
    assert record.result is not None
    step = record.result.step
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    files = api.checkpoints[key, step]
    assert ".metadata" in {file.path for file in files}
    api.conclude(key)
    api.wait_for(lambda: api.observed(key) is None)  # wiped: only the store has it now
    resume = {"step": step, "files": files}
    again = api.order(make_order("job_stopped", epoch=2, steps=step + 5, resume=resume))
    record = api.wait_for_exit(again, within_s=120)
    assert record.outcome is Outcome.SUCCEEDED, record
    assert api.steps(again) == list(range(step + 1, step + 6))
    del api.orders[again]


def test_a_dataset_that_is_too_small_is_bad_data_with_the_numbers(api: FakeApi, node: Node) -> None:
    key = api.order(make_order("job_small", dataset=api.add_file("dataset.txt", b"too small")))
    record = api.wait_for_exit(key, within_s=120)
    assert record.outcome is Outcome.BAD_DATA, record
    assert "9 bytes" in record.reason
    del api.orders[key]


def order_on_images(data: dict[str, Any], **fields: Any) -> Any:
    spec = TrainSpec.model_validate(
        {
            "model": {"name": "cnn", "layers": 2, "width": 8},
            "data": data,
            "training": {"steps": 10, "global_batch_size": 8, "learning_rate": 3e-3},
            "parallelism": {"strategy": "ddp"},
            "verify": {"steps": 5},
        }
    )
    planned = plan(spec, nodes=1, ranks_per_node=2, hardware=HARDWARE)
    assert planned.runnable, planned.problems
    order = make_order(**fields)
    return order.model_copy(update={"spec": spec, "plan": planned, "dataset_format": "npz"})


@pytest.mark.parametrize("dataset", ["mine", pytest.param("digits", marks=pytest.mark.slow)])
def test_images_are_fetched_or_made_and_trained_on(api: FakeApi, node: Node, dataset: str) -> None:
    """An uploaded file, and the built-in digits; both on the curve of one rank."""
    if dataset == "digits":
        order = order_on_images({"dataset": dataset}, job="job_digits")
    else:
        pixels = np.arange(80 * 6 * 5).astype(np.uint8).reshape(80, 6, 5)
        content = io.BytesIO()
        np.savez(content, images=pixels, labels=np.arange(80) % 4)
        file = api.add_file("dataset", content.getvalue())
        known = {"dataset": dataset, "image_shape": [6, 5], "classes": 4, "held_out": 0.1}
        order = order_on_images(known, job="job_uploaded", dataset=file)
    key = api.order(order)
    record = api.wait_for_exit(key, within_s=150)
    assert record.outcome is Outcome.SUCCEEDED, (record, node.log.read_text())
    assert record.result is not None
    assert record.result.eval_accuracy is not None
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    observed = api.observed(key)
    assert observed is not None
    assert observed.certificate is not None
    assert observed.certificate.verdict == "pass"
    assert {file.path for file in api.artifacts[key]} >= {"model.safetensors"}
    del api.orders[key]
