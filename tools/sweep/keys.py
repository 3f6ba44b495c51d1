"""Keys of a sweep's file: options of `edgekit export`, `verify` and `bench`, read as these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from edgekit import targets
from edgekit.flashload.names import shown, unknown
from edgekit.tools.cli import main
from edgekit.tools.failures import failure
from edgekit.tools.help import Rare
from edgekit.tools.options import Several

#: The kinds of units, with the command that does one.
COMMANDS: dict[str, click.Command] = {
    kind: command
    for kind in ("export", "verify", "bench")
    if (command := main.get_command(click.Context(main), kind)) is not None
}
#: Options that the sweep gives itself, and those of endpoints, which it does not measure.
_OWN = {
    "output", "resume", "overwrite", "if_interrupted", "as_json", "report", "merge", "html", "against",
    "price", "api_key", "body", "timeout", "assigned",
}  # fmt: skip
_ENDPOINT = {"bench": {"model"}}


class WrongValue(ValueError):
    """What is wrong with a value, in words that begin with its key and say what would be right."""


@dataclass(frozen=True)
class Key:
    """A key, which is an option of the command of `kind`, or its argument. `param` is click's."""

    name: str
    kind: str
    param: click.Parameter

    @property
    def repeats(self) -> bool:
        """Whether one command line may have it several times."""
        return bool(getattr(self.param, "multiple", False))

    def words(self, value: Any) -> tuple[str, ...]:
        """The words of a command line for one value. Raises WrongValue."""
        if self.repeats and isinstance(value, list):
            return tuple(word for each in value for word in self._words(each))
        return self._words(value)

    def _words(self, value: Any) -> tuple[str, ...]:
        option = max(self.param.opts, key=len)
        if getattr(self.param, "is_flag", False):
            if not isinstance(value, bool):
                raise WrongValue(f"{self.name} is {shown(value)}; use true or false")
            off = self.param.secondary_opts
            return (option,) if value else tuple(off[:1])
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise WrongValue(f"{self.name} is {shown(value)}; give text or a number as for {option}")
        text = str(value)
        self._check(text)
        return (text,) if isinstance(self.param, click.Argument) else (option, text)

    def _check(self, text: str) -> None:
        """Raises WrongValue for what the command line would refuse."""
        try:
            found = self.param.type.convert(text, self.param, None)
            if (check := _NAMES.get(self.name)) is not None:
                check(text)
        except Exception as error:
            said = failure(error).message.replace(f"--{self.name} ", f"{self.name} ", 1)
            raise WrongValue(said if said.startswith(self.name) else f"{self.name}: {said}") from error
        if isinstance(self.param.type, Several) and len(found) > 1:
            raise WrongValue(f"{self.name} is {shown(text)}; write several values as a list")


def _check_preset(name: str) -> None:
    from edgekit.export.presets import PRESETS

    if name not in PRESETS:
        raise click.UsageError(unknown("preset", name, PRESETS))


def _check_format(name: str) -> None:
    from edgekit.export.formats import FORMATS

    if name not in FORMATS:
        raise click.UsageError(unknown("format", name, FORMATS))


def _check_model(name: str) -> None:
    from edgekit.export.checkpoint.hub import check_name

    check_name(name)


def _check_engine(name: str) -> None:
    from edgekit.runtime.engine_registry import ENGINES

    if name != "default" and name not in ENGINES:
        raise click.UsageError(unknown("engine", name, ENGINES))


def _check_lengths(text: str) -> None:
    from edgekit.export.formats.options import parse_lengths

    parse_lengths(text)


def _check_socs(text: str) -> None:
    from edgekit.export.formats import FORMATS
    from edgekit.export.formats.options import parse_names
    from edgekit.export.formats.row import unknown_chip

    rows = list(FORMATS.working())
    for name in parse_names(text):
        if not any(name in row.socs for row in rows):
            raise click.UsageError(unknown_chip(name, rows))


def _check_override(text: str) -> None:
    from edgekit.export.quantize import parse_override

    parse_override(text)


#: Names that options take as text, and what knows them.
_NAMES: Mapping[str, Callable[[str], object]] = {
    "quant": _check_preset, "format": _check_format, "target": targets.get,
    "model": _check_model, "engine": _check_engine, "lengths": _check_lengths, "override": _check_override,
    "soc": _check_socs,
}  # fmt: skip


def _keys() -> dict[str, Key]:
    found = dict[str, Key]()
    for kind, command in COMMANDS.items():
        for param in command.params:
            named = param.name or ""
            if named in _OWN | _ENDPOINT.get(kind, set()) or not param.expose_value:
                continue
            if isinstance(param, click.Argument) and named != "model":
                continue  # the bundle, which the sweep names
            name = max(param.opts, key=len).removeprefix("--")
            assert name not in found, f"two commands have {name}"
            found[name] = Key(name, kind, param)
    return found


#: By name; those that `--help` shows come first in messages.
KEYS = dict(sorted(_keys().items(), key=lambda item: isinstance(item[1].param, Rare)))
