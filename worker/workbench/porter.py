"""Porter of a workbench: opens inside the sandbox, with its rights, what a stream asks for.

Terminals belong to it, not to who looks at them: a shell and the last of its output stay while
nobody is connected. It hears frames (`core.wire.frames`) on a socket that it inherits, and runs
with the standard library only, from copies of the files that `placing` lists. Beside them it may
run a server for the browser, and opens connections to it. SIGTERM ends the shells as a closed
terminal does, and the server after it has written what was typed last.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import struct
import sys
import termios
from asyncio.subprocess import DEVNULL
from collections import deque
from collections.abc import Sequence
from typing import Any

from core.wire.frames import (
    MAX_CONTENT,
    MAX_FRAME,
    WINDOW,
    BadFrame,
    Frame,
    FrameKind,
    IdleReport,
    credit_in,
    pack,
    pack_credit,
    pack_idle,
    size_in,
    unpack,
)
from worker.workbench.idleness import IDLE_AFTER, RELEASES, Idleness

KEPT_BYTES = 256 << 10  # of a terminal's output
BEHIND_BYTES = KEPT_BYTES // 2  # a program is held up once even its fastest viewer is so far behind
MAX_TERMINALS = 32
LEAVE_WITHIN_S = 3.0
REAPED_EVERY_S = 0.2
WRITES_WITHIN_S = 1.5  # jupyter-collaboration writes a second after the last key
SERVER_LEAVES_WITHIN_S = 8.0
AFTER_SERVER = "TRAINYARD_AFTER_SERVER"  # variable: command that saves what the server has not
SAVED_WITHIN_S = 120.0  # a second of CPU, for which a busy node takes long; the grace is longer
SOCKET = "/job/run/server.sock"
SSH_SOCKET, SSH_KEYS = "/job/run/ssh.sock", "/job/run/ssh_keys"
SSH_HOST_KEY = "/job/run/ssh_host_key.pub"
SSH_STARTS_WITHIN_S = 8.0
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SSH_PROGRAM = (
    f"import sys; sys.path.insert(0, {ROOT!r}); "
    "from worker.workbench.ssh_server import main; main()"
)
SHELLS = ("bash", "sh")
SHELL_FOLDER = "TRAINYARD_SHELL_FOLDER"  # variable: where shells begin, if not at home
GREETING = "greeting"  # file of the porter's folder: shown above each shell, if it is there


def main(descriptor: int, server: Sequence[str] = ()) -> int:
    """Serve streams on the inherited socket until SIGTERM, or until its other end is closed.

    `server` is the command of a program that serves HTTP on SOCKET, if there is one. If it ends
    before, returns its exit code, or 128 plus the number of the signal that killed it.
    """
    os.set_inheritable(descriptor, False)
    link = socket.socket(fileno=descriptor)
    return asyncio.run(Porter(link, server).serve())


async def _wait(process: asyncio.subprocess.Process, within_s: float) -> None:
    """Wait until a process has ended, for so long at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await process.wait()


