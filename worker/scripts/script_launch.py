"""Launcher of a user's program in its sandbox, which also watches it and keeps its output.

The sandbox's first process is process 1 of a PID namespace, so killing it, or its parent, ends
every process inside. Each rank's output goes to a file that is created outside and shown inside.
With several nodes there is one sandbox on each, and `worker.scripts.gang_network` between them; the
script's metrics are taken on the first, its output on all.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from core.base.clock import boot_s
from core.wire.messages import Secrets
from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.run_directory import Result
from worker.egress.launch import (
    EGRESS_PORT,
    ProxyProcess,
    fork_proxy,
    keep_only,
    proxy_variables,
)
from worker.node.attempts import Attempt, NetworkFile, StartFile, read_model
from worker.node.process_tree import MARK, descendants
from worker.node.resource_limits import ResourceLimits
from worker.ranks.judge import RankEvidence, codes_in_report
from worker.ranks.launch import MASTER, PASSED_PREFIXES, fabric_variables, huge_pages, in_child
from worker.ranks.tracebacks import traceback_error
from worker.scripts import library_folders
from worker.scripts.gang_network import INTERFACE, GangMember, address_of, fork_relay
from worker.scripts.inputs import variables
from worker.scripts.sandbox import Box, Egress, Fellows
from worker.scripts.sandbox_users import SandboxUser, share_user, take_user
from worker.scripts.script_metrics import ScriptMetrics
from worker.scripts.script_output import MAX_FILES, ScriptOutput
from worker.scripts.script_run import ENVIRONMENT, ProgramRun, ScriptFolders, ScriptRun
from worker.workspaces.folders import INSIDE, VARIABLE, WorkspaceFiles

WORKING_FOLDER = "/job/code"
PORT = 29_500  # in a network that nobody else is in
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RANK = """#!/bin/sh
# One rank: its output into its own files, torch's variables under mpirun too.
export RANK="${RANK:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}}"
export LOCAL_RANK="${LOCAL_RANK:-${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$RANK}}}"
export WORLD_SIZE="${WORLD_SIZE:-${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-1}}}"
exec "$@" >>"/job/logs/$RANK.out" 2>>"/job/logs/$RANK.err"
"""
MIG = "MIG-"  # begins the UUID of a MIG instance
ALONE = """#!/bin/sh
# The one rank of `python`: a program that finds RANK would wait for others.
exec "$@" >>/job/logs/0.out 2>>/job/logs/0.err
"""
CANNOT_START = 126
NO_SANDBOX = re.compile(r"^(bwrap: .*|unshare: .*|The sandbox can't be built: .*)$", re.MULTILINE)
MEASURE_EVERY_S = 2.0
# Open MPI: several ranks on few cores, no daemon on another machine, user 0 of a namespace.
MPI = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_plm": "isolated",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def search_path(python: str) -> str:
    """Return PATH inside: the script's own environment, the node's, the machine's."""
    return os.pathsep.join([os.path.dirname(python), os.path.dirname(sys.executable), PATH])


