"""The task language: checkers against mistakes, the split, the vocabulary, and the batches."""

from __future__ import annotations

import json
import random
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from edgekit.tools.tiny import grammar, tokenizer
from edgekit.tools.tiny.corpus import (
    CURRICULA,
    Batches,
    BatchOptions,
    Curriculum,
    Encoder,
    held_out,
    mixture,
)
from edgekit.tools.tiny.lexicon import COPY_WORDS, JSON_FIELDS, PLACES, THINGS, VARIABLES
from edgekit.tools.tiny.tasks import MEASURED, SPLITS, TASKS, UnknownTask, draw, examples, stream

seeds = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def encoders() -> dict[str, Encoder]:
    return {name: Encoder(name) for name in tokenizer.FAMILIES}


@pytest.mark.parametrize("task", MEASURED)
@given(seed=seeds)
@settings(max_examples=60, deadline=None)
def test_right_answer_passes_and_changed_answers_fail(task: str, seed: int) -> None:
    rng = random.Random(seed)
    example = draw(task, rng, rng.choice(SPLITS))
    assert example.check(example.answer)
    assert example.check(f"  {example.answer}\n")
    assert not example.check("")
    assert not example.check(example.answer + " " + example.answer)
    assert not example.check(example.answer[:-1] + "\x00")
    if example.task != "story":  # any other story about the same things is right
        other = draw(task, rng, "train")
        if other.answer != example.answer and other.task != "question":
            assert not example.check(other.answer)


@given(seed=seeds)
@settings(deadline=None)
def test_addition_answers_are_sums_of_the_prompt(seed: int) -> None:
    example = draw("addition", random.Random(seed))
    numbers = [int(n) for n in "".join(c if c.isdigit() else " " for c in example.prompt).split()]
    assert len(numbers) == 2
    assert sum(numbers) == int(example.answer)


@given(seed=seeds)
@settings(deadline=None)
def test_two_digit_addition_has_two_digits_each(seed: int) -> None:
    example = draw("addition-2", random.Random(seed), "held-out")
    numbers = [int(n) for n in example.key.split()]
    assert all(10 <= n <= 99 for n in numbers)


@pytest.mark.parametrize(("task", "least", "most"), [("chain", 8, 16), ("short-chain", 2, 7)])
@given(seed=seeds)
@settings(deadline=None)
def test_chain_values_are_digits_that_python_computes(task: str, least: int, most: int, seed: int) -> None:
    example = draw(task, random.Random(seed))
    scope: dict[str, int] = {}
    exec(example.key, {}, scope)
    assert all(0 <= value <= 9 for value in scope.values())
    assert least <= len(scope) <= most
    assert example.answer == ", ".join(f"{name} = {value}" for name, value in scope.items())
    # Each from the one before: nothing of it can be computed without all that goes before.
    statements = example.key.split("; ")
    for before, statement in zip(scope, statements[1:], strict=False):
        assert statement.split(" = ")[1].split(" ")[0] == before


@pytest.mark.parametrize(("task", "least", "most"), [("sorting", 12, 18), ("short-sorting", 3, 11)])
@given(seed=seeds)
@settings(deadline=None)
def test_sorting_answers_are_ordered_permutations(task: str, least: int, most: int, seed: int) -> None:
    example = draw(task, random.Random(seed))
    words = example.key.split(" ")
    assert example.prompt.endswith(f"the words {example.key}")
    assert least <= len(words) == len(set(words)) <= most
    assert example.answer.split(" ") == sorted(words, key=str.casefold)


def test_short_tasks_share_the_split_of_the_long_ones() -> None:
    """What is trained on as a short chain is never measured, and the reverse."""
    for task in ("chain", "sorting"):
        short = draw(f"short-{task}", random.Random(0))
        assert short.task == task


