"""Does what is left of jobs, a unit at a time, each in a process of its own."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from edgekit.flashload import bundle_set, manifest
from edgekit.flashload.errors import EdgekitError
from edgekit.tools.apart import answer_of
from edgekit.tools.console import Steps
from edgekit.tools.sweep.store import BEGUN, DONE, FAILED, Outcome, Store, left, manifest_digest
from edgekit.tools.sweep.units import Job, Unit
from edgekit.tools.terminal_text import counted

#: Of an export whose bundle was damaged behind it.
DAMAGED = "damaged"


class Work(Protocol):
    """Does what is left of all jobs, and tells what became of each unit, which is in the store by then."""

    def __call__(self, jobs: Sequence[Job], store: Store, steps: Steps) -> Iterator[tuple[Unit, Outcome]]: ...


class UnitFailed(EdgekitError):
    """A unit has no result: why, in one line."""


def work_here(jobs: Sequence[Job], store: Store, steps: Steps) -> Iterator[tuple[Unit, Outcome]]:
    """Do what is left of all jobs on this machine, one unit at a time, so that measurements are alone. What
    becomes of each is in the store by then.
    """
    pending = [unit for job in jobs for unit in left(job, store)]
    for job in jobs:
        for unit, outcome in perform(job, store, steps, pending):
            if outcome["state"] != DONE:
                steps.note(f"{unit.title}: {outcome['error']}")
            yield unit, outcome


def perform(
    job: Job, store: Store, steps: Steps, pending: Sequence[Unit] = ()
) -> Iterator[tuple[Unit, Outcome]]:
    """Do what is left of a job, up to an export or a verification that fails. `pending` are the units that
    its own are counted among.
    """
    for unit in left(job, store):
        if unit in pending:
            steps.note(f"{pending.index(unit) + 1} of {len(pending)}: {unit.title}")
        began = time.monotonic()
        try:
            found = _WORK[unit.kind](unit, store, steps)
            outcome: Outcome = {"state": DONE, **found}
        except EdgekitError as error:
            said = " ".join(str(error).splitlines()).removeprefix(f"{store.bundle(unit)}: ")
            outcome = {"state": FAILED, "error": said}
        outcome = {**outcome, "node": platform.node(), "seconds": time.monotonic() - began}
        keep(job, unit, outcome, store)
        yield unit, outcome
        if outcome["state"] == FAILED and unit not in job.benches:
            return


def keep(job: Job, unit: Unit, outcome: Outcome, store: Store) -> None:
    """Keep what became of a unit of a job. A bundle that is damaged is made anew by the same command."""
    store.put(unit, outcome)
    if unit is job.verify and outcome["state"] == FAILED:
        store.put(job.export, {"state": DAMAGED, "manifest": manifest_digest(store.bundle(unit))})


def _answer(unit: Unit, words: Iterable[str | Path], steps: Steps) -> Mapping[str, Any]:
    given = [unit.kind, *map(str, words)]
    advice = "give a smaller memory" if unit.kind == "bench" else "close other programs"
    found: Mapping[str, Any] = answer_of("edgekit.tools.sweep.child", given, steps, unit.title, advice)
    return found


def _export(unit: Unit, store: Store, steps: Steps) -> dict[str, Any]:
    folder = store.bundle(unit)
    how = store.begin(unit)
    _answer(unit, ["-o", folder, *how, *unit.words], steps)
    return {"manifest": manifest_digest(folder)}


def _verify(unit: Unit, store: Store, steps: Steps) -> dict[str, Any]:
    folder = store.bundle(unit)
    found = _answer(unit, ["--json", *unit.words, "--", folder], steps)
    report = json.loads(found["out"])
    damaged = [item for item in report["items"] if item["damage"]]
    if damaged:
        first = damaged[0]
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise UnitFailed(
            f"damaged: {first['name']}: {first['damage']}{more}; the same command exports it again"
        )
    return {
        "checks": len(report["items"]),
        "checked_bytes": sum(item["nbytes"] for item in report["items"]),
        **_errors(folder),
    }


def _errors(folder: Path) -> dict[str, Any]:
    """What quantization changed: relative errors of the weights, by what is stored of them and as the worst
    matrix has it; of a set its first bundle's, which all share.
    """
    if bundle_set.is_set(folder):
        folder = folder / bundle_set.load(folder).members[0].path
    loaded = manifest.load(folder)
    quantization = loaded.quantization
    roles = quantization["roles"]
    parameters = sum(role["parameters"] for role in roles)
    return {
        "preset": quantization["preset"],
        "weights_bytes": loaded.weights.size,
        "bits_per_weight": quantization["bits_per_weight"],
        "mean_error": sum(role["mean_error"] * role["parameters"] for role in roles) / max(1, parameters),
        "largest_error": max((role["max_error"] for role in roles), default=0.0),
    }


def _bench(unit: Unit, store: Store, steps: Steps) -> dict[str, Any]:
    from edgekit.tools.benchmark.files import read_reports

    file = store.folder / f".{unit.digest}.jsonl"
    try:
        found = _answer(unit, ["--report", file, *unit.words, "--", store.bundle(unit)], steps)
        if found["code"]:
            raise UnitFailed(found["last"] or f"ended with exit code {found['code']}")
        (report,) = read_reports([file])
    finally:
        file.unlink(missing_ok=True)
    return {"report": report}


_WORK = {"export": _export, "verify": _verify, "bench": _bench}


def state_in_words(job: Job, store: Store) -> list[str]:
    """What there is of a job, for people: of its export, its verification and its measurements."""
    pending = left(job, store)
    states = [_state(unit, unit in pending, store) for unit in (job.export, job.verify)]
    there = len(job.benches) - len([unit for unit in pending if unit.kind == "bench"])
    return [*states, f"{there} of {counted(len(job.benches), 'measurement')}"]


def _state(unit: Unit, is_left: bool, store: Store) -> str:
    if not is_left:
        return "there"
    before = (store.outcome(unit) or {}).get("state")
    return {BEGUN: "goes on", FAILED: "tried again", DAMAGED: "made again", DONE: "made again"}.get(
        str(before), "to do"
    )
