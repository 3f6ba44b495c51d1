"""Answers that are partly given: templates, and what models make of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

import edgekit
from edgekit.runtime.api.answer import Draft
from edgekit.runtime.api.infill import places
from edgekit.tools.cli import main

JSON = "Write as JSON: name: Ada; age: 31; city: Rome"


@pytest.fixture(scope="module", params=["tiny-gemma", "tiny-llada"])
def model(request: pytest.FixtureRequest, shipped_bundle: Any) -> Iterator[edgekit.Model]:
    with edgekit.load(shipped_bundle(request.param)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("prompt", "template", "text"),
    [
        ("Copy this: red 7", "red[[1]]", "red 7"),
        ("Copy this: blue 5 green", "blue[[1]] green", "blue 5 green"),
        ("What is 23 + 45?", "[[1]]8", "68"),
        (JSON, '{"name": "[[1]]", "age": 3[[2]]city": "Rome"}', '{"name": "Ada", "age": 31, "city": "Rome"}'),
        (JSON, ['{"name": "', 9, 'Rome"}'], '{"name": "Ada", "age": 31, "city": "Rome"}'),
    ],
)
def test_a_model_writes_between_what_is_given(
    model: edgekit.Model, prompt: str, template: Any, text: str
) -> None:
    answer = model.infill(prompt, template, seed=1)
    assert answer.text == text
    given = places(template, model._tokenizer)
    assert len(answer.ids) == len(given)
    assert all(token is None or token == found for token, found in zip(given, answer.ids, strict=True))


def test_a_span_of_an_earlier_answer_is_written_anew(model: edgekit.Model) -> None:
    answer = model.generate(JSON, seed=1)
    ids = model.encode(answer.text, raw=True)
    wrong = [*ids[:3], *reversed(ids[3:6]), *ids[6:]]
    assert model.decode(wrong) != answer.text
    again = model.infill(JSON, [wrong[:3], 3, wrong[6:]], seed=2)
    assert again.text == answer.text


def test_room_that_is_left_ends_the_answer(model: edgekit.Model) -> None:
    answer = model.infill("Copy this: red 7", "red[[6]]", seed=1)
    assert answer.text == "red 7"


def test_given_tokens_are_in_every_draft(model: edgekit.Model) -> None:
    given = places("blue[[1]] green", model._tokenizer)
    drafts = [
        e for e in model.infill_events("Copy this: blue 5 green", "blue[[1]] green") if isinstance(e, Draft)
    ]
    assert drafts
    for draft in drafts:
        assert (draft.ids[0], draft.ids[2]) == (given[0], given[2])


def test_a_start_may_be_revised_by_models_that_revise(model: edgekit.Model) -> None:
    if model.family == "diffusion_gemma":
        answer = model.infill("Copy this: red 7", "red 8 green", revise=True, seed=1)
        assert answer.text == "red 7"
        return
    with pytest.raises(edgekit.InvalidPrompt, match="revises no other; leave holes"):
        model.infill("Copy this: red 7", "red 8", revise=True)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "the answer to fill in has no token; give text with holes"),
        ([], "the answer to fill in has no token"),
        ("[[0]]", "the answer to fill in has no token"),
        ("[[9999999]]", "the answer to fill in has a hole of '9999999' tokens; 524288 are the most"),
        ("[[" + "9" * 5000 + "]]", "tokens; 524288 are the most"),
        ("[[500000]]x[[500000]]", "tokens and more; 524288 are the most, shorten it"),
        ([10**30], "a hole has 0 to 524288 tokens"),
        (5, "the answer to fill in is 5; give text with holes such as"),
        (b"red", "give text with holes"),
        ([1.5], "piece 0 of the answer to fill in is 1.5"),
        (["a", -1], "piece 1 of the answer to fill in is -1; a hole has 0 to 524288 tokens"),
        (["a", ["b"]], "item 0 of the piece 1 of the answer to fill in is of type str"),
        (["\ud800"], "piece 0"),
        ("red 7", "the answer to fill in has no hole; give text with holes such as [[12]]"),
        ("[[-1]]", "the answer to fill in has no hole"),
        ([[5, 6]], "the answer to fill in has no hole"),
    ],
)
def test_what_is_no_template_is_refused(model: edgekit.Model, template: Any, message: str) -> None:
    with pytest.raises(edgekit.InvalidPrompt) as caught:
        model.infill("Copy this: red 7", template)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_follows_from_the_template_is_refused_as_a_setting(model: edgekit.Model) -> None:
    with pytest.raises(edgekit.InvalidOption, match="canvas follows from the template; leave it out"):
        model.infill("Copy this: red 7", "red[[1]]", canvas=[1])


def test_models_that_write_block_after_block_fill_no_holes(shipped_bundle: Any) -> None:
    with (
        edgekit.load(shipped_bundle("tiny-block")) as block,
        pytest.raises(edgekit.InvalidPrompt, match="writes block after block: it fills no holes"),
    ):
        block.infill("Copy this: red 7", "[[5]]")


def test_a_template_is_at_most_a_canvas(shipped_bundle: Any) -> None:
    with (
        edgekit.load(shipped_bundle("tiny-gemma")) as gemma,
        pytest.raises(edgekit.InvalidPrompt, match="has 129 tokens, a canvas of this model 128; shorten it"),
    ):
        gemma.infill("Copy this: red 7", [129])


def test_the_command_fills_holes_and_starts_from_text(shipped_bundle: Any) -> None:
    bundle = str(shipped_bundle("tiny-gemma"))
    words = ["run", bundle, "Copy this: red 7"]
    filled = CliRunner().invoke(main, [*words, "--infill", "red[[1]]"])
    assert (filled.exit_code, filled.stdout) == (0, "red 7\n")
    started = CliRunner().invoke(main, [*words, "--start", "red 8"])
    assert (started.exit_code, started.stdout) == (0, "red 7\n")
    both = CliRunner().invoke(main, [*words, "--start", "red 8", "--infill", "red[[1]]"])
    assert both.exit_code == 2 and "exclude each other" in both.stderr
