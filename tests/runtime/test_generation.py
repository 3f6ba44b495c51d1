"""The generator over several prompts: a conversation does not depend on when its session was opened anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.bundles import make_bundle
from support.sampler_runs import plain

from edgekit.flashload.errors import EdgekitError, InvalidRequest, OpenFailed
from edgekit.runtime.errors import PromptTooLong
from edgekit.runtime.generation import Generator, Prompt, Settings
from edgekit.runtime.sampling import Committed, Done, InvalidOption, InvalidPrompt

Turn = tuple[list[tuple[Any, ...]], int]

BUDGET = 8 << 30
#: Prompt, new tokens: every turn needs more positions than the one before.
TURNS = [("Why is the sky blue?", 16), ("And at night?", 40), ("Thank you.", 100)]


@pytest.fixture(scope="module", params=["native", "onnx"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return make_bundle(folder, "diffusion_gemma", program_format=request.param, num_hidden_layers=2)


def settings(new_tokens: int, seed: int, keep: bool) -> Settings:
    options: dict[str, Any] = {"eos_token_ids": [], "continue_prefix": keep}
    return Settings(max_new_tokens=new_tokens, steps=3, seed=seed, options=options)


def turn(generator: Generator, number: int) -> Turn:
    """Events without the engine's statistics, and how long the prefix is then."""
    prompt, new_tokens = TURNS[number]
    events = list(generator.generate(prompt, settings(new_tokens, number, number > 0)))
    assert isinstance(events[-1], Done)
    return [plain(event) for event in events], generator.session.prefix_length


def conversation(generator: Generator) -> list[Turn]:
    return [turn(generator, number) for number in range(len(TURNS))]


@pytest.fixture(scope="module")
def expected(bundle: Path) -> list[Turn]:
    """In a session that was long enough from the start."""
    with Generator(bundle, memory_bytes=BUDGET) as generator:
        list(generator.generate("x", settings(400, 0, False)))
        session = generator.session
        found = conversation(generator)
        assert generator.session is session
    lengths = [length for _, length in found]
    assert 0 < lengths[0] < lengths[1] < lengths[2], "the prefix is not continued: nothing is tested"
    return found


def test_a_conversation_goes_on_in_a_session_that_was_opened_anew(bundle: Path, expected: Any) -> None:
    with Generator(bundle, memory_bytes=BUDGET) as generator:
        positions = set()
        for number, wanted in enumerate(expected):
            assert turn(generator, number) == wanted
            positions.add(generator.session.options.positions)
        assert len(positions) == len(TURNS)


def test_without_a_budget_one_session_serves_all_lengths(bundle: Path, expected: Any) -> None:
    with Generator(bundle) as generator:
        assert turn(generator, 0) == expected[0]
        session = generator.session
        assert [turn(generator, 1), turn(generator, 2)] == expected[1:]
        assert generator.session is session


@pytest.mark.parametrize("what", ["open", "encode"])
def test_a_session_that_fails_to_open_anew_costs_no_conversation(
    bundle: Path, expected: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, away = bundle / "weights.safetensors", bundle / "away"
    with Generator(bundle, memory_bytes=BUDGET) as generator:
        turn(generator, 0)
        if what == "open":
            weights.rename(away)
            with pytest.raises(OpenFailed):
                turn(generator, 1)
            away.rename(weights)
        else:
            with monkeypatch.context() as patch:
                patch.setattr(type(generator.session), "prefill", refused)
                patch.setattr("tempfile.mkdtemp", no_room)  # so that the text has to be encoded again
                with pytest.raises(EdgekitError, match="refused"):
                    turn(generator, 1)
        with pytest.raises(EdgekitError, match="no session is open"):
            _ = generator.session
        assert [turn(generator, 1), turn(generator, 2)] == expected[1:]


def refused(session: Any, ids: Any) -> None:
    raise EdgekitError("refused")


def no_room(*_: Any) -> None:
    raise OSError("no room")


def test_a_new_prompt_forgets_the_conversation(bundle: Path, expected: Any) -> None:
    with Generator(bundle, memory_bytes=BUDGET) as generator:
        turn(generator, 0)
        prompt, new_tokens = TURNS[1]
        alone = list(generator.generate(prompt, settings(new_tokens, 1, False)))
    with Generator(bundle, memory_bytes=BUDGET) as generator:
        forgotten = list(generator.generate(prompt, settings(new_tokens, 1, True)))
        assert [plain(e) for e in alone] == [plain(e) for e in forgotten] != expected[1][0]
        assert turn(generator, 0) == expected[0]


def test_what_is_encoded_counts_towards_the_positions_of_the_model(bundle: Path) -> None:
    with Generator(bundle, memory_bytes=BUDGET) as generator:
        turn(generator, 0)
        limit, canvas = generator.bundle.model.max_positions, generator.bundle.model.canvas_length
        assert limit and canvas
        session = generator.session
        kept, prompt = session.prefix_length + len(session.uncached), len(generator.encode(Prompt("x"), 1))
        fits = (limit - prompt) // canvas * canvas
        assert kept + prompt + fits > limit
        with pytest.raises(PromptTooLong, match=f"^{kept + prompt} prompt tokens"):
            next(generator.generate("x", settings(fits, 0, True)))
        next(generator.generate("x", settings(fits, 0, False)))


def test_a_prompt_that_continues_follows_the_whole_answer_without_a_second_beginning(bundle: Path) -> None:
    with Generator(bundle) as generator:
        ids, said = generator.encode(Prompt(TURNS[0][0])), []
        for number, (prompt, new_tokens) in enumerate(TURNS[:2]):
            ids += generator.encode(Prompt(prompt), ids[-1]) if number else []
            for event in generator.generate(prompt, settings(new_tokens, number, number > 0)):
                ids += event.ids.tolist() if isinstance(event, Committed) else []
            held = [*generator.encoded, generator.session.uncached]
            said = [int(i) for piece in held for i in piece]
            assert said == ids
        text = generator.tokenizer.encode(TURNS[1][0])
        assert generator.encode(Prompt(TURNS[1][0], chat=False), ids[-1]) == text[1:], "the first begins it"


@pytest.mark.parametrize(
    "prompt", [None, b"bytes", 5, {"role": "user"}, [{"role": "user", "content": "Hi"}], ["Hi"]], ids=str
)
def test_what_is_no_prompt_is_told_what_one_is(bundle: Path, prompt: Any) -> None:
    with Generator(bundle) as generator:
        with pytest.raises(InvalidPrompt, match="give text, a Prompt, or token ids; edgekit.load takes mess"):
            next(generator.generate(prompt))
        ((number, error),) = generator.generate_many([prompt])
        assert number == 0 and "give text, a Prompt, or token ids" in str(error)


def test_a_closed_generator_stays_closed(bundle: Path) -> None:
    with Generator(bundle) as generator:
        list(generator.generate([3, 4], Settings(max_new_tokens=8, steps=2)))
    generator.close()
    for use in (generator.generate([3, 4]), generator.generate_many([[3, 4]])):
        with pytest.raises(InvalidRequest, match="the generator is closed; open another one"):
            next(use)
    with pytest.raises(InvalidRequest, match="the generator is closed"):
        generator.prepare([3, 4])


def test_a_generator_refuses_what_is_no_engine(bundle: Path) -> None:
    with pytest.raises(InvalidOption, match="unknown engine 5; supported: native"):
        Generator(bundle, engine=5)  # type: ignore[arg-type]
