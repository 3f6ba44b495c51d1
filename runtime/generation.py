"""Text in, events out: tokenizer, chat template, sampler options and session put together for one bundle.

with Generator(path, memory_bytes=1_000_000_000) as generator:
    for event in generator.generate("Why is the sky blue?", Settings(seed=1)):
        ...
"""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.flashload.errors import (
    BudgetExceeded,
    ChecksumMismatch,
    EdgekitError,
    InvalidRequest,
    MalformedFile,
    OpenFailed,
    ReadFailed,
    TruncatedFile,
)
from edgekit.flashload.names import shown
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.errors import EncodedAgain, EngineUnavailable, PassTooLong, UnsupportedBundle
from edgekit.runtime.process import usable_cores
from edgekit.runtime.prompt_text import check_said, check_spelled
from edgekit.runtime.sampling import (
    CoreSampler,
    Done,
    Draft,
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
from edgekit.runtime.sampling.answer_room import shortfall, takes
from edgekit.runtime.sampling.core import MOST_PASSES, prompt_ids
from edgekit.runtime.sampling.core_abi import options_by_name
from edgekit.runtime.sampling.ids import check_list, check_tokens, pieces_of
from edgekit.runtime.sampling.options import check_int
from edgekit.runtime.session import (
    MakeEngine,
    SavedSequence,
    Session,
    SessionOptions,
    Together,
    open_session,
    plan_session,
    read_saved,
)
from edgekit.runtime.session import sequence as session_sequence
from edgekit.runtime.session.session import MOST_SEQUENCES

if TYPE_CHECKING:
    from edgekit.runtime.engines.base import Executor
    from edgekit.runtime.sampling import Stats
    from edgekit.runtime.session.memory import MemoryPlan
    from edgekit.runtime.tokenizer import Tokenizer


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
    `runtime.sampling`. `deadline_seconds`: where the time since the call does not suffice for two more
    passes, the next one settles all that is open; what is under way is not cut off. Equal seeds then give
    equal answers only where as many passes were in time.
    """

    max_new_tokens: int | None = None
    steps: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline_seconds: float | None = None


def sampler_model(bundle: Bundle) -> SamplerModel:
    """The model as the sampler of a bundle knows it before a session is open. Raises InvalidRequest for what
    is no open bundle.
    """
    if not isinstance(bundle, Bundle):
        raise InvalidRequest(f"the bundle is {shown(bundle)}; pass what Bundle.open gives, or a session's")
    return SamplerModel.of(bundle.manifest.sampler, bundle.model, bundle.model.role_head, bundle.digest)


def options_for(
    bundle: Bundle, limits: SessionOptions, lengths: Lengths, sequences: int = 1
) -> SessionOptions:
    """Options of a session within these limits that generates at these lengths, so many at once."""
    model = bundle.model
    return replace(
        limits,
        positions=lengths.prefix,
        cached=0 if model.causal_prefix else lengths.prefix,
        # A prefix is encoded in pieces of the model's own canvas.
        canvas=max(lengths.canvas, model.canvas_length or 0),
        sequences=sequences,
        segments=lengths.segments if lengths.segments > sequences else 0,
    )


def within_programs(bundle: Bundle, options: SessionOptions) -> SessionOptions:
    """The options, of packages for no more positions than they have functions for."""
    if bundle.packages is None:
        return options
    offered = bundle.packages.lengths()
    return replace(
        options,
        positions=min(options.positions, max(p for _, p in offered)),
        canvas=min(options.canvas, max(t for t, _ in offered)),
    )


def longest(lengths: Sequence[Lengths], at_once: int) -> Lengths:
    """What suffices for any `at_once` of several generations."""
    return replace(
        lengths[0],
        prefix=max(each.prefix for each in lengths),
        canvas=max(each.canvas for each in lengths),
        segments=sum(sorted(each.segments for each in lengths)[-at_once:]),
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
        adapter: str | None = None,
    ) -> None:
        """`engine` insists on one by name, or makes one of the caller's own; otherwise it is the one that the
        bundle was exported for, and of a set of bundles the newest that this system runs.
        `executor` runs a bundle's packages in place of the format's own, for checks. `adapter` names the one,
        of those beside the bundle's weights, that all is computed with; None: none.

        Raises EdgekitError when the bundle or its tokenizer cannot be read, is not for `engine`, or no engine
        takes so many threads.
        """
        limits = SessionOptions(memory_bytes, resident_bytes, threads=threads)
        self.bundle = Bundle.open(path, None if callable(engine) else engine)
        self._limits = replace(limits, adapter=self.bundle.model.adapter_number(adapter))
        if any(name.startswith("tokenizer/") for name in self.bundle.manifest.files):
            _ = self.tokenizer  # what it says of damage is said at once
        self._model = sampler_model(self.bundle)
        self._engine, self._executor = engine, executor
        self._session: Session | None = None
        self._closed = False
        self._turn = Turn()
        self._text = _Text()  # what the next session has to hold if a prompt is to follow it
        self._saved: SavedSequence | None = None  # a file with a text that may be gone on with
        self._reused = 0  # tokens of the text before a prompt that were there
        #: Of the last generation that came to its end.
        self.stats: Stats | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The bundle's. Raises EdgekitError where it has none."""
        return self.bundle.tokenizer()

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

    def suggested_length(self, prompt: Prompt | str) -> int | None:
        """How long an answer to a prompt may be where programs of packages have no room for the default one;
        None where they have, or not for any. Raises as `encode` and `shortfall`.
        """
        short = self.shortfall(len(self.encode(prompt)))
        return short[1] or None if short else None

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
        deadline = _Deadline(settings.deadline_seconds)
        call = self._call(prompt, settings, behind)
        session = self._open(call.lengths, call.text)
        reused = self._reused
        turn = self._turn = Turn()
        started = time.perf_counter()
        deadline.begin(call.sampler)
        before = session.counters()
        try:
            for event in drive(call.sampler, session):
                if isinstance(event, Done):
                    event.stats.engine.update(_since(before, session.statistics()))
                    event.stats.engine["seconds"] = time.perf_counter() - started
                    event.stats.engine["prompt_tokens"] = call.tokens
                    event.stats.engine["reused_tokens"] = reused
                    self.stats = event.stats
                if isinstance(event, Draft):
                    deadline.passed(call.sampler)
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
        if settings.deadline_seconds is not None:
            raise InvalidOption("deadline_seconds does not go with several prompts, which share their passes")
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
        try:
            session = self._open(longest(lengths, count), _Text(), count)
        except BudgetExceeded as error:
            hint = f"; or take fewer prompts at once: at_once is {at_once}" if count > 1 else ""
            raise BudgetExceeded(f"{error}{hint}", error.needed_bytes) from None
        started = time.perf_counter()
        with self._together(session) as (together, turn):
            waiting = ((number, call.sampler) for number, call in calls.items())
            for key, event in together.run(waiting, turn.texts(session, count)):
                assert isinstance(key, int), "they joined by number"
                if isinstance(event, Done):
                    event.stats.engine["seconds"] = time.perf_counter() - started
                    event.stats.engine["prompt_tokens"] = calls[key].tokens
                yield key, event
                turn.check()

    @contextmanager
    def _together(self, session: Session) -> Iterator[tuple[Together, Turn]]:
        """Several generations in the passes of an open session, and the turn that they have."""
        together = Together(session)
        turn = self._turn = Turn(together)
        try:
            yield together, turn
        finally:
            if not turn.over:
                turn.end()
                _forget(session)
                _rest(session)

    @contextmanager
    def branching(
        self, lengths: Lengths, sequences: int, beside_bytes: int = 0
    ) -> Iterator[tuple[Session, Together, Turn]]:
        """A session for so many sequences of these lengths, which leaves so much of the memory budget to what
        is held beside it, and what runs them together. Text that was generated before is forgotten.

        Raises BudgetExceeded, and what opening a session raises.
        """
        session = self._open(of_several(lengths, sequences), _Text(), sequences, beside_bytes)
        with self._together(session) as (together, turn):
            yield session, together, turn

    def sampler(self, prompt: Sequence[int], settings: Settings) -> CoreSampler:
        """The sampler of a generation that follows no text. Raises as `generate`."""
        options = {**options_by_name(settings.options)}
        if self._continues:
            options["continue_prefix"] = False
        return self._call(prompt, replace(_checked(settings), options=options), None).sampler

    def release(self) -> None:
        """Give back the memory of the session; the next prompt opens another one, and may follow the same
        text.
        """
        self._turn.end()
        if self._session is not None:
            self._text = self._held()
            self._session.close()
            self._session = None

    def since(self, before: Mapping[str, Any], session: Session) -> dict[str, Any]:
        """Numbers of the engine since its counters were `before`."""
        return _since(dict(before), session.statistics())

    @property
    def memory_bytes(self) -> int | None:
        """The memory budget of the process."""
        return self._limits.memory_bytes

    @property
    def threads(self) -> int:
        """Threads that compute; 0: every usable core."""
        return self._limits.threads

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
        packages = self.bundle.packages
        assert packages is not None, "the caller looked"
        lengths, prompt = call.lengths, call.text.length + call.tokens
        if lengths.prefix and not self.bundle.model.causal_prefix:
            raise InvalidOption(
                "a cache keeps keys and values, which packages of this model do not take; leave out cache, "
                f"or export another format than {self.bundle.manifest.format}"
            )
        if not takes(packages.lengths(), lengths):
            new = self.options(settings, prompt).lengths
            assert new is not None, "they were asked for"
            short = self.shortfall(prompt, settings)
            raise PassTooLong(
                f"{prompt} prompt tokens and {new.text} take passes of {lengths.canvas} "
                f"positions after a prefix of {lengths.prefix}; {packages.most()}",
                short[1] if short else None,
            )

    def shortfall(self, prompt: int, settings: Settings | None = None) -> tuple[int, int] | None:
        """See `sampling.answer_room`, for the bundle's packages and a prompt of so many tokens, earlier text
        counted with it; None for a bundle without packages. Raises as that does.
        """
        packages, settings = self.bundle.packages, _checked(settings)
        if packages is None:
            return None
        asked, options = settings.max_new_tokens, options_by_name(settings.options)
        return shortfall(self._model, packages.lengths(), prompt, asked, options)

    def session_options(self, lengths: Lengths, sequences: int = 1, beside_bytes: int = 0) -> SessionOptions:
        """Options of a session that generates at these lengths, so many at once, and leaves so much of the
        memory budget to what is held beside it.
        """
        options = options_for(self.bundle, self._limits, lengths, sequences)
        memory = options.memory_bytes
        return replace(options, memory_bytes=None if memory is None else max(1, memory - beside_bytes))

    @property
    def encoded(self) -> list[Ids]:
        """The token ids that the session has encoded, in pieces [T] as it was given them: another generation
        `behind` them sees the same keys and values, to the bit.
        """
        return list(self._held().encoded)

    def _held(self) -> _Text:
        session = self._session
        return self._text if session is None else _Text(session.pieces, session.uncached)

    def _open(self, lengths: Lengths, text: _Text, sequences: int = 1, beside_bytes: int = 0) -> Session:
        """A session for these lengths, and so many sequences at once, that holds `text`."""
        self._turn.end()
        return self._opened_for(self.session_options(lengths, sequences, beside_bytes), text)

    def _opened_for(self, needed: SessionOptions, text: _Text) -> Session:
        with ExitStack() as until_held:
            carried = None
            if self._session is not None:
                have = self._session.options
                if have.memory_bytes is None or (
                    have.memory_bytes <= (needed.memory_bytes or 0)
                    and have.positions >= needed.positions
                    and have.cached >= needed.cached
                    and have.canvas >= needed.canvas
                    and have.sequences >= needed.sequences
                    and max(have.sequences, have.segments) >= needed.segments
                ):
                    self._hold(text, self._session, self._saved)
                    return self._session
                carried = until_held.enter_context(_carried(self._session.sequence, text))
                self._session.close()  # first: a budget has no room for two
                self._session = None
            # Kept until it is encoded: where that fails, another prompt may still follow.
            self._text = text
            session = open_session(self.bundle, needed, self._engine, self._executor)
            try:
                self._hold(text, session, carried, self._saved)
            except BaseException:
                session.close()
                raise
            self._session, self._text = session, _Text()
            return session

    def _hold(self, text: _Text, session: Session, *files: SavedSequence | None) -> None:
        """Have a session hold a text: as much as it holds already, or a file does, is not encoded again."""
        for saved in files:
            if saved is None or _common(saved.pieces, text.encoded) <= _common(
                session.sequence, text.encoded
            ):
                continue
            try:
                session.sequence.load(saved.path)
            except BudgetExceeded:  # of a text that went on longer than this one
                continue
            except (MalformedFile, ChecksumMismatch, TruncatedFile, OpenFailed, ReadFailed) as error:
                found = str(error).removesuffix("; encode the text again")
                warnings.warn(f"{found}; the text is encoded again", EncodedAgain, stacklevel=2)
            if saved is self._saved:
                self._saved = None
        self._reused = text.put_into(session)

    def resume(self, saved: SavedSequence) -> None:
        """Take the keys and values of a text from its file when a prompt follows it (`behind`). What the file
        holds is looked at then. Raises InvalidRequest for those of another adapter.
        """
        self._check_open()
        if saved.adapter != self._limits.adapter:
            first, own = (
                f"adapter {n}" if n else "no adapter" for n in (saved.adapter, self._limits.adapter)
            )
            raise InvalidRequest(
                f"{saved.path}: holds keys and values that were computed with {first}, and this "
                f"model computes with {own}; load it with that one"
            )
        self._saved = saved

    def save(
        self,
        path: str | Path,
        encoded: Sequence[Ids],
        uncached: Ids | Sequence[int],
        note: bytes = b"",
        bits: int = 32,
    ) -> None:
        """Write the keys and values of a text to a file, see `Sequence.save`: `encoded` in pieces as
        `encoded` has them, and what follows it. What the session does not hold is encoded first; a
        generation that is under way ends. Raises as those do.
        """
        self._check_open()
        self._turn.end()
        model = self.bundle.model
        text = _Text(list(encoded), np.array(uncached, np.int64)) if model.causal_prefix else _Text()
        least = replace(self._limits, positions=text.length, canvas=model.canvas_length or 1)
        session = self._opened_for(least, text)
        if not model.causal_prefix:
            session.reset()  # rows of a canvas are no text
        session.sequence.save(path, bits=bits, note=note)

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


def of_several(lengths: Lengths, count: int) -> Lengths:
    """The lengths of so many sequences that share passes, to which each brings all of its segments."""
    return replace(lengths, segments=min(MOST_SEQUENCES, count * lengths.segments))


class _Deadline:
    """When an answer must be there."""

    def __init__(self, seconds: object) -> None:
        """Raises InvalidOption for what is no time."""
        self._last, self._passes = time.monotonic(), 0
        self._end = math.inf
        if seconds is None:
            return
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise InvalidOption(f"deadline_seconds is {shown(seconds)}; use a number of seconds above 0")
        self._end = self._last + seconds

    def begin(self, sampler: CoreSampler) -> None:
        """Told when the session is open. Raises InvalidRequest for a procedure that ends no sooner."""
        self._last = time.monotonic()
        if self._end < math.inf:
            sampler.hurry(MOST_PASSES)  # none of them is the last yet

    def passed(self, sampler: CoreSampler) -> None:
        """Told after each step: where there is no time for two more passes like its own, one is left."""
        passes = sampler.stats.forwards
        if passes == self._passes:
            return  # a drafted step, which took no time
        self._passes, now = passes, time.monotonic()
        step, self._last = now - self._last, now
        if now + 2 * step > self._end:
            sampler.hurry(1)
            self._end = math.inf


class Turn:
    """A generation that has the session, until another begins; with sequences that were opened for it, and
    what drives them.
    """

    def __init__(self, together: Together | None = None) -> None:
        self._together, self.over = together, False
        self._sequences: list[session_sequence.Sequence] = []

    def add(self, sequence: session_sequence.Sequence) -> session_sequence.Sequence:
        """Have a sequence closed at the end."""
        self._sequences.append(sequence)
        return sequence

    def texts(self, session: Session, count: int) -> list[session_sequence.Sequence]:
        """So many sequences: the session's own, and others that are closed at the end."""
        return [session.sequence, *(self.add(session.open_sequence()) for _ in range(count - 1))]

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
        for sequence in self._sequences:
            sequence.close()


def _common(there: session_sequence.Sequence | Sequence[Ids], wanted: Sequence[Ids]) -> int:
    """How many pieces two texts have in common, from the first on."""
    if isinstance(there, session_sequence.Sequence):
        try:
            there = there.pieces
        except InvalidRequest:  # what is kept is no text
            return 0
    count = 0
    for one, other in zip(there, wanted, strict=False):
        if not np.array_equal(one, other):
            break
        count += 1
    return count


@contextmanager
def _carried(sequence: session_sequence.Sequence, text: _Text) -> Iterator[SavedSequence | None]:
    """What a sequence holds of a text, in a file until the next session has it; None where it holds nothing
    of it, or there is no room for a file.
    """
    with ExitStack() as until_held:
        saved = None
        if pieces := _common(sequence, text.encoded):
            with suppress(EdgekitError, OSError):
                sequence.crop(sum(map(len, text.encoded[:pieces])))
                folder = until_held.enter_context(tempfile.TemporaryDirectory(prefix="edgekit-"))
                sequence.save(Path(folder) / "text.kv")
                saved = read_saved(Path(folder) / "text.kv")
        yield saved


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

    def put_into(self, session: Session) -> int:
        """Have the session hold it. Returns how many of its tokens were there."""
        there = self.length
        if not self.is_in(session):
            pieces = _common(session.sequence, self.encoded)
            there = sum(map(len, self.encoded[:pieces]))
            try:
                session.sequence.crop(there)
            except InvalidRequest:  # too far back for layers with a window
                pieces = there = 0
            if not there:
                session.reset()
            for ids in self.encoded[pieces:]:
                session.prefill(ids)
        session.uncached = self.uncached
        return there


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
    "expert_layers",
    "experts_wanted",
    "experts_again",
    "io_seconds",
    "io_wait_seconds",
    "pass_seconds",
    "prefill_passes",
    "denoise_passes",
    "head_passes",
    "pass_rows",
    "prefill_seconds",
    "denoise_seconds",
    "head_seconds",
    "compute_seconds",
    "unpack_seconds",
)


def _since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {k: v - before[k] if k in _COUNTERS and k in before else v for k, v in after.items()}
