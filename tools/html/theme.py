"""Colours of charts: of what they show, the same by day and by night, and of what is around it."""

from __future__ import annotations

from typing import Any, Final

#: They stand out from light and from dark, and from each other for most who see few colours.
BLUE: Final = "#3987e5"
ORANGE: Final = "#e0792b"
GREEN: Final = "#2fa37c"
PURPLE: Final = "#a06ac9"
RED: Final = "#e05252"
GREY: Final = "#8d939c"
SEVERAL: Final = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY)


def _theme(ink: str, dim: str, grid: str, card: str) -> dict[str, Any]:
    axis = {
        "gridcolor": grid,
        "linecolor": dim,
        "zerolinecolor": dim,
        "tickcolor": dim,
        "tickfont": {"color": ink},
        "title": {"font": {"color": ink}},
    }
    return {
        "layout": {
            "font": {"color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "legend": {"bgcolor": "rgba(0,0,0,0)"},
            "hoverlabel": {"bgcolor": card, "bordercolor": dim, "font": {"color": ink}},
        }
    }


#: As templates of plotly; the colours of text, lines and ground are those of page.css.
THEMES: Final = {
    "light": _theme("#1d2129", "#9aa1ab", "#e4e7eb", "#ffffff"),
    "dark": _theme("#e4e7eb", "#6b727d", "#31363e", "#22262d"),
}
