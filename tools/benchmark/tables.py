"""Rows as Markdown for people, and as JSON, JSON lines and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from edgekit.flashload.sizes import size
from edgekit.tools.digits import digits as in_digits
from edgekit.tools.terminal_text import visible

Row = Mapping[str, Any]
Cell = Callable[[Row], str]


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps(rows, indent=1)


def as_jsonl(rows: Sequence[Row]) -> str:
    return "\n".join(map(json.dumps, rows))


def as_csv(rows: Sequence[Row]) -> str:
    """Lists and dictionaries as JSON, None as nothing."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    return out.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    if isinstance(value, str):  # half a surrogate pair is no UTF-8
        return value.encode(errors="backslashreplace").decode()
    return json.dumps(value) if isinstance(value, list | dict) else value


def _spread(row: Row, name: str) -> str:
    mean, deviation = row.get(name), row.get(f"{name}_stddev")
    if mean is None:
        return ""
    digits = 3 if mean < 1 else 2 if mean < 100 else 1 if mean < 10000 else 0
    # How far one run is from others is not known.
    spread = f" ± {deviation or 0.0:.{digits}f}" if len(row.get(f"{name}_samples", ())) > 1 else ""
    return f"{mean:.{digits}f}{spread}"


def _number(row: Row, name: str, digits: int) -> str:
    value = row.get(name)
    return "" if value is None else f"{value:.{digits}f}"


def in_bytes(row: Row, name: str) -> str:
    """A figure of bytes; empty where a row does not have it."""
    value = row.get(name)
    return "" if value is None else size(round(value))


def _percent(row: Row, name: str) -> str:
    value = row.get(name)
    return "" if value is None else f"{100 * value:.0f} %"


def _device(row: Row) -> str:
    return ", ".join(filter(None, (row["device"], row["processor"])))


def _engine(row: Row) -> str:
    return ", ".join(filter(None, (row["engine"], row.get("provider"))))


def _memory(row: Row) -> str:
    if row["weights_bytes"] is None:  # an endpoint, of whose memory nobody knows
        return ""
    words = [
        *([] if row["memory_bytes"] is None else [size(row["memory_bytes"])]),
        *([] if row["resident_bytes"] is None else [f"{size(row['resident_bytes'])} resident"]),
    ]
    return ", ".join(words) or "all"


def _setting(row: Row) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in row["settings"].items())


#: Cells that tell nothing.
_NOTHING = ("", "0 B")
#: Headings, with what a row shows under them. The first is always there.
_ALWAYS: dict[str, Cell] = {"model": lambda row: str(row["model"])}
#: What is shown where rows differ, or where it is not as a user finds it.
_WHERE_TOLD: dict[str, tuple[Callable[[Row], Any], Callable[[Row], str], Any]] = {
    "preset": (lambda r: r["preset"], lambda r: str(r["preset"] or ""), None),
    "size": (lambda r: r["weights_bytes"], lambda r: in_bytes(r, "weights_bytes"), None),
    "device": (lambda r: (r["device"], r["processor"]), lambda r: _device(r), None),
    "engine": (_engine, _engine, "native"),
    "threads": (lambda r: r["threads"], lambda r: str(r["threads"] or ""), None),
    "memory": (lambda r: (r["memory_bytes"], r["resident_bytes"]), _memory, (None, None)),
    "at once": (lambda r: r["sequences"], lambda r: str(r["sequences"]), 1),
    "settings": (lambda r: r["settings"], _setting, {}),
}
#: Shown where rows of one model and preset are of several bundles, such as of two group sizes.
_BUNDLE: dict[str, Cell] = {"bundle": lambda row: str(row["bundle"] or "")}
FIGURES: dict[str, Cell] = {
    "test": lambda row: str(row["test"]),
    "tok/s": lambda row: _spread(row, "tokens_per_second"),
    "first block, s": lambda row: _spread(row, "first_block_seconds"),
    "forwards": lambda row: _number(row, "forwards", 1),
    "tok/forward": lambda row: _number(row, "tokens_per_forward", 2),
    "ms/forward": lambda row: _spread(row, "forward_ms"),
    "TOP/s": lambda row: in_digits(v / 1e12) if (v := row.get("operations_per_second")) else "",
    "of int8": lambda row: _percent(row, "share_of_int8"),
    "read/forward": lambda row: in_bytes(row, "bytes_per_forward"),
    "read": lambda row: f"{size(round(v))}/s" if (v := row.get("read_bytes_per_second")) else "",
    "of disk": lambda row: _percent(row, "share_of_disk"),
    "waiting": lambda row: _percent(row, "io_wait_share") if row.get("bytes_per_forward") else "",
    "peak, anonymous": lambda row: in_bytes(row, "peak_anonymous_bytes"),
    "cold start, s": lambda row: _spread(row, "cold_first_draft_seconds"),
    "warm start, s": lambda row: _spread(row, "warm_first_draft_seconds"),
    "J/token": lambda row: _number(row, "joules_per_token", 2),
}


