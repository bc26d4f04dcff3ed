"""`trainyard plan --offline`: the planner without a server, for hardware that is only described."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from api.jobs.plan_views import class_plan
from api.jobs.schemas import PlanView
from api.web.errors import validation_items
from core.base.errors import BadRequest
from core.base.strict_text import Json, parse_yaml
from core.spec.planning import plan_training
from core.spec.spec import JobSpec, may_start
from strategies.plan.gpus import known_node
from strategies.plan.hardware import Hardware
from strategies.plan.known_models import Shape, as_spec, from_config, known_model

GIB = 2**30
CPU = "cpu"
UNNAMED = "planned"


def plan_offline(
    text: str, *, node_class: str | None, gpus_per_node: int, nodes: int, model: str | None
) -> dict[str, Any]:
    """The answer of POST /v1/jobs/plan for a job's YAML, as JSON. ValueError says what is wrong.

    A job that does not say how many ranks it wants gets one per GPU.
    """
    hardware = described(node_class, gpus_per_node)
    try:
        body = parse_yaml(text)
        resources: Json = {"nodes": nodes, "ranks_per_node": gpus_per_node, "wall_time": "1h"}
        value: dict[str, Json] = {"name": UNNAMED, "resources": resources, **body.value}
        if model is not None:
            take_model(value, shape_of(model))
        spec = JobSpec.model_validate(value)
    except BadRequest as error:
        raise ValueError(str(error)) from error
    except ValidationError as error:
        items = validation_items(error.errors(include_url=False), lines=body.lines)
        raise ValueError("\n".join(item.message for item in items)) from error
    if spec.resources.nodes > nodes:
        raise ValueError(
            f"resources.nodes: the job requests {spec.resources.nodes} nodes, but --nodes is "
            f"{nodes}"
        )
    made = plan_training(spec, hardware)
    name = hardware.class_name
    reason = (
        f"The job fits on {name}: {made.needed_gib:.2f} of {made.capacity_gib:.2f} GiB per rank."
    )
    if made.problems:
        reason = f"The job cannot run: {made.problems[0].param}: {made.problems[0].message}."
    answer = PlanView(
        plans=[class_plan(spec, made, node_class=name, ready_nodes=nodes)],
        chosen=name if may_start(spec, made) else None,
        predicted_start=None,
        predicted_finish=None,
        lease_end=None,
        reason=reason,
    )
    return answer.model_dump(mode="json")


def described(node_class: str | None, slots: int) -> Hardware:
    """A node by the name of its class; this machine's memory for `cpu`."""
    if node_class is None:
        raise ValueError("--offline needs --node-class, such as a100-80gb, or cpu")
    if node_class == CPU:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Hardware(class_name=CPU, device="cpu", slots=slots, memory_gib=memory / GIB)
    return known_node(node_class, gpus=slots)


def shape_of(model: str) -> Shape:
    """A model by its name, or by its config.json."""
    if not model.endswith(".json"):
        return known_model(model)
    try:
        config = json.loads(Path(model).read_text())
    except OSError as error:
        raise ValueError(f"--model {model}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"--model {model} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"--model {model} is not a JSON object")
    return from_config(config)


def take_model(value: dict[str, Json], shape: Shape) -> None:
    """Put a model, its vocabulary and the type of its frozen weights in the place of the job's."""
    value["model"] = as_spec(shape).model_dump(mode="json")
    data = value.get("data")
    if isinstance(data, dict):
        vocabulary: dict[str, Json] = {
            "tokenizer": "characters",
            "vocabulary_size": shape.vocabulary,
        }
        value["data"] = {**data, **vocabulary}
    adapter = value.get("adapter")
    if isinstance(adapter, dict):
        value["adapter"] = {"frozen_dtype": shape.dtype, **adapter}
