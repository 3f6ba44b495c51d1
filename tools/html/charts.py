"""Charts from plain data, a function for each kind; plotly draws them in the browser."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any

import plotly.graph_objects as go

from edgekit.tools.digits import digits
from edgekit.tools.html import theme
from edgekit.tools.terminal_text import shortened, visible

#: Characters of a line, and of all lines, of names beside bars and of those shown where somebody points.
_BESIDE, _POINTED = (20, 57), (36, 144)
#: Pixels above the part of a chart that has the data, and below it.
_ABOVE, _BELOW = 12, 48
_BAR, _GAP = 16, 14
#: A value over the smallest beyond which bars are points.
_FAR_APART = 100
#: Names on a chart beyond which its scale stands above.
_LONG = 12
#: Lanes of a timeline, and pixels of all of them.
_LANES_HEIGHT, _LEAST_LANE, _MOST_LANE, _LABEL = 680, 5, 22, 14
#: Of a timeline: shorter spans and gaps than that share of it are not seen. A bar is at least so much no gap.
_SEEN, _COVERED = 1 / 2000, 0.95
#: Seconds below which a timeline counts milliseconds.
_SHORT_TIME = 2.0
#: How far a roofline goes beyond what is on it, and what its points look like: one may lie on another.
_BEYOND = 4.0
#: Powers of ten on an axis below which it needs numbers between them.
_SHORT = 3
_MARKERS = ({"symbol": "circle-open", "size": 15, "line": {"width": 2.5}}, {"symbol": "diamond", "size": 9})

#: Where the marks of points are: those that lie on each other have theirs on different sides.
_SIDES = ("top center", "bottom center", "middle right", "middle left")


@dataclass(frozen=True)
class Chart:
    """`figure` is data and layout as plotly.js takes them, JSON; `says` is what stands above it, behind the
    title, and `colours` what is shown in which. Plotly's own legend takes the room of the data on phones.
    """

    title: str
    says: str
    colours: Mapping[str, str]
    figure: str
    height: int


@dataclass(frozen=True)
class Bar:
    """On a lane of a timeline, by its number, from and to so many seconds. `kind` is the name of a colour."""

    lane: int
    kind: str
    begun: float
    ended: float
    name: str


@dataclass(frozen=True)
class Point:
    """On a roofline, below the roof of that name: operations for a byte, and operations per second; `mark`
    stands beside it.
    """

    name: str
    roof: str
    per_byte: float
    per_second: float
    mark: str = ""


def bars(
    title: str,
    says: str,
    unit: str,
    names: Sequence[str],
    groups: Mapping[str, Sequence[float | None]],
    *,
    spreads: Sequence[float | None] = (),
    stacked: bool = False,
    colours: Mapping[str, str] | None = None,
) -> Chart:
    """Bars beside the names, of every group one: values in `unit`, None for what is not there. `spreads` are
    standard deviations of the only group. Values that are far apart are points on an axis in powers of ten,
    on which the length of a bar would say nothing.
    """
    usual = dict(zip(groups, theme.SEVERAL * len(groups), strict=False))
    chosen = {group: (colours or {}).get(group, colour) for group, colour in usual.items()}
    places = list(range(len(names)))
    known = [value for values in groups.values() for value in values if value]
    if not stacked and known and max(known) > _FAR_APART * min(known):
        return _points(title, says, unit, names, groups, chosen)
    traces = []
    for group, values in groups.items():
        shown = ["" if value is None else digits(value) for value in values]
        trace = go.Bar(
            name=_text(group),
            orientation="h",
            x=list(values),
            y=places,
            marker={"color": chosen[group]},
            customdata=[_wrapped(name, *_POINTED) for name in names],
            hovertemplate=f"%{{customdata}}<br>{_text(group)}: %{{x:.3s}} {unit}<extra></extra>",
        )
        traces.append(trace)
        if any(spreads):
            trace.update(error_x={"array": [each or 0 for each in spreads], "color": theme.GREY})
            traces.append(_numbers_behind(values, spreads, shown))
        elif not stacked:
            trace.update(text=shown, textposition="outside", cliponaxis=False)
    longest = max((value or 0 for values in groups.values() for value in values), default=0)
    longest += max((each or 0 for each in spreads), default=0)
    # Behind the longest bar there is room for its number.
    across = {"title": unit, "rangemode": "tozero"} | ({} if stacked else {"range": [0, 1.2 * longest or 1]})
    rows, row = _rows(names)
    layout = {
        "barmode": "stack" if stacked else "group",
        "bargap": 0.3,
        "xaxis": across,
        "yaxis": rows,
    }
    each = _BAR * (1 if stacked else len(groups)) + _GAP
    explained = chosen if len(groups) > 1 else {}
    return _chart(title, says, explained, traces, layout, max(each, row) * len(names))


def _points(
    title: str,
    says: str,
    unit: str,
    names: Sequence[str],
    groups: Mapping[str, Sequence[float | None]],
    colours: Mapping[str, str],
) -> Chart:
    """What `bars` shows, as points."""
    traces = [
        go.Scatter(
            name=_text(group),
            x=list(values),
            y=list(range(len(names))),
            mode="markers",
            marker={"color": colours[group], "size": 10},
            customdata=[_wrapped(name, *_POINTED) for name in names],
            hovertemplate=f"%{{customdata}}<br>{_text(group)}: %{{x:.3s}} {unit}<extra></extra>",
        )
        for group, values in groups.items()
    ]
    known = [value for values in groups.values() for value in values if value]
    rows, row = _rows(names)
    # Of a long one the first names are far from what is below it.
    side = "top" if len(names) > _LONG else "bottom"
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": unit, "side": side, **_powers(min(known) / 1.5, max(known) * 1.5)},
        "yaxis": rows | {"showgrid": True},
    }
    return _chart(title, says, colours if len(groups) > 1 else {}, traces, layout, row * len(names))


def _rows(names: Sequence[str]) -> tuple[dict[str, Any], int]:
    """An axis with a name for each number from 0, from above, and pixels that a name takes."""
    beside = [_wrapped(name, *_BESIDE) for name in names]
    axis = {
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": beside,
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
    }
    return axis, _BAR * max((name.count("<br>") + 1 for name in beside), default=1) + 6


def _numbers_behind(
    values: Sequence[float | None], spreads: Sequence[float | None], shown: Sequence[str]
) -> go.Scatter:
    """Numbers behind bars and what shows their spread, which plotly would write upon it."""
    return go.Scatter(
        x=[None if v is None else v + (s or 0) for v, s in zip(values, spreads, strict=True)],
        y=list(range(len(values))),
        mode="text",
        text=[f" {each}" for each in shown],
        textposition="middle right",
        hoverinfo="skip",
        cliponaxis=False,
    )


def over_time(
    title: str,
    says: str,
    seconds: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    limits: Mapping[str, float],
    marks: Sequence[float] = (),
) -> Chart:
    """Bytes over seconds, with what they may be at most as lines across; at `marks` something begins."""
    factor, unit = _bytes([*limits.values(), *(v for values in lines.values() for v in values)])
    traces = [
        go.Scatter(
            name=_text(name),
            x=list(seconds),
            y=[value / factor for value in values],
            mode="lines",
            line={"color": colour, "width": 1.8},
            hovertemplate=f"%{{y:.4~g}} {unit}",
        )
        for (name, values), colour in zip(lines.items(), theme.SEVERAL, strict=False)
    ]
    ends = [min(seconds, default=0.0), max(seconds, default=1.0)]
    for (name, limit), dash in zip(limits.items(), ("dash", "dot", "dashdot"), strict=False):
        line = {"color": theme.RED, "width": 1.5, "dash": dash}
        traces.append(
            go.Scatter(name=_text(name), x=ends, y=[limit / factor] * 2, mode="lines", line=line,
                       hovertemplate=f"%{{y:.4~g}} {unit}")
        )  # fmt: skip
    layout = {
        "hovermode": "x unified",
        "xaxis": {"title": "s", "showgrid": False, "range": ends, "hoverformat": ".3~f"},
        "yaxis": {"title": unit, "rangemode": "tozero"},
        "shapes": [
            {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
             "line": {"color": theme.GREY, "width": 1, "dash": "dot"}}
            for at in marks
        ],
    }  # fmt: skip
    explained = dict(zip(lines, theme.SEVERAL, strict=False)) | dict.fromkeys(limits, theme.RED)
    return _chart(title, says, explained, traces, layout, 240)


def timeline(
    title: str, says: str, lanes: Sequence[str], spans: Iterable[Bar], colours: Mapping[str, str], long: float
) -> Chart:
    """What goes on in `long` seconds, a lane for each name, from above; kinds of bars of a lane that come
    first in `colours` are its upper half, all others its lower.
    """
    factor, unit = (1000.0, "ms") if long < _SHORT_TIME else (1.0, "s")
    first = next(iter(colours))
    traces = []
    joined = merged(spans, long * _SEEN)
    for kind, colour in colours.items():
        own = [span for span in joined if span.kind == kind]
        if not own:
            continue
        begun = [max(0.0, span.begun) * factor for span in own]
        ended = [min(long, span.ended) * factor for span in own]
        traces.append(
            go.Bar(
                name=_text(kind),
                orientation="h",
                base=[_rounded(at) for at in begun],
                x=[_rounded(to - at) for at, to in zip(begun, ended, strict=True)],
                y=[span.lane for span in own],
                width=0.42,
                offset=-0.44 if kind == first else 0.02,
                marker={"color": colour, "line": {"width": 0}},
                customdata=[
                    [
                        _wrapped(span.name, *_POINTED),
                        *(_rounded(at * factor) for at in (span.begun, span.ended)),
                    ]
                    for span in own
                ],
                hovertemplate=f"%{{customdata[0]}}<br>{_text(kind)} %{{customdata[1]:.4~g}} to "
                f"%{{customdata[2]:.4~g}} {unit}<extra></extra>",
            )
        )
    lane = min(_MOST_LANE, max(_LEAST_LANE, _LANES_HEIGHT / max(1, len(lanes))))
    every = -(-_LABEL // int(lane))
    labelled = list(range(0, len(lanes), every))
    layout = {
        "barmode": "overlay",
        "xaxis": {"title": unit, "range": [0, long * factor]},
        "yaxis": {
            "tickmode": "array",
            "tickvals": labelled,
            "ticktext": [_text(shortened(lanes[number], _BESIDE[0])) for number in labelled],
            "range": [len(lanes) - 0.4, -0.6],
            "zeroline": False,
            "showgrid": False,
        },
    }
    explained = {kind: colour for kind, colour in colours.items() if any(s.kind == kind for s in joined)}
    return _chart(title, says, explained, traces, layout, max(60, round(lane * len(lanes))))


def merged(spans: Iterable[Bar], least: float) -> list[Bar]:
    """Spans of a lane and kind with gaps of at most so many seconds, as one with the first one's name, where
    hardly any of it is gaps; those without length are as long as that.
    """
    found, covered = list[Bar](), 0.0
    for span in sorted(spans, key=lambda s: (s.lane, s.kind, s.begun, s.ended)):
        long = max(span.ended - span.begun, least)
        last = found[-1] if found else None
        if last is not None and (last.lane, last.kind) == (span.lane, span.kind):
            ended = max(last.ended, span.begun + long)
            more = ended - max(last.ended, span.begun)
            if span.begun <= last.ended + least and covered + more >= _COVERED * (ended - last.begun):
                name = last.name if span.name in last.name else f"{last.name.removesuffix(' ...')} ..."
                found[-1] = Bar(span.lane, span.kind, last.begun, ended, name)
                covered += more
                continue
        found.append(Bar(span.lane, span.kind, span.begun, span.begun + long, span.name))
        covered = long
    return found


def roofline(
    title: str, says: str, peak: float, slopes: Mapping[str, float], points: Sequence[Point]
) -> Chart:
    """What `peak` operations per second and so many bytes per second allow, both axes in powers of ten, with
    points below.
    """
    ridges = [peak / rate for rate in slopes.values()]
    inner = [*ridges, *(point.per_byte for point in points)]
    ends = min(inner) / _BEYOND, max(inner) * _BEYOND
    traces = []
    for (name, rate), colour, marker in zip(slopes.items(), theme.SEVERAL, _MARKERS, strict=False):
        at = [ends[0], peak / rate, ends[1]]
        traces.append(
            go.Scatter(name=_text(name), x=at, y=[min(peak, rate * x) for x in at], mode="lines",
                       line={"color": colour, "width": 2}, hoverinfo="skip")
        )  # fmt: skip
        own = [point for point in points if point.roof == name]
        if not own:
            continue
        traces.append(
            go.Scatter(
                x=[point.per_byte for point in own],
                y=[point.per_second for point in own],
                mode="markers+text",
                marker={"color": colour, **marker},
                text=[_text(point.mark) for point in own],
                textposition=[_SIDES[number % len(_SIDES)] for number in range(len(own))],
                cliponaxis=False,
                customdata=[[_wrapped(point.name, *_POINTED), _text(name)] for point in own],
                hovertemplate="%{customdata[0]}<br>%{y:.3s} operations/s<br>%{x:.3s} operations for a byte "
                "from %{customdata[1]}<extra></extra>",
            )
        )
    low = min([point.per_second for point in points] + [rate * ends[0] for rate in slopes.values()])
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": "operations for a byte", **_powers(ends[0], ends[1])},
        "yaxis": {"title": "operations/s", **_powers(low / 1.5, peak * 2)},
    }
    explained = dict(zip(slopes, theme.SEVERAL, strict=False))
    return _chart(title, says, explained, traces, layout, 300)


def line(
    title: str, says: str, across: str, up: str, values: Mapping[int, float], marked: Sequence[int]
) -> Chart:
    """Values over a count, which grows in powers of ten; those of `marked` with a number."""
    traces = [
        go.Scatter(x=list(values), y=list(values.values()), mode="lines",
                   line={"color": theme.BLUE, "width": 2}, hovertemplate=f"%{{x}} {across}: %{{y:.3s}} {up}"
                   "<extra></extra>"),
        go.Scatter(x=list(marked), y=[values[at] for at in marked], mode="markers+text",
                   text=[digits(values[at]) for at in marked], textposition="top right", hoverinfo="skip",
                   marker={"color": theme.BLUE, "size": 9}, cliponaxis=False),
    ]  # fmt: skip
    top = max(values.values(), default=1.0)
    ticks = [1 << power for power in range(max(values, default=1).bit_length())]
    layout = {
        "xaxis": {"title": across, "type": "log", "tickvals": ticks, "ticktext": [str(at) for at in ticks]},
        "yaxis": {"title": up, "range": [0, 1.15 * top]},
    }
    return _chart(title, says, {}, traces, layout, 240)


def _chart(
    title: str,
    says: str,
    colours: Mapping[str, str],
    traces: list[Any],
    layout: dict[str, Any],
    inner: int,
) -> Chart:
    height, on_top = _ABOVE + inner + _BELOW, layout["xaxis"].get("side") == "top"
    usual = {
        # An empty one, else plotly puts its own into every figure; the page has one for all.
        "template": go.layout.Template(data={}),
        "font": {"size": 12},
        "margin": {"l": 8, "r": 12} | dict(zip("bt" if on_top else "tb", (_ABOVE, _BELOW), strict=True)),
        "showlegend": False,
        "height": height,
    }
    for axis in ("xaxis", "yaxis"):
        named = {"text": layout[axis].pop("title", ""), "standoff": 10}
        layout[axis] = {"automargin": True, "title": named, "ticklabelstandoff": 5} | layout[axis]
    figure = go.Figure(traces, usual | layout)
    return Chart(title, says, colours, figure.to_json(), height)


def _powers(low: float, high: float) -> dict[str, Any]:
    """An axis in powers of ten with 1M, 1G, 1T at them where it goes far, with 2 and 5 where it is short."""
    ends = [log10(low), log10(high)]
    between = (1, 2, 5) if ends[1] - ends[0] < _SHORT else (1,)
    ticks = [digit * 10.0**power for power in range(floor(ends[0]), ceil(ends[1])) for digit in between]
    written = "~g" if low >= 1e-4 and high <= 1e5 else "~s"
    return {"type": "log", "range": ends, "tickvals": ticks, "tickformat": written}


def _text(said: str) -> str:
    """What was said, where plotly reads tags and entities."""
    return escape(visible(said), quote=False)


def _at_words(said: str, most: int) -> str:
    """`shortened`, between words; one that is as long as half of what is left is cut itself."""
    if len(said) <= most:
        return said
    begin, end = shortened(said, most).split(" ... ", 1)
    if said[len(begin)] != " " and (at := begin.rfind(" ")) >= len(begin) // 2:
        begin = begin[:at]
    if said[-len(end) - 1] != " " and 0 <= (at := end.find(" ")) < len(end) // 2:
        end = end[at:]
    return f"{begin.rstrip(' ,;')} ... {end.strip()}"


def _wrapped(name: str, line: int, most: int) -> str:
    """A name in lines of so many characters, and at most so many in all."""
    return "<br>".join(map(_text, textwrap.wrap(_at_words(visible(name), most), line))) or " "


def _rounded(value: float) -> float:
    """To a digit that nobody sees, for pages that are not longer than they need to be."""
    return float(f"{value:.6g}")


def _bytes(values: Iterable[float]) -> tuple[float, str]:
    """The unit that suits the largest of them, and its bytes."""
    most = max(values, default=0.0)
    return next(((f, u) for f, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if most >= f), (1.0, "bytes"))
