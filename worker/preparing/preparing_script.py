"""Preparation of the attempt of a script or a workbench: code, environment, secrets, folders.

No code of its owner's runs here. `worker.scripts.script_launch` makes it the owner of its folders.
"""

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from core.spec.code_archive import BadArchive, unpack
from core.spec.hosts import host_rules
from core.spec.script import Script, ScriptLauncher
from core.spec.workbench import Workbench, WorkbenchKind
from core.states import Outcome
from core.wire.messages import HostUse, Network, Order, Secrets
from strategies.plan.durable_files import json_bytes
from worker.node.attempts import Attempt
from worker.node.share import part_of
from worker.preparing.environments import CannotBuild, Proxy, build, requirements_of
from worker.preparing.packages import has_index, index_of_pip, proxy_for_packages
from worker.scripts.inputs import InputMount
from worker.scripts.library_folders import (
    DATA,
    HUB_INDEX,
    HUB_SOURCE,
    link_images,
    make_links,
    write_index,
)
from worker.scripts.sandbox import SandboxSupport
from worker.scripts.script_launch import ALONE, RANK, search_path
from worker.scripts.script_run import (
    ENVIRONMENT,
    ProgramRun,
    ScriptFolders,
    ScriptLimits,
    ScriptRun,
    WorkbenchRun,
)
from worker.workbench import jupyter
from worker.workbench.placing import place_porter
from worker.workspaces.folders import WorkspaceMount


class CannotStart(Exception):
    """Failure to start the attempt here; the message tells its owner why."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


@dataclass(frozen=True)
class ScriptHost:
    """Sandbox, limits and packages that this node offers to scripts."""

    sandbox: SandboxSupport
    limits: ScriptLimits
    wheels: Path | None = None
    """Folder to take packages from instead of an index."""
    workspaces: Path | None = None
    """The site's shared folder of people's workspaces."""
    workspace_uid: int = 1_879_100_000
    """First of the users that own people's folders in it."""
    egress: tuple[str, ...] | None = None
    """The most that programs may reach from this node; None: it sets no limit."""
    api_url: str = ""
    """Address of the API, for the carriers of workbenches."""