def test_json_checker_ignores_order_and_spaces_but_not_types() -> None:
    example = next(e for e in examples("json", 50) if "age" in json.loads(e.answer))
    fields = json.loads(example.answer)
    assert example.check(json.dumps(dict(reversed(fields.items())), separators=(",", ":")))
    assert not example.check(json.dumps({**fields, "age": str(fields["age"])}))
    assert not example.check(json.dumps({**fields, "age": float(fields["age"])}))
    assert not example.check(json.dumps({**fields, "extra": 1}))
    assert not example.check(example.answer[:-1] + f', "age": {fields["age"]}}}')
    assert not example.check("[" * 100_000)


STORY = "Ada had a key in the garden. Then Ada took it to the attic. Where is the key? In the attic."


def test_story_parser_follows_the_thing() -> None:
    text = (
        "One day Ada saw a key in the garden. Ada took it to the attic. "
        "Ada went to the barn without it. Where is the key now? It is in the attic."
    )
    parsed = grammar.parse_story(text)
    assert parsed is not None
    told, place = parsed
    assert (told.hero, told.thing, told.places, told.walks) == ("Ada", "key", ("garden", "attic"), ("barn",))
    assert place == told.final_place == "attic"


@pytest.mark.parametrize(
    "text",
    [
        STORY.replace("took", "ate"),
        STORY.replace("the key?", "the ball?"),
        STORY.replace("Then Ada", "Then Ben"),
        STORY.replace(" In the attic.", ""),
        STORY.replace("Where is the key? ", ""),
        STORY.replace("a key", "a attic"),
        STORY.replace(". Then", ".  Then"),
        "Then Ada took it to the attic. Ada had a key in the garden. Where is the key? In the attic.",
        "",
    ],
)
def test_story_parser_refuses(text: str) -> None:
    assert grammar.parse_story(text) is None


def test_story_checker_verifies_the_ending_and_the_prompt() -> None:
    for example in examples("story", 40):
        parsed = grammar.parse_story(example.answer)
        assert parsed is not None
        told, place = parsed
        elsewhere = next(p for p in PLACES if p != place)
        head, _, tail = example.answer.rpartition(place)
        assert not example.check(head + elsewhere + tail)
        assert not example.check(example.answer.replace(told.hero, "Zoe"))
        other = next(t for t in THINGS if t != told.thing)
        assert not example.check(example.answer.replace(told.thing, other))


def test_question_answers_agree_with_the_story_in_the_prompt() -> None:
    walked = 0
    for example in examples("question", 200):
        told = grammar.parse_events(grammar.split_sentences(example.key))
        assert told is not None
        assert example.check(f"It is in the {told.final_place}.")
        walked += bool(told.walks)
        for place in set(told.places[:-1] + told.walks):
            assert not example.check(f"In the {place}.")
    assert walked > 10  # the last place named is not always the answer


@pytest.mark.parametrize("task", MEASURED)
def test_splits_share_no_prompt_and_repeat_for_a_seed(task: str) -> None:
    rng = random.Random(1)
    train = [draw(task, rng) for _ in range(2000)]
    held = examples(task, 200)
    assert {e.split for e in train} == {"train"} and {e.split for e in held} == {"held-out"}
    assert not {e.prompt for e in train} & {e.prompt for e in held}
    assert held == examples(task, 200)
    assert held != examples(task, 200, seed=1)


def test_a_tenth_of_two_digit_pairs_is_held_out_in_both_orders() -> None:
    make, rng = MEASURED["addition-2"], random.Random(2)
    drawn = {e.key: e.split for e in (make(rng) for _ in range(20_000))}
    share = sum(s == "held-out" for s in drawn.values()) / len(drawn)
    assert 0.07 < share < 0.13


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownTask, match="supported: addition-2"):
        draw("poetry", random.Random(0))
    with pytest.raises(UnknownTask, match="train, held-out"):
        draw("chain", random.Random(0), "test")


