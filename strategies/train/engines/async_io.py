"""DeepSpeed's async_io, the library that reads and writes swap files.

It is C++ that every node compiles once. It is built for the host whatever the device: swapped data
is in the host's memory, so no CUDA toolkit is needed.
"""

import fcntl
import importlib
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from strategies.plan.run_directory import NotEquipped

PROGRAM = """#include <libaio.h>
int main() { io_context_t made = nullptr; return io_setup(1, &made); }
"""
HEADER = Path("/usr/include/libaio.h")
MIB = 1 << 20
CAP_IPC_LOCK = 14  # of capabilities(7)
INCLUDED = re.compile(r'#include "(.+)"')
WITHOUT_TORCH = "common"  # DeepSpeed's folder of C++ files that include none of torch's headers


def require(folder: Path, *, locked_bytes: int, instead: str) -> None:
    """Build async_io, and check that `folder` supports swap files and a rank may lock their
    buffers.

    Raises NotEquipped, naming the missing requirement and `instead`, the alternative.
    """
    missing = missing_packages()
    if missing:
        raise NotEquipped(
            f"offloading to nvme compiles DeepSpeed's async_io on the node, which lacks "
            f"{', '.join(missing)} (Debian package names); install them, or {instead}"
        )
    if not writes_directly(folder):
        raise NotEquipped(
            f"offloading to nvme bypasses the page cache, which the file system of {folder} does "
            f"not support (no O_DIRECT); move the node's data to a disk that does, or {instead}"
        )
    if not may_lock(locked_bytes):
        raise NotEquipped(
            f"offloading to nvme locks {locked_bytes / MIB:,.0f} MiB of memory in each rank, and "
            f"the limit is {resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] / MIB:,.0f} MiB; raise "
            f"it (ulimit -l, LimitMEMLOCK of a systemd unit), or {instead}"
        )
    try:
        build()
    except (OSError, RuntimeError, ImportError) as error:
        *_, last = [type(error).__name__, *str(error).strip().splitlines()]
        why = f"DeepSpeed's async_io does not build here: {last}; {instead}"
        raise NotEquipped(why) from error


def missing_packages() -> list[str]:
    """Return the Debian names of packages that compiling needs and this node lacks."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    missing = []
    if compiler is None:
        missing.append("g++")
    if shutil.which("ninja", path=with_own_programs()) is None:
        missing.append("ninja-build")
    if not (HEADER.exists() if compiler is None else links_libaio(compiler)):
        missing.append("libaio-dev")
    return missing


def links_libaio(compiler: str) -> bool:
    """Return True if a program that uses libaio compiles with the flags set in the environment."""
    flags = shlex.split(f"{os.environ.get('CFLAGS', '')} {os.environ.get('LDFLAGS', '')}")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "try.cpp"
        source.write_text(PROGRAM)
        command = [compiler, str(source), "-o", f"{folder}/try", *flags, "-laio"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def with_own_programs() -> str:
    """Return PATH with the folder of this Python's programs, where pip installs ninja."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


def writes_directly(folder: Path) -> bool:
    """Return True if files in the folder can bypass the page cache."""
    path = folder / ".direct"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


def may_lock(num_bytes: int) -> bool:
    """Raise this process's limit as far as allowed; return True if it may lock that much memory."""
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))
    if most == resource.RLIM_INFINITY or num_bytes <= most:
        return True
    own = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return own is not None and bool(int(own[1], 16) >> CAP_IPC_LOCK & 1)


def build() -> None:
    """Compile async_io, or load an earlier build. Ranks of a node take turns.

    torch marks a build in progress with a file that outlives a killed process, and would wait for
    it forever; here a lock that ends with its process marks it instead.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    paths = environment(TORCH_EXTENSIONS_DIR=cache, PATH=with_own_programs())
    with locked(cache / "building"), paths:
        for left in cache.glob("*/lock"):
            left.unlink()
        builders = importlib.import_module("deepspeed.ops.op_builder.cpu")
        for builder in (builders.PinMemoryBuilder(), builders.AsyncIOBuilder()):
            sources = [Path(builder.deepspeed_src_path(name)) for name in builder.sources()]
            files = joined(sources, cache / f"{builder.name}.cpp")
            builder.sources = partial(list, files)
            builder.load(verbose=False)


def joined(sources: Sequence[Path], into: Path) -> list[str]:
    """Return the files to compile instead of `sources`.

    Those that include torch's headers, which take a compiler 30 s each time, are joined into one;
    the others are listed as they are.
    """
    plain = [path for path in sources if path.parent.name == WITHOUT_TORCH]
    seen: set[Path] = set()
    text = "".join(written_out(path, seen) for path in sources if path not in plain)
    if not into.exists() or into.read_text() != text:
        into.write_text(text)
    return [*map(str, plain), str(into)]


def written_out(path: Path, seen: set[Path]) -> str:
    """Return a C++ file with local headers inlined, each only once in all.

    Some of DeepSpeed's headers have no include guard and cannot be read twice.
    """
    seen.add(path)
    lines = []
    for line in path.read_text().splitlines(keepends=True):
        found = INCLUDED.match(line)
        header = None if found is None else (path.parent / found[1]).resolve()
        if header is None or not header.exists():
            lines.append(line)
        elif header not in seen:
            lines.append(written_out(header, seen))
    return "".join([*lines, "\n"])


def cache_folder() -> Path:
    """Return the folder in which this user's build is kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return home / "trainyard" / "async_io"


def is_built() -> bool:
    """Return True if async_io has been compiled here for some version of DeepSpeed and torch."""
    return (cache_folder() / "async_io" / "async_io.so").exists()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` exclusively."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def environment(**variables: object) -> Iterator[None]:
    """Set these environment variables inside the context; restore the old values afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


if __name__ == "__main__":
    began = time.monotonic()
    build()
    sys.stdout.write(f"async_io is ready, after {time.monotonic() - began:.0f} s\n")
