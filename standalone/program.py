"""`python -m standalone.program NAME [OPTION ...]`: the API, a scheduler or a worker as a program.

NAME.main is imported leanly: collections of garbage would take a third of the start.
"""

import sys
from importlib import import_module

from core.process.imports import lean_imports


def command(name: str) -> list[str]:
    """Return the command that runs `name`: api, scheduler or worker."""
    # -P: what lies in the folder where it is typed must not shadow a module.
    return [sys.executable, "-P", "-m", "standalone.program", name]


if __name__ == "__main__":
    name, *options = sys.argv[1:]
    sys.argv = [f"trainyard {name}", *options]
    with lean_imports():
        run = import_module(f"{name}.main").main
    sys.exit(run())
