"""First process inside a sandbox: drops all rights for good, then starts the script.

It is process 1 of the sandbox's PID namespace, so the kernel ends everything in it when it ends. It
runs alone, with the standard library only (`python -I -S sandbox_init.py`), and reads its
instructions from standard input: secrets are in no argument list and in no environment but the
script's.

    mounts     without bubblewrap: the view inside, built here
    limits     resource limits by name
    network    for a script on several nodes its address, and the socket to its relay; else null
    service    port on loopback, and the program that serves the script there; else null
    egress     port on loopback, and the socket to the proxy that accepts there; else null
    may_set_affinity   false if the script must stay on the processors that it starts on
    uid, gid   user that the script runs as if the worker is root; else null
    command, environment, folder
"""

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import signal
import socket
import struct
import sys
import time
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
KEPT_FLAGS = {"nosuid": MS_NOSUID, "nodev": MS_NODEV, "noexec": MS_NOEXEC, "ro": MS_RDONLY}
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAP_AMBIENT = 24, 38, 22, 47
PR_CAP_AMBIENT_CLEAR_ALL, SECCOMP_MODE_FILTER = 4, 2
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8916, 0x891C, 0x8922
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
CAPABILITY_VERSION = 0x20080522
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
CANNOT_START = 126  # like a shell's
LINGER_S = 2.0  # for the last packets to arrive on the other nodes

# System calls that no training needs and exploits have used. By architecture, from
# linux/arch/*/syscalls: ptrace mount umount2 pivot_root chroot unshare setns keyctl add_key
# request_key bpf perf_event_open userfaultfd io_uring_setup kexec_load init_module finit_module
# delete_module swapon reboot open_by_handle_at name_to_handle_at move_mount fsopen open_tree
# mount_setattr
DENIED = {
    "x86_64": (101, 165, 166, 155, 161, 272, 308, 250, 248, 249, 321, 298, 323, 425, 246, 175, 313,
               176, 167, 169, 304, 303, 429, 430, 428, 442),
    "aarch64": (117, 40, 39, 41, 51, 97, 268, 219, 217, 218, 280, 241, 282, 425, 104, 105, 273,
                106, 224, 142, 265, 264, 429, 430, 428, 442),
}  # fmt: skip
SET_AFFINITY = {"x86_64": 203, "aarch64": 122}
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEW_NAMESPACES = 0x7E020000  # all CLONE_NEW* flags of clone
X32 = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Build, lock, run; return the script's exit code, or 128 plus the number of its signal."""
    with os.fdopen(0, "rb", closefd=False) as told:
        wanted = json.load(told)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    try:
        network = wanted["network"]
        interface = None if network is None else make_interface(network)
        if wanted["mounts"] is not None:
            build(wanted["mounts"])
        service = wanted["service"]
        listening = None if service is None else listen(service["port"])
        if wanted["egress"] is not None:
            hand_out(listen(wanted["egress"]["port"]), wanted["egress"]["descriptor"])
        if interface is not None:
            meet(interface, network["descriptor"])
        lock(
            wanted["limits"],
            wanted["uid"],
            wanted["gid"],
            may_set_affinity=wanted["may_set_affinity"],
        )
        os.chdir(wanted["folder"])
        if listening is not None:
            serve(service["command"], listening)
        child = start(wanted["command"], wanted["environment"])
    except OSError as error:
        sys.stderr.write(f"The sandbox can't be built: {error}\n")
        return CANNOT_START
    code = wait_for(child)
    if network is not None:
        linger()
    return code


# ------------------------------------------------------------------------------------- building


