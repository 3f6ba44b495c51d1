"""Text in, events out: tokenizer, chat template, sampler options and session put together for one bundle.

with Generator(path, memory_bytes=1_000_000_000) as generator:
    for event in generator.generate("Why is the sky blue?", Settings(seed=1)):
        ...
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.flashload.errors import BudgetExceeded, EdgekitError, InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.package_engine import exported_for
from edgekit.runtime.errors import EngineUnavailable, PromptTooLong, UnsupportedBundle
from edgekit.runtime.process import usable_cores
from edgekit.runtime.prompt_text import check_said, check_spelled
from edgekit.runtime.sampling import (
    CoreSampler,
    Done,
    Event,
    Ids,
    InvalidOption,
    InvalidPrompt,
    Lengths,
    SamplerModel,
    SamplerOptions,
    drive,
    settle,
)
from edgekit.runtime.sampling.core import prompt_ids
from edgekit.runtime.sampling.core_abi import options_by_name
from edgekit.runtime.sampling.ids import check_list, check_tokens, pieces_of
from edgekit.runtime.sampling.options import check_int
from edgekit.runtime.session import (
    MakeEngine,
    Session,
    SessionOptions,
    Together,
    open_session,
    plan_session,
)
from edgekit.runtime.session import sequence as session_sequence
from edgekit.runtime.session.session import MOST_SEQUENCES

if TYPE_CHECKING:
    from edgekit.runtime.engines.base import Executor
    from edgekit.runtime.sampling import Stats
    from edgekit.runtime.session.memory import MemoryPlan


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
    """Settings of a caller; None keeps the checkpoint's own value.

    `options` are sampler options by name (`temperature`, `threshold`, `entropy_bound`...), see
    `runtime.sampling`.
    """

    max_new_tokens: int | None = None
    steps: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


def sampler_model(bundle: Bundle) -> SamplerModel:
    """The model as the sampler of a bundle knows it before a session is open. Raises InvalidRequest for what
    is no open bundle.
    """
    if not isinstance(bundle, Bundle):
        raise InvalidRequest(f"the bundle is {shown(bundle)}; pass what Bundle.open gives, or a session's")
    model = bundle.model
    return SamplerModel(
        bundle.manifest.sampler,
        model.vocab_size,
        model.hidden_size,
        canvas_length=model.canvas_length,
        max_positions=model.max_positions,
        bundle=bundle.digest,
    )


class Generator:
    """Generates text from a bundle. The session is opened at the first prompt, when lengths are known, and
    kept while they suffice: for ever without a memory budget. A prompt with the sampler option
    `continue_prefix` follows the prompts and answers before it; a session that has to be opened anew for it
    encodes them again, in the same pieces, so that the answer is the same.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        memory_bytes: int | None = None,
        resident_bytes: int | None = None,
        threads: int = 0,
        engine: str | MakeEngine | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`engine` insists on one by name, or makes one of the caller's own; otherwise it is the one that the
        bundle was exported for, and of a set of bundles the newest that this system runs.
        `executor` runs a bundle's packages in place of the format's own, for checks.

        Raises EdgekitError when the bundle or its tokenizer cannot be read, is not for `engine`, or no engine
        takes so many threads.
        """
        self._limits = SessionOptions(memory_bytes, resident_bytes, threads=threads)
        self.bundle = Bundle.open(path, None if callable(engine) else engine)
        self.tokenizer = self.bundle.tokenizer()
        self._model = sampler_model(self.bundle)
        self._engine, self._executor = engine, executor
        self._session: Session | None = None
        self._closed = False
        self._turn = _Turn()
        self._text = _Text()  # what the next session has to hold if a prompt is to follow it
        #: Of the last generation that came to its end.
        self.stats: Stats | None = None

    def encode(self, prompt: Prompt | str, last: int | None = None) -> list[int]:
        """Token ids of a prompt: of the first, or of one behind an answer whose last token is `last`, which
        gets no second begin token, and of a chat template what stands between two turns.

        Raises InvalidPrompt for what is no text, or blank, and ChatTemplateError.
        """
        prompt = Prompt(prompt) if isinstance(prompt, str) else prompt
        if not isinstance(prompt, Prompt):
            raise InvalidPrompt(f"the prompt is {shown(prompt)}; give text, or a Prompt")
        check_spelled(prompt.text, "the prompt")
        check_said(prompt.text)
        if prompt.system is not None:
            check_spelled(prompt.system, "system")
        if not prompt.chat or not self.tokenizer.chat_templates:
            tokenizer = self.tokenizer
            return tokenizer.encode(prompt.text) if last is None else tokenizer.encode_behind(prompt.text)
        turn = [{"role": "user", "content": prompt.text}]
        if prompt.system:
            turn.insert(0, {"role": "system", "content": prompt.system})
        if last is None:
            return self.tokenizer.chat(turn)
        # What stands between turns is the same behind every first one.
        return self.tokenizer.chat_turn([{"role": "user", "content": "-"}], turn, last)

    @property
    def family(self) -> str:
        """The sampler's name."""
        return str(self.bundle.manifest.sampler["name"])

    @cached_property
    def _continues(self) -> bool:
        """Whether prompts follow what was generated before, unless a caller's options say otherwise."""
        return bool(settle(self._model).values().get("continue_prefix"))

    def options(self, settings: Settings, prompt_length: int | None = None) -> SamplerOptions:
        """The sampler's options: the checkpoint's, then the caller's; with the lengths of a prompt of so many
        tokens, earlier text counted with it. Raises InvalidOption and PromptTooLong.
        """
        settings = _checked(settings)
        return settle(
            self._model,
            max_new_tokens=settings.max_new_tokens,
            steps=settings.steps,
            options=settings.options,
            prompt_length=prompt_length,
        )

    def generate(
        self,
        prompt: Prompt | str | Sequence[int],
        settings: Settings | None = None,
        behind: Sequence[Ids] | None = None,
    ) -> Iterator[Event]:
        """Denoising events; the last is Done with statistics. Equal seeds give equal events.

        A prompt is text or token ids. `behind`: what it follows, whatever was generated last, in pieces as
        `encoded` has them; for models with a causal prefix.

        Raises:
            EdgekitError: bad options, a prompt beyond the model's positions, a budget that is too small,
                a read that failed.
        """
        settings = _checked(settings)
        call = self._call(prompt, settings, behind)
        held = self._session if self._session is not None and call.text.is_in(self._session) else None
        session = self._open(call.lengths, call.text)
        turn = self._turn = _Turn()
        started = time.perf_counter()
        before = session.counters()
        try:
            for event in drive(call.sampler, session):
                if isinstance(event, Done):
                    event.stats.engine.update(_since(before, session.statistics()))
                    event.stats.engine["seconds"] = time.perf_counter() - started
                    event.stats.engine["prompt_tokens"] = call.tokens
                    event.stats.engine["reused_tokens"] = call.text.length if session is held else 0
                    self.stats = event.stats
                yield event
                turn.check()
        finally:
            if not turn.over:
                _rest(session)

    def generate_many(
        self,
        prompts: Sequence[Prompt | str | Sequence[int]],
        settings: Settings | None = None,
        at_once: int = 4,
    ) -> Iterator[tuple[int, Event | Exception]]:
        """Events of the prompts of a list, each with its number: up to `at_once` share every pass over the
        weights, and another one joins when one is done. Events of a prompt are those of `generate`; one
        that fails by itself, such as by a prompt that is too long, ends with its error.

        Text that was generated before is forgotten.

        Raises:
            EdgekitError: bad options, no list of prompts, a budget that is too small for so many at once, a
                read that failed.
        """
        self._check_open()
        settings = _checked(settings)
        check_list(prompts, "the prompts", InvalidPrompt)
        if not isinstance(prompts, Sized):  # the longest decides what memory is planned for
            raise InvalidPrompt(f"the prompts are {shown(prompts)}; pass a list, list(...) of it will do")
        check_int("at_once", at_once, 1, MOST_SEQUENCES)
        if self.options(settings).values().get("continue_prefix"):
            raise InvalidOption("continue_prefix does not go with several prompts: they follow no text")
        calls: dict[int, _Call] = {}
        for number, prompt in enumerate(prompts):
            try:
                calls[number] = self._call(prompt, settings, None)
            except EdgekitError as error:
                yield number, error
        if not calls:
            return
        count, lengths = min(at_once, len(calls)), [call.lengths for call in calls.values()]
        longest = replace(
            lengths[0],
            prefix=max(each.prefix for each in lengths),
            canvas=max(each.canvas for each in lengths),
        )
        try:
            session = self._open(longest, _Text(), count)
        except BudgetExceeded as error:
            hint = f"; or take fewer prompts at once: at_once is {at_once}" if count > 1 else ""
            raise BudgetExceeded(f"{error}{hint}", error.needed_bytes) from None
        together, waiting = Together(session), deque(calls.items())
        turn = self._turn = _Turn(together, [session.open_sequence() for _ in range(count - 1)])
        free = [session.sequence, *turn.sequences]
        taken: dict[int, session_sequence.Sequence] = {}
        started = time.perf_counter()
        try:
            while waiting or len(together):
                while waiting and free:
                    number, call = waiting.popleft()
                    taken[number] = free.pop()
                    together.join(number, call.sampler, taken[number])
                for key, event in together.step():
                    assert isinstance(key, int), "they joined by number"
                    if isinstance(event, Done):
                        event.stats.engine["seconds"] = time.perf_counter() - started
                        event.stats.engine["prompt_tokens"] = calls[key].tokens
                    if isinstance(event, Done | Exception):
                        free.append(taken.pop(key))
                    yield key, event
                    turn.check()
        finally:
            if not turn.over:
                turn.end()
                _forget(session)
                _rest(session)

    def prepare(self, prompt: Prompt | str | Sequence[int], settings: Settings | None = None) -> None:
        """Open the session that `generate` will use for these arguments. Raises as that does."""
        call = self._call(prompt, _checked(settings), None)
        self._open(call.lengths, call.text)

    def check_budget(self) -> None:
        """Raises BudgetExceeded where the budget has no room for the shortest generation. Whether an engine
        runs the bundle here is for the first prompt.
        """
        if self._limits.memory_bytes is None:
            return
        shortest = replace(self._limits, positions=0, canvas=self.bundle.model.canvas_length or 1)
        with suppress(EngineUnavailable, UnsupportedBundle):
            self.plan(shortest)

    def plan(self, options: SessionOptions) -> MemoryPlan:
        """The plan that a session with these options would make. Raises BudgetExceeded, and what making an
        engine raises.
        """
        if self._engine is None or isinstance(self._engine, str):
            threads = self._limits.threads or usable_cores()
            engine = engines.to_plan(self.bundle, threads, self._engine)
        else:
            engine = engines.made_by(self._engine, self.bundle)
        return plan_session(self.bundle, options, engine)

    def _call(
        self, prompt: Prompt | str | Sequence[int], settings: Settings, behind: Sequence[Ids] | None
    ) -> _Call:
        self._check_open()
        options = dict(options_by_name(settings.options))
        text = _Text()
        before = None if behind is None else pieces_of(behind, "behind", InvalidPrompt)
        for ids in before or ():
            check_tokens(ids, "behind", self._model.vocab_size, InvalidPrompt)
        if before is not None and self.bundle.model.causal_prefix:
            options["continue_prefix"] = True
            text = _Text(before)
        elif options.get("continue_prefix", self._continues):
            text = self._held()
        if isinstance(prompt, str | Prompt):
            prompt = self.encode(prompt, text.last)
        elif not _may_be_ids(prompt):
            raise InvalidPrompt(
                f"the prompt is {shown(prompt)}; give text, a Prompt, or token ids; edgekit.load takes "
                "messages of a chat, too"
            )
        ids = prompt_ids(prompt, self._model.vocab_size)
        sampler = CoreSampler(
            replace(self._model, encoded=text.encoded, uncached=text.uncached),
            ids,
            seed=settings.seed,
            max_new_tokens=settings.max_new_tokens,
            steps=settings.steps,
            options=options,
        )
        call = _Call(sampler, ids.size, text, sampler.lengths)
        if self.bundle.packages is not None:
            self._check_packages(call, settings)
        return call

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest(f"{self.bundle.path}: the generator is closed; open another one")

    def _check_packages(self, call: _Call, settings: Settings) -> None:
        assert self.bundle.packages is not None, "the caller looked"
        lengths, prompt = call.lengths, call.text.length + call.tokens
        offered = self.bundle.packages.lengths()
        if not any(t >= lengths.canvas and p >= lengths.prefix for t, p in offered):
            new = self.options(settings, prompt).lengths
            assert new is not None, "they were asked for"
            raise PromptTooLong(
                f"{prompt} prompt tokens and {new.text} take passes of {lengths.canvas} "
                f"positions after a prefix of {lengths.prefix}; {exported_for(offered)}"
            )

    def session_options(self, lengths: Lengths, sequences: int = 1) -> SessionOptions:
        """Options of a session that generates at these lengths, so many at once."""
        # A prefix is encoded in pieces of the model's own canvas.
        canvas = max(lengths.canvas, self.bundle.model.canvas_length or 0)
        return replace(self._limits, positions=lengths.prefix, canvas=canvas, sequences=sequences)

    @property
    def encoded(self) -> list[Ids]:
        """The token ids that the session has encoded, in pieces [T] as it was given them: another generation
        `behind` them sees the same keys and values, to the bit.
        """
        return list(self._held().encoded)

    def _held(self) -> _Text:
        session = self._session
        return self._text if session is None else _Text(session.pieces, session.uncached)

    def _open(self, lengths: Lengths, text: _Text, sequences: int = 1) -> Session:
        """A session for these lengths, and so many sequences at once, that holds `text`."""
        self._turn.end()
        needed = self.session_options(lengths, sequences)
        if self._session is not None:
            have = self._session.options
            if have.memory_bytes is None or (
                have.positions >= needed.positions
                and have.canvas >= needed.canvas
                and have.sequences >= needed.sequences
            ):
                text.put_into(self._session)
                return self._session
            self._session.close()  # first: a budget has no room for two
            self._session = None
        # Kept until it is encoded: where that fails, another prompt may still follow.
        self._text = text
        session = open_session(self.bundle, needed, self._engine, self._executor)
        try:
            text.put_into(session)
        except BaseException:
            session.close()
            raise
        self._session, self._text = session, _Text()
        return session

    @property
    def session(self) -> Session:
        """The open session. Raises EdgekitError before the first prompt, and once it is closed."""
        if self._session is None:
            self._check_open()
            raise EdgekitError("no session is open yet: it opens at the first generate()")
        return self._session

    @property
    def bytes_read(self) -> int:
        """Bytes streamed by the open session so far; 0 without one."""
        return 0 if self._session is None else int(self._session.statistics()["bytes_read"])

    def close(self) -> None:
        """Close the session, if one is open, and forget what it holds. Prompts are refused from then on."""
        self._closed = True
        self._turn.end()
        self._text = _Text()
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Turn:
    """A generation that has the session, until another begins; with sequences that were opened for it, and
    what drives them.
    """

    def __init__(
        self, together: Together | None = None, sequences: Iterable[session_sequence.Sequence] = ()
    ) -> None:
        self._together, self.sequences, self.over = together, list(sequences), False

    def check(self) -> None:
        """Raises InvalidRequest when it is over."""
        if self.over:
            raise InvalidRequest(
                "this generation has ended: its Generator was closed, or has begun another one; read one to "
                "its end first, or open a Generator for each"
            )

    def end(self) -> None:
        self.over = True
        if self._together is not None:
            self._together.close()
        for sequence in self.sequences:
            sequence.close()


