"""The platform's commands: there when it is installed, explained when it is not."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

MAIN = "from trainyard.cli import main; main()"
CLIENT = Path(__file__).parents[3] / "client"
PLATFORM = ("up", "demo", "login-link", "api", "scheduler", "worker")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages that holds what the client depends on, and nothing of the platform."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "trainyard").symlink_to(CLIENT / "trainyard")
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not package.name.startswith(("trainyard", "_")) and package.suffix != ".pth":
            (folder / package.name).symlink_to(package)
    return folder


def trainyard(site: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    """The command in a Python that sees `site` and nothing else that is installed."""
    return subprocess.run(
        [sys.executable, "-S", "-P", "-c", MAIN, *args],
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=site,
    )


def install(site: Path, command: str, source: str) -> None:
    """A distribution that brings `command`."""
    module = f"extension_{command}"
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[trainyard.commands]\n{command} = {module}:run\n")


@pytest.mark.parametrize(
    "command", ["up", *(pytest.param(name, marks=pytest.mark.slow) for name in PLATFORM[1:])]
)
def test_without_the_platform_it_says_how_to_get_it(site: Path, command: str) -> None:
    ran = trainyard(site, command, "--data", "/tmp/x")
    assert ran.returncode == 2
    assert f"`trainyard {command}` is part of the platform" in ran.stderr
    assert "pip install -c constraints.txt ./client ." in ran.stderr
    assert ran.stdout == ""


def test_help_lists_them_without_importing_them(site: Path) -> None:
    install(site, "up", "raise RuntimeError('imported')")
    install(site, "extra", "raise RuntimeError('imported')")
    ran = trainyard(site, "--help")
    assert ran.returncode == 0, ran.stderr
    for command in (*PLATFORM, "extra"):
        assert f"│ {command} " in ran.stdout
    assert trainyard(site, "--version").returncode == 0


def test_an_installed_command_runs_with_its_own_options(site: Path) -> None:
    install(
        site,
        "up",
        "import typer\n"
        "def run(port: int = 1) -> None:\n"
        "    '''Start it here.'''\n"
        "    typer.echo(f'port {port}')\n"
        "    raise typer.Exit(7)\n",
    )
    ran = trainyard(site, "up", "--port", "8471")
    assert (ran.returncode, ran.stdout) == (7, "port 8471\n")
    assert "Start it here." in trainyard(site, "up", "--help").stdout
    assert trainyard(site, "up", "--port", "many").returncode == 2


def test_an_installation_that_is_broken_is_said(site: Path) -> None:
    install(site, "up", "import no_such_module\n")
    ran = trainyard(site, "up")
    assert ran.returncode == 2
    assert "can't be loaded: No module named 'no_such_module'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_client_alone_imports_nothing_of_the_server(site: Path) -> None:
    probe = (
        "import sys, trainyard.cli\n"
        "ours = {'strategies', 'core', 'api', 'scheduler', 'worker', 'dashboard', 'standalone',\n"
        "        'pydantic', 'sqlalchemy', 'fastapi', 'torch', 'numpy'}\n"
        "print(sorted(ours & set(sys.modules)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-P", "-c", probe],
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=site,
    )
    assert ran.stdout == "[]\n", ran.stderr
