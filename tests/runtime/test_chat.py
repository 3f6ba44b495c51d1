"""Conversations: every committed token stays, and a turn that was not finished leaves no trace."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bundles import make_bundle
from support.checkpoints import write_tokenizer

import edgekit
from edgekit.export.checkpoint.hub import SHIPPED_MODELS
from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.api.model import answer_of
from edgekit.runtime.generation import Settings
from edgekit.runtime.session import Sequence, read_saved
from edgekit.runtime.tokenizer import ChatTemplateError, Tokenizer

TURNS = ["Copy this: red 7", "Write as JSON: name: Ada; age: 31", "Copy this: cat 42"]
#: Bundles with random weights, which say nothing sensible but never the same, and end at their own tokens.
RANDOM = {
    "native gemma": ("diffusion_gemma", "native", {"num_hidden_layers": 2}),
    "onnx gemma": ("diffusion_gemma", "onnx", {"num_hidden_layers": 2}),
    "native llada": ("llada", "native", {"n_layers": 2}),
    "onnx dream": ("dream", "onnx", {"num_hidden_layers": 1}),
}


@pytest.fixture(scope="module", params=RANDOM)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, program_format, overrides = RANDOM[request.param]
    # ONNX Runtime computes with int8 on some processors only.
    scheme = Scheme("bf16") if program_format == "onnx" else None
    folder = tmp_path_factory.mktemp("random")
    return make_bundle(folder, family, scheme, program_format=program_format, **overrides)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Random bundles of the native format by family, once each."""

    @functools.cache
    def made(family: str) -> Path:
        return make_bundle(
            tmp_path_factory.mktemp(family), family, program_format="native", **KINDS[family][0]
        )

    return made


@pytest.fixture
def model(bundle: Path) -> Iterator[edgekit.Model]:
    with edgekit.load(bundle) as opened:
        yield opened


@pytest.fixture(scope="module", params=SHIPPED_MODELS)
def shipped(request: pytest.FixtureRequest, shipped_bundle: Callable[[str], Path]) -> Iterator[edgekit.Model]:
    with edgekit.load(shipped_bundle(request.param)) as opened:
        yield opened


def settings(seed: int) -> dict[str, Any]:
    return {"max_new_tokens": 40, "steps": 8, "seed": seed}


@pytest.fixture
def encoded_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call has encoded."""
    rows: list[int] = []
    prefill = Sequence.prefill

    def counted(self: Sequence, ids: Any) -> None:
        rows.append(len(ids))
        prefill(self, ids)

    monkeypatch.setattr(Sequence, "prefill", counted)
    return rows


# --- what the model is given --------------------------------------------------------------------------------


def test_a_turn_is_that_of_a_fresh_session_given_all_tokens(model: edgekit.Model) -> None:
    """At once; ONNX Runtime's sums depend on the shapes of its inputs, so there in the same pieces."""
    talk, answers, pieces = model.chat(raw=True), [], []
    pieced = model._generator.bundle.manifest.programs["format"] == "onnx"
    for seed, text in enumerate(TURNS):
        pieces.append(talk._state.encoded if pieced else [])
        answers.append(talk.generate(text, **settings(seed)))
    encode = model._tokenizer.encode
    ids: list[int] = []
    for seed, (text, answer) in enumerate(zip(TURNS, answers, strict=True)):
        ids += encode(text, add_special=seed == 0)
        assert answer.prompt_ids == tuple(ids), "all that was said, without a second begin token"
        with edgekit.load(model.path) as fresh:
            own = Settings(40, 8, seed)
            known = sum(map(len, pieces[seed]))
            alone = answer_of(fresh.run(ids, ids[known:], own, pieces[seed]))
        assert (answer.ids, answer.text) == (alone.ids, alone.text)
        assert alone.statistics.reused_tokens == 0
        causal = model.family == "diffusion_gemma"
        assert (answer.statistics.reused_tokens > 0) == (causal and seed > 0)
        ids += answer.ids
    assert talk.ids == tuple(ids)


