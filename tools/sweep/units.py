"""Units of work, each known by a digest of all that its result depends on, and the jobs that they form."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgekit import targets
from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.files import file_digests
from edgekit.tools.calibration_file import read_texts
from edgekit.tools.failures import Failure
from edgekit.tools.folder_name import folder_name
from edgekit.tools.sweep.grid import Grid, Line, Words, parsed
from edgekit.tools.sweep.keys import COMMANDS
from edgekit.tools.versions import installed_version

#: Options of an export that the name of its folder tells by itself.
_NAMING = ("model", "target", "format_", "quant", "adapter")
#: Values that a folder's name may hold as they are.
_PLAIN = re.compile(r"[A-Za-z0-9_.]{1,24}")


@dataclass(frozen=True)
class Unit:
    """An export, a verification or a measurement. `words` are those of its command line but for the folder
    `bundle`, `told` what the sweep varies in it, by key.
    """

    kind: str
    words: Words
    bundle: str
    digest: str
    told: Mapping[str, str] = field(default_factory=dict)
    procedure: str = ""

    @property
    def title(self) -> str:
        varied = [f"{key} {text}" for key, text in self.told.items()] if self.kind == "bench" else []
        return ", ".join([f"{self.kind} {self.bundle}", *varied, *filter(None, [self.procedure])])


@dataclass(frozen=True)
class Job:
    """A bundle: exported, then verified, then measured in every way."""

    export: Unit
    verify: Unit
    benches: tuple[Unit, ...]

    @property
    def units(self) -> tuple[Unit, ...]:
        """In the order of their work."""
        return self.export, self.verify, *self.benches


def jobs_of(grid: Grid) -> list[Job]:
    """A job for each export of the grid. Raises WrongValue, and Failure for two with one folder."""
    version, found = installed_version(), list[Job]()
    benches = [(line, _inputs_of_bench(line)) for line in grid.benches]
    for line in grid.exports:
        context = parsed("export", line.words)
        name = _bundle_name(context)
        digest = _digest(version, "export", *_inputs_of_export(context.params))
        verify = parsed("verify", (*grid.verify.words, "BUNDLE")).params
        found.append(
            Job(
                Unit("export", line.words, name, digest, line.told),
                Unit("verify", grid.verify.words, name, _digest(digest, "verify", verify, "")),
                tuple(
                    Unit(
                        "bench",
                        own.words,
                        name,
                        _digest(digest, "bench", params, inputs),
                        own.told,
                        own.procedure,
                    )
                    for own, (params, inputs) in benches
                ),
            )
        )
    _check_names(found)
    return found


def _check_names(jobs: list[Job]) -> None:
    names = [job.export.bundle for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise Failure(
                f"two exports of the sweep have the folder {name}, after the last part of the model's name; "
                "rename one model's folder, or sweep them by files of their own"
            )


def _digest(before: str, kind: str, params: Mapping[str, Any], inputs: str) -> str:
    text = json.dumps([before, kind, dict(params), inputs], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _inputs_of_bench(line: Line) -> tuple[dict[str, Any], str]:
    """What a measurement depends on: its options, and what is in the files that they name. Raises
    EdgekitError for prompts and scores that cannot be used.
    """
    from edgekit.tools.benchmark.prompts_file import digest, read_questions
    from edgekit.tools.benchmark.scoring import score_of

    params = dict(parsed("bench", ("BUNDLE", *line.words)).params)
    if (prompts := params["prompts_file"]) is None:
        return params, ""
    questions = read_questions(prompts, params["limit"])
    score = score_of(params["score"], questions)
    code = "" if params["score"] is None else file_digests(Path(params["score"].rpartition(":")[0]))[1]
    # Where the files lie does not matter.
    return params | {"prompts_file": "", "score": score.name}, digest(questions) + code


def _inputs_of_export(params: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What an export depends on: its options, and the files of a checkpoint and an adapter. A model on the
    hub is known by its name, texts by what is in them. Raises EdgekitError for texts that cannot be used.
    """
    given = [params["model"], *([] if params["adapter"] is None else [params["adapter"]])]
    texts = "" if params["calibrate"] is None else read_texts(params["calibrate"]).digest
    return {**params, "calibrate": texts or None}, json.dumps([list(_stamps(each)) for each in given])


def _stamps(model: str) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of each file, in order."""
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            status = path.stat()
            yield path.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns


def _bundle_name(context: click.Context) -> str:
    """The folder that `export` would write to; options that it does not name stand behind."""
    params = context.params
    target = targets.get(params["target"])
    preset = params["quant"] or target.preset
    try:
        formats = target.formats_for(params["format_"], params["min_os"])
    except EdgekitError:  # which the export says itself
        formats = (params["format_"],)
    name = folder_name(params["model"], params["adapter"], target, formats, preset)
    for param in COMMANDS["export"].params:
        key = param.name or ""
        given = context.get_parameter_source(key) is not ParameterSource.DEFAULT
        if key not in _NAMING and given and params.get(key) not in (None, ()):
            name += f"-{key.replace('_', '-')}-{_as_name(params[key])}"
    return name


def _as_name(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()[:8]