def test_vocabulary_size_and_specials(encoders: dict[str, Encoder]) -> None:
    loaded = tokenizer.load()
    assert loaded.get_vocab_size() == tokenizer.VOCAB_SIZE == 512
    assert sorted(loaded.get_vocab().values()) == list(range(512))
    for i, token in enumerate(tokenizer.SPECIAL_TOKENS):
        assert loaded.token_to_id(token) == i
        assert loaded.encode(f"a{token}1").ids[1] == i
    assert tokenizer.SPECIAL_TOKENS[tokenizer.TURN_END] == "<turn|>"
    assert tokenizer.SPECIAL_TOKENS[tokenizer.MDM_MASK] == "<|mdm_mask|>"
    assert tokenizer.SPECIAL_TOKENS[tokenizer.END_OF_TURN] == "<|eot_id|>"


@given(text=st.text())
def test_any_text_round_trips(text: str) -> None:
    loaded = tokenizer.load()
    ids = loaded.encode(text, add_special_tokens=False).ids
    if not any(token in text for token in tokenizer.SPECIAL_TOKENS):
        assert loaded.decode(ids, skip_special_tokens=False) == text


@given(number=st.integers(0, 10**9))
def test_every_digit_is_a_token(number: int) -> None:
    loaded = tokenizer.load()
    assert loaded.encode(str(number)).tokens == list(str(number))
    assert len(loaded.encode(f"is {number}").tokens) == 1 + len(str(number))
    assert loaded.encode(f"{number} + {number}").tokens[-len(str(number)) :] == list(str(number))


@given(words=st.lists(st.sampled_from(COPY_WORDS), min_size=1, max_size=6))
def test_a_copied_list_has_the_tokens_of_the_prompt(words: list[str]) -> None:
    loaded, text = tokenizer.load(), " ".join(words)
    ids = loaded.encode(text).ids
    assert len(ids) == len(words)
    for prompt in (f"Repeat: {text}", f'Say "{text}" again.'):
        found = loaded.encode(prompt).ids
        assert any(found[i : i + len(ids)] == ids for i in range(len(found)))


def test_every_word_of_the_language_is_one_token() -> None:
    loaded = tokenizer.load()
    for example in islice(stream(dict.fromkeys([t for t in TASKS if t != "copying"], 1.0)), 2000):
        for text in (example.prompt, example.answer):
            for token in loaded.encode(text).tokens:
                assert (
                    token in "0123456789?:}." or not token.isascii() or len(token) > 1 or token in VARIABLES
                )
    for word in (*JSON_FIELDS, *(w for values in JSON_FIELDS.values() for w in values or ())):
        assert len(loaded.encode(word).ids) == 1


@pytest.mark.parametrize("family", tokenizer.FAMILIES)
def test_saved_files_load_in_transformers_and_template_matches(family: str, tmp_path, encoders) -> None:  # type: ignore[no-untyped-def]
    tokenizer.save(tmp_path, family)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    chosen = tokenizer.FAMILIES[family]
    turns = [("Add 1 and 2.", "3"), ("Repeat: red key", "red key")]
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    messages.append({"role": "user", "content": "What is 47 + 38?"})
    ours = encoders[family].prompts([chosen.prompt(turns, "What is 47 + 38?")])[0]
    assert theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] == ours
    assert theirs.bos_token_id == ours[0]
    assert theirs.pad_token_id == (tokenizer.PAD if family == "gemma" else tokenizer.END_OF_TEXT)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).to_str() == tokenizer.load().to_str()


def test_building_twice_gives_the_same_file() -> None:
    assert tokenizer.build() == tokenizer.build.__wrapped__()


