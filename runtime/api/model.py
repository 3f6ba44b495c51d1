"""A bundle that generates text."""

from __future__ import annotations

import os
from collections.abc import Generator as Steps
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgekit.flashload.names import shown
from edgekit.flashload.sizes import parse_size
from edgekit.runtime.api.answer import Answer, Done, Event, answer_of, text_of
from edgekit.runtime.api.chat import Chat
from edgekit.runtime.api.infill import Template, places, settings_for
from edgekit.runtime.api.options import Option, check_names, options_of, own_settings, plain, plain_settings
from edgekit.runtime.api.prompt import Prompt, encode, ids_to_decode
from edgekit.runtime.api.search import Judging, Method, SearchResult, SearchStatistics, branches_of, plan_of
from edgekit.runtime.api.told import Told
from edgekit.runtime.engines import MakeEngine, check_available
from edgekit.runtime.errors import GenerationEnded, PromptTooLong
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.hub.bundles import local_folder
from edgekit.runtime.one_owner import OneOwner
from edgekit.runtime.one_user import OneUser
from edgekit.runtime.process import MOST_THREADS
from edgekit.runtime.sampling import events as inner
from edgekit.runtime.sampling.errors import InvalidOption, InvalidPrompt
from edgekit.runtime.sampling.options import MOST_SEED, Lengths, check_bytes, check_int
from edgekit.runtime.search import search, verifier_of
from edgekit.runtime.session.saved import path_of

if TYPE_CHECKING:
    from edgekit.runtime.sampling.types import Ids
    from edgekit.runtime.session import SavedSequence
    from edgekit.runtime.tokenizer import Tokenizer


def load(
    bundle: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    resident: int | str | None = None,
    threads: int | None = None,
    engine: str | MakeEngine | None = None,
    adapter: str | None = None,
) -> Model:
    """Open a bundle, a folder that `edgekit export` wrote, or one of several bundles there.

    Args:
        bundle: the folder, or `hf:owner/name[@revision]` on the Hugging Face hub.
        memory: bounds the physical memory of the whole process, as bytes or as "1.5GB": weights that do not
            fit are read from the disk in every denoising step. None: all weights stay in memory,
            of which the machine must have enough.
        resident: bounds the weights that stay in memory further; 0 streams all.
        threads: processor threads that compute, 1..1024; None: one per core that the process may use.
        engine: insists on the engine "native", "onnx", "mlx", "coreml" or "coreai", or makes one of your own:
            a class or function, see README.md. None: that of the bundle, and of several bundles the newest
            that this system runs.
        adapter: the adapter, by name, of those beside the bundle's weights that answers are computed with;
            None: none.

    Raises:
        InvalidOption: an argument that is not as above.
        BundleError: the bundle is missing or damaged.
        UnsupportedBundle: it is whole, and for another engine or version than this.
        BudgetExceeded: not even the shortest generation fits into `memory`. Weights are read at the first
            prompt, where its lengths may turn out to need more.
        EdgekitError: any other reason outside of edgekit, such as `engine` not being installed here, or a
            download.

    >>> model = edgekit.load(bundle, memory="8GB")
    >>> model.generate("Copy this: red 7", seed=1).text
    'red 7'
    """
    threads = plain(threads)
    if threads is not None:
        check_int("threads", threads, 1, MOST_THREADS)
    generator = Generator(
        folder_of(bundle, None if callable(engine) else engine),
        memory_bytes=_bytes("memory", memory, 1),
        resident_bytes=_bytes("resident", resident, 0),
        threads=threads or 0,
        engine=engine,
        adapter=adapter,
    )
    if isinstance(engine, str):
        check_available(engine)
    generator.check_budget()
    return Model(generator)


