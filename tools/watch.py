"""The canvas on the terminal while it resolves: final tokens bright, undecided ones dim, masks dots."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from edgekit.flashload.sizes import size
from edgekit.tools.answer_display import where
from edgekit.tools.console import console
from edgekit.tools.echo import echo_off
from edgekit.tools.terminal_text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

    from edgekit.runtime.api import Draft

MASK = "·"
#: Stands for tokens that print nothing: end of text, padding, roles.
SPECIAL = "◦"
REPLACEMENT = "\ufffd"
#: Lines of the terminal left to what was there before, and the most that a canvas needs.
_LINES_LEFT, _MOST_LINES = 5, 24
_MOST_COLUMNS = 100
_FRAME_S = 1 / 25


class State(IntEnum):
    """The certainty of a token; adjacent tokens that share a character take the lower state."""

    MASKED = 0
    OPEN = 1
    FINAL = 2
    ACCEPTED = 3  # by the step that is shown


_STYLES = {State.MASKED: "dim", State.OPEN: "dim", State.FINAL: "bold", State.ACCEPTED: "bold green"}


class Decoder(Protocol):
    """The side of `runtime.tokenizer.Tokenizer` that is needed here."""

    def encode(self, text: str, add_special: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class Pieces:
    """The text of single tokens, as it reads inside a sentence. Remembers every token it has seen."""

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        # Decoders drop the space before the first token: a letter in front keeps it.
        self._before = tokenizer.encode("a", add_special=False)[-1:]
        self._prefix = tokenizer.decode(self._before)
        self._known: dict[int, str] = {}

    def of(self, token: int) -> str:
        """The text of one token, SPECIAL if it has none; contains U+FFFD if it is part of a character."""
        if token not in self._known:
            self._known[token] = self.join([token]) or SPECIAL
        return self._known[token]

    def join(self, tokens: Sequence[int]) -> str:
        """The text of tokens that follow each other."""
        text = self._tokenizer.decode([*self._before, *tokens])
        if not text.startswith(self._prefix):
            return self._tokenizer.decode(tokens)
        return text[len(self._prefix) :]


class Canvas:
    """The answer so far and the canvas being denoised, as a renderable."""

    def __init__(self, title: str, pieces: Pieces, unit: str, mask_id: int | None) -> None:
        """`unit`: "canvas" or "block". `mask_id`: the token of undecided positions, None where every draft is
        a guess at all of them.
        """
        self._title, self._pieces, self._unit, self._mask = title, pieces, unit, mask_id
        self._ids: list[int] = []  # committed
        self._draft: tuple[list[int], list[State]] = ([], [])
        self._status = "reading"
        self._share = 0.0
        self._lines = 0

    def draft(self, draft: Draft) -> None:
        """Take the state after a step."""
        ids, accepted = list(draft.ids), draft.accepted
        if self._mask is None:
            states = [State.ACCEPTED if a else State.OPEN for a in accepted]
            settled = sum(accepted)
        else:
            states = [
                State.ACCEPTED if a else State.MASKED if i == self._mask else State.FINAL
                for i, a in zip(ids, accepted, strict=True)
            ]
            settled = sum(s != State.MASKED for s in states)
        before = self._ids[: draft.start]
        self._draft = (before + ids, [State.FINAL] * len(before) + states)
        self._share = draft.progress
        self._status = f"{where(draft, self._unit)} · {100 * settled / len(ids):.0f}% accepted"
        if draft.bytes_read:
            self._status += f" · {size(draft.bytes_read)} read"

    def commit(self, ids: Sequence[int]) -> None:
        """Tokens are final."""
        self._ids += ids
        shown = self._draft[0]
        # A block of a longer answer: what follows it stays open on the screen.
        later, states = shown[len(self._ids) :], self._draft[1][len(self._ids) :]
        if self._mask is None:
            later, states = [], []
        self._draft = (self._ids + later, [State.FINAL] * len(self._ids) + states)

    def text(self) -> Text:
        """All tokens, styled by their states."""
        from rich.text import Text

        ids, states = self._draft
        text = Text()
        i, last = 0, ""
        while i < len(ids):
            end = i + 1
            if states[i] == State.MASKED:
                piece = MASK
            elif REPLACEMENT not in (piece := self._pieces.of(ids[i])):
                pass
            else:
                while (
                    end < len(ids)
                    and states[end] != State.MASKED
                    and REPLACEMENT in self._pieces.of(ids[end])
                ):
                    end += 1
                piece = self._pieces.join(ids[i:end])
            at_edge = SPECIAL in (piece, last) and piece != last != ""
            if at_edge and not last[-1:].isspace() and not piece[:1].isspace():
                text.append(" ")  # or a canvas of padding would be one word with the last of the answer
            last = piece
            style = "dim" if piece == SPECIAL else _STYLES[min(states[i:end])]
            text.append(visible(piece.replace("\t", "    "), keep="\n"), style)
            i = end
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