@pytest.mark.parametrize("family", tokenizer.FAMILIES)
def test_batches_hold_prompt_answer_end_and_fill(family: str, encoders: dict[str, Encoder]) -> None:
    encoder, options = encoders[family], BatchOptions(tokens=1024, history=0.5)
    chosen, seen = encoder.family, set()
    for batch in islice(Batches(encoder, options), 80):
        rows, width = batch.answer.shape
        assert width in options.canvas_lengths
        assert rows * (batch.prompt.shape[1] + width) <= options.tokens
        seen.update(batch.tasks)
        for row in range(rows):
            end = int(batch.answer_lengths[row])
            assert batch.answer[row, end - 1] == chosen.end_id
            assert (batch.answer[row, end:] == chosen.fill_id).all()
            assert chosen.end_id not in batch.answer[row, : end - 1]
            before = batch.prompt.shape[1] - batch.prompt_lengths[row]
            assert (batch.prompt[row, :before] == 0).all()
            assert (batch.prompt[row, before:] != 0).all()
    assert seen == {draw(task, random.Random(0)).task for task in TASKS}


def test_batches_repeat_for_a_seed(encoders: dict[str, Encoder]) -> None:
    runs = [list(islice(Batches(encoders["gemma"], BatchOptions(), seed=s), 5)) for s in (3, 3, 4)]
    assert all(np.array_equal(a.answer, b.answer) for a, b in zip(runs[0], runs[1], strict=True))
    assert any(not np.array_equal(a.prompt, b.prompt) for a, b in zip(runs[0], runs[2], strict=True))


@pytest.mark.parametrize("task", MEASURED)
@pytest.mark.parametrize("family", tokenizer.FAMILIES)
def test_held_out_answers_decode_back_and_are_short(
    task: str, family: str, encoders: dict[str, Encoder]
) -> None:
    chosen, batch = held_out(encoders[family], task, 200, canvas=128)
    assert batch.answer.shape[1] == 128
    for row, example in enumerate(chosen):
        assert example.check(encoders[family].text(batch.answer[row]))
    assert batch.answer_lengths.max() <= 72
    assert batch.prompt_lengths.max() <= 110


def test_batches_go_on_from_a_state_as_if_nothing_had_happened(encoders: dict[str, Encoder]) -> None:
    """Also where the state was taken with batches ready and others begun."""
    options = BatchOptions(tokens=512, history=0.3, full_share=0.2)
    whole = Batches(encoders["block"], options, seed=5)
    for _ in range(7):
        next(whole)
    state = json.loads(json.dumps(whole.state))
    state["rng"] = tuple(tuple(x) if isinstance(x, list) else x for x in state["rng"])
    assert state["ready"] and any(rows for _, _, rows in state["pools"])
    again = Batches(encoders["block"], options, seed=6)
    again.state = state
    for _ in range(20):
        one, other = next(whole), next(again)
        assert one.tasks == other.tasks
        assert np.array_equal(one.prompt, other.prompt) and np.array_equal(one.answer, other.answer)


def test_a_share_of_conversations_is_for_the_longest_canvas(encoders: dict[str, Encoder]) -> None:
    options = BatchOptions(tokens=1024, full_share=0.5, weights={"addition": 1.0})
    drawn = [batch for batch in islice(Batches(encoders["llada"], options), 60)]
    full = sum(len(b.tasks) for b in drawn if b.answer.shape[1] == options.canvas_lengths[-1])
    assert 0.3 < full / sum(len(b.tasks) for b in drawn) < 0.7


@pytest.mark.parametrize("curriculum", CURRICULA.values(), ids=CURRICULA)
def test_a_curriculum_covers_all_steps_and_ends_with_every_task(curriculum: Curriculum) -> None:
    ends = [until for until, _ in curriculum]
    assert ends == sorted(set(ends)) and ends[-1] == 1.0
    for _, weights in curriculum:
        assert set(weights) <= {*TASKS, *MEASURED} and min(weights.values()) > 0
        assert sum(weights.values()) == pytest.approx(1.0)
    assert set(curriculum[-1][1]) >= set(TASKS)
    assert mixture(0.0, curriculum) is curriculum[0][1]
    following = zip(ends, curriculum[1:], strict=False)
    assert all(mixture(end, curriculum) is weights for end, (_, weights) in following)
    assert mixture(1.0, curriculum) is mixture(2.0, curriculum) is curriculum[-1][1]
