"""Options that several commands share, and what their values may look like."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.names import shown
from edgekit.flashload.sizes import parse_size
from edgekit.tools.completion import bundles
from edgekit.tools.console import command_line
from edgekit.tools.failures import DEBUG, Failure, Interrupted

if TYPE_CHECKING:
    from edgekit.runtime.bundle import Bundle

F = TypeVar("F", bound=Callable[..., Any])

#: A setting that the samplers of all families have.
EXAMPLE = "steps=8"


class Size(int):
    """A number of bytes with the text that it was given as."""

    text: str

    def __new__(cls, count: int, text: str) -> Size:
        self = super().__new__(cls, count)
        self.text = text
        return self

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.text


def _named(param: click.Parameter | None) -> str:
    """The user's name for an option or argument."""
    if param is None:
        return "the value"
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.metavar or param.opts[0]


class Count(click.ParamType):
    """An integer from `least` to `most`; None is no bound."""

    name = "integer"

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        bounds = "" if self.least is None else f", at least {self.least}"
        if self.least is not None and self.most is not None:
            bounds = f" from {self.least} to {self.most}"
        given = shown(value)
        with suppress(ValueError):
            number = int(value)
            if (self.least is None or number >= self.least) and (self.most is None or number <= self.most):
                return number
            given = str(number)
        raise click.UsageError(f"{_named(param)} is {given}; use an integer{bounds}", ctx)


class Folder(click.ParamType):
    """A folder, there or not, as a path: nothing is not the current one."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            raise click.UsageError(f"{_named(param)} is empty; name a folder", ctx)
        return Path(value)


class BundleName(Folder):
    """A bundle by its folder or as hf:owner/name. A model that comes with edgekit is none yet."""

    name = "bundle"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from edgekit.export.checkpoint.hub import SHIPPED_MODELS

        super().convert(value, param, ctx)
        if value in SHIPPED_MODELS and not os.path.exists(value):
            raise Failure(
                f"{value}: no such folder; it is a model that comes with edgekit: export it first with "
                f"{command_line('export', value)}"
            )
        return str(value)


class Bytes(click.ParamType):
    """A size such as 1GB, as a `Size`; `least` is the smallest that makes sense."""

    name = "size"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Size:
        if isinstance(value, Size):
            return value
        try:
            count = parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if count < self.least:
            self.fail(f"size {value!r} is too small; it must be at least {self.least} bytes", param, ctx)
        return Size(count, value.strip())


class Several(click.ParamType):
    """Values with commas between them, as a tuple; the word `none` among them is None."""

    name = "values"

    def __init__(self, each: click.ParamType, none: str | None = None) -> None:
        self._each, self._none = each, none

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        given = [part.strip() for part in value.split(",")]
        if not all(given):
            raise click.UsageError(
                f"{_named(param)} is {shown(value)}; separate values by single commas", ctx
            )
        if len(set(given)) < len(given):
            raise click.UsageError(f"{_named(param)} is {shown(value)}; a value is there twice", ctx)
        return tuple(None if part == self._none else self._each.convert(part, param, ctx) for part in given)


@contextmanager
def quoting(memory: Size | None) -> Iterator[None]:
    """Inside the block a budget that is too small is named as the user wrote it."""
    try:
        yield
    except BudgetExceeded as error:
        if memory is None:
            raise
        raise BudgetExceeded(f"--memory {memory.text}: {error}", error.needed_bytes) from error


class Assignment(click.ParamType):
    """name=value, where the value is read as JSON (8, 0.3, true, null, [1, 2]) and is text otherwise."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, separator, text = value.partition("=")
        if not separator or not name.strip():
            self.fail(f"{value!r} is not name=value (example: {EXAMPLE})", param, ctx)
        try:
            found = json.loads(text)
        except ValueError:
            return name.strip(), text
        if found in (math.inf, -math.inf):
            self.fail(f"{name.strip()} is {shown(text)}, which is beyond all numbers", param, ctx)
        return name.strip(), found


class Number(click.ParamType):
    """A number that `takes` accepts; `bounds` says which ones these are."""

    name = "number"

    def __init__(self, takes: Callable[[float], bool], bounds: str) -> None:
        self._takes, self._bounds = takes, bounds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        with suppress(ValueError):
            number = float(value)
            if math.isfinite(number) and self._takes(number):
                return number
        raise click.UsageError(f"{_named(param)} is {shown(value)}; use a number {self._bounds}", ctx)


def debug_option(command: F) -> F:
    """`--debug`, which every command takes, before or after its name."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[DEBUG] = True

    return click.option(
        "--debug", is_flag=True, is_eager=True, expose_value=False, callback=remember, help="Show tracebacks."
    )(command)


def chosen_from(given: str, bundle: Bundle) -> str:
    """A remark on a bundle that was taken from those in folder `given`; empty if there was no choice."""
    if bundle.path == Path(given):
        return ""
    return said_of_choice(given, bundle.path)


def said_of_choice(given: str, taken: object) -> str:
    """A remark on what is taken of several bundles."""
    return f"{given} has bundles for several formats; taking {taken}"


def bundle_folder(bundle: str, engine: str | None = None, *, quiet: bool = False, to_run: bool = True) -> str:
    """The folder of a bundle: what was given, or where `hf:owner/name` has been downloaded to and verified,
    with progress on stderr.
    """
    from edgekit.runtime.hub.bundles import is_on_hub, local_folder

    if not is_on_hub(bundle):
        local_folder(bundle)
        return bundle
    from edgekit.tools.console import Steps

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # of huggingface_hub: there is one of ours
    try:
        with Steps("asking the hub", quiet=quiet) as steps:
            return str(local_folder(bundle, engine, steps, to_run=to_run))
    except KeyboardInterrupt:
        raise Interrupted("the same command goes on with the download where it stopped") from None


memory_option = click.option(
    "--memory",
    type=Bytes(least=1),
    metavar="SIZE",
    help="Budget for the whole process, e.g. 1GB: what does not fit is streamed. Default: no limit.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
html_option = click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a page with the table and charts, one file that works offline.",
)
bundle_argument = click.argument("bundle", type=BundleName(), metavar="BUNDLE", shell_complete=bundles)
