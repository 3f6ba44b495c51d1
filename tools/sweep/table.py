"""The table of a sweep: a row for each measurement, and for each unit that failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgekit.tools.benchmark import comparison
from edgekit.tools.benchmark.rows import row as row_of_report
from edgekit.tools.benchmark.tables import FIGURES, LEFT, Cell, aligned, columns, in_bytes
from edgekit.tools.sweep.store import DONE, Store
from edgekit.tools.sweep.units import Job, Unit

Row = Mapping[str, Any]

#: Characters of a reason in a table; the whole of a longer one stands below.
_LONGEST_REASON = 160
#: What a row of a report has that a unit without one does not know.
_NOTHING = (
    "model", "preset", "weights_bytes", "device", "processor", "engine", "threads", "memory_bytes",
    "resident_bytes", "sequences", "test",
)  # fmt: skip
#: Of prompts of a user's own.
_QUALITY = ("right", "score", "difference", "seconds, p50", "first text, s, p50")


def rows(jobs: Sequence[Job], store: Store) -> list[dict[str, Any]]:
    """In the order of the grid; "error" says why a row has no figures."""
    told = [(unit, outcome) for job in jobs for unit in job.benches if (outcome := _done(unit, store))]
    reports = [outcome["report"] for _, outcome in told]
    asked = [report for report in reports if comparison.has_prompts(report)]
    figures = {id(r): row_of_report(r) for r in reports} | {
        id(r): row for r, row in zip(asked, comparison.compared(asked), strict=True)
    }
    measured = {unit.digest: figures[id(outcome["report"])] for unit, outcome in told}
    found = [row for job in jobs for row in _rows_of(job, store, measured)]
    if len({row["node"] for row in found}) == 1:  # nothing is told by it
        found = [row | {"node": None} for row in found]
    return found


def _rows_of(job: Job, store: Store, measured: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    for unit in (job.export, job.verify):
        outcome = store.outcome(unit) or {}
        if "error" in outcome:
            yield _without_figures(unit, outcome)
            return
    checked = store.outcome(job.verify) or {}
    names = (
        "checks", "checked_bytes", "preset", "weights_bytes", "bits_per_weight", "mean_error",
        "largest_error",
    )  # fmt: skip
    verified = {name: checked[name] for name in names if name in checked}
    for unit in job.benches:
        outcome = store.outcome(unit) or {}
        if unit.digest in measured:
            told = {"bundle": unit.bundle, "procedure": unit.procedure, "node": outcome.get("node")}
            yield {**told, **verified, **measured[unit.digest], "bundle": unit.bundle, "error": None}
        elif "error" in outcome:
            yield {**_without_figures(unit, outcome), **verified}


def _without_figures(unit: Unit, outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bundle": unit.bundle, "procedure": unit.procedure, "node": outcome.get("node"),
        **dict.fromkeys(_NOTHING), "settings": {}, "told": dict(unit.told), "error": outcome["error"],
    }  # fmt: skip


def _done(unit: Unit, store: Store) -> Mapping[str, Any] | None:
    outcome = store.outcome(unit)
    return outcome if outcome is not None and outcome.get("state") == DONE else None


def _text(name: str) -> Cell:
    return lambda row: str(row.get(name) or "")


def _reason(row: Row) -> str:
    if row["error"] is None:
        return ""
    reason = _whole_reason(row)
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 4] + " ..."


def _whole_reason(row: Row) -> str:
    varied = ", ".join(f"{key} {text}" for key, text in row["told"].items())
    return f"{varied}: {row['error']}" if varied else str(row["error"])


def _checks(row: Row) -> str:
    return f"{row['checks']} checks" if row.get("checks") else ""


def _percent(name: str) -> Cell:
    return lambda row: "" if row.get(name) is None else f"{100 * row[name]:.2f} %"


#: What the table has beside the columns of `edgekit bench`, in front of its figures and behind them.
_FIRST: dict[str, Cell] = {
    "procedure": _text("procedure"), "machine": _text("node"), "verified": _checks,
    "mean error": _percent("mean_error"), "largest error": _percent("largest_error"),
}  # fmt: skip
_LAST: dict[str, Cell] = {"read/token": lambda row: in_bytes(row, "bytes_per_token")}


def as_markdown(found: Sequence[Row]) -> str:
    """A line for each row; the machines are named where they are several, and what has not failed has no
    reason.
    """
    good = [row for row in found if row["error"] is None]
    quality = {name: comparison.FIGURES[name] for name in _QUALITY}
    shown: dict[str, Cell] = {"bundle": _text("bundle")}
    if good:
        figures = {**_FIRST, **FIGURES, **_LAST, **quality}
        if len({row["node"] for row in good}) == 1:
            del figures["machine"]
        shown |= {name: cell for name, cell in columns(good, figures).items() if name != "model"}
    if len(good) < len(found):
        shown["failed"] = _reason
    lines = [[_cell(cell, row) for cell in shown.values()] for row in found]
    return aligned(list(shown), lines, LEFT | {"bundle", "procedure", "machine", "verified", "failed"})


def _cell(cell: Cell, row: Row) -> str:
    """Empty where the row of a unit that failed knows nothing."""
    text = cell(row)
    return "" if row["error"] is not None and text == "None" else text


def failed_lines(found: Sequence[Row]) -> list[str]:
    """Of rows without figures, why."""
    return [f"{row['bundle']}: {_whole_reason(row)}" for row in found if row["error"] is not None]


def long_reasons(found: Sequence[Row]) -> list[str]:
    """The same of reasons that the table has no room for."""
    long = [row for row in found if row["error"] is not None and len(_whole_reason(row)) > _LONGEST_REASON]
    return failed_lines(long)
