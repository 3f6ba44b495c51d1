"""A second bundle as a verifier: how probable another model finds the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.errors import PromptTooLong
from edgekit.runtime.process import usable_cores
from edgekit.runtime.sampling.ids import check_tokens
from edgekit.runtime.search.attempt import Attempt
from edgekit.runtime.search.scorer import Scorer, kind_of
from edgekit.runtime.search.verifier import Verifier
from edgekit.runtime.session import Session, SessionOptions, open_session, plan_session
from edgekit.runtime.session.memory import MemoryPlan
from edgekit.runtime.tokenizer import Tokenizer

#: By which what a process holds may grow between planning and opening.
_SLACK_BYTES: Final = 8 << 20


class Judge(Verifier):
    """The "likelihood" of an answer's text by another model, or its "confidence" where that is what it has;
    both are per token of its own. It reads the prompt and the answer with a tokenizer and chat template of
    its own.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises BundleError, and InvalidOption for a model that has neither."""
        self.name = f"bundle:{path}"
        self.bundle = Bundle.open(path, None)
        shown = self.bundle.manifest.sampler["name"] == "diffusion_gemma"
        self._kind = "confidence" if shown else "likelihood"
        kind_of(self.bundle, self._kind)
        self.tokenizer = self.bundle.tokenizer()
        self._options = SessionOptions()
        self._prompt = np.empty(0, np.int64)
        self._room = 0
        self._session: Session | None = None
        self._scorer: Scorer | None = None

    def prepare(self, prompt_of: Callable[[Tokenizer], Sequence[int]], new_tokens: int, threads: int) -> None:
        """Know the prompt, and for how long an answer to open. Raises InvalidPrompt, ChatTemplateError and
        PromptTooLong.
        """
        model = self.bundle.model
        self._prompt = np.array(prompt_of(self.tokenizer), np.int64)
        check_tokens(self._prompt, "the prompt of the judge", model.vocab_size, InvalidRequest)
        self._room = 2 * new_tokens + 16  # its tokens may be shorter
        if model.max_positions is not None:
            self._room = min(self._room, model.max_positions - len(self._prompt))
        if self._room < 1:
            raise PromptTooLong(
                f"{self.bundle.path}: the prompt has no room among the positions of the judge"
            )
        length = len(self._prompt) + self._room
        self._options = SessionOptions(
            positions=length if model.causal_prefix else 0,
            canvas=(model.canvas_length or min(length, 256)) if model.causal_prefix else length,
            threads=threads,
            sequences=1,
        )

    def plan(self) -> MemoryPlan:
        """The memory that it needs, beside that of the process."""
        threads = self._options.threads or usable_cores()
        return plan_session(self.bundle, self._options, engines.to_plan(self.bundle, threads, None))

    def open(self, bounded: bool) -> None:
        """Open it, in the least memory that it runs in if memory is `bounded`. Raises EdgekitError."""
        options = self._options
        if bounded:
            options = replace(options, memory_bytes=self.plan().least_memory_bytes + _SLACK_BYTES)
        self._session = session = open_session(self.bundle, options)
        self._scorer = Scorer(session, self._prompt, [session.sequence], session.sequence)

    @property
    def least_bytes(self) -> int:
        """What it takes of a budget."""
        plan = self.plan()
        return plan.least_memory_bytes - plan.process + _SLACK_BYTES

    def scores(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        assert self._scorer is not None, "it is open"
        return self._scorer.scores(self._kind, [self._ids(attempt) for attempt in attempts])

    def _ids(self, attempt: Attempt) -> list[int]:
        ids = self.tokenizer.encode_behind(attempt.text) if attempt.text else []
        if len(ids) > self._room:
            raise PromptTooLong(
                f"{self.bundle.path}: an answer has {len(ids)} tokens of the judge, which was opened for "
                f"{self._room}; ask for shorter answers"
            )
        return ids

    def close(self) -> None:
        self._scorer = None
        if self._session is not None:
            self._session.close()
            self._session = None
