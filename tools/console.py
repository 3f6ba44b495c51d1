"""The terminal: notes, progress and status on stderr, tables on stdout. rich is imported to draw."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, TextIO

import click

from edgekit.tools.interrupts import Interrupts
from edgekit.tools.terminal_text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from edgekit.tools.apart import Tell

#: Columns a status needs beside the text on its line; with fewer left it is not shown.
_STATUS_COLUMNS = 24
#: Seconds between two updates of the status.
_STATUS_INTERVAL_S = 0.08
#: Wider than any table of ours: without a terminal nothing is wrapped or cut.
_NO_WIDTH = 10_000


def on_terminal(stream: IO[Any]) -> bool:
    """Whether a person watches the stream on a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def console(stream: IO[Any]) -> Console:
    """A rich console on the stream as it is now (tests and shells replace the standard ones)."""
    from rich.console import Console

    if on_terminal(stream):
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, width=_NO_WIDTH, force_terminal=False, color_system=None)


def note(line: str) -> None:
    """One line for the person at the terminal, on stderr."""
    click.echo(visible(line), err=True)


@contextmanager
def remarks(say: Callable[[str], object] = note) -> Iterator[None]:
    """Inside the block what the runtime warns of is a note, each said once; other warnings are shown as
    always.
    """
    from edgekit.runtime.errors import Remark

    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, Remark):
                say(f"note: {message}")
            else:
                before(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        warnings.simplefilter("once", Remark)
        yield


def prose(line: str, indent: str = "", *, err: bool = False) -> None:
    """One line of words on stdout, or on stderr; a terminal that is narrower gets it broken between words."""
    line = indent + visible(line)
    stream = sys.stderr if err else sys.stdout
    if on_terminal(stream):
        # Terminals that nobody has told their size have 0 columns.
        width = os.get_terminal_size(stream.fileno()).columns or 80
        line = textwrap.fill(
            line, max(20, width), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    click.echo(line, err=err)


def for_programs(text: str) -> None:
    """Text on stdout as it is; on a terminal what that would obey is made visible, as everywhere."""
    click.echo(visible(text, keep="\n") if on_terminal(sys.stdout) else text)


def command_line(*words: str | os.PathLike[str]) -> str:
    """The line to type that runs `edgekit` with these arguments; a path may look like an option."""
    found = ["edgekit"]
    for word in words:
        is_path = isinstance(word, os.PathLike)
        text = os.fspath(word)
        found.append(f"./{text}" if is_path and text.startswith("-") else text)
    return shlex.join(found)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, *, err: bool = False
) -> None:
    """Print a table on stdout, or stderr; the first `left` columns stand left, the others, numbers, right.
    In a terminal where words would have to be split every cell has a line of its own.
    """
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    out = console(sys.stderr if err else sys.stdout)
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for i, heading in enumerate(headings):
        # Names are there to be copied: the other columns make room for them.
        grid.add_column(heading, justify="left" if i < left else "right", overflow="fold", no_wrap=not i)
    rows = list(rows)
    for row in rows:
        grid.add_row(*(Text(visible(cell)) for cell in row))
    if Measurement.get(out, out.options.update_width(_NO_WIDTH), grid).minimum > out.width:
        for name, *others in rows:
            prose(name, err=err)
            for heading, cell in zip(headings[1:], others, strict=True):
                if cell:
                    prose(f"{heading}: {cell}", "  ", err=err)
        return
    # Trailing blanks of the last column would wrap in narrow terminals and are noise in files.
    with out.capture() as capture:
        out.print(grid)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()), err=err)


def grouped(notes: Iterable[str]) -> list[str]:
    """Notes of the form `name: text`, one line per text with the first name and how many more there are."""
    names: dict[str, list[str]] = {}
    for line in notes:
        name, separator, text = line.partition(": ")
        # Only names of weights are worth counting; other notes stay as they are.
        grouping = bool(separator) and "." in name and " " not in name
        names.setdefault(text if grouping else line, []).append(name if grouping else "")
    return [
        text if not who[0] else f"{who[0]}{f' and {len(who) - 1} more' if len(who) > 1 else ''}: {text}"
        for text, who in names.items()
    ]


