"""A user's own prompts on bundles and endpoints: figures of each, and differences from the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from edgekit.tools.benchmark import rows
from edgekit.tools.benchmark.asked import Asked, of_table
from edgekit.tools.benchmark.tables import aligned, columns
from edgekit.tools.intervals import mcnemar, mean_interval, paired_difference, wilson

Report = Mapping[str, Any]
Row = Mapping[str, Any]

PERCENTILES = (50, 90, 99)
#: Times of a request, by their names in rows.
_TIMES: dict[str, Callable[[Asked], float | None]] = {
    "request_seconds": lambda asked: asked.seconds,
    "request_first_draft_seconds": lambda asked: asked.first_draft_seconds,
    "request_first_text_seconds": lambda asked: asked.first_text_seconds,
}


def has_prompts(report: Report) -> bool:
    """Whether its prompts are a user's own."""
    return "workload" in report["about"]


def is_endpoint(report: Report) -> bool:
    return "endpoint" in report["about"]


def compared(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """A row for each report, in order, with differences from the first one that was asked the same."""
    first, found = dict[str, Report](), []
    for report in reports:
        base = first.setdefault(_asked_and_scored(report["about"]["workload"]), report)
        found.append(_row(report, None if base is report else base))
    return found


def _asked_and_scored(told: Mapping[str, Any]) -> str:
    """What reports must share to be compared: the prompts, and who says how good an answer is."""
    return f"{told['digest']} {told['scored_by']}"


def _row(report: Report, base: Report | None) -> dict[str, Any]:
    asked, workload = of_table(report["about"]["workload"]["asked"]), report["about"]["workload"]
    answered = [each for each in asked if each.error is None]
    found: dict[str, Any] = _endpoint(report) if is_endpoint(report) else rows.row(report)
    found |= {
        "workload": workload["digest"],
        "scored_by": workload["scored_by"],
        "requests": len(asked),
        "failed": len(asked) - len(answered),
        "failures": sorted({each.error for each in asked if each.error is not None}),
    }
    for name, of in _TIMES.items():
        found |= _spread(name, [value for each in answered if (value := of(each)) is not None])
    counted = [each for each in answered if each.tokens is not None and each.seconds]
    if counted:
        tokens = [each.tokens or 0 for each in counted]
        found["request_tokens"] = fmean(tokens)
        found["request_tokens_per_second"] = sum(tokens) / sum(each.seconds or 0.0 for each in counted)
    asked_tokens = [each.prompt_tokens for each in answered if each.prompt_tokens is not None]
    if asked_tokens:
        found["request_prompt_tokens"] = fmean(asked_tokens)
    found |= _cost(answered, workload.get("price"))
    return found | _quality(asked) | ({} if base is None else _difference(asked, base))


def _endpoint(report: Report) -> dict[str, Any]:
    """What rows of bundles have at the same place; `settings` are further members of its requests."""
    named = report["about"]["endpoint"]
    nothing = (
        "preset",
        "bundle",
        "weights_bytes",
        "device",
        "processor",
        "threads",
        "memory_bytes",
        "resident_bytes",
    )
    return {
        "model": f"{named['model']} at {named['host']}",
        **dict.fromkeys(nothing),
        "engine": "endpoint",
        "sequences": 1,
        "settings": named["body"],
    }


def _spread(name: str, samples: Sequence[float]) -> dict[str, Any]:
    if not samples:
        return {}
    cuts = np.percentile(samples, PERCENTILES)
    return {
        f"{name}_mean": fmean(samples),
        **{f"{name}_p{part}": float(cut) for part, cut in zip(PERCENTILES, cuts, strict=True)},
        f"{name}_samples": list(samples),
    }


def _cost(answered: Sequence[Asked], price: Sequence[float] | None) -> dict[str, Any]:
    """Of a request, where the endpoint counts tokens; `price` is of a million tokens, in and out."""
    if price is None:
        return {}
    costs = [
        (each.prompt_tokens * price[0] + each.tokens * price[1]) / 1e6
        for each in answered
        if each.prompt_tokens is not None and each.tokens is not None
    ]
    return {"request_cost": fmean(costs)} if costs else {}


def _quality(asked: Sequence[Asked]) -> dict[str, Any]:
    scores = [each.score for each in asked if each.score is not None]
    if not scores:
        return {}
    share = _is_share(scores)
    interval = wilson(round(sum(scores)), len(scores)) if share else mean_interval(scores)
    low, high = interval or (None, None)
    return {
        "scored": len(scores), "score": fmean(scores), "score_is_share": share, "score_low": low,
        "score_high": high,
    }  # fmt: skip


def _difference(asked: Sequence[Asked], base: Report) -> dict[str, Any]:
    """Of the scores of the same prompts."""
    others = of_table(base["about"]["workload"]["asked"])
    if len(others) == len(asked):  # the same prompts in the same order, whatever their lines in a file
        both = [(own.score, other.score) for own, other in zip(asked, others, strict=True)]
    else:
        by_line = {each.line: each.score for each in others}
        both = [(own.score, by_line.get(own.line)) for own in asked]
    pairs = [(own, other) for own, other in both if own is not None and other is not None]
    if not pairs:
        return {}
    changes = [own - other for own, other in pairs]
    if not _is_share([score for pair in pairs for score in pair]):
        low, high = mean_interval(changes) or (None, None)
        return {"score_change": fmean(changes), "score_change_low": low, "score_change_high": high}
    gained, lost = changes.count(1.0), changes.count(-1.0)
    low, high = paired_difference(gained, lost, len(pairs))
    return {
        "score_change": fmean(changes), "score_change_low": low, "score_change_high": high,
        "gained": gained, "lost": lost, "chance": mcnemar(gained, lost),
    }  # fmt: skip


def _is_share(scores: Sequence[float]) -> bool:
    """Whether each is right or wrong."""
    return set(scores) <= {0.0, 1.0}


def _scored(row: Row) -> str:
    if row.get("score") is None:
        return ""
    return _with_interval(row, "score", row["score_is_share"], sign="")


def _changed(row: Row) -> str:
    return "" if row.get("score_change") is None else _with_interval(row, "score_change", "gained" in row)


def _with_interval(row: Row, name: str, share: bool, sign: str = "+") -> str:
    factor, digits, unit = (100, 1, " %") if share else (1, 3, "")
    if share and sign:
        unit = ""  # points of a percentage
    words = f"{factor * row[name]:{sign}.{digits}f}{unit}"
    if row[f"{name}_low"] is None:
        return words
    low, high = (f"{factor * row[f'{name}_{end}']:{sign}.{digits}f}" for end in ("low", "high"))
    return f"{words} ({low}..{high})"


def _seconds(name: str) -> Callable[[Row], str]:
    return lambda row: "" if row.get(name) is None else f"{row[name]:.3f}"


def _number(name: str, digits: int) -> Callable[[Row], str]:
    return lambda row: "" if row.get(name) is None else f"{row[name]:.{digits}f}"


#: Lines of the table, with what a row shows in them.
FIGURES: dict[str, Callable[[Row], str]] = {
    "right": lambda row: _scored(row) if row.get("score_is_share") else "",
    "score": lambda row: "" if row.get("score_is_share") else _scored(row),
    "difference": _changed,
    "seconds, mean": _seconds("request_seconds_mean"),
    **{f"seconds, p{part}": _seconds(f"request_seconds_p{part}") for part in PERCENTILES},
    "first draft, s, p50": _seconds("request_first_draft_seconds_p50"),
    "first text, s, p50": _seconds("request_first_text_seconds_p50"),
    "tokens": _number("request_tokens", 1),
    "tok/s": _number("request_tokens_per_second", 2),
    "cost of 1000": lambda row: (
        "" if row.get("request_cost") is None else f"{1000 * row['request_cost']:.4g}"
    ),
    "cold start, s": _seconds("cold_first_draft_seconds"),
    "warm start, s": _seconds("warm_first_draft_seconds"),
    "failed": lambda row: f"{row['failed']} of {row['requests']}",
}


def tables(found: Sequence[Row]) -> list[str]:
    """Of what was asked the same, as Markdown: a column for each row of `compared`."""
    groups = dict[str, list[Row]]()
    for row in found:
        groups.setdefault(f"{row['workload']} {row['scored_by']}", []).append(row)
    return [_table(group) for group in groups.values()]


def _table(found: Sequence[Row]) -> str:
    (head, *titles), *lines = [
        [name, *(cell(row) for row in found)] for name, cell in columns(found, FIGURES).items()
    ]
    return aligned([head, *titles], lines, {head})
