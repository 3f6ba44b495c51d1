"""What a step takes: the larger of what is read for it and what it computes, for reads go on beside products."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgekit.runtime.generation import of_several, options_for, sampler_model
from edgekit.runtime.sampling.options import settle
from edgekit.runtime.session import SessionOptions
from edgekit.runtime.session.memory import MemoryPlan
from edgekit.runtime.session.session import plan_session
from edgekit.tools.planning.model import PlannedModel
from edgekit.tools.planning.rates import Rates

#: Of a process with nothing but the runtime: what it holds before a session.
PROCESS_BYTES = 60_000_000
#: More sequences than these are not looked for.
MOST_RIDING = 256


@dataclass(frozen=True)
class Step:
    """A denoising step of so many sequences: seconds of reading and of computing, of these `attention`, and
    bytes that are read.
    """

    sequences: int
    rows: int
    plan: MemoryPlan
    read_bytes: float
    read_seconds: float
    compute_seconds: float
    attention_seconds: float
    head_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.read_seconds, self.compute_seconds)

    @property
    def fits(self) -> bool:
        """Whether all weights stay in memory."""
        return not self.plan.streamed_bytes


def step(
    model: PlannedModel,
    rates: Rates,
    *,
    prompt: int,
    new_tokens: int | None = None,
    budget: int | None = None,
    sequences: int = 1,
) -> Step:
    """The step of a generation behind a prompt of so many tokens. Raises BudgetExceeded, and EdgekitError for
    lengths that the model does not have.
    """
    section = sampler_model(model.bundle)
    lengths = settle(section, max_new_tokens=new_tokens, prompt_length=prompt).lengths
    assert lengths is not None, "they were asked for"
    limits = SessionOptions(budget or rates.budget)
    options = options_for(model.bundle, limits, of_several(lengths, sequences), sequences)
    plan = plan_session(model.bundle, options, process_bytes=PROCESS_BYTES)
    rows = lengths.canvas * sequences
    costs = model.costs
    products = (costs.row + costs.expert * model.expert_rows + costs.conditioning) * rows
    attention = costs.attended * lengths.canvas * (lengths.prefix + lengths.canvas) * sequences
    head = costs.head * rows
    read = _read(model, plan, rows)
    return Step(
        sequences,
        rows,
        plan,
        read,
        read / rates.disk,
        (products + head) / rates.products + attention / rates.floats,
        attention / rates.floats,
        head / rates.products,
    )


def _read(model: PlannedModel, plan: MemoryPlan, rows: int) -> float:
    """Bytes that a step of so many rows reads, of experts those that some row is expected to go to."""
    total = 0.0
    for unit in plan.units:
        if unit.pinned or unit.kept or unit.group == "embedding":
            continue
        total += unit.nbytes * (model.touched(rows) if unit.group == "expert" else 1.0)
    return total


def riding(first: Step) -> int:
    """How many more sequences a step has time for while it reads, by what one computes."""
    if first.read_seconds <= first.compute_seconds:
        return 0
    return min(MOST_RIDING, int(first.read_seconds / first.compute_seconds) - 1)


def with_rates(rates: Rates, **others: float) -> Rates:
    """The same with other figures."""
    return replace(rates, **others)
