"""The manual: the Markdown files of `docs/` as pages that the server itself serves."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

# Beside this package in a checkout, inside of it in a wheel.
PLACES = (Path(__file__).parent / "docs", Path(__file__).parent.parent / "docs")
LEFT_OUT = ("decisions", "benchmarks", "scaling")  # of the list: for developers
NAME = re.compile(r"^[a-z0-9-]+(/[a-zA-Z0-9-]+)?$")
# html: anchors in the files, which are part of the release and nobody else's text.
_READER = MarkdownIt("commonmark", {"html": True}).enable("table")


@dataclass(frozen=True)
class Chapter:
    """One page of the manual."""

    name: str
    """Address below `/help/`: `leases`, `strategies/fsdp`."""
    title: str
    text: Markup


def chapter(name: str) -> Chapter | None:
    """Return a page by its name; None if there is none."""
    return _chapters().get(name)


def chapters() -> list[Chapter]:
    """Return the pages for users: those of the first level, then those of folders, by name."""
    listed = [one for one in _chapters().values() if not one.name.startswith(LEFT_OUT)]
    return sorted(listed, key=lambda one: ("/" in one.name, one.name))


@lru_cache(maxsize=1)  # the files are part of the release
def _chapters() -> dict[str, Chapter]:
    folder = next((place for place in PLACES if place.is_dir()), None)
    if folder is None:
        return {}
    found = {}
    for path in sorted(folder.rglob("*.md")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if NAME.match(name):
            found[name] = _read(name, path.read_text(encoding="utf-8"))
    return found


def _read(name: str, text: str) -> Chapter:
    tokens = _READER.parse(text)
    title = name
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[index + 1].content
            token.attrSet("id", _anchor(heading))
            if token.tag == "h1":
                title = re.sub(r"[`*]", "", heading)
        if token.type == "inline" and token.children:
            token.children = [one for one in token.children if one.type != "image"]
            for one in token.children:
                _lead_inside(one, name)
    return Chapter(
        name, title, Markup(_readable(_READER.renderer.render(tokens, _READER.options, {})))
    )


def _readable(html: str) -> str:
    """What scrolls is reached by keys, and an empty head of a column is no head."""
    for plain, readable in (
        ("<table>", '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>'),
        ("</table>", "</table></div>"),
        ("<th></th>", "<td></td>"),
        ("<pre>", '<pre tabindex="0">'),
    ):
        html = html.replace(plain, readable)
    return html


def _lead_inside(token: Token, name: str) -> None:
    """Make a link between two files of the manual one between two of its pages."""
    href = str(token.attrGet("href") or "")
    path, mark, anchor = href.partition("#")
    if token.type != "link_open" or "://" in href or not path.endswith(".md"):
        return
    parts: list[str] = []
    for part in (PurePosixPath(name).parent / path).parts:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    token.attrSet("href", f"/help/{'/'.join(parts).removesuffix('.md')}{mark}{anchor}")


def _anchor(heading: str) -> str:
    """The anchor of a heading, as links in the files name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
