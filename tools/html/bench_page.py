"""The page of `edgekit bench`: the table, and charts of every report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.files import write_atomic
from edgekit.flashload.sizes import size
from edgekit.tools.benchmark import tables
from edgekit.tools.benchmark.comparison import has_prompts
from edgekit.tools.benchmark.limits import lines, machines, named
from edgekit.tools.benchmark.rows import Report, row, told
from edgekit.tools.durations import in_seconds
from edgekit.tools.html import charts, theme
from edgekit.tools.html.measured import EXPERTS, KINDS, Intensity, intensity, memory, whole_pass
from edgekit.tools.html.page import Part, Section, Table, render

_READ, _WAIT, _COMPUTE = KINDS.values()
#: What reads, waits and computing look like in timelines.
COLOURS = {_READ: theme.BLUE, _WAIT: theme.RED, _COMPUTE: theme.GREEN}
#: Bars of configurations: a figure of a row, its unit, what it is, and why there may be none.
_SIDE_BY_SIDE = (
    ("tokens_per_second", "tokens/s", "Tokens a second", "Committed tokens, from request to end.",
     "no answer came to its end; leave --forwards out to have it."),
    ("forward_ms", "ms", "A denoising pass", "Up to the last norm, and the vocabulary head behind it.",
     "none ran; give more tokens to write with --new-tokens."),
)  # fmt: skip


class NotShown(EdgekitError):
    """A report lacks what its charts show."""


def page(reports: Sequence[Report], failed: Sequence[str] = ()) -> bytes:
    """Of reports, at least one, and lines on what could not be measured. Raises NotShown."""
    rows = [row(report) for report in reports]
    names = tables.titles(rows)
    models = list(dict.fromkeys(str(each["model"]) for each in rows))
    sections = [Section("", [*_words(reports), _table(rows), *failed])]
    with _shown("a report"):
        beside = [*(_side_by_side(rows, names) if len(rows) > 1 else ()), *_rooflines(reports, names)]
    sections.append(Section("Side by side" if len(rows) > 1 else "", beside))
    for number, (report, name) in enumerate(zip(reports, names, strict=True), 1):
        with _shown(f"report {number}, {name}"):
            sections.append(Section(name, [_memory(report), _timeline(report)]))
    return render(f"edgekit bench: {', '.join(models)}", sections)


def write_page(file: Path, reports: Sequence[Report], failed: Sequence[str] = ()) -> None:
    """Replace a file by the page of those reports that are of runs. Raises NotShown where none is, and
    WriteFailed.
    """
    runs = [report for report in reports if not has_prompts(report)]
    if not runs:
        raise NotShown("--html draws runs, and these reports have prompts of a file alone; leave it out")
    write_atomic(file, page(runs, failed))


@contextmanager
def _shown(what: str) -> Iterator[None]:
    """Inside the block, what a damaged report fails with is named as that."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise NotShown(f"{what}: lacks what charts show ({error!r}); it is damaged or incomplete") from error


def _words(reports: Sequence[Report]) -> Iterator[str]:
    """The machines, as they stand above the table in a terminal, and the days."""
    yield from lines(reports)
    days = dict.fromkeys(str(told(report)["date"])[:10] for report in reports)
    if any(days):
        yield f"Measured on {', '.join(filter(None, days))}; means of the runs ± standard deviations."


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    chosen = tables.columns(rows)
    left = frozenset(number for number, name in enumerate(chosen) if name in tables.LEFT)
    return Table(list(chosen), [[cell(each) for cell in chosen.values()] for each in rows], left)


def _side_by_side(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Part]:
    for figure, unit, title, says, lacking in _SIDE_BY_SIDE:
        values = [each.get(figure) for each in rows]
        if not any(values):
            yield f"{title}: {lacking}"
            continue
        spreads = [each.get(f"{figure}_stddev") for each in rows]
        yield charts.bars(title, says, unit, names, {title: values}, spreads=spreads)


