"""The file of a sweep: values by key, and all their combinations as command lines."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from edgekit.flashload.files import read_table
from edgekit.flashload.names import shown, unknown
from edgekit.runtime.sampling.options import check_known
from edgekit.tools.failures import Failure, failure
from edgekit.tools.options import Assignment
from edgekit.tools.sweep.keys import COMMANDS, KEYS, Key, WrongValue

#: Combinations of one sweep: more are a slip, and nobody reads their table.
MOST = 10_000
_MOST_BYTES = 1 << 20
#: The table whose tables are procedures: settings of the sampler by name.
PROCEDURE = "procedure"

Words = tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """A combination: the words of a command line without the bundle's folder, and what was swept of it by
    key. `procedure` is the name of the table that its settings are from.
    """

    words: Words
    told: Mapping[str, str] = field(default_factory=dict)
    procedure: str = ""

    @property
    def title(self) -> str:
        """What sets it apart, in a few words."""
        return ", ".join(
            [*(f"{key} {text}" for key, text in self.told.items()), *filter(None, [self.procedure])]
        )


@dataclass(frozen=True)
class Grid:
    """What a file says: for each command its lines, the last named key changing fastest."""

    exports: Sequence[Line]
    verify: Line
    benches: Sequence[Line]


def read_grid(path: Path) -> Grid:
    """The grid of a file. Raises Failure, OpenFailed and MalformedFile, which name the file and what is wrong
    in it.
    """
    try:
        text = read_table(path, _MOST_BYTES, "file of a sweep", "give another file").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Failure(f'{path}: is no text; write TOML, such as model = "tiny-gemma"') from error
    try:
        return grid_of(tomllib.loads(text))
    except WrongValue as error:
        raise Failure(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:  # also of numbers that Python does not read
        raise Failure(f"{path}: is no TOML: {error or 'it is nested too deeply'}") from error


def grid_of(given: Mapping[str, Any]) -> Grid:
    """The grid of values by key. Raises WrongValue."""
    for name in given:
        if name == "set":
            raise WrongValue(
                "set: settings stand in a table of their own, such as [procedure.fast] with steps = 8"
            )
        if name not in (*KEYS, PROCEDURE):
            raise WrongValue(unknown("key", name, [*KEYS, PROCEDURE]))
    if "model" not in given:
        raise WrongValue('there is no model; write model = "tiny-gemma", or another as for `edgekit export`')
    own = {kind: _axes(given, kind) for kind in COMMANDS}
    (verify, *others) = _lines(own["verify"])
    if others:
        raise WrongValue("evaluate is a list of both; give true or false")
    procedures = _procedures(given.get(PROCEDURE, {"": {}}))
    count = math.prod(len(values) for axes in (own["export"], own["bench"]) for _, values in axes)
    if count * len(procedures) > MOST:
        raise WrongValue(f"makes {count * len(procedures)} measurements; a sweep has at most {MOST}")
    benches = [
        Line((*line.words, *words), {**line.told, **told}, name)
        for line in _lines(own["bench"])
        for name, words, told in procedures
    ]
    found = Grid(list(_lines(own["export"])), verify, benches)
    for line in found.benches:
        check_bench(line)
    return found


def _axes(given: Mapping[str, Any], kind: str) -> list[tuple[Key, list[Any]]]:
    """The values of each key of a command, in the file's order."""
    return [
        (KEYS[name], _several(name, value))
        for name, value in given.items()
        if name != PROCEDURE and KEYS[name].kind == kind
    ]


def _several(name: str, value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise WrongValue(f"{name} is an empty list; give a value, or leave the key out")
    if any(values.count(each) > 1 for each in values):
        raise WrongValue(f"{name} is {shown(value)}; a value is there twice")
    return values


def _lines(axes: Sequence[tuple[Key, list[Any]]]) -> Iterator[Line]:
    """All combinations."""
    told = [[(key, key.words(value), value) for value in values] for key, values in axes]
    for chosen in itertools.product(*told):
        # Arguments stand where they are; no value is taken for an option behind them.
        words = [
            word for key, given, _ in chosen if not isinstance(key.param, click.Argument) for word in given
        ]
        arguments = [given[0] for key, given, _ in chosen if isinstance(key.param, click.Argument)]
        swept = {
            key.name: _in_words(value)
            for (key, _, value), (_, values) in zip(chosen, axes, strict=True)
            if len(values) > 1
        }
        yield Line((*words, *(["--", *arguments] if arguments else [])), swept)


def _in_words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _procedures(given: Any) -> list[tuple[str, Words, dict[str, str]]]:
    """For each combination of each table: its name, words that give its settings, and which were swept."""
    example = "write a table such as [procedure.fast] with steps = 8"
    if not isinstance(given, dict) or not given:
        raise WrongValue(f"{PROCEDURE} is {shown(given)}; {example}")
    found = list[tuple[str, Words, dict[str, str]]]()
    for name, settings in given.items():
        if not isinstance(settings, dict):
            raise WrongValue(f"{PROCEDURE}.{name} is {shown(settings)}; {example}")
        axes = [(key, _several(f"{PROCEDURE}.{name}.{key}", value)) for key, value in settings.items()]
        if math.prod(len(values) for _, values in axes) > MOST - len(found):
            raise WrongValue(f"{PROCEDURE}.{name} makes too many settings; a sweep measures at most {MOST}")
        for values in itertools.product(*(values for _, values in axes)):
            words, told = list[str](), dict[str, str]()
            for (key, several), value in zip(axes, values, strict=True):
                text = _in_words(value)
                _check_setting(f"{PROCEDURE}.{name}.{key}", key, value)
                words += ["--set", f"{key}={text}"]
                told |= {key: text} if len(several) > 1 else {}
            found.append((name, tuple(words), told))
    return found


def _check_setting(where: str, key: str, value: Any) -> None:
    """Raises WrongValue for what no sampler has; whether a model's has it is known when there is a bundle."""
    if isinstance(value, str) and "," in value:
        raise WrongValue(f"{where} is {shown(value)}; write several values as a list")
    if not isinstance(value, str | int | float | list) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise WrongValue(f"{where} is {shown(value)}; give text, a number, true or false")
    try:
        check_known(key)
        Assignment().convert(f"{key}={_in_words(value)}", None, None)
    except Exception as error:
        raise WrongValue(f"{where}: {failure(error).message}") from error


def parsed(kind: str, words: Words) -> click.Context:
    """The command line of a command, read as the command reads it. Raises WrongValue."""
    try:
        return COMMANDS[kind].make_context(kind, list(words))
    except click.ClickException as error:
        raise WrongValue(failure(error).message) from error


def check_bench(line: Line) -> None:
    """Raises WrongValue for options that exclude each other, prompts that cannot be read among them."""
    from edgekit.tools.benchmark.options import check_together, checked

    context = parsed("bench", ("BUNDLE", *line.words))
    try:
        check_together(context)
        checked(context.params)
    except click.UsageError as error:
        raise WrongValue(error.message) from error
