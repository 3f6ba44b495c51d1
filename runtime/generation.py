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
from edgekit.runtime.errors import PromptTooLong
from edgekit.runtime.sampling import Done, Event, PhiloxNoise, Sampler, sampler
from edgekit.runtime.session import Session, SessionOptions, open_session
from edgekit.runtime.text import Tokenizer

if TYPE_CHECKING:
    from edgekit.runtime.native_session import NativeSession

#: Tokens asked for when neither the caller nor the checkpoint says how many.
DEFAULT_NEW_TOKENS = 128
#: Block length of semi-autoregressive decoding where the checkpoint names none.
DEFAULT_BLOCK = 32


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
    kept while they suffice.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        memory_bytes: int | None = None,
        resident_bytes: int | None = None,
        threads: int = 0,
        engine: str | None = None,
    ) -> None:
        """`engine` insists on one by name; otherwise it is the one that the bundle was exported for.

        Raises EdgekitError when the bundle or its tokenizer cannot be read.
        """
        self.bundle = Bundle.open(path)
        self.tokenizer = Tokenizer(self.bundle.tokenizer_path)
        self.sampler: Sampler = sampler(self.bundle.manifest.sampler["name"])
        self._memory = {"memory_bytes": memory_bytes, "resident_bytes": resident_bytes}
        self._threads = threads
        self._engine = engine
        self._session: Session | NativeSession | None = None

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt."""
        if not prompt.chat or not self.tokenizer.chat_templates:
            return self.tokenizer.encode(prompt.text)
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        return self.tokenizer.chat([*system, {"role": "user", "content": prompt.text}])

    def options(self, settings: Settings) -> Any:
        """The sampler's options: the checkpoint's, then the caller's. Raises InvalidOption."""
        config = dict(self.bundle.manifest.sampler["config"])
        chosen = dict(settings.options)
        if self.sampler.family == "diffusion_gemma":
            config["canvas_length"] = self.bundle.model.canvas_length
            chosen |= _given(max_new_tokens=settings.max_new_tokens, max_denoising_steps=settings.steps)
            return self.sampler.options(config, **chosen)
        length = (
            settings.max_new_tokens
            or config.get("max_new_tokens")
            or config.get("gen_length")
            or DEFAULT_NEW_TOKENS
        )
        config.pop("max_new_tokens", None)
        config.pop("gen_length", None)
        if config.get("mask_token_id") is None and self.tokenizer.mask_id is not None:
            config["mask_token_id"] = self.tokenizer.mask_id
        if self.sampler.family == "llada":
            block = min(
                int(chosen.pop("block_length", None) or config.pop("block_length", None) or DEFAULT_BLOCK),
                length,
            )
            length = -(-length // block) * block
            steps = settings.steps or config.pop("steps", None) or length
            # Whole steps per block: rounded up, never fewer than asked for.
            blocks = length // block
            chosen |= {"gen_length": length, "block_length": block, "steps": -(-steps // blocks) * blocks}
        else:
            chosen |= {
                "max_new_tokens": length,
                "steps": settings.steps or config.pop("steps", None) or length,
            }
            if "alg" not in config:
                chosen.setdefault("alg", "entropy")
        config = {k: v for k, v in config.items() if k not in chosen}
        # Masked models fill what follows the answer with end tokens: showing it helps nobody.
        if config.get("eos_token_id") is not None or chosen.get("eos_token_ids"):
            chosen.setdefault("stop_at_eos", True)
        if self.sampler.family == "llada" and "eot_token_id" not in config:
            end_of_turn = self.tokenizer.token_id("<|eot_id|>")
            if end_of_turn is not None:
                chosen.setdefault("eot_token_ids", (end_of_turn,))
        return self.sampler.options(config, **chosen)

    def generate(self, prompt: Prompt | str, settings: Settings | None = None) -> Iterator[Event]:
        """Denoising events; the last is Done with statistics. Equal seeds give equal events.

        Raises:
            EdgekitError: bad options, a prompt beyond the model's positions, a budget that is too small,
                a read that failed.
        """
        settings = settings or Settings()
        ids = self.encode(Prompt(prompt) if isinstance(prompt, str) else prompt)
        options = self.options(settings)
        wanted = getattr(options, "gen_length", None) or options.max_new_tokens
        self._check_positions(len(ids), wanted)
        session = self._open(len(ids), wanted)
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

    def _check_positions(self, prompt: int, wanted: int) -> None:
        config = self.bundle.manifest.model["config"]
        text = config.get("text_config") or config
        limit = text.get("max_position_embeddings") or text.get("max_sequence_length")
        if limit and prompt + wanted > limit:
            raise PromptTooLong(
                f"{prompt} prompt tokens and {wanted} new ones pass the model's {limit} positions; "
                "shorten the prompt or --max-new-tokens"
            )

    def _open(self, prompt: int, wanted: int) -> Session | NativeSession:
        model = self.bundle.model
        canvas = model.canvas_length or 256
        if model.causal_prefix:
            needed = SessionOptions(
                positions=prompt + -(-wanted // canvas) * canvas,
                canvas=canvas,
                threads=self._threads,
                **self._memory,
            )
        else:
            needed = SessionOptions(
                positions=0, canvas=prompt + wanted, threads=self._threads, **self._memory
            )
        if self._session is not None:
            have = self._session.options
            if have.positions >= needed.positions and have.canvas >= needed.canvas:
                return self._session
            self._session.close()
            self._session = None
        self._session = open_session(self.bundle.path, needed, self._engine)
        return self._session

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
        """Close the session, if one is open."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _given(**values: Any) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not None}


#: Counters that grow over a session's life; a generation reports its own part.
_COUNTERS = (
    "bytes_read",
    "io_seconds",
    "io_wait_seconds",
    "pass_seconds",
    "compute_seconds",
    "unpack_seconds",
)


def _since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {k: v - before[k] if k in _COUNTERS and k in before else v for k, v in after.items()}