def ignore_sigterm() -> None:
    """Let this process go on at SIGTERM, which all processes of a workbench get at its end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Porter:
    """The terminals of one workbench, and the streams that are open to it."""

    def __init__(self, link: socket.socket, server: Sequence[str] = ()) -> None:
        self.link, self.server = link, server
        self.streams: dict[int, Viewer | InnerConnection] = {}
        self.terminals: dict[str, Terminal] = {}
        self.ssh: asyncio.subprocess.Process | None = None
        """The SSH server, once somebody has asked for it."""
        self.waiting: deque[bytes] = deque()
        """Frames that the link has not taken yet; credit bounds them."""
        self.idleness: Idleness | None = None
        """Watch over its use, if the node's policy says when a workbench is idle."""
        if after_s := os.environ.get(IDLE_AFTER):
            self.idleness = Idleness(
                int(after_s),
                self._tell_idle,
                socket=SOCKET if server else None,
                releases=RELEASES in os.environ,
            )

    async def serve(self) -> int:
        """Serve until SIGTERM, or until the link or the server has ended; then end the rest.

        Nobody is heard before the server answers: the workbench is open once it can be used.
        """
        loop = asyncio.get_running_loop()
        self.over = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, self.over.set)
        self.link.setblocking(False)
        process = None
        if self.server:
            process = await asyncio.create_subprocess_exec(*self.server, stdin=DEVNULL)
            watching = asyncio.create_task(self._watch(process))
            await self._wait_for_server()
        if not self.over.is_set():
            loop.add_reader(self.link.fileno(), self.hear)
            note("The workbench is ready.")
        looking = None if self.idleness is None else asyncio.create_task(self.idleness.watch())
        await self.over.wait()
        if looking is not None:
            looking.cancel()
        loop.remove_reader(self.link.fileno())
        if self.ssh is not None and self.ssh.returncode is None:
            self.ssh.terminate()
        if process is None:
            await self._end_terminals()
            return 0
        code = process.returncode or 0  # of a server that has ended by itself
        await asyncio.gather(self._end_terminals(), self._end_server(process))
        watching.cancel()
        await self._save_after(process)
        return code if code >= 0 else 128 - code

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not self.over.is_set():
            note(f"The server has ended with code {code}.")
            self.over.set()

    async def _wait_for_server(self) -> None:
        while not self.over.is_set():
            try:
                _, writer = await asyncio.open_unix_connection(SOCKET)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return

    async def _end_terminals(self) -> None:
        loop = asyncio.get_running_loop()
        for terminal in self.terminals.values():
            terminal.hang_up()
        deadline = loop.time() + LEAVE_WITHIN_S
        while self.terminals and loop.time() < deadline:
            await asyncio.sleep(0.02)

    async def _end_server(self, process: asyncio.subprocess.Process) -> None:
        """Let the server write what was typed last, while nobody types on, then end it."""
        for number, stream in list(self.streams.items()):
            if isinstance(stream, InnerConnection):
                stream.leave()
                self.close(number, "the workbench is over")  # else they would type on for seconds
        await _wait(process, WRITES_WITHIN_S)
        if process.returncode is None:
            process.terminate()
            await _wait(process, SERVER_LEAVES_WITHIN_S)

    async def _save_after(self, process: asyncio.subprocess.Process) -> None:
        """Save what the server has not. One that was killed or does not leave may have saved
        nothing, and one that ends in good order drops what it has still to write."""
        if AFTER_SERVER not in os.environ:
            return
        if process.returncode is None:
            process.kill()
            await process.wait()
        saving = await asyncio.create_subprocess_exec(
            *json.loads(os.environ[AFTER_SERVER]), stdin=DEVNULL, preexec_fn=ignore_sigterm
        )
        await _wait(saving, SAVED_WITHIN_S)
        if saving.returncode is None:
            note(f"What was typed last was not written: it took more than {SAVED_WITHIN_S:.0f} s.")

    def hear(self) -> None:
        """Take one frame from the link."""
        try:
            message = self.link.recv(MAX_FRAME)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.over.set()
            return
        try:
            self.obey(unpack(message))
        except BadFrame as error:
            note(f"A frame was left out: {error}.")

    def obey(self, frame: Frame) -> None:
        """Do what a frame asks for. One of a stream that is not open is late, and asks nothing."""
        if frame.kind is FrameKind.HELLO:
            for viewer in list(self.streams.values()):
                viewer.leave()
            self.waiting.clear()
            self.say(pack(FrameKind.HELLO, frame.stream))
            if self.idleness is not None:
                self._tell_idle(self.idleness.is_idle)
            return
        if frame.kind is FrameKind.STIRRED:
            self.stir()
            return
        if frame.kind is FrameKind.OPEN:
            self.open(frame.stream, frame.content)
            return
        found = self.streams.get(frame.stream)
        if found is not None:
            found.obey(frame)

    def stir(self) -> None:
        """Take note that its owner uses the workbench now."""
        if self.idleness is not None:
            self.idleness.stir()

    def _tell_idle(self, is_idle: bool) -> None:
        assert self.idleness is not None
        self.say(pack_idle(IdleReport(is_idle, self.idleness.after_s)))

    def open(self, stream: int, content: bytes) -> None:
        """Open a stream to the server, or to a terminal, which is started if there is none of that
        name."""
        try:
            wanted = json.loads(content)
            if wanted.get("server") is True:
                self.streams[stream] = InnerConnection(self, stream, SOCKET)
                return
            if "ssh" in wanted:
                self.streams[stream] = SshConnection(self, stream, str(wanted["ssh"]))
                return
            name, offset = str(wanted["terminal"]), wanted.get("offset")
            rows, columns = int(wanted["rows"]), int(wanted["columns"])
        except (ValueError, KeyError, TypeError, AttributeError):
            self.close(stream, f"this workbench does not know what to open: {content[:200]!r}")
            return
        terminal = self.terminals.get(name)
        is_new = terminal is None
        if terminal is None:
            if len(self.terminals) >= MAX_TERMINALS:
                self.close(stream, f"{MAX_TERMINALS} terminals are open; close one")
                return
            try:
                terminal = Terminal(self, name)
            except OSError as error:
                self.close(stream, f"a terminal cannot be started: {error.strerror}")
                return
            self.terminals[name] = terminal
        terminal.resize(rows, columns)
        viewer = Viewer(self, stream, terminal, terminal.place(offset))
        self.streams[stream] = viewer
        terminal.viewers.add(viewer)
        facts = {"offset": viewer.offset, "is_new": is_new}
        self.say(pack(FrameKind.OPENED, stream, json.dumps(facts).encode()))
        terminal.show()

    def close(self, stream: int, why: str, **facts: Any) -> None:
        """End a stream, and say why."""
        self.streams.pop(stream, None)
        self.say(pack(FrameKind.CLOSE, stream, json.dumps({"why": why[:2000], **facts}).encode()))

    def say(self, frame: bytes) -> None:
        """Send a frame, or keep it until the link takes it."""
        self.waiting.append(frame)
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the link takes it."""
        loop = asyncio.get_running_loop()
        while self.waiting:
            try:
                self.link.send(self.waiting[0])
            except BlockingIOError:
                loop.add_writer(self.link.fileno(), self.flush)
                return
            except OSError:
                self.over.set()
                return
            self.waiting.popleft()
        loop.remove_writer(self.link.fileno())


class Viewer:
    """A stream to a terminal: how far it has been shown, and how much more it takes."""

    def __init__(self, porter: Porter, stream: int, terminal: "Terminal", offset: int) -> None:
        self.porter, self.stream, self.terminal, self.offset = porter, stream, terminal, offset
        self.credit = WINDOW
        self.taken = 0
        """Bytes typed that the other side has not been given credit for again."""

    def obey(self, frame: Frame) -> None:
        """Do what a frame of this stream asks for."""
        match frame.kind:
            case FrameKind.DATA:
                self.porter.stir()
                self.terminal.type(frame.content)
                self.taken += len(frame.content)
                if self.taken >= WINDOW // 2:
                    self.porter.say(pack_credit(self.stream, self.taken))
                    self.taken = 0
            case FrameKind.CREDIT:
                self.credit += credit_in(frame.content)
                self.terminal.show()
            case FrameKind.RESIZE:
                self.terminal.resize(*size_in(frame.content))
            case FrameKind.CLOSE:
                self.leave()
            case _:
                raise BadFrame(f"{frame.kind.name} on an open stream")

    def leave(self) -> None:
        """Forget the stream. Its terminal stays."""
        self.porter.streams.pop(self.stream, None)
        self.terminal.viewers.discard(self)
        self.terminal.look_again()


class InnerConnection:
    """A stream to a socket inside, opened at once."""

    def __init__(self, porter: Porter, stream: int, path: str) -> None:
        self.porter, self.stream, self.path = porter, stream, path
        self.credit = WINDOW
        self.more_credit = asyncio.Event()
        self.typed: asyncio.Queue[bytes] = asyncio.Queue()
        self.task = asyncio.create_task(self._serve())

    def obey(self, frame: Frame) -> None:
        """Do what a frame of this stream asks for."""
        match frame.kind:
            case FrameKind.DATA:
                self.typed.put_nowait(frame.content)  # no more than it was given credit for
            case FrameKind.CREDIT:
                self.credit += credit_in(frame.content)
                self.more_credit.set()
            case FrameKind.CLOSE:
                self.leave()
            case _:
                raise BadFrame(f"{frame.kind.name} on a connection")

    def leave(self) -> None:
        """Forget the stream, and close its connection."""
        self.porter.streams.pop(self.stream, None)
        self.task.cancel()

    async def _prepare(self) -> dict[str, str]:
        """Return facts to tell with the opening. Raises OSError if it cannot be opened."""
        return {}

    async def _serve(self) -> None:
        try:
            facts = await self._prepare()
            reader, writer = await asyncio.open_unix_connection(self.path)
        except OSError as error:
            why = error.strerror or str(error)
            self.porter.close(self.stream, f"the server cannot be reached: {why}")
            return
        self.porter.say(pack(FrameKind.OPENED, self.stream, json.dumps(facts).encode()))
        writing = asyncio.create_task(self._write(writer))
        try:
            while piece := await reader.read(min(MAX_CONTENT, self.credit)):
                self.credit -= len(piece)
                self.porter.say(pack(FrameKind.DATA, self.stream, piece))
                while not self.credit:
                    self.more_credit.clear()
                    await self.more_credit.wait()
        except OSError:
            pass  # the server has closed it
        finally:
            writing.cancel()
            writer.close()
        self.porter.close(self.stream, "the server has closed it")

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        taken = 0
        with contextlib.suppress(OSError):
            while True:
                piece = await self.typed.get()
                writer.write(piece)
                await writer.drain()
                taken += len(piece)
                if taken >= WINDOW // 2:
                    self.porter.say(pack_credit(self.stream, taken))
                    taken = 0


class SshConnection(InnerConnection):
    """A stream to the SSH server, which is started for the first of them. The key that it lets in
    was named by the API."""

    def __init__(self, porter: Porter, stream: int, key: str) -> None:
        self.key = key
        super().__init__(porter, stream, SSH_SOCKET)

    def obey(self, frame: Frame) -> None:
        if frame.kind is FrameKind.DATA:
            self.porter.stir()  # it is encrypted: a key cannot be told from the client's own bytes
        super().obey(frame)

    async def _prepare(self) -> dict[str, str]:
        with open(SSH_KEYS, "a") as keys:
            keys.write(f"{self.key}\n")
        if self.porter.ssh is None or self.porter.ssh.returncode is not None:
            for left in (SSH_SOCKET, SSH_HOST_KEY):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(left)
            self.porter.ssh = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-W", "ignore", "-c", SSH_PROGRAM), stdin=DEVNULL
            )
        deadline = asyncio.get_running_loop().time() + SSH_STARTS_WITHIN_S
        while not os.path.exists(SSH_HOST_KEY):
            if self.porter.ssh.returncode is not None:
                raise OSError("this node has no SSH server (the extra `workbench`)")
            if asyncio.get_running_loop().time() > deadline:
                raise OSError("the SSH server does not start")
            await asyncio.sleep(0.02)
        with open(SSH_HOST_KEY) as file:
            return {"host_key": file.read().strip()}


class Terminal:
    """A shell on a pseudo-terminal of the sandbox, and the last of what it wrote."""

    def __init__(self, porter: Porter, name: str) -> None:
        self.porter, self.name = porter, name
        self.viewers: set[Viewer] = set()
        self.kept = bytearray(greeting())
        self.end = len(self.kept)
        """Number of bytes that it has written from its start; `kept` are the last of them."""
        self.typed = bytearray()
        self.pid, self.pty = pty.fork()
        if self.pid == 0:
            become_shell()
        os.set_blocking(self.pty, False)
        os.set_inheritable(self.pty, False)
        self.is_read = False
        self.look_again()

    def place(self, offset: object) -> int:
        """Return the place from which a viewer who has seen `offset` bytes goes on."""
        begin = self.end - len(self.kept)
        seen = offset if isinstance(offset, int) and offset <= self.end else begin
        return max(begin, seen)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal the size of the window that looks at it."""
        with contextlib.suppress(OSError):
            size = struct.pack("HHHH", rows or 24, columns or 80, 0, 0)
            fcntl.ioctl(self.pty, termios.TIOCSWINSZ, size)

    def type(self, keys: bytes) -> None:
        """Type, as far as the terminal takes it now; the rest follows."""
        self.typed += keys
        self.take_keys()

    def take_keys(self) -> None:
        loop = asyncio.get_running_loop()
        if self.pty < 0:
            return
        try:
            while self.typed:
                del self.typed[: os.write(self.pty, self.typed[:4096])]
        except BlockingIOError:
            loop.add_writer(self.pty, self.take_keys)
            return
        except OSError:
            self.typed.clear()
        loop.remove_writer(self.pty)

    def read(self) -> None:
        """Take what the shell has written, and show it."""
        try:
            piece = os.read(self.pty, MAX_CONTENT)
        except BlockingIOError:
            return
        except OSError:  # its last process has closed it
            piece = b""
        if not piece:
            self.conclude()
            return
        self.kept += piece
        self.end += len(piece)
        del self.kept[: max(0, len(self.kept) - KEPT_BYTES)]
        self.show()

    def show(self) -> None:
        """Show each viewer what it has not seen, as far as it takes it. One that is too far behind
        misses the middle."""
        begin = self.end - len(self.kept)
        for viewer in self.viewers:
            viewer.offset = max(viewer.offset, begin)
            while viewer.credit and viewer.offset < self.end:
                at = viewer.offset - begin
                piece = bytes(self.kept[at : at + min(MAX_CONTENT, viewer.credit)])
                self.porter.say(pack(FrameKind.DATA, viewer.stream, piece))
                viewer.offset += len(piece)
                viewer.credit -= len(piece)
        self.look_again()

    def look_again(self) -> None:
        """Read the shell's output unless all of its viewers are far behind."""
        if self.pty < 0:
            return
        behind = [self.end - viewer.offset for viewer in self.viewers]
        wanted = min(behind, default=0) < BEHIND_BYTES
        if wanted != self.is_read:
            loop = asyncio.get_running_loop()
            if wanted:
                loop.add_reader(self.pty, self.read)
            else:
                loop.remove_reader(self.pty)
            self.is_read = wanted

    def hang_up(self) -> None:
        """Tell its programs that the terminal is closed. A shell that has just been forked has no
        group of its own yet."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGHUP)
        for group in {self.pid, self.foreground()}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGHUP)
                os.killpg(group, signal.SIGCONT)

    def foreground(self) -> int:
        """Return the process group in the foreground; the shell's if there is none. Its number
        would be 0 then, which means one's own."""
        try:
            return os.tcgetpgrp(self.pty) or self.pid
        except OSError:
            return self.pid

    def conclude(self) -> None:
        """End the streams of a shell that has ended."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.pty)
        loop.remove_writer(self.pty)
        os.close(self.pty)
        self.pty = -1
        del self.porter.terminals[self.name]
        self.reap()
        for viewer in list(self.viewers):
            self.porter.close(viewer.stream, "the shell has ended", is_over=True)
        self.viewers.clear()

    def reap(self) -> None:
        """Reap the shell, which has closed its terminal and may take a moment to end."""
        with contextlib.suppress(ChildProcessError):
            pid, _ = os.waitpid(self.pid, os.WNOHANG)
            if pid == 0:
                asyncio.get_running_loop().call_later(REAPED_EVERY_S, self.reap)


def begin_folder() -> str:
    """Return the folder in which shells begin, and from which files are named that are copied."""
    return os.environ.get(SHELL_FOLDER) or os.environ.get("HOME", "/")


def greeting() -> bytes:
    """Return what each terminal shows above its shell, as a terminal takes it."""
    try:
        with open(os.path.join(ROOT, GREETING), "rb") as file:
            return file.read(KEPT_BYTES // 4).replace(b"\n", b"\r\n")
    except OSError:
        return b""


def note(text: str) -> None:
    """Write a line to the workbench's log, which its owner can read."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def become_shell() -> None:
    """Become a shell at home, in the child that has the terminal."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        environment = {**os.environ, "TERM": "xterm-256color"}
        os.chdir(begin_folder())
        shell = next(found for name in SHELLS if (found := shutil.which(name)))
        os.execve(shell, [os.path.basename(shell), "-i"], {**environment, "SHELL": shell})
    finally:
        os._exit(126)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
