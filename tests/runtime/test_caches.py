"""Keys and values of the pass that begins a block serve its other steps, as Fast-dLLM has it, or those of
tokens that were there in the pass before, as dKV-Cache has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.budgets import tight
from support.bundles import make_bundle, quantized_reference
from support.cached_canvas import DreamLoop, LladaLoop
from support.reference_packages import packaged
from support.sampler_runs import committed, plain

from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.runtime.generation import Generator, Settings, sampler_model
from edgekit.runtime.sampling import Committed, CoreSampler, Crop, Done, Draft, InvalidOption, Pass, drive
from edgekit.runtime.session import Session, SessionOptions, Together, open_session
from edgekit.tools.cli import main

#: Token ids. Ends of the answer are left alone here, so that every answer is whole.
MASKS = {"llada": 2, "dream": 4}
MASK = MASKS["llada"]
CACHES = ["prefix", "dual", "delayed"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small cost less than waking threads for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Model:
    """A random checkpoint as a bundle, and as the reference of the same function."""

    family: str
    bundle: Path
    reference: ReferenceModel

    def expected(
        self, prompt: list[int], cache: str, answer: list[int], seed: int, options: dict[str, Any]
    ) -> tuple[list[int], list[int]]:
        """The answer of the plain loop, and the rows of its passes."""
        if self.family == "llada":
            loop: LladaLoop | DreamLoop = LladaLoop(self.reference, cache, MASK, seed=seed, **options)
        else:
            loop = DreamLoop(self.reference, cache, MASKS["dream"], **options)
        return loop.run(prompt, answer), loop.passes


def make_model(folder: Path, written: str = "native", family: str = "llada") -> Model:
    scheme = Scheme("bf16")
    layers = {"llada": "n_layers", "dream": "num_hidden_layers"}[family]
    bundle = make_bundle(folder, family, scheme, 0, written, dtype="bfloat16", **{layers: 2})
    return Model(family, bundle, quantized_reference(folder / "checkpoint", scheme, written))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("llada"))


@pytest.fixture(scope="module")
def dream(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("dream"), family="dream")


@pytest.fixture
def of_family(model: Model, dream: Model) -> dict[str, Model]:
    return {"llada": model, "dream": dream}


def prompt_of(seed: int, length: int = 7) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(6, 384, length)]


def settings(cache: str, answer: list[int], seed: int, options: dict[str, Any]) -> Settings:
    own = {"cache": cache, "canvas": answer, "stop_at_eos": False, **options}
    if MASKS["dream"] in answer and "threshold" in options:
        own["alg"] = "maskgit_plus"
    return Settings(seed=seed, options=own)


def steps_of(answer: list[int], options: dict[str, Any]) -> dict[str, Any]:
    return {"steps": len(answer), **options}


def check(
    model: Model, generator: Generator, cache: str, answer: list[int], seed: int, options: dict[str, Any]
) -> None:
    options, prompt = steps_of(answer, options), prompt_of(seed)
    expected, passes = model.expected(prompt, cache, answer, seed, options)
    events = list(generator.generate(prompt, settings(cache, answer, seed, options)))
    assert committed(events) == expected
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.stats.forwards, done.stats.rows) == (len(passes), sum(passes))


#: By name: options of the procedure, for answers of 24 tokens.
PROCEDURES: dict[str, dict[str, Any]] = {
    "schedule": {"block_length": 8, "steps": 12},
    "one a step": {"block_length": 6},
    "one block": {"block_length": 24, "steps": 10},
    "threshold": {"block_length": 8, "threshold": 0.012},
    "factor": {"block_length": 12, "factor": 2.96},
    "noise": {"block_length": 8, "steps": 15, "temperature": 0.7},
    "noise, threshold": {"block_length": 12, "threshold": 0.012, "temperature": 0.5},
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", PROCEDURES)
def test_tokens_and_rows_are_those_of_the_plain_loop(model: Model, name: str, cache: str) -> None:
    with Generator(model.bundle) as generator:
        for seed in range(3):
            check(model, generator, cache, [MASK] * 24, seed, PROCEDURES[name])


#: Of answers of 24 tokens.
DREAMS: dict[str, dict[str, Any]] = {
    "schedule": {"block_length": 8, "steps": 15},
    "one a step": {"block_length": 6, "steps": 24},
    "most steps unmask nothing": {"block_length": 12, "steps": 60},
    "one block": {"block_length": 24, "steps": 10},
    "threshold": {"block_length": 8, "threshold": 0.012},
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", DREAMS)
def test_dreams_tokens_and_rows_are_those_of_the_plain_loop(dream: Model, name: str, cache: str) -> None:
    with Generator(dream.bundle) as generator:
        for seed in range(3):
            check(dream, generator, cache, [MASKS["dream"]] * 24, seed, DREAMS[name])


#: Lengths of prompt, answer and block.
SHAPES = [(7, 24, 8), (1, 10, 10), (13, 20, 5), (0, 9, 3)]


@pytest.mark.parametrize("family", MASKS)
@pytest.mark.parametrize("refresh", [1, 2, 3, 5, 100])
def test_a_delayed_cache_is_computed_anew_every_so_many_passes(
    of_family: dict[str, Model], family: str, refresh: int
) -> None:
    model, mask, loops = of_family[family], MASKS[family], {"llada": LladaLoop, "dream": DreamLoop}
    rules: list[dict[str, Any]] = [{}, {"threshold": 0.012}]
    if family == "llada":
        rules.append({"temperature": 0.6})
    found = []
    with open_session(model.bundle) as session:
        facts = sampler_model(session.bundle)
        for seed, (before, length, block) in enumerate(SHAPES):
            prompt, answer = prompt_of(seed, before), [mask] * length
            if not prompt:
                answer[4] = 9  # rows of masks alone are all alike
            for rule in rules:
                options = {"block_length": block, "steps": length, **rule}
                more: dict[str, Any] = {"seed": seed} if family == "llada" else {}
                loop = loops[family](model.reference, "delayed", mask, refresh=refresh, **options, **more)
                expected = loop.run(prompt, answer)
                own = dict(settings("delayed", answer, seed, options).options)
                sampler = CoreSampler(facts, prompt, seed=seed, options={**own, "cache_refresh": refresh})
                assert committed(list(drive(sampler, session))) == expected
                assert (sampler.stats.forwards, sampler.stats.rows) == (len(loop.passes), sum(loop.passes))
                found.append((sampler.stats.rows, expected))
                if refresh == 1:
                    without = CoreSampler(facts, prompt, seed=seed, options={**own, "cache": "none"})
                    assert committed(list(drive(without, session))) == expected
                    assert without.stats.rows == sampler.stats.rows
    assert len(found) == len(SHAPES) * len(rules)


@pytest.mark.parametrize("options", [{"alg": "origin"}, {"alg_temp": 0.5, "temperature": 0.8, "top_p": 0.9}])
def test_a_delayed_cache_of_one_pass_is_none(dream: Model, options: dict[str, Any]) -> None:
    answers, rows = [], []
    with Generator(dream.bundle) as generator:
        for more in ({}, {"cache": "delayed", "cache_refresh": 1}, {"cache": "delayed", "cache_refresh": 3}):
            own = {"stop_at_eos": False, "block_length": 12, "steps": 14, **options, **more}
            events = list(generator.generate(prompt_of(4), Settings(24, seed=4, options=own)))
            assert isinstance(events[-1], Done)
            answers.append(committed(events))
            rows.append(events[-1].stats.rows)
    assert answers[0] == answers[1]
    assert rows[2] < rows[1]


def test_a_step_over_a_delayed_cache_is_begun_again(of_family: dict[str, Model]) -> None:
    """With another seed, as if its pass had not been asked for."""
    asked: list[object] = []
    for family, model in of_family.items():
        options = dict(settings("delayed", [MASKS[family]] * 24, 2, NOISY[family]).options)
        for stop in (1, 4, 6):
            answers = []
            for late in (False, True):
                with open_session(model.bundle) as session:
                    sampler = CoreSampler(
                        sampler_model(session.bundle), prompt_of(2), seed=2, options=options
                    )
                    running = drive(sampler, session)
                    events = [plain(next(running)) for _ in range(stop)]
                    running.close()
                    if late:
                        ask = sampler.next()
                        if isinstance(ask, Crop):  # counts as done when the sampler goes on
                            session.crop(ask.length)
                        asked.append(ask)
                    sampler.reseed(9)
                    events += [plain(event) for event in drive(sampler, session)]
                answers.append(events)
            assert answers[0] == answers[1] != whole_run(model, options)
    assert {type(ask) for ask in asked} == {Pass, Crop}


@pytest.mark.parametrize("family", MASKS)
@pytest.mark.parametrize("cache", CACHES)
def test_what_is_given_stays_behind_the_block_too(
    of_family: dict[str, Model], family: str, cache: str
) -> None:
    draw, mask = np.random.default_rng(5), MASKS[family]
    with Generator(of_family[family].bundle) as generator:
        for seed in range(4):
            given = np.where(draw.random(24) < 0.4, draw.integers(6, 384, 24), mask).tolist()
            given[8:16] = [mask] * 8 if seed else draw.integers(6, 384, 8).tolist()  # nothing is open
            given[0] = 9  # what begins a block is not open
            for options in ({"block_length": 8, "threshold": 0.012}, {"block_length": 8}):
                check(of_family[family], generator, cache, given, seed, options)


@pytest.mark.parametrize("cache", CACHES)
def test_the_cache_matters(model: Model, cache: str) -> None:
    """What it gives is not what passes over everything give, else these tests would compare nothing."""
    options = {"block_length": 8, "steps": 24}
    with Generator(model.bundle) as generator:
        answers = [
            [
                committed(list(generator.generate(prompt_of(seed), settings(kind, [MASK] * 24, 0, options))))
                for seed in range(4)
            ]
            for kind in ("none", cache)
        ]
    assert answers[0] != answers[1]


# Sessions, engines, and generations that do not go straight on.

RULE: dict[str, Any] = {"block_length": 8, "threshold": 0.012}
ANSWER = [MASK] * 24


def test_a_budget_has_room_for_the_cache_without_being_told(model: Model) -> None:
    length = len(prompt_of(0)) + len(ANSWER)
    with Generator(model.bundle) as generator:
        options = SessionOptions(positions=length, canvas=length, cached=length)
        without, needed = generator.plan(replace(options, cached=0)), generator.plan(options)
        # Keys and values of two layers with four heads of 16 channels, in float32.
        assert needed.least_memory_bytes - without.least_memory_bytes >= 2 * 2 * 4 * 16 * 4 * length
    budget = tight(model.bundle, positions=length, canvas=length, cached=length).memory_bytes
    for cache in CACHES:
        with Generator(model.bundle, memory_bytes=budget) as generator:
            uncached = settings("none", ANSWER, 0, RULE)
            assert committed(list(generator.generate(prompt_of(0), uncached)))
            assert generator.session.options.cached == 0
            check(model, generator, cache, ANSWER, 0, RULE)
            assert generator.session.options.cached == length


def test_the_command_line_opens_what_a_cache_needs(shipped_bundle: Callable[..., Path]) -> None:
    path = shipped_bundle("tiny-llada")
    words = [
        "run",
        str(path),
        "Copy this: blue 5 green",
        "--max-new-tokens",
        "32",
        "--memory",
        "8GB",
        "--json",
    ]
    found = []
    for cache in ("none", *CACHES):
        result = CliRunner().invoke(main, [*words, "--set", f"cache={cache}", "--set", "block_length=8"])
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout))
    assert all(each["text"].split() == found[0]["text"].split() for each in found)


@pytest.mark.parametrize("written", ["onnx", "mlx"])
def test_other_engines_keep_rows_too(tmp_path: Path, written: str) -> None:
    pytest.importorskip({"onnx": "onnxruntime", "mlx": "mlx.core"}[written])
    model = make_model(tmp_path, written)
    length = len(prompt_of(0)) + len(ANSWER)
    for memory in (None, tight(model.bundle, positions=length, canvas=length, cached=length).memory_bytes):
        with Generator(model.bundle, memory_bytes=memory) as generator:
            for cache in CACHES:
                check(model, generator, cache, ANSWER, 1, RULE)
                check(model, generator, cache, ANSWER, 1, {"block_length": 12, "steps": 14})


@pytest.mark.parametrize("family", MASKS)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("last", [1, 2, 4, 7])
def test_a_hurried_one_settles_everything_in_its_last_pass(
    of_family: dict[str, Model], family: str, cache: str, last: int
) -> None:
    model, answer, prompt = of_family[family], [MASKS[family]] * 24, prompt_of(3)
    options = steps_of(answer, {"block_length": 8, "steps": 12})
    loops = {"llada": LladaLoop, "dream": DreamLoop}
    loop = loops[family](model.reference, cache, MASKS[family], last=last, **options)
    expected = loop.run(prompt, answer)
    with Generator(model.bundle) as generator:
        own = settings(cache, answer, 0, options).options
        sampler = CoreSampler(sampler_model(generator.bundle), prompt, options=own)
        sampler.hurry(last)
        generator.prepare(prompt, Settings(options=own))
        events = list(drive(sampler, generator.session))
    assert committed(events) == expected
    assert MASKS[family] not in expected
    assert sampler.stats.forwards == len(loop.passes) == last
    assert sampler.stats.rows == sum(loop.passes)


#: What draws, and what asks twice where the nucleus of a row is larger than its candidates.
NOISY: dict[str, dict[str, Any]] = {
    "llada": {"block_length": 8, "temperature": 0.5},
    "dream": {"block_length": 8, "temperature": 0.9, "steps": 18},
    "dream, top_p": {"block_length": 8, "temperature": 9.0, "top_p": 0.95, "logits_budget_bytes": 1 << 12},
}


def whole_run(model: Model, options: dict[str, Any]) -> list[tuple[Any, ...]]:
    with open_session(model.bundle) as session:
        sampler = CoreSampler(sampler_model(session.bundle), prompt_of(2), seed=2, options=options)
        return [plain(event) for event in drive(sampler, session)]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("way", ["save", "copy", "restore"])
@pytest.mark.parametrize("case", NOISY)
def test_it_goes_on_from_the_middle_of_a_block(
    of_family: dict[str, Model], case: str, cache: str, way: str
) -> None:
    """Over a session that holds nothing of it; a copy over the same rows."""
    family = case.split(",")[0]
    model = of_family[family]
    options = dict(settings(cache, [MASKS[family]] * 24, 2, NOISY[case]).options)
    expected = whole_run(model, options)
    for stop in (1, 5, 9, 10):
        with open_session(model.bundle) as session, open_session(model.bundle) as other:
            facts = sampler_model(session.bundle)
            sampler = CoreSampler(facts, prompt_of(2), seed=2, options=options)
            running = drive(sampler, session)
            events = [plain(next(running)) for _ in range(stop)]
            running.close()
            beside: Any = session.sequence.copy() if way == "copy" else other
            sampler = CoreSampler.load(facts, sampler.save()) if way == "save" else sampler.copy()
            if way == "restore":
                sampler.restore()
            events += [plain(event) for event in drive(sampler, beside)]
        assert events == expected


def test_several_share_their_passes(model: Model) -> None:
    cases = [(cache, seed) for seed in range(2) for cache in ("delayed", "dual", "none", "prefix")]
    lengths = [8, 5, 11, 7, 7, 9, 6, 12]
    wanted = [settings(cache, ANSWER, seed, RULE).options for cache, seed in cases]
    prompts = [prompt_of(seed, length) for (_, seed), length in zip(cases, lengths, strict=True)]
    with open_session(model.bundle) as session:
        facts = sampler_model(session.bundle)
        alone = []
        for prompt, options in zip(prompts, wanted, strict=True):
            alone.append(committed(list(drive(CoreSampler(facts, prompt, options=options), session))))
    most = max(lengths) + len(ANSWER)
    options = tight(model.bundle, positions=most, cached=most, canvas=most, sequences=8)
    found: dict[int, list[int]] = {}
    with Session(model.bundle, options) as session, Together(session) as together:
        for number, (prompt, own) in enumerate(zip(prompts, wanted, strict=True)):
            text = session.open_sequence() if number else session.sequence
            together.join(number, CoreSampler(facts, prompt, options=own), text)
        while len(together):
            for key, event in together.step():
                assert not isinstance(event, Exception), event
                if isinstance(event, Committed):
                    found.setdefault(int(key), []).extend(event.ids.tolist())
    assert [found[number] for number in range(8)] == alone


def test_packages_without_a_prefix_refuse_a_cache(model: Model, tmp_path: Path) -> None:
    length = len(prompt_of(0)) + len(ANSWER)
    path = packaged(model.bundle, tmp_path / "packaged", model.reference, [(length, 0)])
    with (
        Generator(path) as generator,
        pytest.raises(InvalidOption, match="leave out cache, or export another"),
    ):
        next(generator.generate(prompt_of(0), settings("dual", ANSWER, 0, RULE)))


def test_what_a_cache_does_not_go_with_is_refused(model: Model, dream: Model) -> None:
    with Generator(model.bundle) as generator:
        for options, words in (
            (
                {"cache": "dual", "cfg_scale": 1.0},
                "cache dual goes with neither cfg_scale nor logits_eos_inf",
            ),
            (
                {"cache": "dual", "early_commit": 0.5},
                "early_commit looks at the whole answer.*use cache prefix",
            ),
            ({"cache": "both"}, "cache is .both.*none, prefix"),
            ({"cache": "delayed", "cfg_scale": 1.0}, "cache delayed goes with neither cfg_scale"),
            ({"cache": "delayed", "cache_refresh": 0}, "cache_refresh is 0"),
            ({"cache": "delayed", "draft_steps": 2}, "draft_steps 2 computes steps beside each other"),
            ({"cache": "dual", "cache_refresh": 4}, "cache_refresh is for cache delayed, not dual"),
            ({"cache_refresh": 4}, "cache_refresh is for cache delayed, not none"),
        ):
            with pytest.raises(InvalidOption, match=words):
                next(generator.generate(prompt_of(0), Settings(options=options)))
    with Generator(dream.bundle) as generator:
        for options, words in (
            ({"cache": "dual", "early_commit": 0.5}, "early_commit looks at the whole answer.*cache prefix"),
            ({"cache": "prefix", "alg": "origin"}, "alg origin unmasks at random.*use alg entropy"),
        ):
            with pytest.raises(InvalidOption, match=words):
                next(generator.generate(prompt_of(0), Settings(options=options)))


@pytest.mark.parametrize("alg", ["entropy", "maskgit_plus"])
def test_a_wide_nucleus_of_a_cached_pass_is_the_whole_one(dream: Model, alg: str) -> None:
    """Where one token is left behind the first, a pass over a part sees what one over everything sees."""
    mask, found = MASKS["dream"], []
    with Generator(dream.bundle) as generator:
        for cache in ("none", *CACHES):
            options = {"cache": cache, "canvas": [9, mask], "block_length": 2, "alg": alg, "steps": 2}
            options |= {"temperature": 9.0, "top_p": 0.95, "stop_at_eos": False}
            found.append([])
            for seed in range(12):
                events = list(generator.generate(prompt_of(1), Settings(seed=seed, options=options)))
                found[-1].append(committed(events))
                done = events[-1]
                assert isinstance(done, Done)
                assert done.stats.forwards == (1 if cache == "none" else 2)
    assert all(answers == found[0] for answers in found)
    assert len({tuple(answer) for answer in found[0]}) > 6


@pytest.mark.parametrize(
    "options", [{}, {"alg": "origin"}, {"threshold": 0.012}, {"temperature": 0.8, "top_k": 5}]
)
def test_one_block_of_dream_is_the_whole_answer(dream: Model, options: dict[str, Any]) -> None:
    """And several are decoded from left to right."""
    mask = MASKS["dream"]
    with Generator(dream.bundle) as generator:

        def drafts(**more: Any) -> list[list[int]]:
            own = Settings(24, seed=1, options={"stop_at_eos": False, **options, **more})
            events = generator.generate(prompt_of(1), own)
            return [event.ids.tolist() for event in events if isinstance(event, Draft)]

        assert drafts() == drafts(block_length=24)
        found = drafts(block_length=8)
        assert mask not in found[-1]
        for ids in found:
            first = ids.index(mask) // 8 if mask in ids else 2
            assert all(token == mask for token in ids[8 * first + 8 :])


@pytest.mark.parametrize("cache", ["prefix", "delayed"])
def test_early_commit_looks_beyond_the_block_with_a_cache(of_family: dict[str, Model], cache: str) -> None:
    for family, own in of_family.items():
        options = {"cache": cache, "block_length": 8, "early_commit": 1e-9, "stop_at_eos": False}
        with Generator(own.bundle) as generator:
            events = list(generator.generate(prompt_of(1), Settings(24, options=options)))
        assert isinstance(events[-1], Done)
        assert events[-1].stats.forwards == 1, family


#: A fifth of the tokens, so that random scores predict an end now and then.
ENDS = tuple(range(307, 384))


@pytest.mark.parametrize("cache", ["none", *CACHES])
@pytest.mark.parametrize("trim", [0.01, 0.9])
def test_what_is_behind_a_predicted_end_is_dropped(model: Model, cache: str, trim: float) -> None:
    """The plain loop keeps nothing where `cache` is none: it then computes all of what is left."""
    fewer = 0
    with Generator(model.bundle) as generator:
        for seed in range(4):
            prompt = prompt_of(seed)
            options: dict[str, Any] = {"block_length": 6, "steps": 24, "seed": seed}
            loops = [
                LladaLoop(model.reference, cache, MASK, trim=bound, ends=ENDS, **options)
                for bound in (trim, None)
            ]
            expected, plain_answer = (loop.run(prompt, ANSWER) for loop in loops)
            own = {"cache": cache, "canvas": ANSWER, "block_length": 6, "eos_token_ids": list(ENDS)}
            for bound, answer, loop in ((trim, expected, loops[0]), (None, plain_answer, loops[1])):
                events = list(generator.generate(prompt, Settings(seed=seed, options={**own, "trim": bound})))
                assert committed(events) == answer
                done = events[-1]
                assert isinstance(done, Done)
                assert (done.stats.forwards, done.stats.rows) == (len(loop.passes), sum(loop.passes))
            fewer += sum(loops[0].passes) < sum(loops[1].passes)
    assert (fewer > 0) == (trim < 0.9)


def test_a_trimmed_one_is_saved_and_hurried(model: Model) -> None:
    options: dict[str, Any] = {"cache": "dual", "canvas": ANSWER, "block_length": 6, "trim": 0.008}
    options |= {"eos_token_ids": list(ENDS)}
    with open_session(model.bundle) as session:
        facts = sampler_model(session.bundle)
        whole = [plain(e) for e in drive(CoreSampler(facts, prompt_of(1), options=options), session)]
        for stop in range(1, len(whole)):
            sampler, events = CoreSampler(facts, prompt_of(1), options=options), []
            running = drive(sampler, session)
            events = [plain(next(running)) for _ in range(stop)]
            running.close()
            sampler = CoreSampler.load(facts, sampler.save())
            events += [plain(event) for event in drive(sampler, session)]
            assert events == whole
        for passes in (1, 2, 3):
            sampler = CoreSampler(facts, prompt_of(1), options=options)
            sampler.hurry(passes)
            answer = committed(list(drive(sampler, session)))
            assert MASK not in answer
            assert sampler.stats.forwards <= passes
        with pytest.raises(InvalidOption, match="trim drops .* stop_at_eos looks for"):
            CoreSampler(facts, prompt_of(1), options={"trim": 0.9, "stop_at_eos": False})
