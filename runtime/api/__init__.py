"""Edgekit in Python, as `import edgekit` offers it. Nothing of the engines and samplers behind it shows."""

from __future__ import annotations

from edgekit.flashload.errors import (
    BudgetExceeded,
    BundleError,
    EdgekitError,
    FetchFailed,
    UnsupportedBundle,
)
from edgekit.runtime.api.answer import Answer, Committed, Done, Draft, Event, Statistics
from edgekit.runtime.api.chat import Chat
from edgekit.runtime.api.model import Model, load
from edgekit.runtime.api.options import Option
from edgekit.runtime.api.prompt import Message, Prompt
from edgekit.runtime.api.search import SearchBranch, SearchResult, SearchStatistics
from edgekit.runtime.errors import GenerationEnded, PromptTooLong
from edgekit.runtime.fetch import Arrived, discard, fetch
from edgekit.runtime.sampling.errors import InvalidOption, InvalidPrompt
from edgekit.runtime.search import Attempt, Verifier, VerifierFailed
from edgekit.runtime.tokenizer import ChatTemplateError

__all__ = [
    "Answer",
    "Arrived",
    "Attempt",
    "BudgetExceeded",
    "BundleError",
    "Chat",
    "ChatTemplateError",
    "Committed",
    "Done",
    "Draft",
    "EdgekitError",
    "Event",
    "FetchFailed",
    "GenerationEnded",
    "InvalidOption",
    "InvalidPrompt",
    "Message",
    "Model",
    "Option",
    "Prompt",
    "PromptTooLong",
    "SearchBranch",
    "SearchResult",
    "SearchStatistics",
    "Statistics",
    "UnsupportedBundle",
    "Verifier",
    "VerifierFailed",
    "discard",
    "fetch",
    "load",
]
