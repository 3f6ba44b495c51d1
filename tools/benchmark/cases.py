"""What is measured: configurations of bundles, and all combinations of several values."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgekit.flashload.sizes import size
from edgekit.tools.terminal_text import counted

#: Reads, waits and uses of weights that a report has of a run, at most.
MOST_SPANS = 100_000
#: Of a prompt of random ones; no model is near it.
MOST_TOKENS = 10_000_000


@dataclass(frozen=True)
class Case:
    """One configuration. A memory budget of None keeps everything resident, threads 0 are all usable cores.
    `tokens` are those of a prompt of random tokens, None: prompts of text. `forwards` end a run after so many
    of each answer; 0: whole answers.
    """

    bundle: str
    memory: int | None = None
    resident: int | None = None
    threads: int = 0
    engine: str | None = None
    sequences: int = 1
    tokens: int | None = None
    new_tokens: int | None = None
    forwards: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    prompts: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What sets it apart, in a few words."""
        parts = [Path(self.bundle).name]
        if self.memory is not None:
            parts.append(f"memory {size(self.memory)}")
        if self.resident is not None:
            parts.append(f"{size(self.resident)} resident")
        parts += [word for word, told in (
            (f"{self.engine}", self.engine is not None),
            (counted(self.threads, "thread"), self.threads != 0),
            (f"{self.sequences} at once", self.sequences != 1),
            (f"prompts of {self.tokens}", self.tokens is not None),
            (f"{self.new_tokens} new tokens", self.new_tokens is not None),
        ) if told]  # fmt: skip
        parts += [f"{name}={json.dumps(value)}" for name, value in self.settings.items()]
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Case:
        """What `as_dict` gave, also by way of JSON."""
        return cls(**{**given, "prompts": tuple(given["prompts"])})


@dataclass(frozen=True)
class Sweep:
    """Values of each; the last named changes fastest."""

    bundles: Sequence[str]
    memory: Sequence[int | None] = (None,)
    resident: Sequence[int | None] = (None,)
    engines: Sequence[str | None] = (None,)
    threads: Sequence[int] = (0,)
    sequences: Sequence[int] = (1,)
    tokens: Sequence[int | None] = (None,)
    new_tokens: Sequence[int | None] = (None,)
    #: By name of a setting.
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def cases(self, forwards: int = 0, prompts: Sequence[str] = ()) -> Iterator[Case]:
        """All combinations."""
        names = list(self.settings)
        for bundle, memory, resident, engine, threads, count, tokens, new, *chosen in itertools.product(
            self.bundles,
            self.memory,
            self.resident,
            self.engines,
            self.threads,
            self.sequences,
            self.tokens,
            self.new_tokens,
            *self.settings.values(),
        ):
            yield Case(
                bundle,
                memory,
                resident,
                threads,
                engine,
                count,
                tokens,
                new,
                forwards,
                dict(zip(names, chosen, strict=True)),
                tuple(prompts),
            )
