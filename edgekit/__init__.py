"""Run diffusion language models while their weights stream from flash.

    import edgekit

    with edgekit.load("my-bundle", memory="1.5GB") as model:
        print(model.generate("Why is the sky blue?").text)

`load` opens a bundle, a folder that `edgekit export` wrote, as a `Model`, which generates text, streams it,
shows every denoising step, and holds conversations (`Chat`). Everything that can go wrong for a reason
outside of edgekit is an `EdgekitError` with a message of one line.
"""

from __future__ import annotations

from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.runtime.api import (
        Answer,
        Arrived,
        Attempt,
        BudgetExceeded,
        BundleError,
        Chat,
        ChatTemplateError,
        Committed,
        Done,
        Draft,
        EdgekitError,
        Event,
        FetchFailed,
        GenerationEnded,
        InvalidOption,
        InvalidPrompt,
        Message,
        Model,
        Option,
        Prompt,
        PromptTooLong,
        SearchBranch,
        SearchResult,
        SearchStatistics,
        Statistics,
        UnsupportedBundle,
        Verifier,
        VerifierFailed,
        discard,
        fetch,
        load,
    )

    __version__: str

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
    "__version__",
    "discard",
    "fetch",
    "load",
]

# In the root of a checkout this folder hides an installed edgekit, whose other folders are not in it.
__path__ = extend_path(__path__, __name__)


def __getattr__(name: str) -> Any:
    """The names above when they are first used: `import edgekit` alone brings in nothing."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("edgekit")
    elif name in __all__:
        from edgekit.runtime import api

        value = getattr(api, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names and Python's own, not what this module or its parts import."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
