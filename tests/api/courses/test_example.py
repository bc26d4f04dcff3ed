"""The shipped course: it applies as it is, and its agendas fit their blocks on two slots."""

from datetime import date, timedelta
from pathlib import Path

import pytest

from core.base.clock import utc_now
from core.courses.course import read_bundle
from core.templates.template import TemplateKind
from tests.api.conftest import World
from tests.api.courses.bundle import sdk
from trainyard.resources.courses import read_folder

EXAMPLES = Path(__file__).parents[3] / "examples" / "courses"

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_a_shipped_course_applies_and_its_agendas_fit(world: World, name: str) -> None:
    folder = EXAMPLES / name
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