def folder_of(bundle: str | os.PathLike[str], engine: str | None) -> Path:
    """The folder that the name of a bundle stands for; what is on the hub is downloaded and verified."""
    name = os.fspath(bundle) if isinstance(bundle, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise InvalidOption(f"bundle is {shown(bundle)}; give the path of a folder, or hf:owner/name")
    return local_folder(name, engine)


class Model(OneOwner):
    """An open bundle; `edgekit.load` makes it. It is a context manager, and closing it gives its memory back.

    One thread at a time may use it, and it generates one thing at a time: where another generation is started
    while a stream is not at its end, the earlier one raises GenerationEnded when it is resumed. A loop over a
    stream may be left at any time.

    Methods that take a prompt take it as text, which the bundle's chat template wraps as the user's message
    where there is one, as messages of a chat, or as token ids, which are taken as they are:

    >>> model.generate("Copy this: red 7", seed=1).text
    'red 7'
    >>> model.generate([{"role": "user", "content": "Copy this: red 7"}], seed=1).text
    'red 7'
    >>> model.generate(model.encode("Copy this: red 7"), seed=1).text
    'red 7'
    """

    def __init__(self, generator: Generator) -> None:
        """For `load`; what it is made of may change."""
        self._generator = generator
        self._tokenizer = generator.tokenizer
        self._user = OneUser()
        self._current: Steps[Any, None, None] | None = None
        self._closed = False

    def generate(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_new_tokens: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        deadline_seconds: float | None = None,
        **settings: Any,
    ) -> Answer:
        """The whole answer to a prompt. Equal seeds give equal answers.

        Args:
            prompt: text, messages of a chat, or token ids.
            system: a system message before the prompt.
            raw: leaves the chat template out: the model goes on from the text as it is.
            chat_template_kwargs: variables for the chat template, such as {"enable_thinking": True}.
            max_new_tokens: length of the answer, at most; rounded up to whole canvases or blocks. None: the
                bundle's.
            steps: denoising steps, per canvas where the model has canvases. None: the bundle's.
            seed: of the noise, 0..2**64 - 1.
            deadline_seconds: when the answer should be there: where no time is left for two more passes, the
                next one settles all that is open. None: it takes as long as it takes.
            settings: those of the bundle's sampler by name, such as `temperature` or `entropy_bound`;
                `options()` lists them. What is not given is as the bundle says.

        Raises:
            InvalidOption: a setting that the sampler does not have or cannot run with.
            InvalidPrompt, ChatTemplateError: a prompt that cannot be encoded.
            PromptTooLong: prompt and answer pass the positions of the model.
            BudgetExceeded: the memory budget is too small; `needed_bytes` would be enough.
            GenerationEnded: the model is closed, or in use by another thread.
            UnsupportedBundle: the engine does not run it, as its programs show when they are opened.
            EdgekitError: any other reason outside of edgekit, such as weights that were replaced meanwhile.

        >>> answer = model.generate("Write as JSON: name: Ada; age: 31", seed=1)
        >>> answer.text
        '{"name": "Ada", "age": 31}'
        >>> answer.statistics.tokens, answer.statistics.steps
        (11, 2)
        """
        options = Settings(max_new_tokens, steps, seed, settings, deadline_seconds)
        ids = self.encode(prompt, system=system, raw=raw, chat_template_kwargs=chat_template_kwargs)
        return answer_of(self.run(ids, ids, options))

    def stream(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_new_tokens: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        deadline_seconds: float | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """The text of `generate` piece by piece, as it is committed: a canvas or block at a time.

        >>> "".join(model.stream("Copy this: red 7", seed=1))
        'red 7'
        """
        options = Settings(max_new_tokens, steps, seed, settings, deadline_seconds)
        ids = self.encode(prompt, system=system, raw=raw, chat_template_kwargs=chat_template_kwargs)
        return text_of(self.run(ids, ids, options))

    def events(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_new_tokens: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        deadline_seconds: float | None = None,
        **settings: Any,
    ) -> Iterator[Event]:
        """The events on the way to the answer of `generate`: a Draft after every denoising step, Committed
        where tokens become final, and Done with the answer.

        >>> [type(event).__name__ for event in model.events("Copy this: red 7", seed=1, steps=2)]
        ['Draft', 'Draft', 'Committed', 'Done']
        """
        options = Settings(max_new_tokens, steps, seed, settings, deadline_seconds)
        ids = self.encode(prompt, system=system, raw=raw, chat_template_kwargs=chat_template_kwargs)
        return self.run(ids, ids, options)

    def infill(
        self,
        prompt: Prompt,
        template: Template,
        *,
        revise: bool = False,
        system: str | None = None,
        raw: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        steps: int | None = None,
        seed: int = 0,
        deadline_seconds: float | None = None,
        **settings: Any,
    ) -> Answer:
        """The answer to a prompt, of which a part is given: the model writes the rest between.

        Args:
            template: text in which `[[12]]` is a hole of twelve tokens, or a list of pieces: text, token ids,
                and integers for holes. `[answer.ids[:5], 8, answer.ids[12:]]` rewrites a span of an earlier
                answer.
            revise: what is given is only where the answer starts, and may change; for models that denoise
                random tokens (DiffusionGemma).

        The others are those of `generate`. The answer is as long as the template, or shorter where that ends
        in a hole and the model ends the answer there. Of a model with canvases a template is at most one.

        Raises InvalidPrompt for what is no template, and what `generate` raises.

        >>> model.infill("Copy this: red 7", "red[[1]]", seed=1).text
        'red 7'
        """
        events = self.infill_events(
            prompt,
            template,
            revise=revise,
            system=system,
            raw=raw,
            chat_template_kwargs=chat_template_kwargs,
            steps=steps,
            seed=seed,
            deadline_seconds=deadline_seconds,
            **settings,
        )
        return answer_of(events)

    def infill_events(
        self,
        prompt: Prompt,
        template: Template,
        *,
        revise: bool = False,
        system: str | None = None,
        raw: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        steps: int | None = None,
        seed: int = 0,
        deadline_seconds: float | None = None,
        **settings: Any,
    ) -> Iterator[Event]:
        """The events on the way to the answer of `infill`, see `events`; drafts show the whole canvas."""
        if twice := [name for name in ("canvas", "fixed") if name in settings]:
            raise InvalidOption(f"{twice[0]} follows from the template; leave it out")
        given = places(template, self._tokenizer, revise)
        wanted = plain_settings(Settings(steps=steps, options=settings))
        check_names(self.family, wanted)
        values = self._generator.options(wanted).values()
        options = {**settings, **settings_for(given, values, revise)}
        length = options.pop("max_new_tokens", None)
        if "fixed" in options and not revise:
            length = values["canvas_length"]
        ids = self.encode(prompt, system=system, raw=raw, chat_template_kwargs=chat_template_kwargs)
        limit = None if revise else len(given)
        return self.run(ids, ids, Settings(length, steps, seed, options, deadline_seconds), limit=limit)

    def search(
        self,
        prompt: Prompt,
        *,
        verifier: Judging,
        branches: int | None = None,
        share: float = 0.8,
        method: Method = "best_of",
        every: int | None = None,
        rounds: int | None = None,
        depth: float | None = None,
        system: str | None = None,
        raw: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_new_tokens: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> SearchResult:
        """The best of several answers, which share their first steps and every read of the weights. The first
        of them is the answer of `generate`; equal seeds give equal results. docs/search.md has more.

        Args:
            verifier: says how good an answer is, the higher the better: "json", "regex:PATTERN", "likelihood"
                or "confidence" (the model's own), "bundle:FOLDER" (another model's, within the same budget),
                "python:MODULE.FUNCTION", a function of an `Attempt` that returns a number or a truth value,
                or a `Verifier`. Of equal ones the first is taken.
            branches: how many, 1..64. None: 4, or as many as the memory budget has room for if less.
            share: the part of the steps that all have in common, at least 0 and below 1. Where an answer ends
                before, the others leave its way at that part of the steps that it took.
            method: "best_of": all come to their end. "prune": the worse half is given up for copies of the
                better half, which go on differently, whenever `every` steps are done. "back": at the end all
                but the best go back along its way, and come to another end, `rounds` times.
            every: steps between two looks of "prune"; None: a quarter of those that are not shared.
            rounds: of "back", at most: "json" and "regex" are content with the first answer that is right.
                None: 2.
            depth: how far "back" goes, as a part of the steps behind the fork; above 0 and below 1. None: a
                half.

        The others are those of `generate`. A model that draws nothing at temperature 0 needs one above it.

        Raises BudgetExceeded where the budget has no room for so many branches, before anything runs;
        VerifierFailed for a verifier that raises; and what `generate` raises.

        >>> found = model.search("Copy this: red 7", branches=2, verifier="regex:^red 7$", seed=1)
        >>> found.answer.text, found.score, [branch.score for branch in found.branches]
        ('red 7', 1.0, [1.0, 1.0])
        """
        wanted = Settings(max_new_tokens, steps, seed, settings)
        own = own_settings(self.family, wanted, "a search follows no text")
        plan, count = plan_of(
            plain(branches), plain(share), method, plain(every), plain(rounds), plain(depth)
        )

        def encoded(tokenizer: Tokenizer) -> tuple[int, ...]:
            text = isinstance(prompt, str) or any(isinstance(each, Mapping) for each in prompt)
            if tokenizer is not self._tokenizer and not text:
                raise InvalidPrompt("a judge has tokens of its own; give the prompt as text, or as messages")
            return tuple(encode(tokenizer, prompt, system, raw, chat_template_kwargs))

        def run() -> SearchResult:
            self._check_open()
            self._leave()
            ids = encoded(self._tokenizer)
            lengths = self._generator.options(own, len(ids)).lengths
            found = search(self._generator, ids, own, plan, count, verifier_of(verifier), encoded)
            shown, costs, best = Told(self._tokenizer, ids, lengths), found.costs, found.best
            assert best.stats is not None and best.score is not None, "it has come to its end"
            events = tuple(shown.event(event, read) for event, read in best.told)
            done = events[-1]
            assert isinstance(done, Done), "a generation ends with Done"
            counted = SearchStatistics(
                found.shared, costs.passes, costs.rows, costs.bytes_read, costs.seconds
            )
            return SearchResult(done.answer, best.score, best.number, branches_of(found), events, counted)

        return self._user.call(run, self._in_use)

    def chat(
        self,
        *,
        system: str | None = None,
        raw: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> Chat:
        """A conversation; see `Chat`. Several may go on at the same time.

        Args:
            system: a system message at its beginning.
            raw: leaves the chat template out: prompts and answers follow each other as they are.
            chat_template_kwargs: variables for the chat template.
            resume: a file of `Chat.save`: the conversation goes on where it was, with its own arguments, and
                encodes nothing again.

        Raises ChatTemplateError where the bundle has no chat template, unless `raw`, and InvalidPrompt for
        arguments that are not as above; for `resume` InvalidRequest where the file belongs to another bundle,
        and BundleError where it is missing or damaged.

        >>> chat = model.chat()
        >>> chat.generate("Copy this: red 7", seed=1).text
        'red 7'
        """
        if resume is None:
            return Chat(self, self._tokenizer, system, raw, chat_template_kwargs)
        if system is not None or raw or chat_template_kwargs:
            raise InvalidPrompt("a conversation that is resumed goes on as it began; give `resume` alone")
        return Chat.resumed(self, self._tokenizer, resume)

    def options(self, **settings: Any) -> tuple[Option, ...]:
        """The settings that `generate` takes for this bundle, with ranges; the defaults are the bundle's own,
        or what they become beside the given `settings`. Raises InvalidOption.

        >>> [option.name for option in model.options()][:4]
        ['max_new_tokens', 'steps', 'seed', 'max_length']
        """
        own = {name: settings.pop(name, None) for name in ("max_new_tokens", "steps")}
        check_int("seed", plain(settings.pop("seed", 0)), 0, MOST_SEED)
        given = plain_settings(Settings(options=settings, **own))
        check_names(self.family, given)
        return options_of(self._generator.options(given))

    def encode(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """The token ids of a prompt as `generate` gives them to the model.

        Raises InvalidPrompt and ChatTemplateError.

        >>> model.decode(model.encode("Hi", raw=True))
        'Hi'
        """
        return tuple(encode(self._tokenizer, prompt, system, raw, chat_template_kwargs))

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD. `skip_special`: without the special
        tokens. Raises InvalidPrompt for what are no ids of the model.
        """
        vocab_size = self._generator.bundle.model.vocab_size
        return self._tokenizer.decode(ids_to_decode(ids, vocab_size), skip_special)

    @property
    def family(self) -> str:
        """The sampler's family: "diffusion_gemma", "llada", "dream" or "block".

        >>> model.family
        'diffusion_gemma'
        """
        return self._generator.family

    @property
    def path(self) -> Path:
        """The folder of the bundle."""
        return self._generator.bundle.path

    @property
    def mask_id(self) -> int | None:
        """The token that stands for an open position in a Draft; None for models without open positions."""
        return self._generator.options(Settings()).values().get("mask_token_id")

    def close(self) -> None:
        """Give memory and files back. What is used afterwards raises GenerationEnded; so does this, while
        another thread uses the model.
        """
        self._user.call(self._close, self._in_use)

    def _close(self) -> None:
        self._closed = True
        self._leave()
        self._generator.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<edgekit.Model {str(self.path)!r}{', closed' if self._closed else ''}>"

    # What follows is for `edgekit.runtime.api` alone.

    def run(
        self,
        prompt_ids: Sequence[int],
        ids: Sequence[int],
        settings: Settings,
        behind: Sequence[Ids] | None = None,
        limit: int | None = None,
    ) -> Iterator[Event]:
        """The events of a generation whose prompt is `ids` `behind` what a chat has encoded; `prompt_ids` is
        all of it. Its answer is cut at `limit` tokens. Raises InvalidOption at once, all else when the first
        event is asked for.
        """
        settings = own_settings(self.family, settings, "use chat()")
        lengths = None
        with suppress(PromptTooLong):  # which the generation raises
            lengths = self._generator.options(settings, len(prompt_ids)).lengths
        self._check_open()
        return self._events(tuple(prompt_ids), ids, settings, lengths, behind, limit)

    def encoded(self) -> list[Ids]:
        """Ids that the last generation has encoded, for `behind`."""
        return self._generator.encoded

    def digest(self) -> str:
        """Equal for equal bundles."""
        return self._generator.bundle.digest

    def save_text(
        self,
        path: str | os.PathLike[str],
        encoded: Sequence[Ids],
        behind: Sequence[int],
        note: bytes,
        bits: int,
    ) -> None:
        """Write the text of a conversation to a file, with keys and values."""

        def save() -> None:
            self._check_open()
            self._leave()
            self._generator.save(path_of(path), encoded, behind, note, bits)

        self._user.call(save, self._in_use)

    def resume_text(self, saved: SavedSequence) -> None:
        """Take keys and values from a file when its text is gone on with."""
        self._check_open()
        self._generator.resume(saved)

    def _events(
        self,
        prompt_ids: tuple[int, ...],
        ids: Sequence[int],
        settings: Settings,
        lengths: Lengths | None,
        behind: Sequence[Ids] | None,
        limit: int | None,
    ) -> Iterator[Event]:
        source: Any = self._generator.generate(ids, settings, behind)
        shown = Told(self._tokenizer, prompt_ids, lengths, limit)

        def begin() -> int:
            self._check_open()
            self._leave()
            self._current = source
            return self._generator.bytes_read

        def go_on() -> tuple[inner.Event | None, int]:
            self._check_open()
            is_current = self._current is source
            if not is_current:
                raise GenerationEnded(
                    "this generation has ended: the model has started another one; read a stream "
                    "to its end first, or load the bundle twice"
                )
            return next(source, None), self._generator.bytes_read

        read = self._user.call(begin, self._in_use)
        try:
            while True:
                event, now = self._user.call(go_on, self._in_use)
                # A session that had to be opened anew counts from nothing.
                read = read if now >= read else 0
                if event is None:
                    return
                yield shown.event(event, now - read)
        finally:
            if self._current is source:
                self._leave()

    def _leave(self) -> None:
        """End the generation that is under way, if one is."""
        source, self._current = self._current, None
        if source is not None:
            source.close()

    def _check_open(self) -> None:
        if self._closed:
            raise GenerationEnded(f"{self.path}: the model is closed; load the bundle again")

    def _in_use(self) -> GenerationEnded:
        return GenerationEnded(
            f"{self.path}: the model is in use, by another thread or by the call that this one comes from; "
            "take turns, or load the bundle twice"
        )


def _bytes(name: str, value: int | str | None, least: int) -> int | None:
    value = plain(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidOption(f"{name} is {shown(value)}; use a number of bytes, or text such as '1.5GB'")
    try:
        count = parse_size(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InvalidOption(f"{name}: {error}") from error
    check_bytes(name, count, least)
    return count
