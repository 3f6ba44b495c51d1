"""The options that `run` and `chat` share, and the model opened as these say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekit.runtime.process import MOST_THREADS
from edgekit.tools.completion import engine_names, setting_names
from edgekit.tools.console import note, on_terminal
from edgekit.tools.help import Rare, RareListing
from edgekit.tools.options import Assignment, Bytes, Count, Size, bundle_folder, chosen_from, memory_option

if TYPE_CHECKING:
    from edgekit.runtime.api import Model
    from edgekit.runtime.generation import Generator, Settings
    from edgekit.tools.answer_display import Display

F = TypeVar("F", bound=Callable[..., Any])


def _engines() -> Iterable[str]:
    from edgekit.runtime.engine_registry import ENGINES

    return ENGINES


engine_option = click.option(
    "--engine", cls=RareListing, names=_engines, metavar="NAME", shell_complete=engine_names,
    help="Insist on an engine: {names}. Default: the bundle's own.",
)  # fmt: skip
threads_option = click.option(
    "--threads", cls=Rare, type=Count(1, MOST_THREADS), metavar="N",
    help="Processor threads. Default: every usable core.",
)  # fmt: skip
adapter_option = click.option(
    "--adapter", cls=Rare, metavar="NAME",
    help="Answer with an adapter that lies beside the bundle's weights; `edgekit inspect` names it.",
)  # fmt: skip
#: Settings with options of their own, by the names that all families know.
OWN = ("max_new_tokens", "steps", "seed")
_OPTIONS = (
    click.option("--system", metavar="TEXT", help="System message before the prompt."),
    click.option("--raw", is_flag=True, help="Give prompts to the model without a chat template."),
    memory_option,
    click.option(
        "--resident", cls=Rare, type=Bytes(), metavar="SIZE",
        help="At most this many bytes of weights stay in memory; 0 streams all.",
    ),
    engine_option,
    threads_option,
    adapter_option,
    click.option(
        "--max-new-tokens", type=Count(1), metavar="N",
        help="Length of an answer, rounded up to whole canvases or blocks. Default: the model's own.",
    ),
    click.option(
        "--steps", type=Count(1), metavar="N",
        help="Denoising steps. Default: the model's own.",
    ),
    click.option(
        "--seed", type=Count(0), metavar="N", help="Equal seeds give equal answers. Default: 0."
    ),
    click.option(
        "--set", "assigned", type=Assignment(), multiple=True, shell_complete=setting_names,
        help="A setting by name, e.g. t_max=0.9; `edgekit options` lists what a bundle has. Can be repeated.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """The values of the options that `run` and `chat` share."""

    system: str | None
    raw: bool
    memory: Size | None
    resident: Size | None
    engine: str | None
    threads: int | None
    #: By name, as `Model.events` takes them.
    settings: Mapping[str, Any]
    adapter: str | None = None


def request_options(command: F) -> F:
    """Adds the options, which reach the command as its argument `request`."""

    @wraps(command)
    def with_request(
        *arguments: Any,
        system: str | None,
        raw: bool,
        memory: Size | None,
        resident: Size | None,
        engine: str | None,
        threads: int | None,
        adapter: str | None,
        assigned: tuple[tuple[str, Any], ...],
        **others: Any,
    ) -> Any:
        if raw and system is not None:
            raise click.UsageError("--raw leaves the chat template out, so there is no place for --system")
        settings: dict[str, Any] = {}
        for name, value in assigned:
            if name in settings:
                raise click.UsageError(f"{name} is given twice, by two --set; leave one out")
            settings[name] = value
        for name in OWN:
            value = others.pop(name)
            if value is not None and name in settings:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{name} is given twice, by {option} and --set; leave one out")
            if value is not None:
                settings[name] = value
        request = Request(system, raw, memory, resident, engine, threads, settings, adapter)
        return command(*arguments, request=request, **others)

    for option in reversed(_OPTIONS):
        with_request = option(with_request)
    return with_request  # type: ignore[return-value]


@contextmanager
def opened(bundle: str, request: Request, *, quiet: bool = False) -> Iterator[tuple[Model, Generator]]:
    """The model of a bundle, with the generator behind it for reports on the engine; notes on stderr unless
    `quiet`. Settings are checked. Raises EdgekitError.
    """
    from edgekit.runtime.api import Model
    from edgekit.runtime.engine_registry import running
    from edgekit.runtime.generation import Generator

    bundle = bundle_folder(bundle, request.engine, quiet=quiet)
    generator = Generator(
        bundle,
        memory_bytes=None if request.memory is None else int(request.memory),
        resident_bytes=None if request.resident is None else int(request.resident),
        threads=request.threads or 0,
        engine=request.engine,
        adapter=request.adapter,
    )
    with Model(generator) as model:
        check_settings(model, request.settings)
        written = generator.bundle.manifest.format
        row = running(written, request.engine)
        if request.threads is not None and row is not None and not row.threads:
            note(f"note: --threads has no effect: {written} decides about threads itself")
        taken = chosen_from(bundle, generator.bundle)
        if taken and not quiet:
            note(taken)
        yield model, generator


def settings_of(named: Mapping[str, Any]) -> Settings:
    """Settings by name in the form that generators take."""
    from edgekit.runtime.generation import Settings

    others = {name: value for name, value in named.items() if name not in OWN}
    seed = named.get("seed")
    return Settings(named.get("max_new_tokens"), named.get("steps"), 0 if seed is None else seed, others)


def check_settings(model: Model, named: Mapping[str, Any]) -> None:
    """Raises InvalidOption for settings that the model's sampler does not have or cannot run with: as keyword
    arguments, names such as `prompt` would be taken for something else.
    """
    model.run((), (), settings_of(named))


def display_for(
    generator: Generator, settings: Mapping[str, Any], *, watch: bool, quiet: bool = False
) -> Display:
    """The display of the next answer, on a terminal or in its place."""
    from edgekit.tools.answer_display import Silent, Streamed

    if quiet:
        return Silent()
    options = generator.options(settings_of(settings))
    unit = "block" if "block_length" in options.values() else "canvas"
    if not watch:
        return Streamed(unit)
    if not on_terminal(sys.stderr):
        note("--watch needs a terminal; this is plain text")
        return Streamed(unit)
    from edgekit.tools.watch import Canvas, Watch

    mask = options.values().get("mask_token_id")
    return Watch(Canvas(title_of(generator), generator.tokenizer.canvas_text(mask), unit))


def title_of(generator: Generator) -> str:
    """The name of a bundle's model."""
    bundle = generator.bundle
    return str(bundle.manifest.provenance.get("checkpoint") or bundle.path.name)
