"""Edgekit in Python, as `import edgekit` offers it. Nothing of the engines and samplers behind it shows."""

from __future__ import annotations

from edgekit.flashload.errors import BudgetExceeded, BundleError, EdgekitError, UnsupportedBundle
from edgekit.runtime.api.answer import Answer, Committed, Done, Draft, Event, Statistics
from edgekit.runtime.api.chat import Chat
from edgekit.runtime.api.model import Model, load
from edgekit.runtime.api.options import Option
from edgekit.runtime.api.prompt import Message, Prompt
from edgekit.runtime.errors import GenerationEnded, PromptTooLong
from edgekit.runtime.sampling.errors import InvalidOption, InvalidPrompt
from edgekit.runtime.tokenizer import ChatTemplateError

__all__ = [
    "Answer",
    "BudgetExceeded",
    "BundleError",
    "Chat",
    "ChatTemplateError",
    "Committed",
    "Done",
    "Draft",
    "EdgekitError",
    "Event",
    "GenerationEnded",
    "InvalidOption",
    "InvalidPrompt",
    "Message",
    "Model",
    "Option",
    "Prompt",
    "PromptTooLong",
    "Statistics",
    "UnsupportedBundle",
    "load",
]
