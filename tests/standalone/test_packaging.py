"""The two distributions: what they hold, and that no stranger's package can come in their place."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PLATFORM = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
OURS = (PLATFORM["name"], CLIENT["name"], "trainyard")
INSTALLS = re.compile(r"pip install ((?:[^`\n#;&|]|\\\n)*)")
SPOKEN = ("*.md", "*.py", "*.html", "*.yml", "*.toml", "Makefile", "Dockerfile")


def test_the_platform_asks_for_a_client_that_no_index_can_hold() -> None:
    [wanted] = [one for one in map(Requirement, PLATFORM["dependencies"]) if one.name in OURS]
    assert wanted.name == CLIENT["name"]
    assert str(wanted.specifier) == f"=={CLIENT['version']}"
    assert Version(CLIENT["version"]).local  # package indexes refuse such versions


def test_nothing_tells_people_to_install_us_from_an_index() -> None:
    told = subprocess.run(
        ["git", "ls-files", "--", *SPOKEN], cwd=ROOT, capture_output=True, text=True, check=True
    )
    asked = [
        (path, word)
        for path in told.stdout.split()
        if not path.startswith("tests/")
        for found in INSTALLS.finditer((ROOT / path).read_text("utf-8"))
        for word in re.split(r"[\s\"',]+", found[1])
        if re.split(r"[\[=<>@.]", word)[0] in OURS
    ]
    assert asked == []
    assert len(told.stdout.split()) > 500


def test_both_distributions_name_and_carry_their_licence() -> None:
    for project, folder in ((PLATFORM, ROOT), (CLIENT, ROOT / "client")):
        assert project["license"] == "Apache-2.0"
        assert project["license-files"] == ["LICENSE"]
        assert (folder / "LICENSE").read_text().split()[:2] == ["Apache", "License"]
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "client" / "LICENSE").read_bytes()


@pytest.fixture(scope="module")
def platform_wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in the platform's wheel."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; it is not installed here")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = folder.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_an_installed_copy_has_every_example_policy_agenda_and_page(
    platform_wheel: list[str],
) -> None:
    told = subprocess.run(
        ["git", "ls-files", "examples", "dashboard", "migrations"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "examples/policies/course.yaml" in platform_wheel
    assert set(told.stdout.split()) <= set(platform_wheel)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in platform_wheel)
