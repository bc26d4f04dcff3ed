"""`python -m standalone [--data DIR] [--port PORT]`: the program of `trainyard up`.

It imports nothing of a command line's: what it imports, all processes of the platform have.
"""

import argparse
import sys
from pathlib import Path

from core.process.imports import lean_imports
from standalone.data_directory import AlreadyRunning, DataDirectory
from standalone.valkey import SocketPathTooLong


def main() -> int:
    """Run it with this process's arguments; returns the exit code if it does not start."""
    parser = argparse.ArgumentParser(prog="trainyard up", description=__doc__)
    parser.add_argument("--data", type=Path, default=DataDirectory.default().path, metavar="DIR")
    parser.add_argument("--port", type=int)
    asked = parser.parse_args()
    with lean_imports():
        from core.database.schema import UnknownRevision
        from standalone.processes import StartFailed
        from standalone.up import run

    try:
        run(DataDirectory(asked.data.absolute()), asked.port)
    except AlreadyRunning as error:
        sys.stderr.write(f"{error}\n")
        return 3
    except (StartFailed, SocketPathTooLong, UnknownRevision) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
