"""A plan: a model on a device, with what would help it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.sizes import size
from edgekit.tools.durations import in_seconds
from edgekit.tools.planning.model import PlannedModel
from edgekit.tools.planning.predict import Request, Step, predict, riding
from edgekit.tools.planning.rates import Rates

#: Gains below it are not worth a line.
_WORTH_A_LINE = 0.95


@dataclass(frozen=True)
class Plan:
    """`step` is None where the budget is too small for any, of which `needed_bytes` would be the least."""

    id: str
    rates: Rates
    step: Step | None
    needed_bytes: int
    #: Sequences that share the reads of a step for less than a tenth more of its time.
    riding: int = 0
    helps: tuple[str, ...] = ()
    #: A step's, where a report tells.
    measured_seconds: float | None = None

    @property
    def error(self) -> float | None:
        """By how much of the measured time the predicted one is longer; None: one of them is not there."""
        if self.step is None or not self.measured_seconds:
            return None
        return self.step.seconds / self.measured_seconds - 1


def make(id_: str, model: PlannedModel, rates: Rates, request: Request) -> Plan:
    """Raises EdgekitError for lengths that the model does not have."""
    try:
        step = predict(model, rates, request)
    except BudgetExceeded as error:
        return Plan(id_, rates, None, error.needed_bytes or 0)
    return Plan(
        id_,
        rates,
        step,
        step.plan.least_memory_bytes,
        riding(model, rates, step),
        tuple(_helps(model, rates, step)),
    )


def _helps(model: PlannedModel, rates: Rates, step: Step) -> list[str]:
    """What would make the step shorter, the most first, each predicted as the step was."""
    tried = {"computing twice as fast": _computing_twice_as_fast(rates)}
    if not step.resident:
        whole = step.plan.needs + step.plan.weights_bytes
        tried |= {
            f"all weights in memory, {size(whole)}": replace(rates, budget=None),
            "flash twice as fast": replace(rates, disk=2 * rates.disk),
        }
    found = [(predict(model, other, step.request).seconds, name) for name, other in tried.items()]
    return [
        f"{name}: {in_seconds(seconds)} a step"
        for seconds, name in sorted(found)
        if seconds < _WORTH_A_LINE * step.seconds
    ]


def _computing_twice_as_fast(rates: Rates) -> Rates:
    return replace(
        rates,
        products=2 * rates.products,
        attention=2 * rates.attention,
        score_seconds=rates.score_seconds / 2,
    )