def program_run(
    order: Order,
    attempt: Attempt,
    archive: Path | None,
    *,
    host: ScriptHost,
    gpu_devices: tuple[int, ...],
    cache: Path,
    resume_from: str | None,
    inputs: tuple[InputMount, ...],
    workspace: WorkspaceMount | None,
    fetch_secrets: Callable[[], Secrets],
    tell: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> ProgramRun:
    """Return plan.json of a script whose archive and inputs are on this disk, or of a workbench,
    which has no archive.

    `gpu_devices` are the numbers of the device files of its GPUs.

    Raises CannotStart, and OSError of the disk.
    """
    assert isinstance(order.spec, Script | Workbench)
    program, found = order.spec, host.sandbox
    needs_relay = order.gang is not None and order.gang.rendezvous.fabric.programs == "relay"
    level, reason = (
        (found.gang_level, found.gang_reason) if needs_relay else (found.level, found.reason)
    )
    if level is None:
        with_network = " with a network to the other nodes" if needs_relay else ""
        raise CannotStart(
            Outcome.START_FAILED,
            f"sandbox_unavailable: this node cannot sandbox a script{with_network}: {reason}",
        )
    folders = ScriptFolders(attempt)
    shutil.rmtree(folders.path, ignore_errors=True)
    for folder in (*folders.own, folders.box, folders.hub):
        folder.mkdir(parents=True)
    requirements = _place_code(program, archive, folders)
    _place_sdk(folders, program.launcher if isinstance(program, Script) else "python")
    if inputs:
        _place_inputs(folders, inputs)
    environment = None
    if requirements is not None:
        environment = _environment(
            requirements,
            attempt,
            host,
            cache,
            tell,
            cancelled,
            proxy=package_proxy(order.network, host, keep=attempt.write_hosts),
        )
    if isinstance(program, Script):
        require_launcher(program, environment)
        if program.secrets:
            _write_secrets(attempt, fetch_secrets())
    python = sys.executable if environment is None else f"{ENVIRONMENT}/bin/python"
    has_porter = isinstance(program, Workbench) or order.hold_on_failure_s is not None
    if has_porter:
        place_porter(folders.porter)
    if isinstance(program, Workbench) and program.kind is WorkbenchKind.JUPYTER:
        jupyter.place_settings(folders.porter, python)
    for readable in (
        folders.sdk,
        folders.hub,
        *([folders.porter] if has_porter else []),
        *(() if resume_from is None else (Path(resume_from),)),
    ):
        _let_read(readable)
    run = ProgramRun(
        ranks=order.plan.ranks_per_node,
        level=level,
        limits=host.limits.share(part_of(order)),
        python=python,
        environment_folder=None if environment is None else str(environment),
        resume_from=resume_from,
        resume_step=0 if order.resume is None else order.resume.step,
        gpus=gpu_devices,
        has_egress=order.network is not None and order.network.reach is not None,
        ceiling=host.egress,
        inputs=inputs,
        workspace=workspace,
    )
    if isinstance(program, Script):
        return ScriptRun(
            script=program,
            hold_on_failure_s=order.hold_on_failure_s,
            api_url=host.api_url,
            **dict(run),
        )
    return WorkbenchRun(
        workbench=program, api_url=host.api_url, idle_after_s=order.idle_after_s, **dict(run)
    )


def _place_code(
    program: Script | Workbench, archive: Path | None, folders: ScriptFolders
) -> Path | None:
    """Place the code of a script, or the program of ours that a workbench is; return the file with
    its requirements, if it has one."""
    if isinstance(program, Script):
        assert archive is not None
        try:
            unpack(archive, folders.code)
        except BadArchive as error:
            raise CannotStart(Outcome.START_FAILED, f"The code was refused: {error}.") from error
        return None if program.requirements is None else folders.code / program.requirements
    if program.kind is WorkbenchKind.JUPYTER and (why := jupyter.why_not_installed()):
        raise CannotStart(Outcome.START_FAILED, f"{why}.")
    if program.requirements is None:
        return None
    file = folders.path / "requirements.txt"
    file.write_text(program.requirements)
    return file


def _place_sdk(folders: ScriptFolders, launcher: ScriptLauncher) -> None:
    """Copy the one file of ours that a script may import."""
    package = folders.sdk / "trainyard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    found = importlib.util.find_spec("trainyard")
    assert found is not None
    assert found.submodule_search_locations is not None
    shutil.copyfile(Path(found.submodule_search_locations[0]) / "run.py", package / "run.py")
    folders.rank.write_text(ALONE if launcher == "python" else RANK)
    folders.rank.chmod(0o755)


def _place_inputs(folders: ScriptFolders, inputs: Sequence[InputMount]) -> None:
    """Link the inputs from where libraries look for them, and place the hub that serves them."""
    make_links(folders.libraries, inputs)
    for data in (folders.code / DATA, folders.libraries / DATA):
        link_images(data, inputs)
    (folders.libraries / DATA).mkdir(exist_ok=True)
    write_index(folders.hub / HUB_INDEX, inputs)
    shutil.copyfile(HUB_SOURCE, folders.hub / HUB_SOURCE.name)


def _environment(
    file: Path,
    attempt: Attempt,
    host: ScriptHost,
    cache: Path,
    tell: Callable[[str], None],
    cancelled: Callable[[], bool],
    *,
    proxy: Proxy,
) -> Path:
    attempt.launcher_logs.mkdir(parents=True, exist_ok=True)
    with (attempt.launcher_logs / "stdout.log").open("a") as log:

        def say(line: str) -> None:
            log.write(f"{time.strftime('%H:%M:%S')} {line}\n")
            log.flush()
            tell(f"Building the environment: {line}"[:300])

        try:
            return build(
                requirements_of(file),
                cache,
                wheels=host.wheels,
                say=say,
                cancelled=cancelled,
                proxy=proxy,
            )
        except CannotBuild as error:
            say(str(error))
            outcome = Outcome.CANCELLED if cancelled() else Outcome.START_FAILED
            refused = "".join(f" {use.why}." for use in attempt.hosts() if use.refused)
            raise CannotStart(
                outcome, f"The script's environment cannot be built: {error}.{refused}"
            ) from error


def package_proxy(
    network: Network | None, host: ScriptHost, *, keep: Callable[[tuple[HostUse, ...]], None]
) -> Proxy:
    """Return the proxy by which packages are downloaded: that of the granted hosts, if the index is
    among them; else they come as the node's own pip gets them. `keep` gets the use of hosts."""
    if network is None or host.wheels is not None:
        return nullcontext
    rules, index = host_rules(network.granted), index_of_pip()
    if host.egress is not None and not has_index(host_rules(host.egress), index):
        return nullcontext
    if not has_index(rules, index):
        return nullcontext
    return partial(proxy_for_packages, network.granted, host.egress, keep=keep)


def require_launcher(script: Script, environment: Path | None) -> None:
    """Raise CannotStart if this node lacks the program that starts the ranks."""
    if script.launcher == "mpirun":
        python = sys.executable if environment is None else str(environment / "bin/python")
        if shutil.which("mpirun", path=search_path(python)) is None:
            raise CannotStart(
                Outcome.START_FAILED,
                "This node has no MPI (mpirun is missing). Name openmpi in a requirements "
                "file of the code, or use torchrun.",
            )
    needed = {"torchrun": "torch", "accelerate": "accelerate"}.get(script.launcher)
    if needed is None or importlib.util.find_spec(needed) is not None:
        return
    if environment is None or not list(environment.glob(f"lib/python*/site-packages/{needed}")):
        raise CannotStart(
            Outcome.START_FAILED,
            f"{script.launcher} is not installed on this node. Name {needed} in a requirements "
            "file of the code.",
        )


def _write_secrets(attempt: Attempt, secrets: Secrets) -> None:
    attempt.secrets_file.unlink(missing_ok=True)
    descriptor = os.open(attempt.secrets_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json_bytes(secrets))


def _let_read(folder: Path) -> None:
    """Make a folder readable by another user, whatever the worker's umask."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
