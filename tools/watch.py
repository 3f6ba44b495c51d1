"""The canvas on the terminal while it resolves: final tokens bright, undecided ones dim, masks dots."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from edgekit.flashload.sizes import size
from edgekit.runtime.tokenizer.canvas_text import SPECIAL, CanvasText, State
from edgekit.tools.answer_display import STOPPING, where
from edgekit.tools.console import console
from edgekit.tools.echo import echo_off
from edgekit.tools.terminal_text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

    from edgekit.runtime.api import Draft

#: Lines of the terminal left to what was there before, and the most that a canvas needs.
_LINES_LEFT, _MOST_LINES = 5, 24
_MOST_COLUMNS = 100
_FRAME_S = 1 / 25
_STYLES = {
    State.OPEN: "dim",
    State.DRAFT: "dim",
    State.KEPT: "bold",
    State.ACCEPTED: "bold green",
    State.COMMITTED: "bold",
}
_SPECIALS = re.compile(f"({SPECIAL}+)")


class Canvas:
    """The answer so far and the canvas being denoised, as a renderable."""

    def __init__(self, title: str, answer: CanvasText, unit: str) -> None:
        """`unit`: "canvas" or "block"."""
        self._title, self._answer, self._unit = title, answer, unit
        self._status = "reading"
        self._share = 0.0
        self._lines = 0

    def draft(self, draft: Draft) -> None:
        """Take the state after a step."""
        self._answer.draft(draft.start, draft.ids, draft.accepted)
        settled = sum(c.state >= State.KEPT for c in self._answer.cells() if c.place >= draft.start)
        self._share = draft.progress
        self._status = f"{where(draft, self._unit)} · {100 * settled / len(draft.ids):.0f}% accepted"
        if draft.bytes_read:
            self._status += f" · {size(draft.bytes_read)} read"

    def say(self, status: str) -> None:
        """Show a status until the next step."""
        self._status = status

    def commit(self, ids: Sequence[int]) -> None:
        """Tokens are final."""
        self._answer.commit(ids)

    def text(self) -> Text:
        """All tokens, styled by their states."""
        from rich.text import Text

        text = Text()
        for part in self._answer.parts():
            for piece in filter(None, _SPECIALS.split(part.text)):
                style = "dim" if piece[0] == SPECIAL else _STYLES[part.state]
                text.append(visible(piece.replace("\t", "    "), keep="\n"), style)
        return text

    def render(self, console: Console) -> RenderableType:
        """A panel that fits the terminal and does not shrink from frame to frame."""
        from rich.panel import Panel
        from rich.text import Text

        width = max(20, min(console.width, _MOST_COLUMNS))
        height = max(1, min(console.height - _LINES_LEFT, _MOST_LINES))
        lines = list(self.text().wrap(console, width - 4, overflow="fold"))
        if len(lines) > height:
            # Around the last token that was accepted; without one, the end.
            news = [i for i, line in enumerate(lines) if any("green" in str(s.style) for s in line.spans)]
            stop = min(len(lines), max(height, news[-1] + 1 + height // 4 if news else len(lines)))
            lines = lines[stop - height : stop]
        self._lines = min(height, max(self._lines, len(lines)))
        lines += [Text()] * (self._lines - len(lines))
        done = round(12 * self._share)
        meter = Text.assemble(
            ("━" * done, "green"), ("┄" * (12 - done), "dim"), (f" {self._status}", "default")
        )
        return Panel(
            Text("\n").join(lines),
            title=Text(visible(self._title), style="bold"),
            title_align="left",
            subtitle=meter,
            subtitle_align="left",
            border_style="dim",
            width=width,
        )


class Watch:
    """Draws a `Canvas` on stderr's terminal while the block runs; the terminal is as before afterwards."""

    def __init__(self, canvas: Canvas) -> None:
        self._canvas = canvas
        self._console = console(sys.stderr)
        self._live: Live | None = None
        self._screen = ExitStack()
        self._drawn = 0.0

    def draft(self, draft: Draft) -> None:
        self._canvas.draft(draft)
        self._draw()

    def text(self, ids: Sequence[int], piece: str) -> None:
        self._canvas.commit(ids)
        self._draw(now=True)

    def stopping(self) -> None:
        self._canvas.say(STOPPING)
        self._draw(now=True)

    def _draw(self, now: bool = False) -> None:
        moment = time.monotonic()
        if self._live is not None and (now or moment - self._drawn > _FRAME_S):
            self._live.update(self._canvas.render(self._console), refresh=True)
            self._drawn = moment

    def __enter__(self) -> Watch:
        from rich.live import Live

        with ExitStack() as screen:
            # Typed text, and characters whose width the terminal sees differently than rich, would move the
            # cursor: the next frame would be drawn a line too low.
            screen.enter_context(echo_off())
            screen.callback(self._wrap, True)
            self._wrap(False)
            self._live = Live(
                self._canvas.render(self._console), console=self._console, auto_refresh=False, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            screen.callback(self._live.stop)
            self._live.start(refresh=True)
            self._screen = screen.pop_all()
        return self

    def _wrap(self, wraps: bool) -> None:
        self._console.file.write("\x1b[?7h" if wraps else "\x1b[?7l")
        self._console.file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.close()
