"""The compose file names settings that exist, so that a renamed one can't be forgotten there."""

from pathlib import Path

import yaml

from core.settings import ApiSettings, SchedulerSettings

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
SETTINGS = {"api": ApiSettings, "scheduler": SchedulerSettings}


def test_every_variable_in_the_compose_file_is_a_setting_of_its_process() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, settings in SETTINGS.items():
        known = {f"TRAINYARD_{field.upper()}" for field in settings.model_fields}
        used = set(services[name]["environment"])
        assert used
        assert used <= known


def test_every_setting_without_a_default_is_in_the_compose_file() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, settings in SETTINGS.items():
        for field, declared in settings.model_fields.items():
            if declared.is_required():
                assert f"TRAINYARD_{field.upper()}" in services[name]["environment"]
