"""Plans as people read them, and as programs do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edgekit.flashload.sizes import size
from edgekit.targets.devices import Figure
from edgekit.tools.digits import digits
from edgekit.tools.durations import in_seconds
from edgekit.tools.planning.model import PlannedModel
from edgekit.tools.planning.plan import Plan
from edgekit.tools.planning.predict import Step
from edgekit.tools.planning.rates import PLANNED
from edgekit.tools.terminal_text import counted

#: Tables have it for what is not known or not there.
_NOTHING = "-"
_UNITS = PLANNED | {
    "products_256": "TOP/s",
    "products_16": "TOP/s",
    "attention_tflops": "TFLOP/s",
    "compute_tflops_fp32": "TFLOP/s",
}
_NAMES = {
    "flash_read_gbps": "flash",
    "app_budget_gb": "memory of an app",
    "compute_tops_int8": "8-bit integers",
    "compute_tflops_fp16": "float16",
    "compute_tflops_fp32": "float32",
    "compute_eff": "of it reached",
    "products_256": "256 rows, 4 bits",
    "products_16": "16 rows, 4 bits",
    "attention_tflops": "attention",
    "memory_bandwidth_gbps": "memory",
    "thermal_sustained_fraction": "after minutes",
}


def model_line(model: PlannedModel, preset: str) -> str:
    """The model in one line."""
    number, word = (1e9, "billion") if model.parameters >= 1e8 else (1e6, "million")
    parameters = f"{model.parameters / number:.3g} {word} parameters"
    return f"{model.name}, {preset}: {parameters}, {size(model.weights_bytes)} of weights"


def model_facts(model: PlannedModel, preset: str) -> dict[str, Any]:
    """The same for programs."""
    return {
        "name": model.name,
        "family": model.bundle.model.family,
        "preset": preset,
        "parameters": model.parameters,
        "weights_bytes": model.weights_bytes,
        "costs": model.costs.as_dict(),
    }


def lines(plan: Plan, steps: Sequence[int]) -> Iterator[tuple[str, str]]:
    """What a plan says, each with what it is about."""
    step, rates = plan.step, plan.rates
    yield "device", rates.name
    budget = "as much as it takes" if rates.budget is None else size(rates.budget)
    if step is None:
        yield "fits", f"no: {budget} of memory, and the least is {size(plan.needed_bytes)}"
        return
    memory = step.plan
    if step.resident:
        yield "fits", f"all in memory: {size(memory.needs + memory.weights_bytes)} of {budget}"
    else:
        yield (
            "fits",
            f"streamed, within {budget}: {size(memory.pinned_bytes)} of weights stay in memory, "
            f"{size(step.read_bytes)} are read in every step, {size(memory.ring_bytes)} ahead",
        )
    yield "a step", f"{in_seconds(step.seconds)}: {_parts(step)}"
    if plan.measured_seconds is not None and plan.error is not None:
        yield (
            "measured",
            f"{in_seconds(plan.measured_seconds)} a step: the prediction is {plan.error:+.0%} off",
        )
    tokens = step.canvas_tokens
    speeds = "; ".join(
        f"{counted(count, 'step')} {digits(step.tokens_per_second(count))}" for count in counts([plan], steps)
    )
    several = step.request.sequences
    answers = f", {several} answers together" if several > 1 else ""
    yield "tokens/s", f"{counted(tokens, 'token')} in {speeds}{answers}"
    if lowered := too_many([plan], steps):
        yield "steps", lowered
    yield "limit", step.limit
    if not step.resident:
        yield "riding", _riding(plan.riding)
    if plan.helps:
        yield "helps", "; ".join(plan.helps)
    if rates.sustained < 1:
        yield "when hot", f"{rates.sustained:.0%} of this speed after some minutes"


def _parts(step: Step) -> str:
    """The seconds that add up to the step's, and how long reading takes beside them."""
    several = step.seconds_of.items()
    parts = ", ".join(f"{name} {in_seconds(s)}" for name, s in several if s > 0.01 * step.compute_seconds)
    computing = f"computing {in_seconds(step.compute_seconds)} ({parts})"
    if step.resident:
        return computing
    reads = f"reads, which take {in_seconds(step.read_seconds)} and go on beside it"
    if step.waiting_seconds < 0.001 * step.seconds:
        return f"{computing}, without waiting for {reads}"
    return f"{computing} and waiting {in_seconds(step.waiting_seconds)} for {reads}"


