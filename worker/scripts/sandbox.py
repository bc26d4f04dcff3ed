"""Sandbox of a user's script, and the kinds of sandbox that this machine allows.

Inside there is the system and Python, read-only; the job's own folders; the GPUs of its lease; a
network of its own with nothing on it but loopback and, for a job on several nodes, its other
sandboxes (`worker.scripts.gang_network`). Others' files, other processes, the network and the
platform are outside. `bubblewrap` is used if installed, else `namespaces`: the same view, built by
`worker.scripts.sandbox_init` under unshare(1). Either way that program is the first one inside.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path, PurePosixPath

from worker.scripts.gang_network import GO, INTERFACE, MTU, PREFIX, address_of
from worker.scripts.sandbox_users import user_for_a_while

INIT = Path(__file__).with_name("sandbox_init.py")
PROBE_WITHIN_S = 20.0
OURS = ("api", "core", "dashboard", "migrations", "scheduler", "simulation", "standalone",
        "strategies", "trainyard", "worker")  # fmt: skip
TOP_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")  # links into /usr, mostly
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "ssl/certs",
       "ssl/openssl.cnf", "openmpi", "fonts", "mime.types")  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
TUN = "/dev/net/tun"
RDMA = "/dev/infiniband"
GPU_CONTROL = ("nvidiactl", "nvidia-uvm")  # profilers and displays need others, CUDA does not
MIG_CONTROL = "nvidia-caps"


class Level(StrEnum):
    """Program that a sandbox is built with."""

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"


@dataclass(frozen=True)
class SandboxSupport:
    """Kinds of sandbox that this machine allows; the reason explains a level of None."""

    level: Level | None
    reason: str = ""
    gang_level: Level | None = None
    """Level for a script on several nodes, which needs a network between them."""
    gang_reason: str = ""


@dataclass(frozen=True)
class Fellows:
    """Network of a sandbox with those on other nodes."""

    address: str
    """Address of this sandbox."""
    descriptor: int
    """Inherited socket that passes the other end of its interface to the relay."""


@dataclass(frozen=True)
class LoopbackService:
    """Program that serves the script on loopback, inside and with the script's rights.

    It inherits a listening socket, whose descriptor is its last argument.
    """

    port: int
    command: Sequence[str]


@dataclass(frozen=True)
class Egress:
    """Way out of a sandbox: a proxy outside accepts what connects to a port on loopback inside."""

    port: int
    descriptor: int
    """Inherited socket that passes the listening one to the proxy."""


@dataclass(frozen=True)
class Box:
    """One sandbox: what it shows beside the system, and the command that runs in it."""

    folder: Path
    """Host folder of this sandbox alone: for /etc, and for an empty folder to hide things with."""
    command: Sequence[str]
    environment: Mapping[str, str]
    working_folder: str
    binds: Sequence[tuple[Path, str, bool]]
    """Triples of host path, path inside, and True if writable."""
    limits: Mapping[str, int] = field(default_factory=dict)
    shm_bytes: int = 1 << 30
    gpus: Sequence[int] = ()
    has_instances: bool = False
    """True if it has instances of GPUs in MIG mode, which need further device files."""
    may_set_affinity: bool = True
    """False if its affinity alone keeps it on the cores of its slots, beside those of others."""
    uid: int | None = None
    """User that it runs as if the worker is root; else the worker's own user, without rights."""
    fellows: Fellows | None = None
    """Network with other sandboxes; None: nobody else is on its network."""
    service: LoopbackService | None = None
    egress: Egress | None = None
    on_host_network: bool = False
    """True if it has the host's network with its RDMA devices, as an administrator allowed."""

    def launch(self, level: Level) -> tuple[list[str], bytes]:
        """Return the command to start on the host, and the content of its standard input."""
        self._write_etc()
        # Parents first: a Python that is itself under /tmp is mounted into the script's own /tmp.
        view = sorted(
            [*system_view(), *self._etc(), *self.binds], key=lambda bind: PurePosixPath(bind[1])
        )
        found = os.listdir("/dev")
        devices = gpu_devices(self.gpus, found, has_instances=self.has_instances)
        if self.on_host_network and os.path.isdir(RDMA):
            devices += [f"{RDMA}/{name}" for name in sorted(os.listdir(RDMA))]
        first = [sys.executable, "-I", "-S"]
        told: dict[str, object] = {
            "mounts": None,
            "network": self._network(),
            "service": None if self.service is None else asdict(self.service),
            "egress": None if self.egress is None else asdict(self.egress),
            "limits": dict(self.limits),
            "may_set_affinity": self.may_set_affinity,
            "uid": self.uid,
            "gid": self.uid,
            "command": list(self.command),
            "environment": dict(self.environment),
            "folder": self.working_folder,
        }
        if level is Level.BUBBLEWRAP:
            inside = "/job/init.py"
            outer = self._bubblewrap([*view, (INIT, inside, False)], devices)
            command = [*outer, *first, inside]
        else:
            told["mounts"] = self._mounts(view, devices)
            command = [*_unshare(own_network=not self.on_host_network), *first, str(INIT)]
        return command, json.dumps(told).encode()

    def _bubblewrap(self, view: Sequence[tuple[Path, str, bool]], devices: list[str]) -> list[str]:
        found = _bwrap()
        assert found is not None
        command = [
            found, "--unshare-ipc", "--unshare-pid", "--unshare-uts",
            *([] if self.on_host_network else ["--unshare-net"]),
            "--unshare-cgroup-try", "--die-with-parent", "--as-pid-1", "--hostname", "sandbox",
            "--cap-drop", "ALL",
        ]  # fmt: skip
        if os.geteuid() == 0:
            for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
                command += ["--cap-add", capability]
            if self.fellows is not None:
                command += ["--cap-add", "CAP_NET_ADMIN"]
        else:
            command += ["--unshare-user", "--disable-userns"]
        for target, source in top_links():
            command += ["--symlink", source, target]
        command += ["--proc", "/proc", "--dev", "/dev"]
        command += ["--size", str(self.shm_bytes), "--perms", "1777", "--tmpfs", "/dev/shm"]
        for device in [*devices, TUN] if self.fellows is not None else devices:
            command += ["--dev-bind", device, device]
        made: set[str] = set()
        for path, place, writable in view:
            for above in folders_above(place):
                if above not in made:
                    command += ["--perms", "0755", "--dir", above]
                    made.add(above)
            command += ["--bind" if writable else "--ro-bind", str(path), place]
        return [*command, "--remount-ro", "/", "--chdir", "/"]

    def _mounts(
        self, view: Sequence[tuple[Path, str, bool]], devices: list[str]
    ) -> dict[str, object]:
        root = self.folder / "root"
        root.mkdir(exist_ok=True)
        nodes = [f"/dev/{name}" for name in DEVICES] + devices
        links = [(source, target) for target, source in top_links()]
        links += [("/proc/self/fd", "/dev/fd"), ("/proc/self/fd/1", "/dev/stdout"),
                  ("/proc/self/fd/2", "/dev/stderr")]  # fmt: skip
        return {
            "root": str(root),
            "folders": ["/dev"],
            "tmpfs": [("/dev", 1 << 20, "755"), ("/dev/shm", self.shm_bytes, "1777")],
            "binds": [(node, node, True) for node in nodes]
            + [(str(source), target, writable) for source, target, writable in view],
            "links": links,
            "own_user_namespace": os.geteuid() != 0,
            "own_network": not self.on_host_network,
        }

    def _network(self) -> dict[str, object] | None:
        if self.fellows is None:
            return None
        return {
            "interface": INTERFACE,
            "address": self.fellows.address,
            "prefix": PREFIX,
            "mtu": MTU,
            "descriptor": self.fellows.descriptor,
        }

    def _write_etc(self) -> None:
        uid, gid = (self.uid, self.uid) if self.uid is not None else (os.getuid(), os.getgid())
        etc = self.folder / "etc"
        etc.mkdir(parents=True, exist_ok=True)
        (self.folder / "empty").mkdir(exist_ok=True)
        root = "root:x:0:0::/tmp:/bin/sh\n" if uid else ""
        (etc / "passwd").write_text(f"{root}user:x:{uid}:{gid}::/tmp:/bin/sh\n")
        (etc / "group").write_text(f"user:x:{gid}:\n")
        (etc / "hosts").write_text("127.0.0.1 localhost sandbox\n")
        (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        for path in etc.iterdir():
            path.chmod(0o644)  # whatever the worker's umask

    def _etc(self) -> list[tuple[Path, str, bool]]:
        own = [
            (path, f"/etc/{path.name}", False) for path in sorted((self.folder / "etc").iterdir())
        ]
        hidden = [(self.folder / "empty", place, False) for place in our_packages()]
        return [*own, *hidden]


def gpu_devices(
    gpus: Sequence[int], found: Collection[str], *, has_instances: bool = False
) -> list[str]:
    """Return the device files of `found` in /dev for these GPUs, with the control devices.

    `has_instances` is True if the script has only instances of them, made by MIG.
    """
    if not gpus:
        return []
    names = [*GPU_CONTROL, *(f"nvidia{number}" for number in gpus)]
    if has_instances:
        names.append(MIG_CONTROL)
    return [f"/dev/{name}" for name in names if name in found]


def system_view() -> list[tuple[Path, str, bool]]:
    """Return the binds of the system and this Python, parents before their children."""
    roots = [
        "/usr",
        *(top for top in TOP_FOLDERS if os.path.isdir(top) and not os.path.islink(top)),
    ]
    for prefix in (sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))):
        if not any(prefix == root or prefix.startswith(f"{root}/") for root in roots):
            roots.append(prefix)
    roots += [f"/etc/{name}" for name in ETC if os.path.exists(f"/etc/{name}")]
    if os.path.isdir("/sys"):
        roots.append("/sys")
    return [(Path(root), root, False) for root in roots]