def build(mounts: dict[str, Any]) -> None:
    """Build a new root from `mounts` and enter it. This process is alone in its mount namespace."""
    new_root = mounts["root"]
    own_umask = os.umask(0o022)  # the user inside must be able to enter the folders created here
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", new_root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for target in mounts["folders"]:
        os.makedirs(new_root + target, mode=0o755, exist_ok=True)
    for target, size, mode in mounts["tmpfs"]:
        os.makedirs(new_root + target, exist_ok=True)
        mount("tmpfs", new_root + target, "tmpfs", MS_NOSUID | MS_NODEV, f"mode={mode},size={size}")
    for source, target, writable in mounts["binds"]:
        bind(source, new_root + target, writable=writable)
    os.makedirs(new_root + "/dev/pts")  # of its own: it sees no terminal of the host
    options = "newinstance,ptmxmode=0666,mode=620"
    mount("devpts", new_root + "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    os.symlink("pts/ptmx", new_root + "/dev/ptmx")
    for source, target in mounts["links"]:
        os.symlink(source, new_root + target)
    os.makedirs(new_root + "/proc", exist_ok=True)
    mount("proc", new_root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    old_root = new_root + "/.old"
    os.makedirs(old_root)
    if libc.syscall(PIVOT_ROOT[platform.machine()], new_root.encode(), old_root.encode()) != 0:
        raise failure("pivot_root")
    os.chdir("/")
    if libc.umount2(b"/.old", MNT_DETACH) != 0:
        raise failure("umount")
    os.rmdir("/.old")
    mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.umask(own_umask)
    if mounts["own_network"]:
        raise_interface("lo")
    socket.sethostname("sandbox")
    if mounts["own_user_namespace"]:  # forbid further ones inside it
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")


def bind(source: str, target: str, *, writable: bool) -> None:
    """Show `source` at `target`, with all mounts below it, read-only unless `writable`."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_RDONLY, 0o600))
    mount(source, target, None, MS_BIND | MS_REC)
    if writable:
        return
    for place, flags in mounted_below(os.path.realpath(target)):
        mount("none", place, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


def mounted_below(target: str) -> list[tuple[str, int]]:
    """Return mount points at and below `target`, with flags that a namespace may not remove."""
    found = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            place = fields[4].encode().decode("unicode_escape")
            if place == target or place.startswith(target + "/"):
                flags = sum(KEPT_FLAGS.get(option, 0) for option in fields[5].split(","))
                found.append((place, flags & ~MS_RDONLY))
    return found


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    done = libc.mount(
        source.encode(),
        target.encode(),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    if done != 0:
        raise failure(f"mount {target}")


def raise_interface(name: str) -> None:
    """Bring an interface up; new ones are down, loopback too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh", name.encode(), 0)
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", name.encode(), flags | IFF_UP))


# ------------------------------------------------------------------------------- the other nodes


def make_interface(network: dict[str, Any]) -> int:
    """Create this namespace's interface to the other nodes; return the descriptor of its
    packets."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    name = network["interface"].encode()
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name, IFF_TUN | IFF_NO_PI))
    netmask = (0xFFFFFFFF << (32 - network["prefix"]) & 0xFFFFFFFF).to_bytes(4, "big")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, address in (
            (SIOCSIFADDR, socket.inet_aton(network["address"])),
            (SIOCSIFNETMASK, netmask),
        ):
            asked = struct.pack("16sH2x4s8x", name, socket.AF_INET, address)
            fcntl.ioctl(any_socket, request, asked)
        fcntl.ioctl(any_socket, SIOCSIFMTU, struct.pack("16si", name, network["mtu"]))
    raise_interface(network["interface"])
    return tun


def meet(interface: int, descriptor: int) -> None:
    """Pass the interface's other end to the relay outside, and wait until it has met the other
    nodes."""
    with socket.socket(fileno=descriptor) as outside:
        socket.send_fds(outside, [b"t"], [interface])
        os.close(interface)
        if not outside.recv(1):
            raise OSError(errno.ENOTCONN, "the other nodes could not be reached")


def listen(port: int) -> socket.socket:
    """Listen on loopback, so that whoever connects before the service is up waits for it."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", port))
    listening.listen(128)
    return listening


