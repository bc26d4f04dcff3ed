"""Progress bar of an upload or download."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

from trainyard.cli.output import error_console


@contextmanager
def transfer_bar(*, show: bool) -> Iterator[Callable[[int, int | None], None] | None]:
    """Show a bar on stderr; yield the function that takes bytes done and in total.

    Yields None if stderr is not a terminal or nothing is to be shown.
    """
    out = error_console()
    if not show or not out.is_terminal:
        yield None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
