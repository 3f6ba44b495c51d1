"""How long it takes from nothing to the first draft: files from the disk, and from the page cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.flashload.sizes import size
from edgekit.tools.apart import Tell
from edgekit.tools.benchmark import page_cache
from edgekit.tools.benchmark.wanted import Wanted

if TYPE_CHECKING:
    from edgekit.runtime.generation import Generator

#: Part of the files that may be left in the page cache when they were dropped: the disk reads ahead.
MOST_LEFT = 0.01


def started(wanted: Wanted, opened: Callable[[], Generator], tell: Tell) -> dict[str, Any]:
    """Seconds of one start in this process, whose modules are imported: until the session of the first prompt
    is open (`open_seconds`) and until its first draft. Before a cold one the bundle's files are dropped from
    the page cache; `left_bytes` stayed there.
    """
    from edgekit.runtime.sampling import Draft, drive
    from edgekit.tools.benchmark.workload import Workload

    tell(stage=f"{wanted.start} start", total=0)
    case, left = replace(wanted.case, sequences=1), None
    if wanted.start == "cold":
        files = page_cache.files_of(Path(case.bundle))
        for file in files:
            page_cache.forget(file)
        with suppress(OSError):  # of file systems without pages
            left = page_cache.cached_bytes(files)
    began = time.perf_counter()
    with opened() as generator:
        workload = Workload(case, generator)
        (sampler,) = workload.samplers()
        with workload.opened() as running:
            open_seconds = time.perf_counter() - began
            events = drive(sampler, running.session)
            for event in events:
                if isinstance(event, Draft):
                    break
            first_draft_seconds = time.perf_counter() - began
            events.close()
    return {
        "open_seconds": open_seconds,
        "first_draft_seconds": first_draft_seconds,
        "left_bytes": left,
    }


def starts(wanted: Wanted, measure: Callable[[Wanted], dict[str, Any]]) -> dict[str, Any]:
    """So many starts as there are `runs`, each by a `measure` of its own: pairs of a cold one and a warm one,
    which comes at once after it. Where files cannot be dropped, there are no cold ones, and `cold_unknown`
    says why.
    """
    found: dict[str, Any] = {"cold": [], "warm": [], "cold_unknown": page_cache.UNKNOWN}
    files = page_cache.files_of(Path(wanted.case.bundle))
    whole = sum(file.stat().st_size for file in files)
    if page_cache.UNKNOWN:
        measure(replace(wanted, start="warm"))  # which has the files read
    for _ in range(wanted.runs):
        if not found["cold_unknown"]:
            cold = measure(replace(wanted, start="cold"))
            left = cold["left_bytes"]
            if left is None or left > MOST_LEFT * whole:
                found["cold_unknown"] = _stayed(left, whole)
                found["cold"] = []
            else:
                found["cold"].append(cold)
        found["warm"].append(measure(replace(wanted, start="warm")))
    return found


def _stayed(left: int | None, whole: int) -> str:
    if left is None:
        return "the system does not say whether the bundle's files have left its page cache"
    return (
        f"{size(left)} of {size(whole)} of the bundle stayed in the page cache; other programs have them in "
        "use, the files are not one's own, or they lie in memory"
    )
