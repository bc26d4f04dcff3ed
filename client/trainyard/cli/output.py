"""Output of commands: tables for people, JSON for scripts. Text of others is made inert."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from trainyard.inert import inert, one_line
from trainyard.transport.decoding import AnyView

JSON_FLAG = "trainyard.json"  # in the context: this command was asked for JSON
PIPE_WIDTH = 240  # columns of a table that goes into a file or pipe
GAP = "  "
SHORT = 6  # characters of an id in a table
MIN_PROSE = 40  # columns that make a column of prose readable

STYLES = {
    "queued": "dim",
    "booked": "dim",
    "pending": "dim",
    "starting": "cyan",
    "running": "cyan",
    "active": "cyan",
    "paused": "magenta",
    "maintenance": "magenta",
    "stopping": "yellow",
    "ending": "yellow",
    "draining": "yellow",
    "dirty": "yellow",
    "succeeded": "green",
    "ready": "green",
    "failed": "red",
    "quarantined": "red",
}
SHAPES = {
    "queued": "○",
    "booked": "○",
    "starting": "◔",
    "running": "▶",
    "active": "▶",
    "paused": "‖",
    "stopping": "◧",
    "succeeded": "✓",
    "ready": "●",
    "failed": "✗",
    "quarantined": "✗",
    "cancelled": "⊘",
}


def _remember(ctx: typer.Context, as_json: bool) -> bool:
    ctx.meta[JSON_FLAG] = as_json
    return as_json


AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON and nothing else.", callback=_remember)
]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number of entries.")]


def console() -> Console:
    """Return the console of stdout. Nothing is coloured or truncated in a file or pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def error_console() -> Console:
    """Return the console of stderr, for progress bars: stdout holds only the answer."""
    return Console(highlight=False, stderr=True)


def print_json(document: object) -> None:
    """Print indented ASCII JSON: nothing in it can move a cursor."""
    typer.echo(json.dumps(document, indent=2, default=str))


def print_json_line(document: object) -> None:
    """Print one object on a line of its own, at once."""
    typer.echo(json.dumps(document, default=str))


def print_answer(document: object, sentence: str, *, as_json: bool) -> None:
    """Print a document as JSON, or else the sentence for a person."""
    if as_json:
        print_json(document)
    else:
        say(sentence)


def print_json_error(document: object) -> None:
    """Print JSON on stderr: stdout holds answers only."""
    typer.echo(json.dumps(document, indent=2, default=str), err=True)


def say(text: str) -> None:
    """Print a line for a person on stdout."""
    typer.echo(inert(text))


def note(text: str) -> None:
    """Print a line for a person on stderr: stdout holds only the answer."""
    typer.echo(inert(text), err=True)


def state_text(state: str) -> Text:
    """Return a state as shape and word, coloured by family: readable without colour."""
    shape = SHAPES.get(state, "·")
    return Text(f"{shape} {one_line(state)}", style=STYLES.get(state, "dim"), no_wrap=True)


def cell(value: object) -> Text:
    """Return a value for a table or line; `-` for none."""
    return Text("-", style="dim") if value is None or value == "" else Text(one_line(str(value)))


def short_id(whole: str) -> str:
    """Return the last characters of an id, which commands take in its place."""
    return whole[-SHORT:]


def id_cell(whole: str) -> Text:
    """Return an id for a table: short on a terminal, whole in a file or pipe."""
    return cell(short_id(whole) if sys.stdout.isatty() else whole)


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    right: Sequence[str] = (),
    sentence: bool = False,
    least: Sequence[str] = (),
) -> None:
    """Print rows below their heads, or the sentence `empty`. No text is ever cut.

    With `sentence` the last column is prose: it gets the rest of the line, or, if less than
    MIN_PROSE columns are left, a line of its own below. On a terminal that is too narrow the
    columns `least` are left out, the first of them first.
    """
    cells = [[part if isinstance(part, Text) else cell(part) for part in row] for row in rows]
    if not cells:
        say(empty)
        return
    out = console()
    heads = list(heads)
    for head in least:
        if _width(heads, cells, sentence) <= out.width:
            break
        column = heads.index(head)
        heads.pop(column)
        for line in cells:
            line.pop(column)
    titles = [Text(head, style="bold") for head in heads]
    num_aligned = len(heads) - 1 if sentence else len(heads)
    widths = _widths(heads, cells)[:num_aligned]
    start = sum(widths) + len(GAP) * num_aligned
    has_room = out.width - start >= MIN_PROSE
    for line in [titles, *cells]:
        aligned = Text(GAP).join(
            _padded(line[column], widths[column], is_right=heads[column] in right)
            for column in range(num_aligned)
        )
        if sentence and has_room:
            wrapped = line[-1].wrap(out, out.width - start)
            aligned = aligned + Text(GAP) + wrapped[0] if wrapped else aligned
            aligned = Text(f"\n{' ' * start}").join([aligned, *wrapped[1:]])
        elif sentence and line is not titles and line[-1].plain != "-":
            aligned = aligned + Text(f"\n{GAP}") + line[-1]
        aligned.rstrip()
        out.print(aligned, soft_wrap=True)


def print_list(
    views: Iterable[AnyView],
    heads: Sequence[str],
    row: Callable[[AnyView], Sequence[object]],
    *,
    as_json: bool,
    empty: str,
    right: Sequence[str] = (),
    sentence: bool = False,
    least: Sequence[str] = (),
) -> None:
    """Print views as one JSON array, or else as a table with a row for each."""
    if as_json:
        print_json([view.raw for view in views])
    else:
        rows = map(row, views)
        print_table(heads, rows, empty=empty, right=right, sentence=sentence, least=least)


def _widths(heads: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    return [
        max(len(head), *(line[column].cell_len for line in cells))
        for column, head in enumerate(heads)
    ]


def _width(heads: Sequence[str], cells: Sequence[Sequence[Text]], sentence: bool) -> int:
    widths = _widths(heads, cells)
    aligned = widths[:-1] if sentence else widths
    return sum(aligned) + len(GAP) * (len(aligned) - 1)


def _padded(text: Text, width: int, *, is_right: bool) -> Text:
    space = Text(" " * (width - text.cell_len))
    return space + text if is_right else text + space


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print name and value on a line each; facts without a value are left out."""
    known = [(name, value) for name, value in facts if value is not None and value != ""]
    width = max((len(name) for name, _ in known), default=0)
    out = console()
    for name, value in known:
        shown = value if isinstance(value, Text) else cell(value)
        out.print(Text(f"{name:<{width}}{GAP}", style="dim") + shown, soft_wrap=True)
