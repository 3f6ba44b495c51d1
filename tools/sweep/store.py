"""The folder of a sweep: bundles, the reports of all of them, and what became of each unit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edgekit.flashload.bundle_set import SET_NAME
from edgekit.flashload.files import lock, write_atomic
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.tools.benchmark.files import are_reports, is_report, write_reports
from edgekit.tools.failures import Failure
from edgekit.tools.json_text import parsed
from edgekit.tools.output_file import check_output
from edgekit.tools.sweep.units import Job, Unit

#: Folder of what became of units, and the file of all reports, for `edgekit bench --merge`.
UNITS, REPORTS = "units", "reports.jsonl"
_LOCK = "lock"
#: States of a unit.
BEGUN, DONE, FAILED = "begun", "done", "failed"

#: What became of a unit: "state", and of one that is done its results.
Outcome = Mapping[str, Any]


class Store:
    """The folder, which need not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Inside the block the folder is there, and no other sweep writes to it. Raises Failure."""
        units = self.folder / UNITS
        if self.folder.exists() and not (units / _LOCK).is_file():
            if not self.folder.is_dir() or any(self.folder.iterdir()):
                raise Failure(f"{self.folder}: holds other things than a sweep; give another folder with -o")
        elif self.folder.exists():
            check_output(self.folder / REPORTS, "file of reports", are_reports)
        units.mkdir(parents=True, exist_ok=True)
        with open(units / _LOCK, "ab") as file:
            if not lock(file.fileno()):
                raise Failure(f"{self.folder}: another sweep writes to it; wait for its end, or end it")
            yield

    def bundle(self, unit: Unit) -> Path:
        return self.folder / unit.bundle

    def outcome(self, unit: Unit) -> Outcome | None:
        """What became of a unit; None where nothing is known."""
        return _read(self._file(unit))

    def put(self, unit: Unit, outcome: Outcome) -> None:
        """Keep what became of a unit. Raises WriteFailed."""
        told = {"unit": unit.title, "kind": unit.kind, "bundle": unit.bundle, **outcome}
        write_atomic(self._file(unit), json.dumps(told).encode())

    def is_done(self, unit: Unit) -> bool:
        return (self.outcome(unit) or {}).get("state") == DONE

    def is_there(self, export: Unit) -> bool:
        """Whether the bundle of an export lies in its folder as it was written."""
        outcome = self.outcome(export) or {}
        return outcome.get("state") == DONE and outcome.get("manifest") == manifest_digest(
            self.bundle(export)
        )

    def begin(self, export: Unit) -> list[str]:
        """Note that an export begins, and how: the option for what is in its folder. What this sweep has
        left there is replaced, nothing else.
        """
        folder, own = self.bundle(export), (self.outcome(export) or {}).get("state")
        others = [
            (path, found) for path, found in self._of_bundle(export.bundle) if path != self._file(export)
        ]
        found = manifest_digest(folder)
        known = [each.get("manifest") for _, each in others] + [(self.outcome(export) or {}).get("manifest")]
        if found is not None:
            how = ["--overwrite"] if found in known else ["--resume"] if own == BEGUN else []
        elif not folder.is_dir() or not any(folder.iterdir()):
            how = []
        elif own in (BEGUN, FAILED):
            how = ["--resume"]
        else:
            how = ["--overwrite"] if others else []
        for path, each in others:  # what they have begun is no longer there
            if each.get("state") in (BEGUN, FAILED):
                path.unlink(missing_ok=True)
        self.put(export, {"state": BEGUN, "manifest": found if how == ["--overwrite"] else None})
        return how

    def reports(self, jobs: Iterable[Job]) -> list[dict[str, Any]]:
        """Of all measurements that are done, in order."""
        units = [unit for job in jobs for unit in job.benches]
        return [
            outcome["report"] for unit in units if (outcome := self.outcome(unit)) and "report" in outcome
        ]

    def write_reports(self, jobs: Iterable[Job]) -> None:
        """Write those that there are to one file. Raises WriteFailed."""
        if found := self.reports(jobs):
            write_reports(self.folder / REPORTS, found)

    def _file(self, unit: Unit) -> Path:
        return self.folder / UNITS / f"{unit.kind}-{unit.digest}.json"

    def _of_bundle(self, name: str) -> Iterator[tuple[Path, Outcome]]:
        """Outcomes of all exports, of this sweep or of what its file said before, to a folder."""
        for path in sorted((self.folder / UNITS).glob("export-*.json")):
            outcome = _read(path)
            if outcome is not None and outcome.get("bundle") == name:
                yield path, outcome


def _read(path: Path) -> Outcome | None:
    """None for what is not there, or is damaged: it is done again."""
    with suppress(OSError, ValueError, RecursionError):
        found = parsed(path.read_bytes(), str(path))
        if isinstance(found, dict) and all(_fits(name, value) for name, value in found.items()):
            return found
    return None


def _fits(name: str, value: Any) -> bool:
    """Whether tables can show what a file says."""
    if name == "report":
        return is_report(value)
    if name in ("checks", "checked_bytes", "weights_bytes", "bits_per_weight", "mean_error", "largest_error"):
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return name not in ("error", "preset", "node", "bundle", "manifest") or isinstance(value, str | None)


def manifest_digest(bundle: Path) -> str | None:
    """Of the table of a bundle, or of a set of several; None where there is no whole one."""
    for name in (MANIFEST_NAME, SET_NAME):
        if os.path.isfile(bundle / name):
            with suppress(OSError):
                return hashlib.sha256((bundle / name).read_bytes()).hexdigest()
    return None


def left(job: Job, store: Store) -> list[Unit]:
    """What of a job is to be done. A bundle that is gone is made again where something needs it, and is
    verified again then.
    """
    verify = [] if store.is_done(job.verify) else [job.verify]
    benches = [unit for unit in job.benches if not store.is_done(unit)]
    done = store.is_done(job.export)
    if done and (not (verify or benches) or store.is_there(job.export)):
        return [*verify, *benches]
    return [job.export, job.verify, *benches]
