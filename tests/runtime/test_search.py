"""Search over bundles: exact branches, what is shared, verifiers, budgets and errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgekit
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import Committed, CoreSampler, Done, Draft, HeadRequest, drive
from edgekit.runtime.search import Plan, search, verifier_of
from edgekit.runtime.search.scorer import MASKS, Scorer, _masks
from edgekit.runtime.session import Segment, SessionOptions, open_session
from edgekit.tools.bench.search import measure

JSON = "Write as JSON: name: Ada; age: 31; city: Rome"
#: So hot that answers differ.
HOT: dict[str, dict[str, Any]] = {
    "tiny-llada": {"temperature": 8.0, "steps": 16, "max_new_tokens": 32, "block_length": 16},
    "tiny-gemma": {
        "entropy_bound": 1000.0,
        "steps": 4,
        "t_max": 3.0,
        "t_min": 2.0,
        "stability_threshold": None,
    },
}
#: Of the second there are many right answers.
ASK = {
    "tiny-llada": JSON,
    "tiny-gemma": "Write a story with Mia, a bell, the lake, the market and the barn.",
}


@pytest.fixture(scope="module", params=["tiny-llada", "tiny-gemma"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bundle(name: str, shipped_bundle: Callable[..., Path]) -> Path:
    return shipped_bundle(name, "native")


@pytest.fixture(scope="module")
def model(bundle: Path) -> Iterator[edgekit.Model]:
    with edgekit.load(bundle) as opened:
        yield opened


@pytest.fixture(scope="module")
def llada(shipped_bundle: Callable[..., Path]) -> Iterator[edgekit.Model]:
    with edgekit.load(shipped_bundle("tiny-llada", "native")) as opened:
        yield opened


def settings_of(options: dict[str, Any]) -> Settings:
    options = dict(options)
    own = {key: options.pop(key, None) for key in ("steps", "max_new_tokens")}
    return Settings(**own, seed=3, options=options)


def length(attempt: edgekit.Attempt) -> float:
    return len(attempt.text) + sum(attempt.ids) / 1e6


def forked(bundle: Path, name: str, fork: int, other: int) -> tuple[list[int], int]:
    """A generation alone whose seed changes behind a step; its tokens and the positions that it computed."""
    with Generator(bundle) as generator:
        ids = edgekit.Model(generator).encode(ASK[name])
        sampler = generator.sampler(ids, settings_of(HOT[name]))
        lengths = sampler.lengths
        with open_session(bundle, SessionOptions(positions=lengths.prefix, canvas=lengths.canvas)) as session:
            tokens: list[int] = []
            done = 0
            while True:
                for event in drive(sampler, session):
                    if isinstance(event, Committed):
                        tokens += (event.ids if event.text is None else event.text).tolist()
                    done += isinstance(event, Draft)
                    if isinstance(event, Draft) and done == fork:
                        sampler.reseed(other)
                        done += 1
                        break
                    if isinstance(event, Done):
                        return tokens, event.stats.rows


def test_branches_are_the_generations_that_fork_there(model: edgekit.Model, bundle: Path, name: str) -> None:
    found = model.search(ASK[name], verifier=length, branches=4, share=0.5, seed=3, **HOT[name])
    alone = model.generate(ASK[name], seed=3, **HOT[name])
    shared = found.statistics.shared_steps
    assert shared > 1 and found.branches[0].ids == tuple(alone.ids[: len(found.branches[0].ids)])
    assert len({branch.ids for branch in found.branches}) == 4
    rows = 0
    for branch in found.branches:
        tokens, own = forked(bundle, name, shared, 3 + branch.number)
        assert branch.ids == tuple(tokens[: len(branch.ids)]) and len(tokens) <= len(branch.ids) + 1
        assert (branch.seed, branch.parent) == (3 + branch.number, None if branch.number == 0 else 0)
        rows += own
    if name == "tiny-llada":  # every pass computes prompt and answer
        once = rows / sum(branch.steps for branch in found.branches)
        steps = shared + sum(branch.steps - shared for branch in found.branches)
        assert found.statistics.rows == steps * once
    scores = [branch.score for branch in found.branches]
    assert found.score == max(s for s in scores if s is not None) == scores[found.best]
    assert found.answer.ids[: len(found.branches[found.best].ids)] == found.branches[found.best].ids


def test_the_events_are_those_of_the_best_branch(model: edgekit.Model, name: str) -> None:
    found = model.search(ASK[name], verifier=lambda a: -a.branch, branches=3, share=0.5, seed=3, **HOT[name])
    assert found.best == 0
    plain = list(model.events(ASK[name], seed=3, **HOT[name]))
    assert found.events[:-1] == tuple(plain[:-1])
    assert isinstance(found.events[-1], edgekit.Done) and found.events[-1].answer == found.answer
    assert found.answer.statistics.steps == found.branches[0].steps


@pytest.mark.parametrize("method", ["best_of", "prune", "back"])
def test_equal_seeds_give_equal_searches(model: edgekit.Model, name: str, method: Any) -> None:
    def once() -> Any:
        found = model.search(
            ASK[name],
            verifier=length,
            branches=3,
            share=0.3,
            method=method,
            every=1 if method == "prune" else None,
            rounds=1 if method == "back" else None,
            seed=5,
            **HOT[name],
        )
        assert found.statistics.passes < sum(branch.steps for branch in found.branches)
        return found.branches

    branches = once()
    assert branches == once()
    assert any(branch.pruned for branch in branches) == (method == "prune")
    assert (len(branches) > 3) == (method != "best_of")
    for branch in branches:
        assert branch.parent is None or branch.parent < branch.number
        assert branch.forked_at <= branch.steps


def test_an_answer_that_ends_before_the_fork_is_forked_late(model: edgekit.Model, name: str) -> None:
    found = (
        model.search(JSON, verifier="json", branches=3, share=0.9, seed=1, temperature=0.5)
        if (name == "tiny-llada")
        else model.search(JSON, verifier="json", branches=3, share=0.9, seed=1)
    )
    assert 0 < found.statistics.shared_steps <= 0.9 * found.branches[0].steps
    assert [branch.forked_at for branch in found.branches[1:]] == [found.statistics.shared_steps] * 2
    assert (found.score, found.best) == (1.0, 0)


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("model_name", ["tiny-gemma", "tiny-llada", "tiny-block"])
def test_an_answer_that_ends_at_once_is_gone_back_from(
    shipped_bundle: Callable[..., Path], model_name: str, branches: int
) -> None:
    hot: dict[str, dict[str, Any]] = {
        "tiny-gemma": {"steps": 1},
        "tiny-llada": {"temperature": 0.7, "early_commit": 0.1},
        "tiny-block": {"temperature": 0.7},
    }
    with edgekit.load(shipped_bundle(model_name, "native")) as opened:
        for share in (0.3, 0.8):
            found = opened.search(
                "What is 23 + 45?",
                verifier="regex:zzz",
                branches=branches,
                method="back",
                share=share,
                **hot[model_name],
            )
            assert len(found.branches) == branches + 2 * max(1, branches - 1)
            assert all(branch.forked_at <= branch.steps for branch in found.branches)
            plain = opened.generate("What is 23 + 45?", **hot[model_name]).ids
            assert found.branches[0].ids == tuple(plain[: len(found.branches[0].ids)])


def test_a_search_of_one_branch_is_a_plain_answer(llada: edgekit.Model) -> None:
    found = llada.search(JSON, verifier="json", branches=1, temperature=0)
    assert found.answer.ids == llada.generate(JSON, temperature=0).ids and found.score == 1


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_kept_canvases_are_shared_and_computed_again(
    llada: edgekit.Model, cache: str, shipped_bundle: Callable[..., Path]
) -> None:
    hot = HOT["tiny-llada"] | {"cache": cache}
    found = llada.search(JSON, verifier=length, branches=2, share=0.3, method="back", rounds=2, seed=2, **hot)
    assert len(found.branches) == 4
    first = llada.generate(JSON, seed=2, **hot)
    assert found.branches[0].ids == first.ids[: len(found.branches[0].ids)]
    again = llada.search(JSON, verifier=length, branches=2, share=0.3, method="prune", every=2, seed=2, **hot)
    assert again.branches[0].pruned or again.branches[0].ids == found.branches[0].ids


# What it costs.


def test_four_that_share_four_fifths_read_no_more_than_one(bundle: Path) -> None:
    found = measure(bundle, 4, 0.8, 0, {})
    assert found["shared_steps"] == 16 and found["steps"] == 20
    assert found["ratios"]["rows"] <= 1.7 and found["ratios"]["bytes_read"] <= 1.05
    assert found["ratios"]["passes"] == 1 and found["one"]["bytes_read"] > 10**7


# Verifiers.


def test_verifiers_see_parts_and_ends(model: edgekit.Model, name: str) -> None:
    seen: list[edgekit.Attempt] = []

    def see(attempt: edgekit.Attempt) -> bool:
        seen.append(attempt)
        return attempt.branch == 1

    found = model.search(
        ASK[name], verifier=see, branches=2, share=0.3, method="prune", every=2, seed=5, **HOT[name]
    )
    parts = [each for each in seen if not each.final]
    assert parts and found.score == float(found.best == 1)
    for each in seen:
        assert each.prompt_ids == model.encode(ASK[name])
        assert each.mask_id == model.mask_id
        assert each.open == (0 if model.mask_id is None else each.ids.count(model.mask_id))
        assert ("[[" in each.text) == (each.open > 0)
        if each.final:
            assert each.text == model.decode(each.ids) and not each.open
    if name == "tiny-llada":
        assert any(each.open for each in parts)


@pytest.mark.parametrize(
    "given,text,final,score",
    [
        ("json", '{"a": 1}', True, 1.0),
        ("json", '{"a": 1', True, 0.0),
        ("json", '{"a": NaN}', True, 0.0),
        ("json", "[" * 10**5, True, 0.0),
        ("json", '{"a": 1}', False, 1.0),
        ("json", '{"a": "x[[3]]}', False, 0.5),
        ("json", '{"a": [[1]]', False, 0.5),
        ("json", "12[[2]]", False, 0.5),
        ("json", "[1, x]", False, 0.5 * 4 / 6),
        ("regex:^[0-9]+$", "123", True, 1.0),
        ("regex:^[0-9]+$", "12a", True, 0.0),
        ("python:operator.truth", "x", True, 1.0),
    ],
)
def test_named_verifiers(given: str, text: str, final: bool, score: float) -> None:
    attempt = edgekit.Attempt(text, (1,), (2,), final, 0, 3)
    assert verifier_of(given).scores([attempt]) == [score]


def test_a_search_that_goes_back_is_content_with_what_is_right(llada: edgekit.Model) -> None:
    hot = HOT["tiny-llada"] | {"temperature": 0.3}
    found = llada.search(JSON, verifier="json", branches=2, method="back", rounds=50, seed=1, **hot)
    assert found.score == 1.0 and len(found.branches) == 2
    never = llada.search(JSON, verifier="regex:^x$", branches=2, method="back", rounds=3, seed=1, **hot)
    assert never.score == 0.0 and len(never.branches) == 5


def broken(attempt: edgekit.Attempt) -> float:
    raise KeyError("no\nsuch word")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def mute(attempt: edgekit.Attempt) -> float:
    raise Mute


def leaving(attempt: edgekit.Attempt) -> float:
    sys.exit(3)


async def later(attempt: edgekit.Attempt) -> float:
    return 1.0


@pytest.mark.parametrize(
    "verifier,said",
    [
        (broken, "the verifier broken raised KeyError: 'no\\nsuch word'"),
        (lambda a: None, "returned None; use a finite number, or true or false"),
        (lambda a: float("nan"), "returned nan; use a finite number"),
        (lambda a: "1", "returned '1'; use a finite number"),
        (lambda a: float("-inf"), "returned -inf; use a finite number"),
        (mute, "the verifier mute raised Mute: Mute"),
        (leaving, "the verifier leaving raised SystemExit: 3"),
        (later, "the verifier later returned <coroutine object later at"),
    ],
)
def test_a_verifier_that_fails_ends_the_search(
    model: edgekit.Model, name: str, verifier: Any, said: str
) -> None:
    with pytest.raises(edgekit.VerifierFailed) as caught:
        model.search(ASK[name], verifier=verifier, branches=2, **HOT[name])
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert model.generate("Copy this: red 7", seed=1).text == "red 7", "the model goes on"


@pytest.mark.parametrize(
    "arguments,said",
    [
        ({"verifier": "jsno"}, "the verifier is 'jsno'; use json, regex:PATTERN, likelihood"),
        ({"verifier": 3}, "the verifier is 3; use a function of an attempt"),
        ({"verifier": "regex:("}, "is no regular expression"),
        ({"verifier": "python:nowhere.f"}, "cannot be imported: ModuleNotFoundError"),
        ({"verifier": "python:f"}, "names no module"),
        ({"verifier": "python:math.pi"}, "name a function"),
        ({"verifier": "json", "branches": 0}, "branches is 0"),
        ({"verifier": "json", "branches": 65}, "branches is 65"),
        ({"verifier": "json", "share": 1.0}, "share is 1.0; use a number at least 0 and below 1"),
        ({"verifier": "json", "share": float("nan")}, "share is nan"),
        ({"verifier": "json", "every": 3}, "every is for method prune, not best_of; leave it out"),
        ({"verifier": "json", "method": "prune", "rounds": 2}, "rounds is for method back, not prune"),
        ({"verifier": "json", "method": "back", "depth": 0}, "depth is 0; use a number above 0 and below 1"),
        ({"verifier": "json", "method": "beam"}, "method is 'beam'; use one of best_of, prune, back"),
        ({"verifier": "json", "method": "prune", "every": 0}, "every is 0"),
        ({"verifier": "json", "method": "back", "rounds": 0}, "rounds is 0"),
        ({"verifier": "json", "temperature": 0.0}, "temperature is 0: the model draws nothing"),
        ({"verifier": "json", "continue_prefix": True}, "continue_prefix is not a setting here"),
        ({"verifier": "json", "nonsense": 1}, "nonsense"),
        ({"verifier": "confidence", "temperature": 1.0}, "use likelihood"),
    ],
)
def test_what_is_no_search_is_refused(llada: edgekit.Model, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(edgekit.InvalidOption) as caught:
        llada.search(JSON, **arguments)
    assert said in str(caught.value)


def test_a_model_that_denoises_random_tokens_has_no_likelihood(shipped_bundle: Callable[..., Path]) -> None:
    gemma = edgekit.load(shipped_bundle("tiny-gemma", "native"))
    with gemma, pytest.raises(edgekit.InvalidOption, match="no likelihood of an answer; use confidence"):
        gemma.search(JSON, verifier="likelihood")


@pytest.mark.parametrize("method", ["best_of", "prune"])
def test_a_models_own_opinion_tells_right_from_wrong(model: edgekit.Model, name: str, method: Any) -> None:
    own = "likelihood" if name == "tiny-llada" else "confidence"
    found = model.search(ASK[name], verifier=own, branches=4, share=0.2, seed=3, method=method, **HOT[name])
    assert all(branch.score is not None and branch.score < 0 for branch in found.branches)
    alone = model.search(
        ASK[name], verifier=length, branches=4, share=0.2, seed=3, method="best_of", **HOT[name]
    )
    if method == "best_of":  # scoring does not disturb what is scored
        assert [b.ids for b in alone.branches] == [b.ids for b in found.branches]


def test_a_judge_is_another_model_within_the_budget(shipped_bundle: Callable[..., Path]) -> None:
    judge = f"bundle:{shipped_bundle('tiny-gemma', 'native')}"
    hot = HOT["tiny-llada"]
    with edgekit.load(shipped_bundle("tiny-llada", "native")) as free:
        expected = free.search(JSON, verifier=judge, branches=2, seed=3, **hot)
        assert all(branch.score is not None and branch.score < 0 for branch in expected.branches)
        with pytest.raises(edgekit.BundleError):
            free.search(JSON, verifier="bundle:nowhere", branches=2, **hot)
        with pytest.raises(edgekit.InvalidPrompt, match="a judge has tokens of its own"):
            free.search(free.encode(JSON), verifier=judge, branches=2, **hot)
        ids = free.encode(JSON)
    with Generator(shipped_bundle("tiny-llada", "native")) as generator:
        lengths = generator.sampler(ids, settings_of(hot)).lengths
        least = generator.plan(generator.session_options(lengths, 2)).least_memory_bytes
    small = edgekit.load(shipped_bundle("tiny-llada", "native"), memory=least + (4 << 20))
    with small, pytest.raises(edgekit.BudgetExceeded) as caught:
        small.search(JSON, verifier=judge, branches=2, seed=3, **hot)
    said = str(caught.value)
    assert "of the judge" in said and "tiny-gemma" in said and "\n" not in said
    enough = caught.value.needed_bytes + (24 << 20)  # the process grows meanwhile
    with edgekit.load(shipped_bundle("tiny-llada", "native"), memory=enough) as model:
        found = model.search(JSON, verifier=judge, branches=2, seed=3, **hot)
        assert found.branches == expected.branches


# The published estimate of a likelihood, once more.


def test_likelihood_is_the_published_estimate(shipped_bundle: Callable[..., Path]) -> None:
    for count in (1, 2, 7, 40):
        found = _masks(count)
        assert len(found) == MASKS and all(len(set(m.tolist())) == len(m) for m in found)
        sizes = sorted(len(m) for m in found)
        assert sizes[0] >= 1 and sizes[-1] <= count
        if count == 40:
            assert np.diff(sizes).max() <= 40 / MASKS + 1, "of all lengths alike"
    with open_session(shipped_bundle("tiny-llada", "native"), SessionOptions(sequences=2)) as session:
        mask = session.bundle.manifest.sampler["config"]["mask_token_id"]
        prompt, answers = np.array([5, 9, 20, 7]), [[30, 31, 32, 33, 34], [40, mask, 41]]
        texts = [session.sequence, session.open_sequence()]
        found = Scorer(session, prompt, texts).scores("likelihood", answers)
        for answer, score in zip(answers, found, strict=True):
            places = [i for i, token in enumerate(answer) if token != mask]
            total = 0.0
            for hidden in _masks(len(places)):
                hide = [places[i] for i in hidden]
                canvas = np.array([*prompt, *(mask if i in hide else t for i, t in enumerate(answer))])
                logits = session.denoise(canvas, HeadRequest(logits=True)).logits
                assert logits is not None
                scores = logits.astype(np.float64)
                p = scores - np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True))
                p -= scores.max(-1, keepdims=True)
                total += sum(p[len(prompt) + i, answer[i]] for i in hide) / (len(hide) / len(places))
            assert score == pytest.approx(total / MASKS / len(places), abs=1e-5)


@pytest.mark.parametrize("prompt", [[5, 9, 20, 7], [5]])
def test_likelihood_of_a_causal_pass_is_exact(tmp_path_factory: pytest.TempPathFactory, prompt: Any) -> None:
    from support.bundles import make_bundle

    folder = tmp_path_factory.mktemp("nemotron")
    bundle = make_bundle(folder, "nemotron_labs_diffusion", program_format="native", num_hidden_layers=2)
    answers = [[30, 31, 32, 33, 34] * 5, [40, 41, 42]]
    with open_session(bundle, SessionOptions(sequences=2, canvas=8)) as session:
        own = session.open_sequence()
        scorer = Scorer(session, np.array(prompt), [session.sequence], own)
        found = scorer.scores("likelihood", answers)
        for answer, score in zip(answers, found, strict=True):
            text = np.array([*prompt, *answer])
            session.reset()
            total = 0.0
            for at, token in enumerate(text[:-1]):
                segment = Segment(
                    session.sequence, np.array([token]), HeadRequest(logits=True), causal=True, keep_at=at
                )
                (head,) = session.run_pass([segment])
                assert head is not None and head.logits is not None
                if at + 1 >= len(prompt):
                    total += float(head.logits[0, text[at + 1]] - head.log_z[0])
            assert score == pytest.approx(total / len(answer), abs=1e-5)
        assert scorer.scores("likelihood", answers) == found, "whatever was scored before"


def test_confidence_is_of_the_whole_answer_shown(shipped_bundle: Callable[..., Path]) -> None:
    rng = np.random.default_rng(3)
    with open_session(shipped_bundle("tiny-gemma", "native"), SessionOptions(sequences=2)) as session:
        prompt, length = np.array([2, 9, 20, 7]), session.model.canvas_length
        assert length is not None
        answers = [rng.integers(5, 400, count).tolist() for count in (3, length + 9)]
        scorer = Scorer(session, prompt, [session.sequence], session.open_sequence())
        for answer, score in zip(answers, scorer.scores("confidence", answers), strict=True):
            session.reset()
            session.prefill(prompt)
            values: list[float] = []
            for start in range(0, len(answer), length):
                ids = np.array(answer[start : start + length])
                head = session.denoise(ids, HeadRequest(logits=True))
                assert head.logits is not None
                values += (head.logits[np.arange(len(ids)), ids] - head.log_z).tolist()
                session.prefill(ids)
            assert score == pytest.approx(np.mean(values), abs=1e-5)
        assert scorer.scores("confidence", [[]]) == [0.0]


def test_scores_are_those_of_all_rows_where_few_fit(
    shipped_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(shipped_bundle("tiny-llada", "native"), SessionOptions(sequences=2)) as session:
        texts = [session.sequence, session.open_sequence()]
        scorer = Scorer(session, np.array([5, 9]), texts)
        answers = [[30, 31, 32, 33, 34], [40, 41], [7, 8, 9]]
        found = scorer.scores("likelihood", answers)
        monkeypatch.setattr("edgekit.runtime.search.scorer.LOGIT_BYTES", 1)
        assert scorer.scores("likelihood", answers) == pytest.approx(found, abs=1e-6)


# Budgets.


def test_one_branch_more_than_there_is_room_for_is_refused_first(
    bundle: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Generator(bundle) as generator:
        lengths = generator.sampler(edgekit.Model(generator).encode(JSON), settings_of(HOT[name])).lengths
        least = generator.plan(generator.session_options(lengths, 3)).least_memory_bytes
    budget = least + (24 << 20)
    with edgekit.load(bundle, memory=budget) as model, pytest.raises(edgekit.BudgetExceeded) as caught:
        model.search(JSON, verifier="json", branches=64, **HOT[name])
    said = str(caught.value)
    room = int(said.split("room for ")[1].split()[0])
    assert "\n" not in said and f"take {room}" in said and caught.value.needed_bytes > budget
    runs = []
    real = CoreSampler.run
    monkeypatch.setattr(CoreSampler, "run", lambda *a: runs.append(1) or real(*a))
    with edgekit.load(bundle, memory=budget) as model:
        with pytest.raises(edgekit.BudgetExceeded, match=f"room for {room} branch"):
            model.search(JSON, verifier="json", branches=room + 1, **HOT[name])
        assert not runs
        found = model.search(JSON, verifier="json", branches=room, **HOT[name])
        assert len(found.branches) == room and runs
        assert len(model.search(JSON, verifier="json", **HOT[name]).branches) == min(4, room)


def test_the_turn_is_given_back(bundle: Path, name: str) -> None:
    with Generator(bundle) as generator:
        ids = edgekit.Model(generator).encode(ASK[name])
        settings = settings_of(HOT[name])
        for _ in range(2):
            found = search(generator, ids, settings, Plan(2, 0.5), 2, verifier_of("json"), lambda _: ids)
            assert generator.stats is found.best.stats
            assert generator.session.prefix_length == 0
