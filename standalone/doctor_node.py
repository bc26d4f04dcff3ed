"""`trainyard doctor --node`: what a worker needs on this machine."""

import os
import platform
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path

import httpx2
from pydantic import ValidationError

from core.process.settings import WorkerSettings
from standalone.doctor_gpus import examine_gpus
from standalone.doctor_server import GIB, about_broker, about_folder
from strategies.train.engines import async_io
from trainyard.doctor import Examiner, Finding
from worker.node.process_tree import cgroup_for
from worker.ranks.launch import free_port
from worker.scripts.sandbox import Level, first_that_works, why_not

finding = Examiner("node")

SHARED_MEMORY = 1 * GIB  # data loaders of torch and NCCL's rings; containers begin with 64 MiB
SKEW_S = 30.0
ALLOW_NAMESPACES = "Allow user namespaces: sysctl kernel.unprivileged_userns_clone=1"


def examine() -> Iterator[Finding]:
    """Versions, settings, the way to the platform, disk, memory, GPUs, sandbox, ports."""
    yield finding(
        "versions",
        "ok",
        f"trainyard-platform {version('trainyard-platform')}, Python {platform.python_version()}",
    )
    yield from examine_gpus()
    yield about_files()
    yield about_shared_memory(Path("/dev/shm"))
    yield from about_sandbox()
    yield _about_ports()
    try:
        settings = WorkerSettings()
    except ValidationError as error:
        for item in error.errors():
            name = f"TRAINYARD_{'_'.join(str(part) for part in item['loc']).upper()}"
            yield finding("settings", "fail", f"{name}: {item['msg']}", f"Set {name}.")
        return
    yield about_folder(finding, "data", settings.data)
    yield _about_identity(settings.data)
    yield from about_api(settings.api_url)
    broker = about_broker(settings.redis_url)
    yield finding(broker.what, broker.level, broker.found, broker.todo)
    yield _about_processes(settings.data)


def about_shared_memory(folder: Path) -> Finding:
    """Check the size of the shared memory through which ranks pass data to each other."""
    try:
        size = shutil.disk_usage(folder).total
    except OSError:
        return finding("/dev/shm", "fail", "not there", "Mount it: mount -t tmpfs tmpfs /dev/shm")
    if size < SHARED_MEMORY:
        return finding(
            "/dev/shm",
            "warn",
            f"{size / GIB:.2f} GiB",
            "Data loaders may fail: mount -o remount,size=8G /dev/shm (containers: --shm-size=8g).",
        )
    return finding("/dev/shm", "ok", f"{size / GIB:.1f} GiB")


def about_files() -> Finding:
    """Report if jobs can offload to files (nvme), and if the first one has to wait for a
    compiler."""
    missing = async_io.missing_packages()
    if missing:
        return finding(
            "nvme",
            "ok",
            f"jobs cannot offload to files here; missing: {', '.join(missing)}",
            f"If jobs need it: apt install {' '.join(missing)}",
        )
    if async_io.is_built():
        return finding("nvme", "ok", "jobs can offload to files")
    return finding(
        "nvme",
        "warn",
        "the first job that offloads to files waits until DeepSpeed's async_io is compiled",
        "As the worker's user: python -m strategies.train.engines.async_io",
    )


def about_sandbox() -> Iterator[Finding]:
    """Report the sandboxes available for a user's own script, by building each."""
    levels = {level: why_not(level) for level in Level}
    for level, reason in levels.items():
        todo = "Install bubblewrap." if level is Level.BUBBLEWRAP else ALLOW_NAMESPACES
        yield finding(
            "sandbox",
            "warn" if reason else "ok",
            f"{level}: {reason or 'works'}",
            todo if reason else "",
        )
    if all(levels.values()):
        yield finding(
            "sandbox",
            "warn",
            "none works: users' scripts are refused here; recipes run",
            f"Install bubblewrap. {ALLOW_NAMESPACES}",
        )
        return
    found, reason = first_that_works(list(Level), in_gang=True)
    yield finding(
        "sandbox",
        "ok" if found else "warn",
        f"scripts on several nodes: {found or reason}",
        "" if found else "They need /dev/net/tun: modprobe tun.",
    )


def about_api(url: str) -> Iterator[Finding]:
    """Check that the API can be reached, and compare its clock."""
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/healthz", timeout=5)
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        yield finding(
            "api",
            "fail",
            f"{url} does not answer: {error}",
            "Is TRAINYARD_API_URL right, and can this machine reach it?",
        )
        return
    if answer.status_code != 200:
        yield finding(
            "api",
            "fail",
            f"{url} answers {answer.status_code}",
            "421: add this name to TRAINYARD_ALLOWED_HOSTS of the API. Otherwise check its proxy.",
        )
        return
    yield finding("api", "ok", url)
    skew_s = (datetime.now(UTC) - parsedate_to_datetime(answer.headers["date"])).total_seconds()
    right = abs(skew_s) < SKEW_S
    yield finding(
        "clock",
        "ok" if right else "warn",
        f"{skew_s:+.0f} s from the API's",
        ""
        if right
        else ("Deadlines are not affected, but certificates are: timedatectl set-ntp true"),
    )


def _about_ports() -> Finding:
    try:
        return finding("ports", "ok", f"free for ranks, such as {free_port()}")
    except OSError as error:
        return finding("ports", "fail", str(error), "Free some ports: ss -ltn")


def _about_identity(data: Path) -> Finding:
    path = data / "identity.json"
    if not path.exists():
        return finding(
            "identity",
            "warn",
            "not enrolled yet",
            "trainyard admin enrol NAME, then start the worker with the token.",
        )
    mode = path.stat().st_mode & 0o077
    if mode:
        return finding(
            "identity", "fail", f"{path} can be read by other users", f"chmod 600 {path}"
        )
    return finding("identity", "ok", "enrolled")


def _about_processes(data: Path) -> Finding:
    group = cgroup_for(data / "attempts" / f"doctor.{os.getpid()}")
    try:
        if group is not None:
            group.ranks.mkdir(parents=True)
            group.remove()
            return finding("cgroup", "ok", "process trees are ended as a whole")
        why = "no cgroup v2"
    except OSError as error:
        why = str(error.strerror)
    return finding(
        "cgroup",
        "warn",
        f"no cgroup of its own ({why}): processes are found by parent and folder",
        "With systemd: Delegate=yes in the unit.",
    )