def _rooflines(reports: Sequence[Report], names: Sequence[str]) -> Iterator[Part]:
    """One for each machine and its limits, with all that ran there."""
    limits = machines(reports)
    runs: dict[str, list[tuple[str, Intensity]]] = {machine: [] for machine in limits}
    for report, name in zip(reports, names, strict=True):
        if lacking := _without_roofline(report):
            yield f"Roofline of {name}: {lacking}" if len(reports) > 1 else f"Roofline: {lacking}"
        elif found := intensity(report):
            runs[named(report)].append((name, found))
    for machine, each in runs.items():
        if each:
            yield _roofline(f"{machine}. " if len(limits) > 1 else "", limits[machine], each)


def _without_roofline(report: Report) -> str:
    """Why there is none; empty where there is."""
    limits = report["about"].get("limits") or {}
    if told(report)["engine"].get("on_processor") is False:
        return "none, the limits are the processor's, and this engine computes elsewhere."
    if not all(limits.get(name) for name in ("int8_operations_per_second", "memory_bytes_per_second")):
        return "none, the machine was not measured; leave --no-probe out, in a file of sweep `probe = false`."
    if intensity(report) is None:
        return "none, the report does not tell what its passes compute; edgekit bench writes that."
    return ""


def _roofline(words: str, limits: Mapping[str, Any], runs: Sequence[tuple[str, Intensity]]) -> Part:
    peak, memory_rate, disk_rate = (
        float(limits.get(f"{name}_per_second") or 0)
        for name in ("int8_operations", "memory_bytes", "disk_bytes")
    )
    slopes, points = {f"memory {size(memory_rate)}/s": memory_rate}, []
    if disk_rate:
        slopes[f"disk {size(disk_rate)}/s"] = disk_rate
    marked = len(runs) > 1
    for number, (name, found) in enumerate(runs, 1):
        for roof, per_byte in zip(slopes, (found.per_memory_byte, found.per_disk_byte), strict=False):
            if per_byte is not None:
                mark = str(number) if marked else ""
                points.append(charts.Point(name, roof, per_byte, found.per_second, mark))
    says = (
        f"{words}The level is that of 8-bit products, {peak / 1e12:.2f} TOP/s. A run is a ring below what "
        "memory allows, and where it reads a diamond below what the disk allows. From memory every weight "
        "counts once in a pass, also of experts that no row goes to."
    )
    if marked:
        says += f" {'; '.join(f'{number}: {name}' for number, (name, _) in enumerate(runs, 1))}."
    return charts.roofline("Roofline", says, peak, slopes, points)


def _memory(report: Report) -> Part:
    found, budget = memory(report), report["session"]["memory_bytes"]
    if not found.seconds:
        return "Memory over time: no samples, the runs were too short; more tokens bring some."
    says = "A budget is for anonymous memory; pages of files are given back when others need memory."
    lines = {"anonymous": found.anonymous, "pages of files": found.file}
    limits = {} if budget is None else {f"budget {size(int(budget))}": float(budget)}
    if len(found.begun) > 1:
        says += " Runs begin at the dotted lines."
    return charts.over_time(
        "Memory over time", says, found.seconds, lines, limits=limits, marks=found.begun[1:]
    )


def _timeline(report: Report) -> Part:
    found = whole_pass(report)
    if found is None:
        return (
            "Reads and products of a pass: none is whole in the report; measure with --spans, in a file of "
            "sweep `spans`."
        )
    says = (
        f"Pass {found.number + 1}, {in_seconds(found.seconds)}. A layer's upper bar is when it was read, the "
        "lower when it was computed, or waited for."
    )
    if not any(bar.kind == _READ for bar in found.bars):
        says += " Nothing was read in it: all weights are in memory."
    elif any(EXPERTS in bar.name and bar.kind == _READ for bar in found.bars):
        says += " A layer waits for its streamed experts while it computes."
    return charts.timeline(
        "Reads and products of a pass", says, found.lanes, found.bars, COLOURS, found.seconds
    )