#: Headings of columns of words, which stand left; all others are numbers.
LEFT = frozenset({"model", "bundle", "preset", "device", "engine", "memory", "settings", "test"})
#: Cells that say by themselves what they are about.
_PLAIN = ("preset", "device", "engine", "settings")


def _several_bundles(rows: Sequence[Row]) -> bool:
    named = {(row["model"], row["preset"]) for row in rows}
    return len({(row["model"], row["preset"], row["bundle"]) for row in rows}) > len(named)


def titles(rows: Sequence[Row]) -> list[str]:
    """What sets each row apart from the others, in words, or the model; equal ones are counted."""
    apart = {
        name: cell
        for name, (key, cell, _) in _WHERE_TOLD.items()
        if any(key(row) != key(rows[0]) for row in rows)
    }
    sizes = {((row["model"], row["preset"]), row["weights_bytes"]) for row in rows}
    if len(sizes) == len({names for names, _ in sizes}):
        apart.pop("size", None)  # model and preset say it
    if _several_bundles(rows):
        apart |= _BUNDLE
    if any(row["test"] != rows[0]["test"] for row in rows):
        apart["test"] = FIGURES["test"]
    found = []
    for row in rows:
        words = [cell(row) if name in _PLAIN else f"{name} {cell(row)}" for name, cell in apart.items()]
        model = _ALWAYS["model"](row)
        if any(each["model"] != row["model"] for each in rows) or not any(words):
            words = [model, *words]
        found.append(", ".join(filter(None, words)))
    return [
        name if found.count(name) == 1 else f"{name} ({found[: number + 1].count(name)})"
        for number, name in enumerate(found)
    ]


def columns(rows: Sequence[Row], figures: Mapping[str, Cell] = FIGURES) -> dict[str, Cell]:
    """Headings and cells that tell something about these rows, with those of `figures` behind what the rows
    are of.
    """
    chosen = dict(_ALWAYS)
    for name, (key, cell, usual) in _WHERE_TOLD.items():
        keys = [key(row) for row in rows]
        if (
            any(each != keys[0] for each in keys)
            or (usual is not None and keys[0] != usual)
            or name == "size"
        ):
            chosen[name] = cell
    if _several_bundles(rows):
        chosen |= _BUNDLE
    chosen |= {name: cell for name, cell in figures.items() if any(cell(row) not in _NOTHING for row in rows)}
    return chosen


def as_markdown(rows: Sequence[Row]) -> str:
    """A table with a line for each row; numbers stand right."""
    chosen = columns(rows)
    return aligned(list(chosen), [[cell(row) for cell in chosen.values()] for row in rows], LEFT)


def aligned(headings: Sequence[str], lines: Sequence[Sequence[str]], left: Collection[str]) -> str:
    """A table of Markdown that is aligned as text too; cells stand left under headings that `left` has."""
    shown = [[visible(cell).replace("|", "\\|") for cell in line] for line in (headings, *lines)]
    sides = [name in left for name in headings]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    rule = "|".join(
        "-" * (width + 2) if side else "-" * (width + 1) + ":"
        for width, side in zip(widths, sides, strict=True)
    )
    first, *others = [
        " | ".join(
            cell.ljust(width) if side else cell.rjust(width)
            for cell, width, side in zip(line, widths, sides, strict=True)
        )
        for line in shown
    ]
    return "\n".join([f"| {first} |", f"|{rule}|", *(f"| {each} |" for each in others)])


FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {
    "md": as_markdown,
    "json": as_json,
    "jsonl": as_jsonl,
    "csv": as_csv,
}
