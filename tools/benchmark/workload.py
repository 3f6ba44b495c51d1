"""What a session is given to do while it is measured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from edgekit.runtime.bench import Bench
from edgekit.runtime.errors import PassTooLong
from edgekit.runtime.generation import Generator, Settings, longest
from edgekit.runtime.sampling import CoreSampler, Done, drive
from edgekit.runtime.sampling.errors import InvalidPrompt
from edgekit.runtime.sampling.events import Event
from edgekit.runtime.sampling.options import Lengths
from edgekit.runtime.session import Session
from edgekit.runtime.session.sequence import Sequence
from edgekit.runtime.session.together import Together
from edgekit.tools.benchmark.cases import MOST_SPANS, MOST_TOKENS, Case

#: What is asked where nobody says.
PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain in two sentences how a bill becomes a law.",
    "Tell a short story about a lighthouse keeper.",
)
#: Random tokens are from here to there: special ones lie below or behind, as a rule.
FIRST_TOKEN, LAST_TOKEN = 5, 1000
#: Units beside layers and vocabulary: last norm, self-conditioning.
_OTHER_UNITS = 2
#: Denoising passes whose spans are kept for a timeline, and one for heads that are run once more.
_SHOWN_PASSES = 3


def settings_of(case: Case, seed: int = 0) -> Settings:
    """The settings of one of its generations."""
    others = {name: value for name, value in case.settings.items() if name != "steps"}
    return Settings(case.new_tokens, case.settings.get("steps"), seed, others)


def sampler_of(generator: Generator, prompt: list[int], settings: Settings) -> CoreSampler:
    """See `Generator.sampler`; what is wrong with a length names the option of `bench`."""
    try:
        return generator.sampler(prompt, settings)
    except PassTooLong as error:
        raise PassTooLong(error.found, error.fits, "--new-tokens {0}") from error


class Workload:
    """The generations of a case, as many at once as it says. Equal runs have equal prompts and seeds."""

    def __init__(self, case: Case, generator: Generator) -> None:
        """Raises EdgekitError for settings and prompts that do not fit the model."""
        self.case, self._generator = case, generator
        count = case.sequences
        if case.tokens is None:
            texts = case.prompts or PROMPTS
            self._prompts = [generator.encode(texts[i % len(texts)]) for i in range(count)]
        else:
            most = generator.bundle.model.max_positions or MOST_TOKENS
            if case.tokens > most:
                raise InvalidPrompt(
                    f"a prompt of {case.tokens:,} tokens passes the model's {most:,} positions; use fewer "
                    "--prompt-tokens"
                )
            stop = min(LAST_TOKEN, generator.bundle.model.vocab_size)
            draw = np.random.default_rng(0).integers(min(FIRST_TOKEN, stop - 1), stop, (count, case.tokens))
            self._prompts = draw.tolist()
        self._settings = [settings_of(case, seed) for seed in range(count)]

    def samplers(self) -> list[CoreSampler]:
        """New ones, of a run."""
        return [
            sampler_of(self._generator, prompt, settings)
            for prompt, settings in zip(self._prompts, self._settings, strict=True)
        ]

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts of a run."""
        return sum(map(len, self._prompts))

    @property
    def new_tokens(self) -> int:
        """Of an answer, at most."""
        return self._lengths(0).new_tokens

    @property
    def spans(self) -> int:
        """Reads, waits and uses of a run until its prompts are encoded and two denoising passes are over, or
        some more.
        """
        model = self._generator.bundle.model
        tables = [model.embedding, *([] if model.head is None else [model.head])]
        units = len(model.layers) + sum(len(table.runs) for table in tables) + _OTHER_UNITS
        reads = units + sum(len(layer.experts) for layer in model.layers)
        encoded = sum(-(-len(p) // self._lengths(i).canvas) for i, p in enumerate(self._prompts))
        return min(MOST_SPANS, (encoded + _SHOWN_PASSES) * (reads + 2 * units))

    def _lengths(self, number: int) -> Lengths:
        """Of an answer by its number."""
        lengths = self._generator.options(self._settings[number], len(self._prompts[number])).lengths
        assert lengths is not None, "they were asked for"
        return lengths

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """The session, once it is open. Raises BudgetExceeded, and what opening a session raises."""
        lengths = longest([sampler.lengths for sampler in self.samplers()], 1)
        with self._generator.branching(lengths, self.case.sequences) as (session, together, turn):
            yield Opened(self, session, together, turn.texts(session, self.case.sequences))


class Interrupted(Exception):
    """A run is not to come to its end."""


class Opened:
    """A workload with a session that it runs in."""

    def __init__(
        self, workload: Workload, session: Session, together: Together, sequences: list[Sequence]
    ) -> None:
        self.workload, self.session = workload, session
        self._together, self._sequences = together, sequences

    def run(self, bench: Bench | None = None, ending: threading.Event | None = None) -> None:
        """All generations once, told to `bench`. Raises what one of them fails with, and Interrupted as soon
        as `ending` is set.
        """
        samplers, most = self.workload.samplers(), self.workload.case.forwards
        before = self._passes()
        for told in self._events(samplers):
            if ending is not None and ending.is_set():
                raise Interrupted
            for number, event in told:
                if bench is not None:
                    bench.tell(number, event, samplers[number])
            if most and self._passes() - before >= most:
                break
        self.session.idle()

    def _passes(self) -> int:
        return int(self.session.counters()["denoise_passes"])

    def _events(self, samplers: list[CoreSampler]) -> Iterator[list[tuple[int, Event]]]:
        """What is told at a time, with the number of who tells it."""
        if len(samplers) == 1:
            for event in drive(samplers[0], self.session):
                yield [(0, event)]
            return
        for number, sampler in enumerate(samplers):
            self._together.join(number, sampler, self._sequences[number])
        try:
            running = len(samplers)
            while running:
                events = list[tuple[int, Event]]()
                for key, told in self._together.step():
                    assert isinstance(key, int), "they joined by number"
                    if isinstance(told, Exception):
                        raise told
                    running -= isinstance(told, Done)
                    events.append((key, told))
                yield events
        finally:
            self._together.close()
