"""`python -m standalone --data DIR`: `trainyard up` without the client's command line."""

import typer

from standalone.commands import up


def main() -> None:
    """Run it with this process's arguments."""
    typer.run(up)


if __name__ == "__main__":
    main()
