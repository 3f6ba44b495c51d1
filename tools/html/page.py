"""A page: titles, text, tables and charts as HTML, in one file with all that a browser needs for it."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TypeAlias

from plotly.offline import get_plotlyjs

from edgekit.tools.html.charts import Chart
from edgekit.tools.html.theme import THEMES
from edgekit.tools.output_file import PAGE_MARK
from edgekit.tools.terminal_text import visible

#: Browsers load nothing from elsewhere for a page that says so, whatever is in it.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True)
class Table:
    """Headings and rows; columns with a number in `left` stand left, the others right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Facts:
    """Names, each with what is said of it."""

    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Folded:
    """Parts below a line that opens them."""

    title: str
    parts: Sequence[Part]


#: Text is a paragraph.
Part: TypeAlias = str | Table | Facts | Chart | Folded


@dataclass(frozen=True)
class Section:
    """Parts below a title, which may be empty."""

    title: str
    parts: Sequence[Part]


@dataclass
class _Writer:
    """Collects the charts while it writes the parts: their figures stand at the end of the page."""

    charts: list[Chart] = field(default_factory=list)

    def section(self, section: Section) -> Iterator[str]:
        yield "<section>"
        if section.title:
            yield f"<h2>{text(section.title)}</h2>"
        for part in section.parts:
            yield from self.part(part)
        yield "</section>"

    def part(self, part: Part) -> Iterator[str]:
        match part:
            case str():
                yield f"<p>{text(part)}</p>"
            case Table():
                yield from _table(part)
            case Facts():
                yield "<dl>"
                for name, says in part.lines:
                    yield f"<dt>{text(name)}</dt><dd>{text(says)}</dd>"
                yield "</dl>"
            case Chart():
                yield from self._chart(part)
            case Folded():
                yield f"<details><summary>{text(part.title)}</summary>"
                for each in part.parts:
                    yield from self.part(each)
                yield "</details>"

    def _chart(self, chart: Chart) -> Iterator[str]:
        number = len(self.charts)
        self.charts.append(chart)
        yield f"<figure><figcaption><strong>{text(chart.title)}</strong> {text(chart.says)}</figcaption>"
        if chart.colours:
            named = (f'<li style="--c:{text(c)}">{text(name)}</li>' for name, c in chart.colours.items())
            yield f'<ul class="colours">{"".join(named)}</ul>'
        yield (
            f'<div class="chart" data-figure="{number}" role="img" aria-label="{text(chart.title)}" '
            f'style="height:{chart.height}px"></div></figure>'
        )


def _table(table: Table) -> Iterator[str]:
    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=left' if number in table.left else ''}>{text(cell)}</{tag}>"
            for number, cell in enumerate(cells)
        )

    yield '<div class="table" tabindex="0"><table>'
    yield f"<thead><tr>{row(table.headings, 'th')}</tr></thead><tbody>"
    for cells in table.rows:
        yield f"<tr>{row(cells, 'td')}</tr>"
    yield "</tbody></table></div>"


def text(said: str) -> str:
    """What was said, as HTML that shows it and does nothing else."""
    return escape(visible(said))


def render(title: str, sections: Sequence[Section]) -> bytes:
    """The page. Plotly's library is in it once."""
    writer = _Writer()
    body = [line for section in sections for line in writer.section(section)]
    files = importlib.resources.files("edgekit.tools.html")
    style, draw = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "draw.js"))
    scripts = []
    if writer.charts:
        figures = "[" + ",".join(chart.figure for chart in writer.charts) + "]"
        scripts = [
            "<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>",
            _data("figures", figures),
            _data("themes", json.dumps(THEMES)),
            f"<script>{get_plotlyjs()}</script>",
            f"<script>{draw}</script>",
        ]
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        PAGE_MARK,
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{text(title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        f"<main><h1>{text(title)}</h1>",
        *body,
        "</main>",
        *scripts,
        "</body>",
        "</html>",
    ]
    return ("\n".join(lines) + "\n").encode()


def _data(name: str, given: str) -> str:
    """JSON within HTML: no text in it may end the script that holds it."""
    inert = given.replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{inert}</script>'
