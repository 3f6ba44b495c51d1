"""Reports in files: one JSON object a line, as `edgekit bench` and applications write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.files import read_table, write_atomic
from edgekit.flashload.names import shown
from edgekit.runtime.bench import REPORT_VERSION
from edgekit.tools.benchmark import comparison
from edgekit.tools.benchmark.limits import in_words
from edgekit.tools.benchmark.rows import row, told
from edgekit.tools.benchmark.tables import as_markdown
from edgekit.tools.json_text import parsed

#: Members that a report must have, by what they are; the second ones that of a session alone.
_MEMBERS = {"about": dict, "machine": dict}
_MOST_BYTES = 256 << 20
#: Of anything in a second; no machine is near it.
_MOST_RATE = 1e24
_MOST_TOKENS, _MOST_NAME = 1 << 40, 64
_OF_SESSION = {"bundle": dict, "session": dict, "plan": dict, "tests": list}


class NoReport(EdgekitError):
    """A file holds something else than reports."""


def are_reports(path: Path) -> bool:
    """Whether a file holds reports."""
    try:
        return bool(read_reports([path]))
    except EdgekitError:
        return False


def is_report(given: Any) -> bool:
    """Whether a value is a report."""
    try:
        return bool(_checked(given, "it"))
    except EdgekitError:
        return False


def write_reports(path: Path, reports: Iterable[dict[str, Any]]) -> None:
    """Replace a file by these reports."""
    write_atomic(path, "".join(json.dumps(report) + "\n" for report in reports).encode())


def read_reports(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The reports of files, in order: one object, a list of them, or one a line. Raises NoReport, OpenFailed,
    and MalformedFile for more than any report.
    """
    found = []
    for path in paths:
        try:
            text = read_table(path, _MOST_BYTES, "file of reports", "give another file").decode()
        except UnicodeDecodeError as error:
            raise NoReport(f"{path}: cannot be read: it is no text") from error
        for number, given in enumerate(_values(path, text), 1):
            found.append(_checked(given, f"{path}: report {number}"))
    if not found:
        raise NoReport(f"{', '.join(map(str, paths))}: no reports in it")
    return found


def _values(path: Path, text: str) -> list[Any]:
    """Of a file: the values of its lines where the first line is one, else what all of it is."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_whole(lines[0][1]):
        return [_parsed(line, f"{path}: line {number}") for number, line in lines]
    whole = _parsed(text, str(path)) if lines else []
    return whole if isinstance(whole, list) else [whole]


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(text: str, where: str) -> Any:
    try:
        return parsed(text.encode(), where)
    except ValueError as error:
        raise NoReport(
            f"{error}; give files that `edgekit bench --report` or an application has written"
        ) from error


def _checked(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or "edgekit_bench" not in given:
        raise NoReport(f"{where} is none of edgekit's; `edgekit bench --report FILE` writes them")
    version = given["edgekit_bench"]
    if version != REPORT_VERSION:
        raise NoReport(
            f"{where} is of version {version}, this edgekit reads {REPORT_VERSION}; update the older of "
            "the two"
        )
    _check_members(given, _MEMBERS, where)
    _check_limits(given["about"].get("limits"), where)
    if not comparison.is_endpoint(given):
        _check_members(given, _OF_SESSION, where)
        if not given["tests"]:
            raise NoReport(f"{where} has no tests; it was written before the first one ended")
    try:
        in_words(given)
        if comparison.has_prompts(given) or comparison.is_endpoint(given):
            comparison.tables(comparison.compared([given, given]))
        else:
            as_markdown([row(given)])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise NoReport(
            f"{where} lacks what its row shows ({error!r}); it is damaged or incomplete"
        ) from error
    if not comparison.is_endpoint(given):
        _check_words(given, where)
    return given


def _check_limits(limits: Any, where: str) -> None:
    """Rates and counts are numbers, and instructions have names."""
    wrong = f'{where}: its "limits" are'
    if not isinstance(limits, dict | None):
        raise NoReport(f"{wrong} {shown(limits)}; it is damaged")
    for name, value in (limits or {}).items():
        is_name = name.endswith("_instructions") and isinstance(value, str)
        is_rate = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST_RATE
        if value is not None and not is_name and not is_rate:
            raise NoReport(f"{wrong} {shown({name: value})}; it is damaged")


def _check_words(given: Mapping[str, Any], where: str) -> None:
    """What a row shows as it is told."""
    about = told(given)
    count, engine = about["case"]["new_tokens"], about["engine"]["engine"]
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < _MOST_TOKENS:
        raise NoReport(f"{where}: its new_tokens are {shown(count)}; it is damaged")
    if not isinstance(engine, str) or len(engine) > _MOST_NAME:
        raise NoReport(f"{where}: its engine is {shown(engine)}; it is damaged")


def _check_members(given: dict[str, Any], members: Mapping[str, type], where: str) -> None:
    for name, kind in members.items():
        if not isinstance(given.get(name), kind):
            raise NoReport(f'{where} has no "{name}"; it is damaged or incomplete')
