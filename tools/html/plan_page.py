"""The page of `edgekit plan`: the table of devices, and charts of one or of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from edgekit.tools.durations import in_seconds
from edgekit.tools.html import charts, theme
from edgekit.tools.html.measured import EXPERTS, lane
from edgekit.tools.html.page import Facts, Folded, Part, Section, Table, render
from edgekit.tools.planning import show
from edgekit.tools.planning.plan import Plan
from edgekit.tools.planning.predict import Step
from edgekit.tools.terminal_text import counted

_READ, _COMPUTE, _WAIT = "read", "compute", "wait"
_COLOURS = {_READ: theme.BLUE, _WAIT: theme.RED, _COMPUTE: theme.GREEN}
#: Of what a step computes, in the order of the model.
_PARTS = {
    "layers": theme.GREEN,
    "attention": theme.ORANGE,
    "experts": theme.PURPLE,
    "conditioning": theme.GREY,
    "head": "#c9a227",
}


def page(title: str, plans: Sequence[Plan], steps: Sequence[int]) -> bytes:
    """Of plans, at least one, of the model that `title` names, with tokens a second at so many steps."""
    told = any(each.measured_seconds is not None for each in plans)
    counts = show.counts(plans, steps)
    rows = [show.cells(each, counts, measured=told) for each in plans]
    headings = show.headings(counts, measured=told)
    table = Table(headings, rows, frozenset(range(show.LEFT)))
    lowered = [f"Denoising steps: {said}." for said in (show.too_many(plans, steps),) if said]
    words = "Predicted from the model's configuration and figures of devices."
    sections = [Section("", [words, table, *lowered])]
    if len(plans) == 1:
        sections += _alone(plans[0], steps)
    else:
        sections.append(Section("Side by side", list(_side_by_side(plans, steps))))
        each = [Folded(plan.rates.name, _facts(plan, steps)) for plan in plans]
        sections.append(Section("Devices", each))
    return render(f"edgekit plan, {title}", sections)


def _facts(plan: Plan, steps: Sequence[int]) -> list[Part]:
    sources = [(name, figure) for name, figure in show.sources(plan.rates.figures)]
    return [Facts([*show.lines(plan, steps)]), "Figures, and where they are from:", Facts(sources)]


def _alone(plan: Plan, steps: Sequence[int]) -> Iterator[Section]:
    facts, step = _facts(plan, steps), plan.step
    yield Section(plan.rates.name, facts[:1])
    if step is not None:
        yield Section("A step", [_split(step), _timeline(step)])
        yield Section("Answers", [_over_steps(step, steps)])
    yield Section("Sources", facts[1:])


def _split(step: Step) -> Part:
    """Reading, computing and the step, a bar each."""
    parts = {name: seconds for name, seconds in step.seconds_of.items() if seconds > 0}
    names = ["reading", "computing", "the step"] if step.read_bytes else ["computing"]
    groups: dict[str, list[float | None]] = {}
    if step.read_bytes:
        groups[_READ] = [step.read_seconds, None, None]
    for name, seconds in parts.items():
        groups[name] = [None, seconds, seconds] if step.read_bytes else [seconds]
    if step.read_bytes:
        groups[_WAIT] = [None, None, step.waiting_seconds]
    colours = {**_COLOURS, **_PARTS}
    says = f"{in_seconds(step.seconds)}; what limits it is {step.limit}."
    if step.read_bytes:
        says += " Reading goes on beside computing; waiting is what is left of it."
    return charts.bars(
        "Where the time goes", says, "s", names, groups, stacked=True,
        colours={name: colours.get(name, theme.GREY) for name in groups},
    )  # fmt: skip


def _timeline(step: Step) -> Part:
    lanes: dict[str, int] = {}
    bars, before = list[charts.Bar](), 0.0
    for name, several in groupby(step.spans, lambda span: lane(span.stage.name)):
        number, spans = lanes.setdefault(name, len(lanes)), list(several)
        for span in spans:
            # Those that begin before the step are read at the end of the one before, which is like it.
            for shift in (0.0, step.seconds) if span.stage.read_bytes else ():
                begun, ended = span.read_began + shift, span.read_ended + shift
                if ended > 0 and begun < step.seconds:
                    bars.append(charts.Bar(number, _READ, begun, ended, span.stage.name))
        # Experts are computed one by one, each as soon as it is there: stripes that nobody could tell apart.
        ended = spans[-1].ended
        began = ended - sum(span.ended - span.began for span in spans)
        if began > before:
            bars.append(charts.Bar(number, _WAIT, before, began, name))
        bars.append(charts.Bar(number, _COMPUTE, began, ended, name))
        before = ended
    names = {span.stage.name for span in step.spans}
    kinds = {"experts" if EXPERTS in name else "tiles" for name in names if lane(name) != name}
    first = f"; of {' and '.join(sorted(kinds))} the waits are shown first" if kinds else ""
    says = (
        f"One step of many, {in_seconds(step.seconds)}. A layer's upper bar is when it is read, the lower "
        f"when it is computed, or waited for{first}. "
    )
    if step.read_bytes:
        says += "What is read behind its own computing is for the next step."
    else:
        says += "Nothing is read: all weights are in memory."
    return charts.timeline("Reads and products", says, list(lanes), bars, _COLOURS, step.seconds)


def _over_steps(step: Step, steps: Sequence[int]) -> Part:
    tokens = step.canvas_tokens
    values = {count: step.tokens_per_second(count) for count in range(1, tokens + 1)}
    marked = sorted({min(count, tokens) for count in steps})
    says = f"{tokens} tokens in so many steps: fewer are quicker, and may be wrong more often."
    return charts.line("Tokens a second", says, "denoising steps", "tokens/s", values, marked)


def _side_by_side(plans: Sequence[Plan], steps: Sequence[int]) -> Iterator[Part]:
    known = [(plan, plan.step) for plan in plans if plan.step is not None]
    if not known:
        yield "None of them has the memory for a step."
        return
    names = [plan.rates.name for plan, _ in known]
    rates = {
        counted(count, "step"): [step.tokens_per_second(count) for _, step in known]
        for count in show.counts(plans, steps)
    }
    yield charts.bars("Tokens a second", "By denoising steps of a canvas.", "tokens/s", names, rates)
    parts: dict[str, list[float | None]] = {
        "reading": [step.read_seconds if step.read_bytes else None for _, step in known],
        "computing": [step.compute_seconds for _, step in known],
    }
    measured = [plan.measured_seconds for plan, _ in known]
    if any(measured):
        parts["measured, a step"] = measured
    says = "Reading goes on beside computing: a step takes about as long as the longer of the two."
    colours = {"reading": theme.BLUE, "computing": theme.GREEN, "measured, a step": theme.ORANGE}
    yield charts.bars("Seconds of a step", says, "s", names, parts, colours=colours)
    small = [plan.rates.name for plan in plans if plan.step is None]
    if small:
        yield f"Not in the charts, for want of memory: {', '.join(small)}."