#: Who is told of all progress in place of the person at the terminal.
_told: Tell | None = None


def tell_progress(tell: Tell) -> None:
    """From now on every `Steps` of this process tells another one, which shows it."""
    global _told
    _told = tell


class Steps:
    """Progress through stages, an `export.pipeline.Progress`: a bar on a terminal, nothing elsewhere."""

    def __init__(self, first: str, *, quiet: bool = False) -> None:
        """`first` is shown until the first stage begins."""
        self._first, self._quiet = first, quiet
        self._bar: Progress | None = None
        self._task: Any = None
        self._interrupts = Interrupts()

    def __enter__(self) -> Steps:
        self._interrupts.__enter__()
        if not self._quiet and on_terminal(sys.stderr):
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),  # of its own accord it takes what the other columns leave, and jumps
                TextColumn("{task.fields[share]}"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                TextColumn("[dim]{task.fields[what]}"),
                console=console(sys.stderr),
                transient=True,
            )
            self._bar.start()
            self.stage(self._first, 0)
        return self

    def stage(self, name: str, total: int) -> None:
        """Begin a stage of `total` units; 0 when nobody knows how long it takes."""
        self._interrupts.check()
        if _told is not None:
            _told(stage=name, total=total)
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(name, total=total or None, what="", share="")

    def note(self, line: str) -> None:
        """One line on stderr, above the bar; nothing when quiet."""
        if _told is not None:
            _told(note=line)
        elif self._bar is not None:
            self._bar.console.print(visible(line), markup=False, soft_wrap=True)
        elif not self._quiet:
            note(line)

    def advance(self, done: int, what: str) -> None:
        """`done` more units; `what` has just been finished or is under way."""
        self._interrupts.check()
        if _told is not None:
            _told(done=done, what=what)
        if self._bar is not None:
            self._bar.update(self._task, advance=done, what=visible(what))
            task = next(t for t in self._bar.tasks if t.id == self._task)
            if task.total:
                self._bar.update(self._task, share=f"{100 * task.completed / task.total:3.0f}%")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._interrupts.__exit__(kind, error, trace)
        if self._bar is not None:
            self._bar.stop()


class Status:
    """A dim remark behind the text on the terminal's current line, which leaves no trace when it is cleared.

    For progress while text streams to the same terminal: a display that owns whole lines would overwrite the
    line that is not finished.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._enabled = not quiet and on_terminal(sys.stderr)
        self._shared = on_terminal(sys.stdout)
        self._shown = False
        self._column = 0
        self._last = 0.0

    def show(self, remark: str, *, now: bool = False) -> None:
        """Show `remark` in place of the last one, unless that is very new and not `now`."""
        moment = time.monotonic()
        if not self._enabled or (moment - self._last < _STATUS_INTERVAL_S and not now):
            return
        from rich.cells import set_cell_size

        # Terminals that nobody has told their size have 0 columns.
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        back = "\x1b8\x1b[K" if self._shown else ""
        left = width - self._column % width - 1
        if left < _STATUS_COLUMNS:
            self.clear()
            return
        gap = "  " if self._column else ""
        remark = set_cell_size(gap + visible(remark), left).rstrip()
        # Save the cursor; no wrapping, so that the line does not scroll away from where the cursor was saved.
        sys.stderr.write(f"{back}\x1b7\x1b[?7l\x1b[2m{remark}\x1b[0m\x1b[?7h")
        sys.stderr.flush()
        self._shown, self._last = True, moment

    def clear(self) -> None:
        """Take the remark away."""
        if self._shown:
            sys.stderr.write("\x1b8\x1b[K")
            sys.stderr.flush()
            self._shown = False

    def write(self, text: str) -> None:
        """Write `text` to stdout, without a line end of its own."""
        self.clear()
        if self._shared:
            from rich.cells import cell_len

            text = visible(text, keep="\n\t")
            before, newline, last = text.rpartition("\n")
            self._column = cell_len(last) + 8 * last.count("\t") + (0 if newline else self._column)
        click.echo(text, nl=False)

    def __enter__(self) -> Status:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
