"""`trainyard plan --offline`: the planner without a server, as the command line runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from standalone.offline import plan_offline
from strategies.plan.known_models import KNOWN
from trainyard.cli.app import app
from trainyard.cli.jobs import planning

EXAMPLES = Path(__file__).parents[2] / "examples"


class Offered:
    """An entry point."""

    def load(self) -> object:
        return plan_offline


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setattr(planning, "entry_points", lambda group: [Offered()])
    return CliRunner()


def planned(run: CliRunner, example: str, *options: str) -> Result:
    return run.invoke(app, ["plan", str(EXAMPLES / example), "--offline", *options])


def test_a_job_is_planned_for_hardware_that_nobody_has(run: CliRunner) -> None:
    shown = planned(run, "gpt-ddp.yaml", "--node-class", "h100-80gb", "--gpus-per-node", "4")
    assert shown.exit_code == 0, shown.output
    for part in (
        "h100-80gb, 1 node ready (chosen)",
        "auto chose 4 ranks per node: one for each of the 4 GPUs of class h100-80gb",
        "8 samples a step over 4 replicas = 2 each; in 1 micro-batch = 2 in each",
        "1,313,600",
        "NVIDIA H100 data sheet",
        "gradients summed, once",
        "The job fits on h100-80gb",
    ):
        assert part in shown.output


def test_a_model_that_is_known_by_name_does_not_fit_and_says_what_would(
    run: CliRunner, tmp_path: Path
) -> None:
    asked = ("--node-class", "a100-80gb", "--gpus-per-node", "8", "--model", "llama-2-13b")
    on_two = tmp_path / "on-two.yaml"
    text = (EXAMPLES / "gpt-fsdp.yaml").read_text()
    on_two.write_text(text.replace("ranks_per_node: auto", "ranks_per_node: 2"))
    shown = planned(run, str(on_two), *asked)
    assert shown.exit_code == 3
    assert "13,015,864,320" in shown.output
    assert "more GPUs of the node, sharded (FSDP)" in shown.output
    answer = json.loads(planned(run, str(on_two), *asked, "--json").output)
    (only,) = answer["plans"]
    assert answer["chosen"] is None
    assert any(advice["fits"] for advice in only["plan"]["advice"])


def test_a_config_of_hugging_face_says_what_the_model_is(run: CliRunner, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    shape = KNOWN["tinyllama-1.1b"]
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": shape.layers,
                "hidden_size": shape.width,
                "num_attention_heads": shape.heads,
                "num_key_value_heads": shape.kv_heads,
                "intermediate_size": shape.ffn_width,
                "vocab_size": shape.vocabulary,
            }
        )
    )
    asked = ("--node-class", "a100-40gb", "--gpus-per-node", "2", "--model", str(config))
    shown = planned(run, "gpt-fsdp.yaml", *asked)
    assert shown.exit_code == 0, shown.output
    assert "1,100,048,384" in shown.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "--offline needs --node-class, such as a100-80gb, or cpu"),
        (("--node-class", "k80"), "node class 'k80' is not known; known are: p100-16gb"),
        (("--node-class", "cpu", "--model", "gpt5"), "model 'gpt5' is not known"),
        (("--node-class", "cpu", "--model", "missing.json"), "No such file or directory"),
    ],
)
def test_what_cannot_be_planned_says_why(
    run: CliRunner, options: tuple[str, ...], sentence: str
) -> None:
    shown = planned(run, "gpt-ddp.yaml", *options)
    assert shown.exit_code == 2
    assert sentence in shown.output


def test_a_wrong_field_is_named_with_its_line() -> None:
    text = "name: x\nmodel: {name: gpt, layers: 0, width: 64, heads: 4}\n"
    with pytest.raises(ValueError, match=r"model\.layers \(line 2\): must be at least 1, not 0"):
        plan_offline(text, node_class="cpu", gpus_per_node=1, nodes=1, model=None)


def test_a_job_that_says_nothing_of_ranks_gets_one_for_each_gpu() -> None:
    text = (EXAMPLES / "gpt-ddp.yaml").read_text()
    lines = [
        line for line in text.splitlines() if not line.startswith(("resources", "parallelism"))
    ]
    answer = plan_offline(
        "\n".join(lines), node_class="a100-80gb", gpus_per_node=4, nodes=2, model=None
    )
    made = answer["plans"][0]["plan"]
    assert (made["world_size"], made["nodes"], made["strategy"]) == (8, 2, "ddp")