@dataclass
class ProgramLauncher:
    """Launcher of one program, from its start to the storing of its output."""

    attempt: Attempt
    start_order: StartFile
    limits: ResourceLimits
    hears_control: bool = False
    watch_every_s: float = 0.2
    pid: int = 0
    exit_code: int | None = None
    breach: str = ""
    """Forbidden action of the script, for which it was ended."""
    keeps_output: bool = True
    user: SandboxUser | None = None
    """User that it runs as, held by this process to its end; None if the worker is not root."""
    relay_pid: int = 0
    proxy: ProxyProcess | None = None
    """Proxy to the hosts that it may reach; None if it has none."""
    proxy_user: SandboxUser | None = None
    network_seen: tuple[int, int] | None = None
    asked_to_leave: bool = False
    killed: bool = False
    began: float = field(default_factory=boot_s)
    measure_at: float = 0.0

    def __post_init__(self) -> None:
        self.folders = ScriptFolders(self.attempt)
        self.metrics = ScriptMetrics(self.folders)
        self.run = self.read_run()
        self.output = ScriptOutput(
            output=self.folders.output,
            artifacts=self.attempt.artifacts,
            checkpoints=self.attempt.checkpoints,
            ranks=self.start_order.nodes * self.start_order.ranks,
            kept_step=self.run.resume_step,
            node=self.start_order.position,
            num_nodes=self.start_order.nodes,
        )
        self.limits.processes = self.run.limits.processes

    def read_run(self) -> ProgramRun:
        """Return plan.json."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the command that starts the program, inside."""
        raise NotImplementedError

    def own_variables(self) -> dict[str, str]:
        """Return the variables that only this kind of program has; they come last."""
        return {}

    def further_sockets(self, sockets: contextlib.ExitStack) -> list[socket.socket]:
        """Return sockets that the program inherits; those entered into `sockets` are closed once it
        has started."""
        return []

    @property
    def left_out(self) -> Sequence[str]:
        """Paths that an ignore file kept out of the code."""
        return ()

    @property
    def further_binds(self) -> list[tuple[Path, str, bool]]:
        """Binds that only this kind of program has."""
        return []

    def start(self) -> None:
        if self.pid == 0:  # once: links that the script has made meanwhile may lead anywhere
            own = self.run.workspace
            if os.geteuid() == 0:
                self.user = take_user() if own is None or own.uid is None else share_user(own.uid)
            hand_over(self.writable, None if self.user is None else self.user.uid)
        self.exit_code = None
        say(f"Sandbox: {self.run.level}.")
        seat, fellows, egress = self.seat(), None, None
        with contextlib.ExitStack() as sockets:
            inherited = []
            if seat is not None:
                outside, inside = map(sockets.enter_context, socket.socketpair())
                self.relay_pid = fork_relay(seat, outside, self._in_child)
                fellows = Fellows(address_of(seat.position), inside.fileno())
                inherited.append(inside)
            if self.has_egress:
                outside, inside = map(sockets.enter_context, socket.socketpair())
                self._start_proxy(outside)
                egress = Egress(EGRESS_PORT, inside.fileno())
                inherited.append(inside)
            inherited += self.further_sockets(sockets)
            self._enter(self.box(fellows, egress), inherited)

    def _in_child(self) -> None:
        in_child(self.limits, signal.SIGKILL)

    @property
    def writable(self) -> list[Path]:
        """Folders of this attempt that the script may write to."""
        workspace = WorkspaceFiles(self.attempt).folder
        own = self.run.workspace
        brings_it = own is not None and own.writable and Path(own.folder) == workspace
        return [*self.folders.own, *([workspace] if brings_it else [])]

    def seat(self) -> GangMember | None:
        """Return its place in the private network of the attempt's sandboxes; None if it has
        none."""
        start = self.start_order
        if start.rendezvous is None or self.on_host_network:
            return None
        meeting = start.rendezvous
        return GangMember(start.position, start.nodes, meeting.address, meeting.port, meeting.key)

    def _start_proxy(self, given: socket.socket) -> None:
        if os.geteuid() == 0 and self.proxy_user is None:
            self.proxy_user = take_user()
        self.proxy = fork_proxy(
            given,
            uid=None if self.proxy_user is None else self.proxy_user.uid,
            prepare=self._in_child,
            earlier=self.attempt.hosts(),
        )
        self.network_seen = None
        self._look_at_network()
        say(f"It may reach by name: {', '.join(self._reach()) or 'no host'}.")

    def _reach(self) -> tuple[str, ...]:
        found = read_model(self.attempt.network_file, NetworkFile)
        return () if found is None else found.reach

    def _look_at_network(self) -> None:
        """Tell the proxy what may be reached, if that has changed; keep what it reports."""
        if self.proxy is None:
            return
        with contextlib.suppress(OSError):
            found = os.stat(self.attempt.network_file)
            if self.network_seen != (found.st_mtime_ns, found.st_ino):
                self.network_seen = (found.st_mtime_ns, found.st_ino)
                self.proxy.follow(self._reach(), self.run.ceiling)
        if self.proxy.look():
            self.attempt.write_hosts(self.proxy.hosts)

    def _enter(self, box: Box, inherited: Sequence[socket.socket]) -> None:
        command, told = box.launch(self.run.level)
        self.pid = os.fork()
        if self.pid == 0:
            self._become(command, told, inherited)

    def box(self, fellows: Fellows | None, egress: Egress | None) -> Box:
        """Return its sandbox. Creates the files of each rank's output."""
        run, folders = self.run, self.folders
        uid = None if self.user is None else self.user.uid
        binds = [
            (folders.code, "/job/code", True),
            (folders.output, "/job/output", True),
            (folders.run, "/job/run", True),
            (folders.scratch, "/tmp", True),
            (folders.sdk, "/job/sdk", False),
            (folders.rank, "/job/rank", False),
        ]
        if run.environment_folder is not None:
            binds.append((Path(run.environment_folder), ENVIRONMENT, False))
        if run.resume_from is not None:
            binds.append((Path(run.resume_from), "/job/resume", False))
        if run.inputs:
            binds += [
                (folders.libraries, library_folders.FOLDER, True),
                (folders.libraries / library_folders.DATA, library_folders.DATA_BESIDE, True),
                (folders.hub, library_folders.HUB_FOLDER, False),
            ]
        if run.workspace is not None:
            binds.append((Path(run.workspace.folder), INSIDE, run.workspace.writable))
        for mount in run.inputs:
            binds += [(entry, inside, False) for entry, inside in mount.binds]
        binds += self.further_binds
        for rank in self.start_order.global_ranks:
            logs = self.attempt.rank_logs(rank)
            logs.mkdir(parents=True, exist_ok=True)
            for name, inside in (("stdout.log", "out"), ("stderr.log", "err")):
                (logs / name).touch()
                if uid is not None:
                    os.chown(logs / name, uid, uid)
                binds.append((logs / name, f"/job/logs/{rank}.{inside}", True))
        return Box(
            folder=folders.box,
            command=self.command(),
            environment=self.environment(),
            working_folder=WORKING_FOLDER,
            binds=binds,
            limits={
                "RLIMIT_NPROC": run.limits.processes,
                "RLIMIT_FSIZE": run.limits.disk_bytes,
                "RLIMIT_CORE": 0,
            },
            shm_bytes=self.limits.memory_bytes // 2,
            gpus=run.gpus,
            has_instances=any(uuid.startswith(MIG) for uuid in self.start_order.gpus),
            may_set_affinity=self.limits.may_set_affinity,
            uid=uid,
            fellows=fellows,
            service=library_folders.hub_service() if self.has_hub else None,
            egress=egress,
            on_host_network=self.on_host_network,
        )

    @property
    def on_host_network(self) -> bool:
        """True if the sandboxes of several nodes meet on the nodes' own network."""
        meeting = self.start_order.rendezvous
        return meeting is not None and meeting.fabric.programs == "host"

    @property
    def has_hub(self) -> bool:
        """True if its inputs are served on loopback, which must be nobody else's."""
        return bool(self.run.inputs) and not self.on_host_network

    @property
    def has_egress(self) -> bool:
        """True if it has a proxy, which must be nobody else's."""
        return self.run.has_egress and not self.on_host_network

    @property
    def master(self) -> tuple[str, int]:
        """Address and port at which the ranks meet, inside."""
        meeting = self.start_order.rendezvous
        if meeting is None:
            return MASTER, PORT
        if meeting.fabric.programs == "host":
            return meeting.address, meeting.port
        return address_of(0), PORT

    def network_variables(self) -> dict[str, str]:
        """Return the variables that lead gloo and NCCL to the other ranks."""
        meeting = self.start_order.rendezvous
        if meeting is None or not self.on_host_network:
            interface = "lo" if meeting is None else INTERFACE
            return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
        return fabric_variables(self.start_order)

    def environment(self) -> dict[str, str]:
        """Return the script's environment: what the node's GPUs need, then the owner's own
        variables."""
        passed = {
            name: value
            for name, value in os.environ.items()
            if (name.startswith(PASSED_PREFIXES) or name in ("LANG", "TZ", "LD_LIBRARY_PATH"))
            and name != "CUDA_VISIBLE_DEVICES"  # no others are inside
        }
        secrets = read_model(self.attempt.secrets_file, Secrets)
        own = {
            "PATH": search_path(self.run.python),
            "HOME": "/tmp",
            "USER": "user",
            "LOGNAME": "user",
            "SHELL": "/bin/sh",
            "TMPDIR": "/tmp",
            "PYTHONPATH": "/job/sdk",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": str(self.start_order.threads),
            **huge_pages(),
            **self.network_variables(),
            "TRAINYARD_RUN": "/job/run",
            "TRAINYARD_OUTPUT": "/job/output",
            **variables(self.run.inputs),
        }
        if self.run.workspace is not None:
            own[VARIABLE] = INSIDE
        if self.run.inputs:
            own |= library_folders.variables(has_hub=self.has_hub)
        if self.has_egress:
            nodes = self.start_order.nodes
            fellows = [] if nodes == 1 else [address_of(position) for position in range(nodes)]
            own |= proxy_variables(f"http://127.0.0.1:{EGRESS_PORT}", also=fellows)
        instances = [uuid for uuid in self.start_order.gpus if uuid.startswith(MIG)]
        if instances:  # CUDA finds no MIG instance by itself
            own["CUDA_VISIBLE_DEVICES"] = ",".join(instances)
        if self.run.resume_from is not None:
            own["TRAINYARD_RESUME"] = "/job/resume"
        values = {} if secrets is None else secrets.values
        return {**passed, **own, **self.own_variables(), **values}

    def _become(
        self, command: list[str], told: bytes, inherited: Sequence[socket.socket]
    ) -> NoReturn:
        try:
            in_child(self.limits, signal.SIGKILL)
            memory = os.memfd_create("told")
            os.write(memory, told)
            os.lseek(memory, 0, os.SEEK_SET)
            os.dup2(memory, 0)
            keep_only(inherited)
            os.execve(command[0], command, {"PATH": PATH, MARK: str(self.attempt.path)})
        except OSError as error:
            sys.stderr.write(f"{command[0]}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(CANNOT_START)
        raise AssertionError  # not reached

    def ended(self, pid: int, code: int) -> None:
        if pid == self.pid:
            self.exit_code = code
            if self.proxy is not None and self.proxy.finish():
                self.attempt.write_hosts(self.proxy.hosts)
        elif self.proxy is not None and pid == self.proxy.pid and self.is_running():
            say("The proxy has ended, so no host can be reached any more.")
        elif pid == self.relay_pid:
            self.relay_pid = 0
            if code != 0 and self.is_running():
                say("The script is being ended because its network has failed.")
                self._kill()

    def watch(self) -> None:
        """Collect its metrics, and check its use of the disk."""
        with contextlib.suppress(OSError):
            self._collect()
        self._look_at_network()
        now = time.monotonic()
        if now < self.measure_at or self.exit_code is not None or self.breach:
            return
        self._look_at_output(now)
        used, files = disk_use([*self.writable, self.attempt.path / "logs"])
        self.measure_at = now + max(MEASURE_EVERY_S, 20 * (time.monotonic() - now))
        limits = self.run.limits
        if used > limits.disk_bytes:
            self.breach = (
                f"The script was ended because it had written {used / 2**30:.2f} GiB; this "
                f"node allows {limits.disk_bytes / 2**30:.2f} GiB of disk"
            )
        elif files > limits.files:
            self.breach = (
                f"The script was ended because it had created {files:,} files; this node "
                f"allows {limits.files:,}"
            )
        self.keeps_output = not self.breach  # output that fills the disk is not kept
        self.breach = self.breach or WorkspaceFiles(self.attempt).why_ended()
        if self.breach:
            self.kill_ranks()

    @property
    def is_first(self) -> bool:
        """True on the first of several nodes, where the script's metrics are taken."""
        return self.start_order.position == 0

    def _collect(self, *, last: bool = False) -> None:
        if self.is_first:
            self.metrics.collect(last=last)

    def _look_at_output(self, now: float) -> None:
        if not self.is_first:  # it takes the others' parts at the end
            return
        step = max(self.attempt.last_step(), self.run.resume_step)
        try:
            made = self.output.look(now=now, step=step)
        except OSError as error:  # the script has just changed it, or the disk is full
            say(f"The output could not be copied: {error}")
            return
        if made is not None:
            say(f"The output is kept as the artifact {made}.")

    def is_running(self) -> bool:
        return self.exit_code is None

    def has_failed_rank(self) -> bool:
        return False  # the program that started the ranks ends them together

    def terminate(self) -> None:
        """Send SIGTERM once: a second one could interrupt a script that is saving."""
        first = self._first_inside()
        if first is not None and not self.asked_to_leave:
            self.asked_to_leave = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGTERM)

    def kill_ranks(self) -> None:
        if self.is_running():
            self.killed = True
            self._kill()

    def _kill(self) -> None:
        for pid in (self._first_inside(), self.pid):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _first_inside(self) -> int | None:
        """Return process 1 of the sandbox, by its pid outside."""
        for pid in sorted(descendants(self.pid)) if self.is_running() else ():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                found = re.search(r"^NSpid:\t(.*)$", status, re.MULTILINE)
                numbers = found[1].split() if found else []
                if len(numbers) > 1 and numbers[-1] == "1":
                    return pid
        return None

    def evidence(self) -> list[RankEvidence]:
        codes = codes_in_report(self._said())
        code = self.code()
        found = []
        for rank in self.start_order.global_ranks:
            log = self.attempt.rank_logs(rank) / "stderr.log"
            error = traceback_error(log, self.left_out)
            own = 0 if code == 0 else codes.get(rank)
            if own is None and not codes and (error is not None or self.start_order.ranks == 1):
                own = code
            if own in (None, 0):
                error = None
            ours = self.killed and code != 0
            found.append(RankEvidence(rank, own, error, killed_by_us=ours))
        if code not in (0, None) and not self.killed and not any(rank.failed for rank in found):
            found[0] = RankEvidence(found[0].rank, code)
        return found

    def failure(self) -> str:
        """Return the reason why no rank was started; empty if one was."""
        if self.exit_code in (0, None) or self.killed:
            return ""
        logs = [self.attempt.rank_logs(rank) for rank in self.start_order.global_ranks]
        if any((folder / name).stat().st_size for folder in logs for name in os.listdir(folder)):
            return ""
        said = self._said()
        built = NO_SANDBOX.search(said)
        if built is not None:
            return f"sandbox_unavailable: {built[1]}"
        if self.exit_code in (CANNOT_START, 127):
            return " ".join(said.split())[-500:]
        return ""

    def code(self) -> int | None:
        code = self.exit_code
        return 128 - code if code is not None and 128 < code < 128 + 65 else code

    def conclude(self, *, stopped: bool) -> None:
        """Collect the last metrics, keep the output, and delete the rest, after the last
        process."""
        with contextlib.suppress(OSError):
            self._collect(last=True)
        step = max(self.attempt.last_step(), self.run.resume_step)
        checkpoint, left_out = None, list[str]()
        if self.keeps_output:
            checkpoint, left_out = self.output.conclude(step=step)
        if left_out:
            say(
                "These files of the output are not kept, because of their names or because "
                f"there are more than {MAX_FILES:,} files: "
                f"{', '.join(left_out[:5])}"
                f"{f' and {len(left_out) - 5:,} more' if len(left_out) > 5 else ''}"
            )
        finished = self.exit_code == 0 and not stopped and not self.breach
        if finished or stopped:
            result = Result(
                finished=finished,
                step=step,
                loss_first=self.metrics.first_loss,
                loss_last=self.metrics.last_loss,
                eval_loss=None,
                tokens_per_s=None,
                wall_s=boot_s() - self.began,
                checkpoint=checkpoint,
                sample=None,
                reason="finished" if finished else "stopped",
            )
            write_atomically(self.attempt.result, json_bytes(result))
        # rm, not shutil: a script can nest folders deeper than Python recurses.
        for folder in (*self.folders.own, self.folders.sdk, self.folders.hub, self.folders.box):
            subprocess.run(["rm", "-rf", "--one-file-system", "--", str(folder)], check=False)

    def _said(self) -> str:
        try:
            with (self.attempt.launcher_logs / "stderr.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 64_000))
                return file.read(64_000).decode(errors="replace")
        except OSError:
            return ""


@dataclass
class ScriptLauncher(ProgramLauncher):
    """Launcher of a script's ranks."""

    def read_run(self) -> ScriptRun:
        self.script_run = ScriptRun.model_validate_json(self.attempt.plan.read_bytes())
        return self.script_run

    @property
    def left_out(self) -> Sequence[str]:
        return self.script_run.script.left_out

    def command(self) -> list[str]:
        """Return the command that starts the ranks, inside."""
        script, start = self.script_run.script, self.start_order
        ranks, world = str(start.ranks), start.nodes * start.ranks
        address, port = self.master
        program = ["/job/rank", self.run.python, script.entry, *script.arguments]
        modules = [self.run.python, "-m"]
        torchrun = [
            *modules, "torch.distributed.run",
            "--nnodes", str(start.nodes), "--node-rank", str(start.position),
            "--nproc-per-node", ranks, "--master-addr", address, "--master-port", str(port),
            "--max-restarts", "0", "--shutdown-timeout", "85", "--no-python", *program,
        ]  # fmt: skip
        accelerate = [
            *modules, "accelerate.commands.launch", "--num_processes", str(world),
            "--num_machines", str(start.nodes), "--machine_rank", str(start.position),
            "--mixed_precision", "no", "--dynamo_backend", "no",
            "--main_process_ip", address, "--main_process_port", str(port), "--same_network",
            *(["--multi_gpu"] if world > 1 else []), "--no_python", *program,
        ]  # fmt: skip
        match script.launcher:
            case "torchrun":
                return torchrun
            case "accelerate":
                return accelerate
            case "mpirun":
                return ["mpirun", "-n", ranks, *program]
            case "python":
                return program

    def own_variables(self) -> dict[str, str]:
        script, own = self.script_run.script, dict[str, str]()
        if script.launcher != "python":
            address, port = self.master
            own |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        if script.launcher == "mpirun":
            own |= MPI
        return {**own, **script.environment}


def hand_over(folders: Iterable[Path], uid: int | None) -> None:
    """Make the script the owner of the folders it may write to, whatever the umask was."""
    for own in folders:
        for path in [own, *own.rglob("*")]:
            if path.is_dir() and not path.is_symlink():  # links lead to places inside
                path.chmod(0o755)
            if uid is not None:
                os.chown(path, uid, uid, follow_symlinks=False)


def disk_use(folders: list[Path]) -> tuple[int, int]:
    """Return (bytes, files) below the folders.

    Uses du, not Python: a script can nest folders deeper than Python recurses, or than a path may
    be long.
    """
    paths = [str(folder) for folder in folders if folder.exists()]
    numbers = []
    for option in ("--block-size=1", "--inodes"):
        done = subprocess.run(
            ["du", "-x", "-s", "-c", option, "--", *paths],
            capture_output=True,
            text=True,
            check=False,
        )
        total = done.stdout.splitlines()[-1:] or ["0"]
        numbers.append(int(total[0].split()[0]))
    return numbers[0], numbers[1]


def say(text: str) -> None:
    """Write a line to the launcher's log, which the job's owner can read."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