def folders_above(target: str) -> list[str]:
    """Return the folders that must exist before `target` is mounted, outermost first."""
    return [str(parent) for parent in reversed(PurePosixPath(target).parents)][1:]


def top_links() -> list[tuple[str, str]]:
    """Return (/bin, usr/bin) and similar links."""
    return [(top, os.readlink(top)) for top in TOP_FOLDERS if os.path.islink(top)]


def our_packages() -> list[str]:
    """Return the paths of this installation's own packages, which are hidden inside."""
    sites = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return [
        path for site in sorted(sites) for name in OURS if os.path.isdir(path := f"{site}/{name}")
    ]


def _unshare(*, own_network: bool) -> list[str]:
    command = [shutil.which("unshare") or "unshare", "--mount", "--pid", "--ipc", "--uts"]
    if own_network:
        command.append("--net")
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    return [*command, "--fork", "--kill-child", "--"]


@cache
def _bwrap() -> str | None:
    return shutil.which("bwrap")


def find_level(wanted: str = "auto") -> SandboxSupport:
    """Return the best level that works here, found by trying it. `wanted` names one, or `none`."""
    if wanted == "none":
        reason = "TRAINYARD_SANDBOX is none on this node"
        return SandboxSupport(None, reason, None, reason)
    levels = list(Level) if wanted == "auto" else [Level(wanted)]
    level, reason = first_that_works(levels, in_gang=False)
    return SandboxSupport(level, reason, *first_that_works(levels, in_gang=True))


