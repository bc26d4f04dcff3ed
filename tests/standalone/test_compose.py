"""The compose file, read as compose reads it; and the image, from the lines that build it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from core.base.clock import utc_now
from core.database.database import Database
from core.process.settings import ApiSettings, SchedulerSettings, WorkerSettings
from core.tables.processes import Leadership
from scheduler.health import flaw
from trainyard.cli.app import app
from worker.main import ENROL_TOKEN

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PLATFORM = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Of the specification, github.com/compose-spec/compose-spec, commit 170098b (Apache-2.0).
SCHEMA = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
SETTINGS: dict[str, type[BaseSettings]] = {
    "api": ApiSettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
    "gpu-worker": WorkerSettings,
}
MANDATORY = {
    "POSTGRES_PASSWORD": "a",
    "REDIS_PASSWORD": "b",
    "TRAINYARD_PUBLIC_URL": "https://trainyard.example.org",
}
# `$$`, `${NAME}`, `${NAME:-default}` or `${NAME:?message}`; the specification, chapter 12.
VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\})")


def read_compose(given: dict[str, str]) -> dict[str, Any]:
    """The file with variables put in, anchors and merges resolved."""

    def value(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        text = given.get(found["name"], "")
        if text or found["kind"] is None:
            return text
        if found["kind"] == "?":
            raise LookupError(f"{found['name']}: {found['rest']}")
        return str(found["rest"])

    def filled(node: object) -> object:
        if isinstance(node, dict):
            return {key: filled(inner) for key, inner in node.items()}
        if isinstance(node, list):
            return [filled(inner) for inner in node]
        if isinstance(node, str):
            assert "$" not in VARIABLE.sub("", node), node
            return VARIABLE.sub(value, node)
        return node

    read = filled(yaml.safe_load(COMPOSE.read_text()))
    assert isinstance(read, dict)
    return read


def known(name: str) -> set[str]:
    """Variables that the process of this service reads."""
    names = {f"TRAINYARD_{field.upper()}" for field in SETTINGS[name].model_fields}
    return names | {ENROL_TOKEN, "OTEL_EXPORTER_OTLP_ENDPOINT"}


def env_example() -> dict[str, str]:
    """The variables of .env.example."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(
        line.split("=", 1) for line in lines if line.strip() and not line.lstrip().startswith("#")
    )


def test_it_is_a_compose_file() -> None:
    jsonschema_rs.validator_for(SCHEMA).validate(read_compose(MANDATORY))


@pytest.mark.parametrize("missing", MANDATORY)
def test_what_must_be_set_is_asked_for(missing: str) -> None:
    with pytest.raises(LookupError, match=missing):
        read_compose({**MANDATORY, missing: ""})


def test_every_variable_is_a_setting_of_its_process_and_holds_a_value_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services = read_compose({**MANDATORY, "ENROL_TOKEN": "ty_once"})["services"]
    for name, settings in SETTINGS.items():
        environment = services[name]["environment"]
        assert environment.keys() <= known(name)
        with monkeypatch.context() as process:
            for variable, text in environment.items():
                process.setenv(variable, text)
            settings()  # raises where one is missing or not a valid value


def test_one_env_file_configures_api_and_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    example = env_example()
    compose = read_compose({**example, **MANDATORY})
    interpolated = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text()))
    assert set(MANDATORY) | {"REDIS_LISTEN"} <= example.keys()
    assert example.keys() <= interpolated | known("api")
    for name in ("api", "scheduler"):
        assert compose["services"][name]["env_file"] == [{"path": ".env", "required": False}]
        with monkeypatch.context() as process:
            for variable, text in {**example, **compose["services"][name]["environment"]}.items():
                process.setenv(variable, text)
            found = SETTINGS[name]()
            assert getattr(found, "public_url", "") == MANDATORY["TRAINYARD_PUBLIC_URL"]
    for topic in ("SMTP_HOST", "OIDC_ISSUER", "KEEP_LOGS_DAYS", "USER_STORAGE_GIB"):
        assert f"TRAINYARD_{topic}" in example


def test_what_it_refers_to_is_in_it() -> None:
    compose = read_compose(MANDATORY)
    services, used = compose["services"], set()
    made = re.search(r"install -d -o trainyard -m 700 (.*)", DOCKERFILE)
    assert made is not None
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE))
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= services.keys()
        volumes = [volume.partition(":") for volume in service.get("volumes", ())]
        used |= {volume for volume, _, _ in volumes}
        if "build" in service:
            assert service["build"]["target"] in stages
            assert name in SETTINGS
            # Any other folder would belong to root.
            assert {folder for _, _, folder in volumes} <= set(made[1].split())
    assert used == compose["volumes"].keys()


def test_every_service_has_a_health_check_that_exists() -> None:
    services = read_compose(MANDATORY)["services"]
    for service in services.values():
        kind, *words = service["healthcheck"]["test"]
        assert kind in ("CMD", "CMD-SHELL")
        assert words
        if kind == "CMD-SHELL":
            assert subprocess.run(["sh", "-n", "-c", words[0]]).returncode == 0
    assert "/readyz" in services["api"]["healthcheck"]["test"][-1]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}, (name, needed)


def test_a_scheduler_is_healthy_while_somebody_leads(database: Database) -> None:
    with database.read() as session:
        assert flaw(session) == "No scheduler has led so far."
    with database.write() as session:
        session.add(Leadership(name="scheduler", holder="c1:7:ab", term=1, expires_at=utc_now()))
    with database.read() as session:
        assert flaw(session) == "No scheduler leads; the last one was c1."
    with database.write() as session:
        session.get_one(Leadership, "scheduler").expires_at += timedelta(minutes=1)
    with database.read() as session:
        assert flaw(session) is None


def test_our_own_command_line_takes_every_command() -> None:
    services = read_compose(MANDATORY)["services"]
    assert 'ENTRYPOINT ["trainyard"]' in DOCKERFILE
    for name in SETTINGS:
        words = shlex.split(services[name]["command"])
        assert words[0] in PLATFORM["entry-points"]["trainyard.commands"]
        shown = CliRunner().invoke(app, [*words, "--help"])
        assert shown.exit_code == 0, shown.output


def test_the_image_holds_every_package_and_its_extras_exist() -> None:
    copied = {
        source
        for line in DOCKERFILE.splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    }
    assert all((ROOT / source).exists() for source in copied)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert copied >= {*wheel["targets"]["wheel"]["packages"], "client", PLATFORM["readme"]}
    named = re.findall(r"\"\.\[([a-z,]+)\]\"", DOCKERFILE)
    assert len(named) == 2
    extras = {extra for names in named for extra in names.split(",")}
    assert extras <= PLATFORM["optional-dependencies"].keys()


@pytest.mark.parametrize("document", ["README.md", "docs/operate.md", "docs/security.md"])
def test_every_variable_in_the_documents_is_a_setting(document: str) -> None:
    named = set(re.findall(r"TRAINYARD_[A-Z_]+[A-Z]", (ROOT / document).read_text()))
    assert named
    assert named <= {variable for name in SETTINGS for variable in known(name)}


@pytest.mark.slow
def test_it_runs_in_containers() -> None:
    docker = ["docker", "compose", "version"]
    if shutil.which("docker") is None or subprocess.run(docker, capture_output=True).returncode:
        pytest.skip("no docker with compose here; make compose-try runs this where there is")
    if subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no container engine answers here; make compose-try runs this where one does")
    done = subprocess.run(
        ["bash", str(Path(__file__).parent / "try_compose.sh")],
        capture_output=True,
        text=True,
        timeout=1800,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stdout + done.stderr
