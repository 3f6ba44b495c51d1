"""One answer on its way: what is shown while the model works, and what can be said about it afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from edgekit.flashload.sizes import size
from edgekit.tools.console import Status
from edgekit.tools.interrupts import Interrupts
from edgekit.tools.stuck import ending_if_stuck
from edgekit.tools.terminal_text import counted

if TYPE_CHECKING:
    from edgekit.runtime.api import Answer, Draft, Event, Statistics
    from edgekit.runtime.generation import Generator


#: Of Ctrl-C while something is computed that cannot be left.
STOPPING = "stops after this pass; Ctrl-C again ends edgekit"


def where(draft: Draft, unit: str) -> str:
    """`canvas 2/4, step 7/48`, where `unit` is "canvas" or "block"."""
    of = f"{unit} {draft.canvas + 1}/{draft.canvases}, " if draft.canvases > 1 else ""
    return f"{of}step {draft.step}/{draft.steps}"


class Display(Protocol):
    """Shows a generation; entered when it begins."""

    def draft(self, draft: Draft) -> None:
        """A denoising step is done."""

    def text(self, ids: tuple[int, ...], piece: str) -> None:
        """Tokens are final, and `piece` is the text that became certain."""

    def stopping(self) -> None:
        """Ctrl-C waits for what is being computed. Called by another thread."""

    def __enter__(self) -> Display: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Shows nothing: for `--json`."""

    def draft(self, draft: Draft) -> None: ...
    def text(self, ids: tuple[int, ...], piece: str) -> None: ...
    def stopping(self) -> None: ...

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Streamed:
    """Writes text to stdout as canvases commit; on a terminal the step counter stands behind it meanwhile."""

    def __init__(self, unit: str) -> None:
        self._unit, self._status = unit, Status()
        self._line_is_open = False

    def draft(self, draft: Draft) -> None:
        done = round(10 * draft.progress)
        read = f", {size(draft.bytes_read)} read" if draft.bytes_read else ""
        self._status.show(f"{'━' * done}{'┄' * (10 - done)} {where(draft, self._unit)}{read}")

    def text(self, ids: tuple[int, ...], piece: str) -> None:
        if piece:
            self._status.write(piece)
            self._line_is_open = not piece.endswith("\n")

    def stopping(self) -> None:
        self._status.show(STOPPING, now=True)

    def __enter__(self) -> Streamed:
        self._status.show("opening the model", now=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.clear()
        if self._line_is_open:
            self._status.write("\n")


def answer(events: Iterator[Event], display: Display, *, patient: bool = False) -> Answer:
    """The answer at the end of a generation, every event of which is shown on the display. The generation is
    over when the display is left, however that comes about. A Ctrl-C that comes while a pass is computed soon
    ends the process; if `patient`, only the second one does. Raises EdgekitError.
    """
    from edgekit.runtime.api import Committed, Draft

    text = ""
    with (
        ending_if_stuck(first=display.stopping if patient else None),
        display as shown,
        Interrupts() as interrupts,
        closing(events),  # type: ignore[type-var]
    ):
        for event in events:
            if isinstance(event, Draft):
                interrupts.check()
                shown.draft(event)
            elif isinstance(event, Committed):
                interrupts.check()
                text += event.text
                shown.text(event.ids, event.text)
            else:
                # Bytes that never became a character come with the answer alone.
                shown.text((), event.answer.text[len(text) :])
                found = event.answer
    return found


def write_text(text: str) -> None:
    """Write a whole answer to stdout, with a line end."""
    Status().write(text if text.endswith("\n") else text + "\n")


def summary(statistics: Statistics) -> str:
    """The statistics of an answer in one line."""
    read = "all weights in memory"
    if statistics.bytes_per_step:
        read = f"{size(statistics.bytes_read)} read ({size(statistics.bytes_per_step)} a step)"
    return (
        f"{counted(statistics.tokens, 'token')} in {counted(statistics.steps, 'denoising step')}, "
        f"{statistics.tokens_per_step:.2f} tokens per forward, {statistics.tokens_per_second:.1f} tokens/s; "
        f"{read}, {waited(statistics)}"
    )


def waited(statistics: Statistics) -> str:
    """How long an answer waited for weights and computed, and the memory that it took."""
    budget = statistics.memory_bytes
    return (
        f"{statistics.wait_seconds:.2f} s waiting for it, {statistics.compute_seconds:.2f} s computing; "
        f"peak memory {size(statistics.peak_bytes)}" + (f" of {size(budget)}" if budget else ", no budget")
    )


def remark(answer: Answer, others: str = "another --seed or a higher --steps") -> str:
    """A remark on an answer without text, and which `others` to try; empty for all with text."""
    if answer.text.strip():
        return ""
    why = "the model ended its answer at once"
    if answer.statistics.finish_reason != "eos":
        why = "the model filled its answer with blanks"
    return f"{why}: there is no text; try other words, {others}"


def beyond_budget(own: Statistics, engine: Mapping[str, Any]) -> str:
    """A remark on an emulation whose process took more memory than its budget, by what its `engine` counts;
    empty for all others.
    """
    budget = own.memory_bytes
    if budget is None or own.peak_bytes <= budget or engine.get("provider") != "emulation":
        return ""
    return (
        f"the process took {size(own.peak_bytes)} of memory, more than its budget of {size(budget)}: the "
        "emulation takes some that no budget counts"
    )


def plan_as_dict(generator: Generator) -> dict[str, Any]:
    """The residency plan of the open session, in bytes."""
    memory, plan = generator.session.options.memory_bytes, generator.session.plan
    causes = ("process", "prefix", "activations", "scratch", "head", "allowance")
    return {
        "memory_bytes": memory,
        "needs": {cause: getattr(plan, cause) for cause in causes} | {"total": plan.needs},
        "weights_budget_bytes": plan.weights_bytes if memory is None else memory - plan.needs,
        "device_bytes": plan.kept_bytes,
        "pinned_bytes": plan.pinned_bytes,
        "streamed_bytes": plan.streamed_bytes,
        "ring_bytes": plan.ring_bytes,
        "pinned_runs": len(plan.pinned),
        "device_runs": sum(unit.kept for unit in plan.units),
        "streamed_runs": sum(not (unit.pinned or unit.kept) for unit in plan.units),
    }


def statistics_as_dict(generator: Generator, answer: Answer) -> dict[str, Any]:
    """All counters of the generation that gave `answer`, the generator's last, with those of its engine."""
    assert generator.stats is not None
    found = generator.stats.to_dict()
    # Samplers count tokens that are no padding, wherever they are: nearly, but not always the same.
    found["committed_tokens"] = answer.statistics.tokens
    found["tokens_per_forward"] = answer.statistics.tokens_per_step
    return found | {"tokens_per_second": answer.statistics.tokens_per_second}
