"""Virtual environments for scripts' requirements, built once per content on top of the node's own.

Only wheels are installed, so no code of a package runs during its installation; it runs in the
sandbox. Paths, addresses and options in a requirements file are refused for the same reason. The
node's packages are visible in the new environment, so torch is not downloaded again; a package
required in another version takes precedence over the node's. The node's torch fits its driver, so
only a program that names torch itself gets another one.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from strategies.plan.words import counted

NOT_FOUND = re.compile(r"No matching distribution found for ([^\s;]+)")
CONFLICT = re.compile(r"The conflict is caused by:\s*(.+?)(?:\n\n|\Z)", re.DOTALL)
OUR_PATH = "trainyard_node.pth"
COMPLETE = "complete"
TORCH = "torch"
# Beside PIP_*: the node's own settings decide where pip gets packages from.
PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy",
          "http_proxy", "no_proxy", "SSL_CERT_FILE")  # fmt: skip
MAX_REQUIREMENTS = 500
NO_VARIABLES: Mapping[str, str] = {}

Proxy = Callable[[], AbstractContextManager[Mapping[str, str] | None]]


class CannotBuild(Exception):
    """Failure to build the environment; the message gives the job's owner the reason."""


def requirements_of(path: Path) -> list[str]:
    """Return the packages that a requirements.txt or pyproject.toml asks for, each checked,
    sorted."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotBuild(f"{path.name} cannot be read: {error}") from error
    return requirements_in(text, path.name)


def requirements_in(text: str, name: str) -> list[str]:
    """Return the packages that the text of a file of this name asks for, each checked, sorted."""
    if name.endswith(".toml"):
        lines = _dependencies(text, name)
    else:
        joined = text.replace("\\\n", " ")
        lines = [line.split(" #")[0].strip() for line in joined.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) > MAX_REQUIREMENTS:
        raise CannotBuild(f"{name} names {len(lines)} packages; the limit is {MAX_REQUIREMENTS}")
    return sorted({str(_checked(line, name)) for line in lines})


def _dependencies(text: str, name: str) -> list[str]:
    try:
        found = tomllib.loads(text).get("project", {}).get("dependencies", [])
    except tomllib.TOMLDecodeError as error:
        raise CannotBuild(f"{name} is not valid TOML: {error}") from error
    if not isinstance(found, list) or not all(isinstance(line, str) for line in found):
        raise CannotBuild(f"{name}: project.dependencies is not a list of strings")
    return found


def _checked(line: str, name: str) -> Requirement:
    if line.startswith("-"):
        raise CannotBuild(
            f"{name}: {line!r} is an option; only packages with their versions are allowed, such "
            "as einops==0.8.1"
        )
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise CannotBuild(f"{name}: {line!r} is not a valid requirement: {error}") from error
    if requirement.url is not None:
        raise CannotBuild(
            f"{name}: {line!r} names an address; only packages with their names and versions "
            "are allowed"
        )
    return requirement


def build(
    requirements: Sequence[str],
    cache: Path,
    *,
    wheels: Path | None,
    say: Callable[[str], None],
    cancelled: Callable[[], bool],
    proxy: Proxy = nullcontext,
) -> Path:
    """Return the folder of an environment with `requirements`, building it if needed.

    `wheels`: a folder to take packages from instead of an index. `proxy` is entered for the
    download, and gives variables that lead pip to a proxy. `say` gets a line for the
    attempt's log now and then. Raises CannotBuild, and OSError of the disk.
    """
    folder = cache / f"environment-{_key(requirements)}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two attempts at once: the second finds it built
        if (folder / COMPLETE).exists():
            os.utime(folder)  # mark it as used: the cache removes the least recently used entries
            say(f"The environment of {counted(len(requirements), 'requirement')} is already built.")
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        say(f"Building the environment: {', '.join(requirements)}")
        _run([sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)], say, cancelled)
        [site] = (folder / "lib").glob("python*/site-packages")
        ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        (site / OUR_PATH).write_text("".join(f"{path}\n" for path in sorted(ours)))
        if requirements:
            with proxy() as variables:
                _install(
                    requirements,
                    folder,
                    wheels=wheels,
                    say=say,
                    cancelled=cancelled,
                    variables=variables or {},
                )
        (folder / COMPLETE).touch()
    say("The environment is built.")
    return folder


def _key(requirements: Sequence[str]) -> str:
    site = sysconfig.get_path("purelib")
    told = [sys.version, sys.prefix, _installed(site), *requirements]
    return sha256("\n".join(told).encode()).hexdigest()[:32]


def _installed(site: str) -> str:
    """Return the node's packages, by name and version: another torch needs another environment."""
    return " ".join(sorted(name for name in os.listdir(site) if name.endswith(".dist-info")))


def _install(
    requirements: Sequence[str],
    folder: Path,
    *,
    wheels: Path | None,
    say: Callable[[str], None],
    cancelled: Callable[[], bool],
    variables: Mapping[str, str],
) -> None:
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements) + "\n")
    kept = folder / "constraints.txt"
    kept.write_text(_kept(requirements))
    command = [
        sys.executable, "-I", "-m", "pip", "--python", str(folder / "bin" / "python"), "install",
        "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--no-compile",
        "--progress-bar", "off", "--requirement", str(listed), "--constraint", str(kept),
    ]  # fmt: skip
    if wheels is not None:
        command += ["--no-index", "--find-links", str(wheels)]
    code, said = _run(command, say, cancelled, variables)
    if code == 0:
        return
    missing = NOT_FOUND.search(said)
    if missing is not None:
        where = f"the node's folder of wheels ({wheels})" if wheels else "the package index"
        raise CannotBuild(
            f"the package {missing[1]} is not available from {where}: there is no wheel with "
            "that name and version for this Python"
        )
    clash = CONFLICT.search(said)
    why = " ".join((clash[1] if clash else said).split())[-400:]
    if clash and f"(constraint) {TORCH}==" in why:
        why += f"; name {TORCH} among the requirements to bring another than the node's"
    raise CannotBuild(f"pip could not install the requirements: {why}")


def _kept(requirements: Sequence[str]) -> str:
    """Return the text of a constraints file that keeps the node's torch, unless the requirements
    name it."""
    if TORCH in {canonicalize_name(Requirement(one).name) for one in requirements}:
        return ""
    try:
        return f"{TORCH}=={version(TORCH)}\n"
    except PackageNotFoundError:
        return ""


def _run(
    command: list[str],
    say: Callable[[str], None],
    cancelled: Callable[[], bool],
    variables: Mapping[str, str] = NO_VARIABLES,
) -> tuple[int, str]:
    """Run a command, pass its lines to `say`, and return its exit code and output."""
    environment = {name: value for name, value in os.environ.items() if name in PASSED}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment |= variables
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        env=environment,
        umask=0o022,  # scripts read it as another user
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            say(line.rstrip())
            if cancelled():
                process.kill()
                raise CannotBuild("the job was stopped while its environment was built")
    return process.returncode, "".join(said)
