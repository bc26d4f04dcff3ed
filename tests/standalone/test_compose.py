"""The compose file names settings that exist, so that a renamed one can't be forgotten there."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from core.settings import ApiSettings, SchedulerSettings, WorkerSettings
from worker.main import ENROL_TOKEN

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
PLATFORM = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SETTINGS = {"api": ApiSettings, "scheduler": SchedulerSettings, "worker": WorkerSettings}


def test_every_variable_in_the_compose_file_is_a_setting_of_its_process() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, settings in SETTINGS.items():
        known = {f"TRAINYARD_{field.upper()}" for field in settings.model_fields}
        if name == "worker":
            known.add(ENROL_TOKEN)  # taken from the environment, so that no child inherits it
        used = {name for name in services[name]["environment"] if not name.startswith("OTEL_")}
        assert used
        assert used <= known


def test_every_setting_without_a_default_is_in_the_compose_file() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, settings in SETTINGS.items():
        for field, declared in settings.model_fields.items():
            if declared.is_required():
                assert f"TRAINYARD_{field.upper()}" in services[name]["environment"]


def test_what_the_compose_file_refers_to_is_in_it() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    services, used = compose["services"], set()
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        used |= {volume.partition(":")[0] for volume in service.get("volumes", ())}
    assert used == compose["volumes"].keys()
    made = re.search(r"install -d -o trainyard -m 700 (.*)", (ROOT / "Dockerfile").read_text())
    assert made is not None
    for name in ("api", "scheduler", "worker"):
        folders = {volume.partition(":")[2] for volume in services[name].get("volumes", ())}
        assert folders <= set(made[1].split())  # else they would belong to root
        assert services[name]["command"] in PLATFORM["entry-points"]["trainyard.commands"]


def test_the_image_holds_every_package_and_its_extras_exist() -> None:
    copied = {
        source
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    }
    assert all((ROOT / source).exists() for source in copied)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert copied >= {*wheel["targets"]["wheel"]["packages"], "client", PLATFORM["readme"]}
    named = re.findall(
        r"EXTRAS=\"?\[([a-z,]+)\]", (ROOT / "Dockerfile").read_text() + COMPOSE.read_text()
    )
    assert len(named) == 2
    assert {extra for names in named for extra in names.split(",")} <= PLATFORM[
        "optional-dependencies"
    ].keys()


@pytest.mark.parametrize("document", ["README.md", "docs/operate.md", "docs/security.md"])
def test_every_variable_in_the_documents_is_a_setting(document: str) -> None:
    known = {f"TRAINYARD_{f.upper()}" for s in SETTINGS.values() for f in s.model_fields}
    named = set(re.findall(r"TRAINYARD_[A-Z_]+[A-Z]", (ROOT / document).read_text()))
    assert named
    assert named <= known | {ENROL_TOKEN}


def test_docker_takes_the_file(tmp_path: Path) -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker here")
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("docker has no compose here")
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "POSTGRES_PASSWORD": "a",
        "REDIS_PASSWORD": "b",
        "TRAINYARD_PUBLIC_URL": "https://trainyard.example.org",
    }
    done = subprocess.run(
        ["docker", "compose", "-f", str(COMPOSE), "--profile", "worker", "config", "--quiet"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
