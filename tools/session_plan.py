"""Options and plans of the session that a command will open, before it does."""

from __future__ import annotations

from contextlib import suppress

from edgekit.runtime.api import Model
from edgekit.runtime.errors import PromptTooLong
from edgekit.runtime.generation import Generator, Settings, within_programs
from edgekit.runtime.sampling import InvalidPrompt, Lengths
from edgekit.runtime.session import SessionOptions
from edgekit.runtime.tokenizer import ChatTemplateError
from edgekit.tools.options import quoting
from edgekit.tools.request import Request, settings_of


def lengths_of(generator: Generator, settings: Settings, prompt_tokens: int) -> Lengths:
    """Lengths of a generation behind a prompt of so many tokens. Raises InvalidOption and PromptTooLong."""
    lengths = generator.options(settings, prompt_tokens).lengths
    assert lengths is not None, "they were asked for"
    return lengths


def session_options(generator: Generator, lengths: Lengths) -> SessionOptions:
    """Options of a session for these lengths; of packages no more than they have functions for."""
    return within_programs(generator.bundle, generator.session_options(lengths))


def planned_for(generator: Generator, prompt: int) -> tuple[int, Settings]:
    """A prompt of at most so many tokens and settings whose answer goes with it: the default one, or where
    programs of packages have no room for that, the longest behind half of a prompt, or a quarter...
    """
    limit = generator.bundle.model.max_positions
    if limit:
        prompt = max(1, min(prompt, limit - lengths_of(generator, Settings(), 1).new_tokens))
    behind = prompt
    while behind:
        short = generator.shortfall(behind)
        if short is None:
            return behind, Settings()
        fits = short[1]
        if fits >= behind:
            return behind, Settings(max_new_tokens=fits)
        behind //= 2
    return prompt, Settings()


def check_budget(model: Model, generator: Generator, request: Request) -> None:
    """Raises BudgetExceeded where the budget has no room for a session, even for a prompt of one word."""
    if request.memory is None:
        return
    from edgekit.tools import answer_display  # noqa: F401  # what the process holds by then counts

    # What is wrong with settings and templates is for the first prompt: they may change before it.
    with suppress(ChatTemplateError, InvalidPrompt, PromptTooLong):
        prompt = model.encode("Hello", system=request.system, raw=request.raw)
        lengths = lengths_of(generator, settings_of(request.settings), len(prompt))
        with quoting(request.memory):
            generator.plan(session_options(generator, lengths))