def _riding(more: int) -> str:
    if not more:
        return "no more answers: another in the same step takes over a tenth more time, or does not fit"
    return f"{counted(more, 'more answer')} in the same step, for less than a tenth more time"


def counts(plans: Sequence[Plan], steps: Sequence[int]) -> list[int]:
    """The numbers of steps that differ in plans: a canvas takes one for each of its tokens at most."""
    most = _most_steps(plans)
    return sorted({min(count, most) if most else count for count in steps})


def too_many(plans: Sequence[Plan], steps: Sequence[int]) -> str:
    """What is said of numbers of steps beyond the most that a canvas takes; empty where there are none."""
    most = _most_steps(plans)
    beyond = [str(count) for count in sorted(set(steps)) if most and count > most]
    if not beyond:
        return ""
    return (
        f"{counted(most, 'step')} in place of {', '.join(beyond)}: a canvas takes one for each token at most"
    )


def _most_steps(plans: Sequence[Plan]) -> int:
    """0 where no plan has a step."""
    return max((plan.step.canvas_tokens for plan in plans if plan.step is not None), default=0)


def sources(figures: Mapping[str, Figure]) -> Iterator[tuple[str, str]]:
    """Where each figure of a device is from."""
    for name, figure in figures.items():
        unit = _UNITS.get(name, "")
        value = f"{digits(figure.value)} {unit}".rstrip()
        if figure.low is not None and figure.high is not None:
            value += f", {digits(figure.low)} to {digits(figure.high)}"
        yield _NAMES.get(name, name), f"{value} ({figure.flag}: {figure.source})"


#: Columns of a table of plans that stand left.
LEFT = 4


def headings(steps: Sequence[int], *, measured: bool) -> list[str]:
    """Of a table of plans; `measured` for columns of what reports have measured."""
    return [
        "device", "weights", "limit", "figures", "memory", "read/step", "s/step",
        *(("measured, s", "error") if measured else ()), "reading, s", "computing, s",
        *(f"tok/s, {count}" for count in steps), "riding",
    ]  # fmt: skip


def cells(plan: Plan, steps: Sequence[int], *, measured: bool) -> list[str]:
    """A row of that table."""
    step, rates = plan.step, plan.rates
    budget = "any" if rates.budget is None else size(rates.budget)
    if step is None:
        start = [rates.name, f"no: {size(plan.needed_bytes)} needed", "", rates.flag, budget]
        return start + [_NOTHING] * (len(headings(steps, measured=measured)) - len(start))
    seconds, error = plan.measured_seconds, plan.error
    found = ["" if seconds is None else digits(seconds), "" if error is None else f"{error:+.0%}"]
    return [
        rates.name,
        "in memory" if step.resident else "streamed",
        step.limit,
        rates.flag,
        budget,
        size(step.read_bytes) if step.read_bytes else _NOTHING,
        digits(step.seconds),
        *(found if measured else ()),
        digits(step.read_seconds) if step.read_bytes else _NOTHING,
        digits(step.compute_seconds),
        *(digits(step.tokens_per_second(count)) for count in steps),
        _NOTHING if step.resident else str(plan.riding),
    ]


def as_dict(plan: Plan, steps: Sequence[int]) -> dict[str, Any]:
    """A plan for programs; seconds, bytes, tokens a second."""
    step, rates = plan.step, plan.rates
    found: dict[str, Any] = {
        "device": plan.id,
        "name": rates.name,
        "target": rates.target,
        "memory_bytes": rates.budget,
        "needed_bytes": plan.needed_bytes,
        "figures": {name: asdict(figure) for name, figure in rates.figures.items()},
        "fits": "no" if step is None else "memory" if step.resident else "streamed",
    }
    if step is None:
        return found
    return found | {
        "pinned_bytes": step.plan.pinned_bytes,
        "ring_bytes": step.plan.ring_bytes,
        "streamed_bytes": step.plan.streamed_bytes,
        "read_bytes": step.read_bytes,
        "seconds": step.seconds,
        "read_seconds": step.read_seconds,
        "compute_seconds": step.compute_seconds,
        "compute": step.seconds_of,
        "waiting_seconds": step.waiting_seconds,
        "canvas_tokens": step.canvas_tokens,
        "rows": step.lengths.canvas * step.request.sequences,
        "tokens_per_second": {str(count): step.tokens_per_second(count) for count in steps},
        "riding": plan.riding,
        "limit": step.limit,
        "helps": list(plan.helps),
        "sustained": rates.sustained,
        "measured_seconds": plan.measured_seconds,
    }
