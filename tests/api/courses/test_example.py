"""The shipped courses: they apply as they are, and their agendas fit their blocks: those of
`large-models` on two CPU slots, those of `large-models-gpus` on the GPUs that they name."""

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from core.base.clock import utc_now
from core.courses.course import read_bundle
from core.spec.template import TemplateKind
from tests.api.conftest import World, client, enrol
from tests.api.courses.bundle import sdk
from tests.api.shapes import INVENTORY, heartbeat
from trainyard.resources.courses import read_folder

EXAMPLES = Path(__file__).parents[3] / "examples" / "courses"

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_the_small_course_applies_and_its_agendas_fit(world: World) -> None:
    name, folder = "large-models", EXAMPLES / "large-models"
    bundle = read_bundle(read_folder(folder).texts, date(2027, 1, 25))
    agendas = {one.name for one, _ in bundle.templates if one.kind is TemplateKind.AGENDA}
    with sdk(world, "ada") as ada:
        plan = ada.courses.apply(folder, utc_now().date() - timedelta(days=1))
        assert plan.applied
        assert not any("Please check" in step.what for step in plan.steps), plan.steps
        node_class = next(iter(ada.nodes.list())).node_class
        for exercise in ada.courses.get(name).exercises:
            template = ada.templates.get(exercise.template)
            spec = ada.templates.fill(exercise.template, {}).spec
            if template.name in agendas:
                block = ada.agendas.plan(spec, hours=exercise.hours, node_class=node_class)
                assert block.fits, block.summary
            else:
                assert ada.jobs.plan(spec).chosen is not None


NODES = {
    "307G3Q3": 4,
    "JOBG3Q3": 4,
    "P3-GPU-009": 4,
    "P3-GPU-012": 4,
    "gigaio-compute-02": 1,
    "gigaio-compute-03": 1,
    "gigaio-compute-07": 1,
}
MODEL = {True: "Tesla V100-SXM2-32GB", False: "NVIDIA A100-SXM4-80GB"}
GIB = {True: 31.7, False: 79.3}


def test_the_gpu_course_fits_its_blocks_and_only_the_run_that_should_not_fit_does_not(
    world: World,
) -> None:
    for name, count in NODES.items():
        old = name.startswith("P3")
        gpus = [
            {"index": at, "name": MODEL[old], "memory_gib": GIB[old], "uuid": f"GPU-{name}-{at}"}
            for at in range(count)
        ]
        inventory = {"hostname": name, "gpus": gpus, "slots": count, "memory_gib": 512.0}
        token = enrol(world.app, world.database, name, **inventory)
        beat = client(world.app, token).post(
            "/v1/node/heartbeat", json=heartbeat(inventory={**INVENTORY, **inventory})
        )
        assert beat.status_code == 200, beat.text
    with sdk(world, "ada") as ada:
        plan = ada.courses.apply(EXAMPLES / "large-models-gpus", utc_now().date())
        assert plan.applied
        assert not any("Please check" in step.what for step in plan.steps), plan.steps
        classes = {one.name: one.node_class for one in ada.nodes.list()}
        places = {"three-hours": "307G3Q3", "one-gpu": "gigaio-compute-02", "four-gpus": "JOBG3Q3"}
        for exercise in ada.courses.get("large-models-gpus").exercises:
            spec = ada.templates.fill(exercise.template, {}).spec
            node_class = classes[places[exercise.name]]
            block = ada.agendas.plan(spec, hours=exercise.hours, node_class=node_class)
            assert block.fits, block.summary
            for job in jobs_of(spec):
                answer = ada.jobs.plan(job)
                mine = next(one for one in answer.plans if one.node_class == node_class)
                fits = job["name"] != "out of memory"
                assert mine.plan.fits == fits, (job["name"], mine.plan.needed_gib)
                expected = ("does_not_fit",) if not fits else ()
                assert tuple(one.code for one in mine.plan.problems) == expected, job["name"]


def jobs_of(agenda: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The jobs of an agenda, each with what is common to all laid under it."""

    def laid(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
        both = {
            name: laid(under[name], part)
            for name, part in over.items()
            if isinstance(part, dict) and isinstance(under.get(name), dict)
        }
        return {**under, **over, **both}

    return (laid(agenda["common"], job) for job in agenda["jobs"])
