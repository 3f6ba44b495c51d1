"""Text in, events out: tokenizer, chat template, sampler options and session put together for one bundle.

with Generator(path, memory_bytes=1_000_000_000) as generator:
    for event in generator.generate("Why is the sky blue?", seed=1):
        ...
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.packages import exported_for
from edgekit.runtime.errors import PromptTooLong
from edgekit.runtime.sampling import Done, Event, PhiloxNoise, Sampler, sampler
from edgekit.runtime.sampling.generation_options import generation_options
from edgekit.runtime.sampling.options import Lengths
from edgekit.runtime.sampling.types import Ids
from edgekit.runtime.session import Session, SessionOptions, open_session

if TYPE_CHECKING:
    from edgekit.runtime.engines.base import Executor
    from edgekit.runtime.native_session import NativeSession


@dataclass(frozen=True)
class Prompt:
    """A prompt as text; `chat` wraps it in the checkpoint's chat template, with an optional system
    message.
    """

    text: str
    system: str | None = None
    chat: bool = True


@dataclass(frozen=True)
class Settings:
    """What a caller may set; None keeps the checkpoint's own value.

    `options` are sampler options by name (`temperature`, `threshold`, `entropy_bound`...), see
    `runtime.sampling`.
    """

    max_new_tokens: int | None = None
    steps: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


class Generator:
    """Generates text from a bundle. The session is opened at the first prompt, when lengths are known, and
    kept while they suffice: for ever without a memory budget. A prompt with the sampler option
    `continue_prefix` follows what is encoded; a session that has to be opened anew for it encodes that again,
    in the same pieces, so that the answer is the same.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        memory_bytes: int | None = None,
        resident_bytes: int | None = None,
        threads: int = 0,
        engine: str | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`engine` insists on one by name; otherwise it is the one that the bundle was exported for, and of a
        set of bundles the newest that this system runs.
        `executor` runs a bundle's packages in place of the format's own, for checks.

        Raises EdgekitError when the bundle or its tokenizer cannot be read.
        """
        self.bundle = Bundle.open(path, engine)
        self.tokenizer = self.bundle.tokenizer()
        self.sampler: Sampler = sampler(self.bundle.manifest.sampler["name"])
        self._memory = {"memory_bytes": memory_bytes, "resident_bytes": resident_bytes}
        self._threads = threads
        self._engine, self._executor = engine, executor
        self._session: Session | NativeSession | None = None
        self._to_encode: list[Ids] = []  # what the next session has to encode if a prompt is to follow it

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt."""
        if not prompt.chat or not self.tokenizer.chat_templates:
            return self.tokenizer.encode(prompt.text)
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        return self.tokenizer.chat([*system, {"role": "user", "content": prompt.text}])

    def options(self, settings: Settings) -> Any:
        """The sampler's options: the checkpoint's, then the caller's. Raises InvalidOption."""
        return generation_options(
            self.sampler.family,
            self.bundle.manifest.sampler["config"],
            self.bundle.model.canvas_length,
            max_new_tokens=settings.max_new_tokens,
            steps=settings.steps,
            options=settings.options,
        )

    def generate(self, prompt: Prompt | str, settings: Settings | None = None) -> Iterator[Event]:
        """Denoising events; the last is Done with statistics. Equal seeds give equal events.

        Raises:
            EdgekitError: bad options, a prompt beyond the model's positions, a budget that is too small,
                a read that failed.
        """
        settings = settings or Settings()
        ids = self.encode(Prompt(prompt) if isinstance(prompt, str) else prompt)
        options = self.options(settings)
        earlier = self._encoded() if getattr(options, "continue_prefix", False) else []
        length = sum(map(len, earlier)) + len(ids)
        lengths = options.lengths(length)
        self._check_positions(length, lengths)
        session = self._open(lengths, earlier)
        started = time.perf_counter()
        before = session.statistics()
        try:
            for event in self.sampler.generate(session, ids, options, PhiloxNoise(settings.seed)):
                if isinstance(event, Done):
                    event.stats.engine.update(_since(before, session.statistics()))
                    event.stats.engine["seconds"] = time.perf_counter() - started
                    event.stats.engine["prompt_tokens"] = len(ids)
                yield event
        finally:
            session.idle()

    def _check_positions(self, prompt: int, lengths: Lengths) -> None:
        limit = self.bundle.model.max_positions
        if limit and prompt + lengths.new_tokens > limit:
            raise PromptTooLong(
                f"{prompt} prompt tokens and {lengths.new_tokens} new ones pass the model's {limit} "
                "positions; shorten the prompt or ask for fewer tokens"
            )
        if self.bundle.packages is None:
            return
        offered = self.bundle.packages.lengths()
        if not any(t >= lengths.canvas and p >= lengths.prefix for t, p in offered):
            raise PromptTooLong(
                f"{prompt} prompt tokens and {lengths.new_tokens} new ones take passes of {lengths.canvas} "
                f"positions after a prefix of {lengths.prefix}; {exported_for(offered)}"
            )

    def _encoded(self) -> list[Ids]:
        return self._to_encode if self._session is None else self._session.encoded.calls

    def _open(self, lengths: Lengths, earlier: list[Ids]) -> Session | NativeSession:
        """A session for these lengths, which has encoded `earlier` if it is a new one."""
        # A prefix is encoded in pieces of the model's own canvas.
        needed = SessionOptions(
            positions=lengths.prefix,
            canvas=max(lengths.canvas, self.bundle.model.canvas_length or 0),
            threads=self._threads,
            **self._memory,
        )
        if self._session is not None:
            have = self._session.options
            if have.memory_bytes is None or (
                have.positions >= needed.positions and have.canvas >= needed.canvas
            ):
                return self._session
            self._session.close()  # first: a budget has no room for two
            self._session = None
        # Kept until it is encoded: where that fails, another prompt may still follow.
        self._to_encode = earlier
        session = open_session(self.bundle.path, needed, self._engine, self._executor)
        try:
            for ids in earlier:
                session.prefill(ids)
        except BaseException:
            session.close()
            raise
        self._session, self._to_encode = session, []
        return session

    @property
    def session(self) -> Session | NativeSession:
        """The open session. Raises EdgekitError before the first prompt."""
        if self._session is None:
            raise EdgekitError("no session is open yet: it opens at the first generate()")
        return self._session

    @property
    def bytes_read(self) -> int:
        """Bytes streamed by the open session so far; 0 without one."""
        return 0 if self._session is None else int(self._session.statistics()["bytes_read"])

    def close(self) -> None:
        """Close the session, if one is open, and forget what it has encoded."""
        self._to_encode = []
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


#: Counters that grow over a session's life; a generation reports its own part.
_COUNTERS = (
    "bytes_read",
    "bytes_skipped",
    "bytes_exchanged",
    "io_seconds",
    "io_wait_seconds",
    "pass_seconds",
    "compute_seconds",
    "unpack_seconds",
)


def _since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {k: v - before[k] if k in _COUNTERS and k in before else v for k, v in after.items()}
