"""The client that the server carries: anybody may fetch it, and pip installs it as it is."""

import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

from api.contract.routes import client_wheel
from tests.api.conftest import World

ROOT = Path(__file__).parents[3]
CLIENT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]


def test_pip_installs_the_client_that_a_stranger_downloads(world: World, tmp_path: Path) -> None:
    told = world.nobody.get("/v1/client").json()
    assert told["version"] == CLIENT["version"]
    assert told["command"] == f"pip install '{told['url']}#sha256={told['sha256']}'"
    answer = world.nobody.get(f"/client/{told['filename']}")
    assert answer.status_code == 200
    assert sha256(answer.content).hexdigest() == told["sha256"]

    wheel = tmp_path / told["filename"]
    wheel.write_bytes(answer.content)
    site = tmp_path / "site"
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    where = f"{wheel.as_uri()}#sha256={told['sha256']}"
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), where]
    subprocess.run(pip, check=True, cwd=tmp_path, stderr=subprocess.DEVNULL)
    ours = {path.relative_to(ROOT / "client") for path in (ROOT / "client").rglob("*.py")}
    assert {path.relative_to(site) for path in (site / "trainyard").rglob("*.py")} == ours
    assert (site / "bin" / "trainyard").exists()


def test_another_version_is_not_here(world: World) -> None:
    answer = world.nobody.get("/client/trainyard_client-0.0.1-py3-none-any.whl")
    assert answer.status_code == 404
    assert client_wheel().filename in answer.json()["detail"]
