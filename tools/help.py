"""Help pages of one screen: a few examples that work as they stand, and rarely used options on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

_ALL = "edgekit.help-all"


class Rare(click.Option):
    """An option that `--help` leaves out and `--help-all` shows."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if ctx.meta.get(_ALL) else None


class Listing(click.Option):
    """An option whose help says what there is to choose from: `{names}` in it stands for what `names` gives
    when the page is shown, the last after `joined`.
    """

    def __init__(
        self, *args: Any, names: Callable[[], Iterable[str]], joined: str = " or ", **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self._names, self._joined = names, joined

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None:
            return None
        *others, last = self._names()
        named = self._joined.join([", ".join(others), last] if others else [last])
        return record[0], record[1].replace("{names}", named)


class RareListing(Listing, Rare):
    """An option that only `--help-all` shows, with what there is to choose from."""


class Command(click.Command):
    """A command whose page ends in `examples`: command lines for the shell, which tests run."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)
        rare = any(isinstance(param, Rare) for param in self.params)
        # Without rare options it shows the same page as --help, which need not tell of it.
        self.params.append(_help_all(hidden=not rare))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    """Lines that are never wrapped: they are there to be copied."""
    if examples:
        with formatter.section("Examples"):
            for line in examples:
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")


def full_page(ctx: click.Context) -> str:
    """The page of a command with its rare options."""
    ctx.meta[_ALL] = True
    return "\n".join(line.rstrip() for line in ctx.get_help().splitlines())


def _help_all(*, hidden: bool) -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show,
        help="Show rarely used options as well.", hidden=hidden,
    )  # fmt: skip
