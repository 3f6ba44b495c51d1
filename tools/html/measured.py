"""What charts show of a report, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgekit.runtime.bundle.costs import Costs
from edgekit.tools.benchmark.rows import Report, Test, rows_of
from edgekit.tools.html.charts import Bar

#: Points of a line that a screen still tells apart.
_POINTS = 1500
#: Lanes of a timeline; more is no model but a report that somebody made up.
_MOST_LANES = 1000
#: Behind the layer in the name of an expert's run.
EXPERTS = ".experts"
#: Runs of the vocabulary, each with a number behind it.
_TABLES = ("embedding", "head")


@dataclass(frozen=True)
class Memory:
    """Bytes over the seconds of all tests, one behind the other, which begin at `begun`."""

    seconds: Sequence[float]
    anonymous: Sequence[float]
    file: Sequence[float]
    begun: Sequence[float]


def memory(report: Report) -> Memory:
    """Of a report; of samples that are close together the most."""
    points, begun, at = list[tuple[float, float, float]](), list[float](), 0.0
    for test in report["tests"]:
        begun.append(at)
        for each in rows_of(test["memory"].get("over_time", {"columns": [], "rows": []})):
            points.append((at + float(each["seconds"]), float(each["anonymous"]), float(each["file"])))
        at += float(test["seconds"])
    together = -(-len(points) // _POINTS) or 1
    chosen = [points[first : first + together] for first in range(0, len(points), together)]
    seconds = [several[0][0] for several in chosen]
    anonymous, file = ([max(p[i] for p in several) for several in chosen] for i in (1, 2))
    return Memory(seconds, anonymous, file, begun)


@dataclass(frozen=True)
class Pass:
    """A denoising pass of which all reads and uses are known: its number in the test, from 0, its seconds,
    what was used in it, in order, and when what was read, waited for and computed, from its beginning.
    """

    number: int
    seconds: float
    lanes: Sequence[str]
    bars: Sequence[Bar]


def lane(run: str) -> str:
    """What a run is shown with: an expert with its layer, a tile of the vocabulary with the others."""
    layer, experts, _ = run.partition(EXPERTS)
    table, dot, tile = layer.partition(".")
    return table if dot and tile.isdigit() and not experts and table in _TABLES else layer


#: What the core calls the kinds, and what charts do; reads come first.
KINDS = {"read": "read", "wait": "wait", "use": "compute"}


def whole_pass(report: Report) -> Pass | None:
    """The second denoising pass of the last test that has one, or the first: the second has the reads that
    went ahead of it.
    """
    for test in reversed(report["tests"]):
        if found := list(_whole(test)):
            return found[-1]
    return None


def _whole(test: Test) -> Iterator[Pass]:
    """The first two, where the spans of the test have them."""
    spans = rows_of(test.get("spans", {"columns": [], "rows": []}))
    if not spans:
        return
    # Spans are kept in the order in which they end.
    known = float(spans[-1]["ended"]) if test.get("spans_left_out") else float("inf")
    denoised = [each for each in rows_of(test["passes"]) if each["kind"] != "prefill"]
    for number, each in enumerate(denoised[:2]):
        begun, ended = float(each["begun"]), float(each["ended"])
        if ended <= known and ended > begun:
            yield _pass(number, begun, ended, spans)


def _pass(number: int, begun: float, ended: float, spans: Sequence[Mapping[str, Any]]) -> Pass:
    inside = [
        (KINDS[each["kind"]], str(each["name"]), float(each["begun"]) - begun, float(each["ended"]) - begun)
        for each in spans
        if float(each["ended"]) > begun and float(each["begun"]) < ended
    ]
    used = sorted((from_, name) for kind, name, from_, _ in inside if kind == "compute" and from_ >= 0)
    lanes = {name: number for number, name in enumerate(dict.fromkeys(lane(name) for _, name in used))}
    bars = []
    for kind, name, from_, to in inside:
        bars.append(Bar(lanes.setdefault(lane(name), len(lanes)), kind, from_, to, name))
    return Pass(number, ended - begun, list(lanes)[:_MOST_LANES], [b for b in bars if b.lane < _MOST_LANES])


@dataclass(frozen=True)
class Intensity:
    """Operations per second in passes, and operations for each byte that is read from disk (None: nothing is)
    and for each byte of the weights that a pass takes from memory.
    """

    per_second: float
    per_disk_byte: float | None
    per_memory_byte: float | None


def intensity(report: Report) -> Intensity | None:
    """None where the report does not tell what its passes compute."""
    about = report["about"]
    if not about.get("costs"):
        return None
    costs, tests = Costs(**about["costs"]), report["tests"]
    passes = [each for test in tests for each in rows_of(test["passes"])]
    operations, seconds = sum(map(costs.of_pass, passes)), sum(float(t["pass_seconds"]) for t in tests)
    if not operations or seconds <= 0:
        return None
    read = sum(int(each["bytes_read"]) for each in passes)
    weights = len(passes) * (int(report["plan"]["pinned"]) + int(report["plan"]["streamed"]))
    return Intensity(
        operations / seconds, operations / read if read else None, operations / weights if weights else None
    )
