"""Specs of workbenches: what may be asked for, and the plan."""

import pytest
from pydantic import ValidationError

from core.spec.planning import plan_on
from core.spec.script import ScriptPlan
from core.spec.spec import ProgramJobSpec, ScriptJobSpec, WorkbenchJobSpec, read_job_spec
from strategies.plan.hardware import Hardware

NODE = Hardware(class_name="h100x8", device="cuda", slots=8, memory_gib=80)


def bench(**other: object) -> WorkbenchJobSpec:
    resources = {"wall_time": "50min", **other.pop("resources", {})}  # type: ignore[dict-item]
    kind = {"kind": "terminal"}
    spec = read_job_spec({"name": "x", "workbench": kind, "resources": resources, **other})
    assert isinstance(spec, WorkbenchJobSpec)
    return spec


def problems(spec: WorkbenchJobSpec, hardware: Hardware = NODE) -> list[str]:
    return [problem.code for problem in plan_on(spec, hardware).problems]  # type: ignore[union-attr]


def test_it_brings_the_workspace_unless_it_is_told_not_to_and_stays_so_when_stored() -> None:
    assert bench().workspace
    without = bench(workspace=False)
    assert read_job_spec(without.model_dump(mode="json")) == without
    assert isinstance(without, ProgramJobSpec)


def test_its_slots_are_planned_as_ranks_are() -> None:
    plan = plan_on(bench(resources={"ranks_per_node": 2}), NODE)
    assert isinstance(plan, ScriptPlan)
    assert (plan.ranks_per_node, plan.device, plan.problems) == (2, "cuda", [])
    assert problems(bench(resources={"ranks_per_node": 9})) == ["too_many_ranks"]
    assert problems(bench(resources={"nodes": 2})) == ["workbench_needs_one_node"]
    no_sandbox = NODE.model_copy(update={"no_sandbox": "no bwrap"})
    assert problems(bench(), no_sandbox) == ["sandbox_unavailable"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"workbench": {"kind": "game"}},
        {"workbench": {}},
        {"workbench": {"kind": "terminal", "requirements": "x" * 70_000}},
        {"script": {"entry": "a.py", "code": "0" * 64}},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        bench(**wrong)


def script(**other: object) -> ScriptJobSpec:
    resources = {"wall_time": "50min", **other.pop("resources", {})}  # type: ignore[dict-item]
    code = {"entry": "a.py", "code": "0" * 64}
    spec = read_job_spec({"name": "x", "script": code, "resources": resources, **other})
    assert isinstance(spec, ScriptJobSpec)
    return spec


def test_the_sandbox_of_a_script_may_be_held_after_its_failure() -> None:
    assert script().hold_on_failure is None
    held = script(hold_on_failure="30min")
    assert held.hold_on_failure == 1800
    assert read_job_spec(held.model_dump(mode="json")) == held
    assert "hold_on_failure" not in script().model_dump()  # an older API reads the rest


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hold_on_failure": "13h"}, "43200"),
        ({"hold_on_failure": "5s"}, "60"),
        ({"hold_on_failure": "30min", "resources": {"nodes": 3}}, "not those of 3"),
    ],
)
def test_a_hold_that_cannot_be_is_refused_with_its_field(wrong: object, said: str) -> None:
    assert isinstance(wrong, dict)
    with pytest.raises(ValidationError) as caught:
        script(**wrong)
    [error] = caught.value.errors()
    assert error["loc"] == ("hold_on_failure",)
    assert said in error["msg"]