def test_a_conversation_with_a_template_has_one_beginning_and_every_turn(shipped: edgekit.Model) -> None:
    talk = shipped.chat(system="Be brief.")
    for seed, text in enumerate(TURNS):
        before = talk.ids
        answer = talk.generate(text, seed=seed)
        assert answer.prompt_ids[: len(before)] == before
        assert talk.ids == answer.prompt_ids + answer.ids
    text = shipped.decode(talk.ids, skip_special=False)
    # Every answer ended by itself: the text is what the template makes of the messages, but for the line end.
    assert talk.messages[0] == {"role": "system", "content": "Be brief."}
    rendered = shipped._tokenizer.render_chat(talk.messages, add_generation_prompt=False)
    assert text == rendered.rstrip("\n")
    begin = shipped._tokenizer.bos_id
    assert talk.ids.count(begin) == 1 and talk.ids[0] == begin
    assert [m["role"] for m in talk.messages] == ["system"] + ["user", "assistant"] * 3
    assert json.loads(json.dumps(talk.messages)) == talk.messages


def test_an_answer_that_was_cut_is_closed_by_the_template(shipped: edgekit.Model) -> None:
    talk = shipped.chat()
    ids = shipped.encode(TURNS[0])
    more = {"eot_token_ids": []} if shipped.family == "llada" else {}
    answer = talk.generate(TURNS[0], eos_token_ids=[], **more)
    assert answer.statistics.finish_reason == "length"
    following = talk.generate(TURNS[1]).prompt_ids
    assert following[: len(ids) + len(answer.ids)] == ids + answer.ids
    end = "<turn|>" if shipped.family == "diffusion_gemma" else "<|eot_id|>"
    behind = shipped.decode(following[len(ids) + len(answer.ids) :], skip_special=False)
    assert behind.startswith(end) and TURNS[1] in behind


def test_prompts_may_be_messages_and_ids(shipped: edgekit.Model) -> None:
    one, other, third = (shipped.chat() for _ in range(3))
    for talk in (one, other, third):
        talk.generate(TURNS[0])
    expected = one.generate(TURNS[1])
    message = {"role": "user", "content": TURNS[1]}
    assert other.generate([message]).prompt_ids == expected.prompt_ids
    given = np.array(expected.prompt_ids[len(third.ids) :])
    assert third.generate(given).ids == expected.ids
    assert TURNS[1] in third.messages[2]["content"]


# --- templates ----------------------------------------------------------------------------------------------

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}<assistant>"
THINKING = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content.split('</think>')[-1] if not loop.last and m.role == 'assistant' else m.content }}</s>"
    "{% endfor %}<assistant>{% if not enable_thinking %}<think></think>{% endif %}"
)


def tokenizer(path: Path, template: str) -> Tokenizer:
    write_tokenizer(path, "dream")
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    return Tokenizer(path)


@pytest.mark.parametrize(
    ("template", "variables", "expected"),
    [
        (PLAIN, {}, "</s><user>Hi</s><assistant>"),
        (THINKING, {}, "</s><user>Hi</s><assistant><think></think>"),
        (THINKING, {"enable_thinking": True}, "</s><user>Hi</s><assistant>"),
    ],
)
def test_a_turn_is_what_the_template_puts_behind_the_answer(
    tmp_path: Path, template: str, variables: dict[str, Any], expected: str
) -> None:
    own = tokenizer(tmp_path, template)
    before, turn = [{"role": "user", "content": "answer678910"}], [{"role": "user", "content": "Hi"}]
    ids = own.chat_turn(before, turn, **variables)
    assert own.decode(ids, skip_special=False) == expected
    assert own.chat_turn(before, turn, ids[0], **variables) == ids[1:], "an end of turn is not repeated"
    assert own.chat_turn(before, turn, ids[1] + 1, **variables) == ids