def serve(command: list[str], listening: socket.socket) -> None:
    """Start the service; the socket is its alone from now on."""
    listening.set_inheritable(True)
    start([*command, str(listening.fileno())], {})
    listening.close()


def hand_out(listening: socket.socket, descriptor: int) -> None:
    """Give the listening socket to the proxy outside; nobody inside has it from now on."""
    with listening, socket.socket(fileno=descriptor) as proxy:
        socket.send_fds(proxy, [b"l"], [listening.fileno()])


def linger() -> None:
    """Wait until the other nodes have received everything: the network ends with this process."""
    deadline = time.monotonic() + LINGER_S
    while time.monotonic() < deadline:
        with open("/proc/net/tcp") as file:
            queues = [line.split()[4].partition(":")[0] for line in file.readlines()[1:]]
        if not any(int(waiting, 16) for waiting in queues):
            return
        time.sleep(0.02)


# -------------------------------------------------------------------------------------- locking


def lock(
    limits: dict[str, int], uid: int | None, gid: int | None, *, may_set_affinity: bool
) -> None:
    """Give up for good all rights beyond those of an ordinary process."""
    os.setsid()  # no terminal to push characters into
    for name, value in limits.items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (bounded, bounded))
    drop_bounding_set()
    if uid is not None and gid is not None:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    deny_system_calls(may_set_affinity=may_set_affinity)


def drop_bounding_set() -> None:
    """Prevent files with capabilities from giving any of them back.

    A process without the right to do that has none to gain.
    """
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            return


def drop_capabilities() -> None:
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    if libc.capset(header, bytes(24)) != 0:
        raise failure("capset")


def deny_system_calls(*, may_set_affinity: bool) -> None:
    """Install a seccomp filter: calls in DENIED and new namespaces fail with EPERM, and so does
    sched_setaffinity unless `may_set_affinity`."""
    machine = platform.machine()
    if machine not in DENIED:
        raise OSError(errno.ENOSYS, f"there is no list of system calls for {machine}")
    load, equal, at_least, any_of, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, deny = 0x7FFF0000, 0x00050000 | errno.EPERM
    absent = 0x00050000 | errno.ENOSYS
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, AUDIT_ARCH[machine]),
        (answer, 0, 0, deny),
        (load, 0, 0, 0),  # the number of the call
        (at_least, 0, 1, X32),
        (answer, 0, 0, deny),
        (equal, 0, 1, CLONE3),  # a filter can't read its flags; the C library falls back to clone
        (answer, 0, 0, absent),
    ]
    also = () if may_set_affinity else (SET_AFFINITY[machine],)
    for number in (*DENIED[machine], *also):
        program += [(equal, 0, 1, number), (answer, 0, 0, deny)]
    program += [
        (equal, 0, 3, CLONE[machine]),
        (load, 0, 0, 16),  # the lower half of its first argument: flags
        (any_of, 0, 1, NEW_NAMESPACES),
        (answer, 0, 0, deny),
        (answer, 0, 0, allow),
    ]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header, len(header)))


def prctl(option: int, *arguments: Any) -> None:
    padded = [a if not isinstance(a, int) else ctypes.c_ulong(a) for a in arguments]
    padded += [ctypes.c_ulong(0)] * (4 - len(padded))
    if libc.prctl(option, *padded) != 0:
        raise failure(f"prctl {option}")


def failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


# -------------------------------------------------------------------------------------- running


def start(command: list[str], environment: dict[str, str]) -> int:
    """Start the script's launcher in a session of its own; return its pid."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.execvpe(command[0], command, environment)
        except OSError as error:
            sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
            sys.stderr.flush()
        finally:
            os._exit(CANNOT_START)
    return child


def wait_for(child: int) -> int:
    """Forward signals and reap children until `child` has ended; the rest ends with this
    process."""

    def forward(number: int, _: object) -> None:
        try:
            os.kill(child, number)
        except ProcessLookupError:
            return

    for number in FORWARDED:
        signal.signal(number, forward)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
