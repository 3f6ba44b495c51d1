"""One prompt through a generator: what is shown while it works, and what can be said about it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from edgekit.flashload.sizes import size
from edgekit.tools.console import Status
from edgekit.tools.interrupts import Interrupts

if TYPE_CHECKING:
    from edgekit.runtime.generation import Generator, Prompt, Settings
    from edgekit.runtime.sampling import Draft, Stats


@dataclass(frozen=True)
class Outline:
    """How many canvases (or blocks) a generation has at most, and how many denoising steps each."""

    canvases: int
    steps: int
    unit: str = "canvas"

    @classmethod
    def of(cls, options: Any) -> Outline:
        """The outline of a family's sampler options."""
        canvases, steps = options.extent()
        return cls(canvases, steps, "block" if hasattr(options, "block_length") else "canvas")

    def where(self, canvas: int, step: int) -> str:
        """`canvas 2/4, step 7/48`; `canvas` counts from 0."""
        of = f"{self.unit} {canvas + 1}/{self.canvases}, " if self.canvases > 1 else ""
        return f"{of}step {step}/{self.steps}"

    def share(self, canvas: int, step: int) -> float:
        """How much of the work is done, 0..1, if every step is needed."""
        return min(1.0, (canvas + step / self.steps) / self.canvases)


class Display(Protocol):
    """Shows a generation; entered when it begins."""

    def draft(self, draft: Draft, bytes_read: int) -> None:
        """A denoising step is done; `bytes_read` counts from the beginning of the answer."""

    def text(self, ids: list[int], piece: str) -> None:
        """Tokens are final, and `piece` is the text that became certain."""

    def __enter__(self) -> Display: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Shows nothing: for `--json`."""

    def draft(self, draft: Draft, bytes_read: int) -> None: ...
    def text(self, ids: list[int], piece: str) -> None: ...

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Streamed:
    """Writes text to stdout as canvases commit; on a terminal the step counter stands behind it meanwhile."""

    def __init__(self, outline: Outline) -> None:
        self._outline, self._status = outline, Status()
        self._line_is_open = False

    def draft(self, draft: Draft, bytes_read: int) -> None:
        done = round(10 * self._outline.share(draft.canvas_index, draft.step))
        read = f", {size(bytes_read)} read" if bytes_read else ""
        where = self._outline.where(draft.canvas_index, draft.step)
        self._status.show(f"{'━' * done}{'┄' * (10 - done)} {where}{read}")

    def text(self, ids: list[int], piece: str) -> None:
        if piece:
            self._status.write(piece)
            self._line_is_open = not piece.endswith("\n")

    def __enter__(self) -> Streamed:
        self._status.show("opening the model", now=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.clear()
        if self._line_is_open:
            self._status.write("\n")


@dataclass(frozen=True)
class Answer:
    """Final tokens, their text, and the statistics of the generation."""

    ids: list[int]
    text: str
    stats: Stats

    @property
    def tokens_per_second(self) -> float:
        """Final tokens over the whole time, reading included."""
        seconds = float(self.stats.engine["seconds"])
        return self.stats.committed_tokens / seconds if seconds else 0.0

    def summary(self) -> str:
        """The statistics in one line."""
        stats, engine = self.stats, self.stats.engine
        budget = engine["memory_bytes"]
        read = "all weights in memory"
        if engine["streamed_bytes_per_step"]:
            read = f"{size(engine['bytes_read'])} read ({size(engine['streamed_bytes_per_step'])} a step)"
        return (
            f"{stats.committed_tokens} tokens in {stats.denoising_steps} denoising steps, "
            f"{stats.tokens_per_forward:.2f} tokens per forward, {self.tokens_per_second:.1f} tokens/s; "
            f"{read}, {engine['io_wait_seconds']:.2f} s waiting for it, "
            f"{engine['compute_seconds']:.2f} s computing; "
            f"peak memory {size(engine['peak_bytes'])}" + (f" of {size(budget)}" if budget else ", no budget")
        )

    def remark(self) -> str:
        """What to say of an answer without text; empty for others."""
        if self.text.strip():
            return ""
        why = "the model ended its answer at once"
        if self.stats.finish_reason != "eos":
            why = "the model filled its answer with blanks"
        return f"{why}: there is no text; try other words, another --seed or a higher --steps"

    def statistics(self) -> dict[str, Any]:
        """The statistics for `--json`."""
        return self.stats.to_dict() | {"tokens_per_second": self.tokens_per_second}


def answer(
    generator: Generator, prompt: Prompt, settings: Settings, display: Callable[[Outline], Display]
) -> Answer:
    """Generate, showing every event on the display. Raises EdgekitError."""
    from edgekit.runtime.answer_tokens import until_end
    from edgekit.runtime.sampling import Committed, Done, Draft

    stream = generator.tokenizer.stream()
    ids: list[int] = []
    pieces: list[str] = []
    stats: Stats | None = None
    before = generator.bytes_read
    options = generator.options(settings)
    outline = Outline.of(options)
    with display(outline) as shown, Interrupts() as interrupts:
        for event in generator.generate(prompt, settings):
            interrupts.check()
            if isinstance(event, Draft):
                # A session that had to be opened anew counts from nothing.
                read = generator.bytes_read
                before = before if read >= before else 0
                shown.draft(event, read - before)
            elif isinstance(event, Committed):
                new = until_end(event.ids, options)
                ids += new
                pieces.append(stream.push(new))
                shown.text(new, pieces[-1])
            elif isinstance(event, Done):
                stats = event.stats
        pieces.append(stream.finish())
        shown.text([], pieces[-1])
    assert stats is not None, "a generation ends with Done"
    # The sampler counts tokens that are no padding, wherever they are: nearly, but not always the same.
    return Answer(ids, "".join(pieces), replace(stats, committed_tokens=len(ids)))


def plan_as_dict(generator: Generator) -> dict[str, Any]:
    """The residency plan of the open session, in bytes."""
    session = generator.session
    plan = session.plan
    return {
        "memory_bytes": session.options.memory_bytes,
        "needs": asdict(session.needs) | {"total": session.needs.total},
        "weights_budget_bytes": plan.budget_bytes,
        "pinned_bytes": plan.pinned_bytes,
        "streamed_bytes": plan.streamed_bytes,
        "ring_bytes": plan.ring_bytes,
        "pinned_runs": len(plan.pinned),
        "streamed_runs": len(plan.streamed),
    }