def first_that_works(levels: Sequence[Level], *, in_gang: bool) -> tuple[Level | None, str]:
    """Return the first level that can be built here, or the reasons why none can."""
    reasons = []
    for level in levels:
        reason = why_not(level, in_gang=in_gang)
        if not reason:
            return level, ""
        reasons.append(f"{level}: {reason}")
    return None, "; ".join(reasons)


def why_not(level: Level, *, in_gang: bool = False) -> str:
    """Return the reason why a sandbox of this level can't be built here; empty if it was built.

    `in_gang`: with a network to other nodes.
    """
    program = "bwrap" if level is Level.BUBBLEWRAP else "unshare"
    if shutil.which(program) is None:
        return f"{program} is not installed"
    try:
        done = _try_out(level, in_gang=in_gang)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program}: {error}"
    if done.returncode == 0 and done.stdout.strip() == b"inside":
        return ""
    said = " ".join(done.stderr.decode(errors="replace").split())
    return (said or f"{program} ended with code {done.returncode}")[:400]


def _try_out(level: Level, *, in_gang: bool) -> subprocess.CompletedProcess[bytes]:
    """Print `inside` from a sandbox of this level."""
    outside, inside = socket.socketpair()
    with (
        outside,
        inside,
        tempfile.TemporaryDirectory(prefix="trainyard-sandbox-") as folder,
        user_for_a_while() as uid,
    ):
        os.chmod(folder, 0o755)
        box = Box(
            folder=Path(folder),
            command=[sys.executable, "-I", "-c", "import socket; print('inside')"],
            environment={"PATH": "/usr/bin:/bin"},
            working_folder="/",
            binds=[],
            uid=uid,
            fellows=Fellows(address_of(0), inside.fileno()) if in_gang else None,
        )
        command, told = box.launch(level)
        outside.sendall(GO)
        return subprocess.run(
            command,
            input=told,
            capture_output=True,
            timeout=PROBE_WITHIN_S,
            env={},
            cwd="/",
            pass_fds=[inside.fileno()] if in_gang else [],
        )