def test_templates_that_know_no_earlier_answers_are_refused(tmp_path: Path) -> None:
    own = tokenizer(tmp_path, "{{ messages[-1].content }}")
    with pytest.raises(ChatTemplateError, match="leaves earlier answers out"):
        own.chat_turn([{"role": "user", "content": "x"}], [{"role": "user", "content": "y"}])


def test_without_a_template_a_conversation_is_plain_text_or_refused(
    shipped_bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with edgekit.load(shipped_bundle("tiny-gemma")) as model:
        monkeypatch.setattr(model._tokenizer, "chat_templates", {})
        with pytest.raises(edgekit.ChatTemplateError, match="use raw=True"):
            model.chat()
        assert model.encode("Hi") == model.encode("Hi", raw=True)
        with pytest.raises(edgekit.InvalidPrompt, match="no place for system"):
            model.encode("Hi", system="x")
        with pytest.raises(edgekit.InvalidPrompt, match="no place for system"):
            model.chat(raw=True, system="x")
        with pytest.raises(edgekit.InvalidPrompt, match="which messages need"):
            model.chat(raw=True).generate([{"role": "user", "content": "x"}])
        assert model.chat(raw=True).generate("Hi").text is not None


# --- the state of a conversation ----------------------------------------------------------------------------


def state(talk: edgekit.Chat) -> Any:
    return talk.messages, talk.ids


def test_a_turn_that_was_not_finished_is_undone(model: edgekit.Model, monkeypatch: Any) -> None:
    talk, plain = model.chat(raw=True), model.chat(raw=True)
    plain.generate(TURNS[0], **settings(0))
    expected = plain.generate(TURNS[1], **settings(1))
    talk.generate(TURNS[0], **settings(0))
    before = state(talk)

    for stop in (1, 3, 9):
        events = talk.events(TURNS[2], **settings(5))
        for _ in range(stop):
            next(events)
        events.close()
        assert state(talk) == before
    with pytest.raises(edgekit.PromptTooLong):
        talk.generate(TURNS[2], max_new_tokens=10**5)
    with pytest.raises(edgekit.InvalidOption):
        talk.generate(TURNS[2], nonsense=1)
    with monkeypatch.context() as patch:
        session, calls = model._generator.session, []
        real = type(session).denoise

        def failing(*arguments: Any) -> Any:
            calls.append(0)
            if len(calls) == 3:
                raise edgekit.EdgekitError("the disk is gone")
            return real(*arguments)

        patch.setattr(type(session), "denoise", failing)
        with pytest.raises(edgekit.EdgekitError, match="the disk is gone"):
            talk.generate(TURNS[2], **settings(5))
    assert state(talk) == before
    found = talk.generate(TURNS[1], **settings(1))
    assert (found.ids, found.prompt_ids) == (expected.ids, expected.prompt_ids)


def test_conversations_take_turns(model: edgekit.Model) -> None:
    alone = []
    for seeds in ((0, 1), (2, 3)):
        talk = model.chat(raw=True)
        alone.append([talk.generate(TURNS[i], **settings(seed)).ids for i, seed in enumerate(seeds)])
    one, other = model.chat(raw=True), model.chat(raw=True)
    mixed: list[list[Any]] = [[], []]
    for i in range(2):
        mixed[0].append(one.generate(TURNS[i], **settings(i)).ids)
        mixed[1].append(other.generate(TURNS[i], **settings(2 + i)).ids)
        model.generate(TURNS[2], **settings(7))
    assert mixed == alone


def test_turns_can_be_taken_back(model: edgekit.Model) -> None:
    talk = model.chat(raw=True)
    talk.undo()
    assert state(talk) == ([], ())
    talk.generate(TURNS[0], **settings(0))
    before = state(talk)
    first = talk.generate(TURNS[1], **settings(1))
    talk.undo()
    assert state(talk) == before
    assert talk.generate(TURNS[1], **settings(1)).ids == first.ids
    events = talk.events(TURNS[2], **settings(2))
    next(events)
    talk.undo()
    with pytest.raises(edgekit.GenerationEnded, match="changed meanwhile"):
        next(events)
    assert state(talk) == before
    talk.messages.append({"role": "user", "content": "x"})
    assert state(talk) == before, "what is given out is a copy"


def test_a_conversation_goes_on_when_its_session_had_to_be_opened_anew(
    bundle: Path, encoded_rows: list[int]
) -> None:
    """A budget is for lengths. What was encoded goes from one session to the next."""
    lengths = [16, 40, 100]
    found = []
    for memory in (None, "8GB"):
        encoded_rows.clear()
        with edgekit.load(bundle, memory=memory) as model:
            talk = model.chat(raw=True)
            answers, sessions = [], set()
            for text, new in zip(TURNS, lengths, strict=True):
                answers.append(talk.generate(text, max_new_tokens=new, steps=4))
                sessions.add(model._generator.session.options.positions)
            found.append([(each.ids, each.statistics.reused_tokens) for each in answers] + [encoded_rows[:]])
            if model.family == "diffusion_gemma":
                assert len(sessions) == (1 if memory is None else 3)
    assert found[0] == found[1]


def test_a_shorter_text_takes_from_a_longer_one_what_they_share(
    shipped_bundle: Callable[[str], Path], encoded_rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken back under a budget; and where no file can be written it is encoded again."""
    with edgekit.load(shipped_bundle("tiny-gemma"), memory="8GB") as model:
        talk = model.chat()
        talk.generate(TURNS[0], seed=1)
        before = sum(map(len, talk._state.encoded))
        expected = talk.generate(TURNS[1], seed=1, max_new_tokens=128)
        talk.undo()
        encoded_rows.clear()
        again = talk.generate(TURNS[1], seed=1, max_new_tokens=256)
        assert again.ids == expected.ids and again.statistics.reused_tokens == before
        assert sum(encoded_rows) == sum(map(len, talk._state.encoded)) - before
        talk.undo()
        monkeypatch.setattr("tempfile.mkdtemp", refuse)
        alone = talk.generate(TURNS[1], seed=1, max_new_tokens=384)
        assert alone.ids == expected.ids and alone.statistics.reused_tokens == 0


def refuse(*_: Any, **__: Any) -> None:
    raise OSError("no room")


def test_the_stream_of_a_turn_is_its_text(shipped: edgekit.Model) -> None:
    talk = shipped.chat()
    pieces = talk.stream(TURNS[0], seed=1)
    assert talk.messages == []
    text = "".join(pieces)
    assert text == talk.messages[-1]["content"] == shipped.generate(TURNS[0], seed=1).text


# --- in files -----------------------------------------------------------------------------------------------


def test_three_turns_encode_nothing_twice(
    shipped_bundle: Callable[[str], Path], encoded_rows: list[int], tmp_path: Path
) -> None:
    """In memory, and with a new process's worth of state from the file before every turn."""
    bundle, file = shipped_bundle("tiny-gemma"), tmp_path / "talk.kv"
    with edgekit.load(bundle) as model:
        talk = model.chat()
        answers = [talk.generate(text, seed=seed) for seed, text in enumerate(TURNS)]
        held = [piece.tolist() for piece in talk._state.encoded]
    assert encoded_rows == [len(piece) for piece in held]
    assert tuple(sum(held, [])) == talk.ids[: sum(encoded_rows)]
    in_memory = encoded_rows[:]
    encoded_rows.clear()
    for seed, text in enumerate(TURNS):
        with edgekit.load(bundle) as model:
            talk = model.chat(resume=file) if seed else model.chat()
            answer = talk.generate(text, seed=seed)
            assert (answer.ids, answer.prompt_ids) == (answers[seed].ids, answers[seed].prompt_ids)
            assert answer.statistics.reused_tokens == answers[seed].statistics.reused_tokens
            talk.save(file)
    assert encoded_rows == in_memory
    with edgekit.load(bundle) as model:
        talk = model.chat(resume=file)
        assert repr(talk).startswith("<edgekit.Chat of 3 turns")
        talk.undo()
        encoded_rows.clear()
        assert talk.generate(TURNS[2], seed=2).ids == answers[2].ids
        assert encoded_rows == in_memory[2:], "what is before the turn that was taken back is there"
    with edgekit.load(bundle) as model:
        talk = model.chat(resume=file)
        encoded_rows.clear()
        talk.save(tmp_path / "again.kv")
        assert encoded_rows == [] and (tmp_path / "again.kv").read_bytes() == file.read_bytes()
        with pytest.raises(InvalidRequest, match="the path is 5; give the name of a file"):
            talk.save(5)  # type: ignore[arg-type]


#: Of every kind of text that is kept: causal; in blocks; in blocks that are edited in place; causal behind
#: blocks that are denoised. With the positions that a denoising pass computes.
KINDS = {
    "diffusion_gemma": ({"num_hidden_layers": 1}, 16),
    "sdar": ({"num_hidden_layers": 1}, 4),
    "llada2_moe": ({"num_hidden_layers": 2, "expert_capacity": 6}, 8),
    "nemotron_labs_diffusion": ({"num_hidden_layers": 1}, 8),
}


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("memory", [None, "8GB"])
def test_families_encode_no_row_twice(
    family: str, memory: str | None, kinds: Callable[[str], Path], encoded_rows: list[int], tmp_path: Path
) -> None:
    """Of the rows that a turn has computed those of its denoising passes are on the canvas; all others are
    text that was not there. What is kept at the end has been computed once, row by row: in memory, and
    reopened before each turn.
    """
    bundle, file, canvas = kinds(family), tmp_path / "talk.kv", KINDS[family][1]

    def turn(model: edgekit.Model, talk: edgekit.Chat, seed: int) -> tuple[edgekit.Answer, int, int]:
        encoded_rows.clear()
        answer = talk.generate(TURNS[seed], max_new_tokens=40, steps=4, seed=seed)
        stats = model._generator.stats
        assert stats is not None
        return answer, stats.rows - stats.denoising_steps * canvas, sum(encoded_rows)

    with edgekit.load(bundle, memory=memory) as model:
        talk, held = model.chat(raw=True), 0
        expected = []
        for seed in range(len(TURNS)):
            answer, rows, prefilled = turn(model, talk, seed)
            assert answer.statistics.reused_tokens == held and prefilled <= rows
            held += rows
            assert sum(map(len, talk._state.encoded)) == held
            expected.append((answer.ids, answer.prompt_ids, rows, prefilled))
        assert 0 < held <= len(talk.ids)
    found = []
    for seed in range(len(TURNS)):
        with edgekit.load(bundle, memory=memory) as model:
            talk = model.chat(resume=file) if seed else model.chat(raw=True)
            answer, rows, prefilled = turn(model, talk, seed)
            found.append((answer.ids, answer.prompt_ids, rows, prefilled))
            talk.save(file)
    assert found == expected
    assert sum(map(len, read_saved(file).pieces)) == held


def test_a_canvas_that_was_kept_is_no_part_of_a_conversation(
    shipped_bundle: Callable[[str], Path], tmp_path: Path
) -> None:
    """LLaDA's caches keep rows of a canvas, which none but the steps on its block may see."""
    bundle, file = shipped_bundle("tiny-llada"), tmp_path / "talk.kv"
    cached: dict[str, Any] = {"seed": 1, "cache": "dual", "block_length": 8, "max_new_tokens": 32}
    with edgekit.load(bundle) as model:
        talk = model.chat()
        talk.generate(TURNS[0], **cached)
        turn = talk.events(TURNS[1], **cached)
        next(turn)
        session = model._generator.session
        assert session.prefix_length
        with pytest.raises(edgekit.EdgekitError, match="only the first 0 .*: passes have kept a canvas"):
            session.sequence.save(file)
        assert not file.exists()
        talk.save(file)
        with pytest.raises(edgekit.GenerationEnded):
            list(turn)
        expected = talk.generate(TURNS[1], **cached)
    assert read_saved(file).pieces == []
    with edgekit.load(bundle) as model:
        assert model.chat(resume=file).generate(TURNS[1], **cached).ids == expected.ids


def test_a_saved_conversation_goes_on_everywhere(model: edgekit.Model, tmp_path: Path) -> None:
    """Of every family and engine, with a system message or raw, and beside another conversation."""
    file = tmp_path / "talk.kv"
    talk, other = model.chat(raw=True), model.chat(raw=True)
    first = talk.generate(TURNS[0], **settings(0))
    other.generate(TURNS[2], **settings(5))
    talk.save(file)
    expected = talk.generate(TURNS[1], **settings(1))
    with edgekit.load(model.path) as fresh:
        resumed = fresh.chat(resume=file)
        assert resumed.ids == (*first.prompt_ids, *first.ids)
        assert resumed.messages == talk.messages[:2]
        fresh.generate(TURNS[2], **settings(7))
        answer = resumed.generate(TURNS[1], **settings(1))
    assert (answer.ids, answer.prompt_ids) == (expected.ids, expected.prompt_ids)
    assert resumed.messages == talk.messages
    for wrong in ({"system": "no"}, {"raw": True}, {"chat_template_kwargs": {"a": 1}}):
        with pytest.raises(edgekit.InvalidPrompt, match="give `resume` alone"):
            model.chat(resume=file, **wrong)  # type: ignore[arg-type]


def test_another_bundle_refuses_a_saved_conversation(
    shipped_bundle: Callable[[str], Path], tmp_path: Path
) -> None:
    file = tmp_path / "talk.kv"
    with edgekit.load(shipped_bundle("tiny-gemma")) as model:
        talk = model.chat()
        talk.generate(TURNS[0], seed=1)
        talk.save(file)
    with (
        edgekit.load(shipped_bundle("tiny-llada")) as other,
        pytest.raises(
            edgekit.EdgekitError, match=r"talk\.kv: belongs to another bundle than .*; resume it with"
        ),
    ):
        other.chat(resume=file)


def edited(note: dict[str, Any], name: str) -> Any:
    turns = [list(turn) for turn in note["turns"]]
    match name:
        case "no JSON":
            return b"{"
        case "no conversation":
            return b"{}"
        case "messages":
            return note | {"messages": [{"role": "nobody", "content": 3}]}
        case "tokens":
            return note | {"ids": [*note["ids"][:-1], -1]}
        case "other tokens":
            return note | {"ids": [note["ids"][0] + 1, *note["ids"][1:]]}
        case "no turns":
            return note | {"turns": []}
        case "turns that fall":
            return note | {"turns": [turns[-1], turns[0], turns[-1]]}
        case "pieces":
            return note | {"turns": [turns[0], [*turns[1][:3], 99, True]]}
        case "settings":
            return note | {"variables": 3}
    return note | {"more": 1}


@pytest.mark.parametrize(
    "name",
    ["no JSON", "no conversation", "messages", "tokens", "other tokens", "no turns", "turns that fall",
     "pieces", "settings", "entries"],
)  # fmt: skip
def test_a_note_from_elsewhere_is_held_to_its_limits(
    name: str, shipped_bundle: Callable[[str], Path], tmp_path: Path
) -> None:
    file = tmp_path / "talk.kv"
    with edgekit.load(shipped_bundle("tiny-gemma")) as model:
        talk = model.chat()
        talk.generate(TURNS[0], seed=1)
        talk.save(file)
        note = edited(json.loads(read_saved(file).note), name)
        model._generator.session.sequence.save(
            file, note=note if isinstance(note, bytes) else json.dumps(note).encode()
        )
        with pytest.raises(
            edgekit.BundleError, match=r"talk\.kv: is no saved conversation: .*; begin it anew"
        ):
            model.chat(resume=file)
        assert talk.generate(TURNS[1], seed=1).text
