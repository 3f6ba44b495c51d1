"""What a denoising step takes on a device: its reads and its products, beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from edgekit.flashload.errors import BudgetExceeded
from edgekit.runtime.generation import of_several, options_for, sampler_model
from edgekit.runtime.sampling.options import Lengths, settle
from edgekit.runtime.session import SessionOptions
from edgekit.runtime.session.memory import MemoryPlan
from edgekit.runtime.session.session import MOST_SEQUENCES
from edgekit.tools.planning.model import PlannedModel
from edgekit.tools.planning.pipeline import Span, Stage, simulate, waiting_seconds
from edgekit.tools.planning.rates import Rates

#: Steps on a block over which the reading of experts that stay for it is spread: with more there is less.
BLOCK_STEPS = 8


@dataclass(frozen=True)
class Request:
    """What is to be generated: so many tokens behind prompts of so many, so many answers in every pass. None:
    the model's own length.
    """

    prompt_tokens: int = 64
    new_tokens: int | None = None
    sequences: int = 1


@dataclass(frozen=True)
class Step:
    """A denoising step of a request. `seconds_of` tells computing by what is computed: "layers", "attention",
    "experts", "conditioning", "head".
    """

    request: Request
    lengths: Lengths
    plan: MemoryPlan
    spans: tuple[Span, ...]
    seconds_of: dict[str, float]
    read_seconds: float

    @cached_property
    def seconds(self) -> float:
        return self.spans[-1].ended

    @property
    def compute_seconds(self) -> float:
        return sum(self.seconds_of.values())

    @property
    def waiting_seconds(self) -> float:
        return waiting_seconds(self.spans)

    @property
    def read_bytes(self) -> float:
        return sum(span.stage.read_bytes for span in self.spans)

    @property
    def resident(self) -> bool:
        """Whether all weights stay in memory."""
        return not self.plan.streamed_bytes

    @property
    def limit(self) -> str:
        """What decides: "flash" or "computing"."""
        return "flash" if self.read_seconds > self.compute_seconds else "computing"

    @property
    def canvas_tokens(self) -> int:
        """New tokens that a canvas has at most."""
        return min(self.lengths.new_tokens, self.lengths.canvas)

    def tokens_per_second(self, steps: int) -> float:
        """New tokens a second, of all sequences, at so many steps a canvas, or one a token where that is
        fewer. Encoding the prompt is not counted.
        """
        return self.canvas_tokens * self.request.sequences / (min(steps, self.canvas_tokens) * self.seconds)


@dataclass(frozen=True)
class _Lengths:
    """Of a step of all sequences: rows, those that the vocabulary head scores, and pairs of a row and one
    that it sees.
    """

    of_each: Lengths
    rows: int
    head_rows: int
    pairs: int


def _lengths(model: PlannedModel, request: Request) -> _Lengths:
    """Raises InvalidOption and PromptTooLong."""
    section, count = sampler_model(model.bundle), request.sequences
    settled = settle(section, max_new_tokens=request.new_tokens, prompt_length=request.prompt_tokens)
    lengths = settled.lengths
    assert lengths is not None, "they were asked for"
    block = settled.values().get("block_length") or lengths.canvas
    rows = lengths.canvas * count
    return _Lengths(
        lengths, rows, min(block, lengths.canvas) * count, rows * (lengths.prefix + lengths.canvas)
    )


def predict(model: PlannedModel, rates: Rates, request: Request) -> Step:
    """The step of a request on a device. Raises BudgetExceeded, and EdgekitError for lengths that the model
    does not have.
    """
    step, count = _lengths(model, request), request.sequences
    lengths = step.of_each
    options = options_for(model.bundle, SessionOptions(rates.budget), of_several(lengths, count), count)
    plan = model.plan(options, rates.process)
    touched = model.touched(step.rows, count)
    nbytes = _bytes_of(model, plan)
    seconds_of = _seconds_of(model, rates, step, touched, nbytes)
    stages = list(_stages(model, plan, touched, seconds_of, nbytes))
    read = sum(stage.read_bytes for stage in stages) / rates.disk
    busy = min(1.0, sum(seconds_of.values()) / read) if read else 1.0
    disk = rates.disk * (1 - busy * (1 - rates.beside))
    spans = simulate(stages, plan.ring_bytes, disk)
    return Step(request, lengths, plan, tuple(spans), seconds_of, read)


def _seconds_of(
    model: PlannedModel, rates: Rates, step: _Lengths, touched: float, nbytes: Counter[str]
) -> dict[str, float]:
    """Each part takes as long as its operations, or as long as its weights take from memory."""
    costs, rows = model.costs, step.rows

    def products(operations: float, rows: float, part: str, share: float = 1.0) -> float:
        if not operations:
            return 0.0
        return max(operations / rates.reached(rows), nbytes[part] * share / rates.memory)

    expert_rows = model.top_k * rows
    each = expert_rows / (touched * model.experts) if touched else 0.0
    head = costs.head * step.head_rows * (2 if model.softens else 1)
    scores = step.head_rows * model.bundle.model.vocab_size
    return {
        "layers": products(costs.row * rows, rows, "layers"),
        "attention": costs.attended * step.pairs / rates.attention,
        "experts": products(costs.expert * expert_rows * model.expert_layers, each, "experts", touched),
        "conditioning": products(costs.conditioning * rows, rows, "conditioning"),
        "head": products(head, step.head_rows, "head") + scores * rates.score_seconds,
    }


def _bytes_of(model: PlannedModel, plan: MemoryPlan) -> Counter[str]:
    """Of the weights of each part."""
    found: Counter[str] = Counter()
    for unit in plan.units:
        found[model.part_of.get(unit.name, "")] += unit.nbytes
    return found


def _stages(
    model: PlannedModel,
    plan: MemoryPlan,
    touched: float,
    seconds_of: dict[str, float],
    nbytes: Counter[str],
) -> Iterator[Stage]:
    """The units in their order, each with its share of what its part takes; of experts what is wanted."""
    seconds = seconds_of | {"layers": seconds_of["layers"] + seconds_of["attention"]}
    if _stay(model, plan):
        touched /= BLOCK_STEPS
    for unit in plan.units:
        part = model.part_of.get(unit.name, "")
        if unit.group == "embedding":  # rows of it are looked up
            continue
        read = 0.0 if unit.pinned or unit.kept else float(unit.nbytes)
        wanted = touched if part == "experts" else 1.0
        yield Stage(
            unit.name, part, read * wanted, seconds.get(part, 0.0) * unit.nbytes / max(1, nbytes[part])
        )


def _stay(model: PlannedModel, plan: MemoryPlan) -> bool:
    """Whether the memory of every layer holds all experts that the steps on a block may want, so that its
    first step alone reads some.
    """
    pinned = {unit.name for unit in plan.units if unit.pinned}
    layers = [layer.experts for layer in model.bundle.model.layers if layer.experts]
    return model.capacity < model.experts and all(
        sum(name in pinned for name in experts) >= model.capacity for experts in layers
    )


def riding(model: PlannedModel, rates: Rates, step: Step) -> int:
    """How many more sequences share a step's reads and lengthen it by less than a tenth."""
    if step.resident:
        return 0

    def rides(count: int) -> bool:
        try:
            longer = predict(model, rates, replace(step.request, sequences=count))
        except BudgetExceeded:
            return False
        return longer.seconds <= 1.1 * step.seconds

    low, high = step.request.sequences, step.request.sequences
    while high < MOST_SEQUENCES and rides(high := min(2 * high, MOST_SEQUENCES)):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rides(middle) else (low, middle)
    return low - step.request.sequences
