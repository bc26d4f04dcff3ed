"""`python -m standalone --data DIR`: `trainyard up` without the client's command line."""

import typer

from standalone.commands import up

if __name__ == "__main__":
    typer.run(up)