def _forget(session: Session) -> None:
    """Texts of several prompts are no conversation: nothing may follow the one that was left here."""
    with suppress(InvalidRequest):
        session.reset()


def _rest(session: Session) -> None:
    """Tell it that no pass follows soon, unless another thread runs one: a generation that is thrown away
    ends wherever it is collected.
    """
    with suppress(InvalidRequest):
        session.idle()


def _may_be_ids(prompt: object) -> bool:
    """Whether a prompt that is no text was meant to be token ids."""
    if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Iterable):
        return False
    return not (isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], str | Mapping))


def _checked(settings: Settings | None) -> Settings:
    """Raises InvalidOption for what are no settings."""
    if settings is not None and not isinstance(settings, Settings):
        raise InvalidOption(f"the settings are {shown(settings)}; pass Settings(...)")
    return settings or Settings()


@dataclass(frozen=True, eq=False)
class _Text:
    """The text that a session of a model with a causal prefix holds: ids that are encoded, in pieces, and
    behind them the end of the last answer, which is not.
    """

    encoded: Sequence[Ids] = ()
    uncached: Ids = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def length(self) -> int:
        return sum(map(len, self.encoded)) + len(self.uncached)

    @property
    def last(self) -> int | None:
        """The last token; None without any."""
        pieces = [piece for piece in (*self.encoded, self.uncached) if len(piece)]
        return int(pieces[-1][-1]) if pieces else None

    def is_in(self, session: Session) -> bool:
        """Whether its encoded part is what the session has encoded."""
        return session.sequence.holds(self.encoded)

    def put_into(self, session: Session) -> None:
        """Have the session hold it."""
        if not self.is_in(session):
            session.reset()
            for ids in self.encoded:
                session.prefill(ids)
        session.uncached = self.uncached


@dataclass(frozen=True)
class _Call:
    """A generation: its sampler, the tokens of its prompt, the text before that, and its lengths."""

    sampler: CoreSampler
    tokens: int
    text: _Text
    lengths: Lengths


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
