"""SSH server of a workbench, for stock clients: ssh, scp, sftp, rsync, and editors over them.

It runs inside, as the program's user, and is reached through the tunnel alone, on a socket inside.
Its host key is made for this attempt, and the keys that it lets in are those that the API has named
to the porter: both end with the sandbox. Forwarding leads to the sandbox's own loopback and
sockets; nothing is forwarded back to the client's machine.
"""

import asyncio
import contextlib
import fcntl
import os
import pty
import shutil
import signal
import socket
import struct
import termios
from pathlib import Path

import asyncssh

from worker.workbench.porter import SSH_HOST_KEY, SSH_KEYS, SSH_SOCKET, begin_folder

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def main() -> None:
    """Serve until SIGTERM."""
    asyncio.run(serve())


async def serve() -> None:
    """Listen, then write the host key: whoever finds it can connect."""
    os.chdir(begin_folder())  # files that are copied to a relative path belong there too
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    key = asyncssh.generate_private_key("ssh-ed25519")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(SSH_SOCKET)
    os.chmod(SSH_SOCKET, 0o600)
    server = await asyncssh.listen(
        sock=listening,
        server_factory=Guard,
        server_host_keys=[key],
        process_factory=handle,
        sftp_factory=Files,
        allow_scp=True,
        encoding=None,
        agent_forwarding=False,
        x11_forwarding=False,
        line_editor=False,
    )
    part = Path(f"{SSH_HOST_KEY}.part")
    part.write_bytes(key.export_public_key())
    part.rename(SSH_HOST_KEY)
    await over.wait()
    server.close()


class Guard(asyncssh.SSHServer):
    """Rules for who enters, and for what is forwarded where."""

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        allowed = Path(SSH_KEYS).read_text().splitlines()
        return key.export_public_key().decode().split()[1] in {line.split()[1] for line in allowed}

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        return dest_host in LOOPBACK

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True  # inside there are only the program's own


class Files(asyncssh.SFTPServer):
    """Files of the sandbox. scp fails unless the session ends with an exit code."""

    def exit(self) -> None:
        self.channel.exit(0)


async def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run a command, or a shell, on a terminal if the client asked for one."""
    shell = shutil.which("bash") or "/bin/sh"
    command = process.command
    arguments = [shell, "-i"] if command is None else [shell, "-c", command]
    if process.term_type is None:
        child = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        # Not `redirect`: what is still in its pipes when the command ends may be lost.
        sending = asyncio.create_task(_feed(process, child.stdin))
        await asyncio.gather(
            _copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr)
        )
        code = await child.wait()
        sending.cancel()
        process.exit(code if code >= 0 else 128 - code)
        return
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execve(shell, arguments, {**os.environ, "TERM": process.term_type})
        finally:
            os._exit(126)
    process.exit(await _show(process, pid, terminal))


async def _feed(process: asyncssh.SSHServerProcess[bytes], command: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while piece := await process.stdin.read(32768):
            command.write(piece)
            await command.drain()
    command.close()


async def _copy(command: asyncio.StreamReader, client: asyncssh.SSHWriter[bytes]) -> None:
    """Copy a command's output to the client; a client that is gone does not hold the command up."""
    while piece := await command.read(32768):
        with contextlib.suppress(OSError, asyncssh.Error):
            client.write(piece)
            await client.drain()


async def _show(process: asyncssh.SSHServerProcess[bytes], pid: int, terminal: int) -> int:
    """Pass keys and output between a client and a terminal, until its shell has ended."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    _resize(terminal, process.term_size)

    def read() -> None:
        try:
            piece = os.read(terminal, 32768)
        except OSError:  # its last process has closed it
            piece = b""
        if piece:
            process.stdout.write(piece)
        else:
            loop.remove_reader(terminal)
            over.set()

    loop.add_reader(terminal, read)
    typing = asyncio.create_task(_type(process, terminal))
    await over.wait()
    typing.cancel()
    os.close(terminal)
    _, status = await loop.run_in_executor(None, os.waitpid, pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


async def _type(process: asyncssh.SSHServerProcess[bytes], terminal: int) -> None:
    while True:
        try:
            keys = await process.stdin.read(4096)
        except asyncssh.TerminalSizeChanged as changed:
            _resize(terminal, (changed.width, changed.height, 0, 0))
            continue
        except (asyncssh.BreakReceived, asyncssh.SignalReceived):
            continue
        if not keys:
            with contextlib.suppress(OSError):
                os.write(terminal, b"\x04")
            return
        os.write(terminal, keys)


def _resize(terminal: int, size: tuple[int, int, int, int]) -> None:
    columns, rows = size[0] or 80, size[1] or 24
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
