"""Options of a generation: what the checkpoint says, what the caller wants, and what neither says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.flashload.errors import UnsupportedBundle
from edgekit.runtime.errors import PromptTooLong
from edgekit.runtime.sampling import (
    CoreSampler,
    InvalidOption,
    Lengths,
    SamplerModel,
    SamplerOptions,
    declared,
    settle,
)
from edgekit.runtime.sampling.options import PROCEDURES

FAMILIES = ("diffusion_gemma", "llada", "dream")
MOST = 1 << 22
LLADA = {"mask_token_id": 3, "gen_length": 64, "steps": 32, "block_length": 16}
DREAM = {"mask_token_id": 3, "max_new_tokens": 64, "steps": 32}
GEMMA = {"max_new_tokens": 40, "max_denoising_steps": 8, "canvas_length": 99}


def options_of(
    family: str,
    config: dict[str, Any],
    canvas_length: int | None = None,
    prompt: int | None = None,
    max_positions: int | None = None,
    **wishes: Any,
) -> SamplerOptions:
    section = {"name": family, "config": config}
    model = SamplerModel(
        section,
        1000,
        hidden_size=4,
        canvas_length=canvas_length,
        max_positions=max_positions,
        role_head=True,
    )
    return settle(model, prompt_length=prompt, **wishes)


def lengths_of(
    family: str, config: dict[str, Any], canvas: int | None, prompt: int, **wishes: Any
) -> Lengths:
    lengths = options_of(family, config, canvas, prompt, **wishes).lengths
    assert lengths is not None
    return lengths


def check(options: SamplerOptions, **expected: Any) -> None:
    assert {name: options[name] for name in expected} == expected


def test_the_checkpoint_decides_what_the_caller_leaves_open() -> None:
    check(options_of("llada", LLADA), max_new_tokens=64, steps=32, block_length=16, stop_at_eos=False)
    check(options_of("dream", DREAM), max_new_tokens=64, steps=32, alg="entropy")
    check(
        options_of("diffusion_gemma", GEMMA, 16),
        max_new_tokens=40, steps=8, canvas_length=16,
    )  # fmt: skip


def test_what_neither_says_has_a_default() -> None:
    config = {"mask_token_id": 3}
    check(options_of("llada", config), max_new_tokens=128, steps=128, block_length=32)
    check(options_of("dream", config), max_new_tokens=128, steps=128, alg="entropy")
    check(options_of("diffusion_gemma", {}), max_new_tokens=256, canvas_length=256)
    empty = dict.fromkeys(("gen_length", "max_new_tokens", "steps", "block_length", "alg"))
    check(options_of("llada", config | empty), max_new_tokens=128, steps=128, block_length=32)
    check(options_of("dream", config | empty), max_new_tokens=128, steps=128, alg="entropy")


def test_wishes_win_over_the_checkpoint() -> None:
    named = {"gen_length": 48, "steps": 6, "block_length": 24}
    check(options_of("llada", LLADA, options=named), max_new_tokens=48, steps=6, block_length=24)
    del named["gen_length"], named["steps"]
    wished = options_of("llada", LLADA, max_new_tokens=72, steps=9, options=named)
    check(wished, max_new_tokens=72, steps=9, block_length=24)
    check(
        options_of("dream", DREAM, options={"gen_length": 9, "alg": "origin"}), max_new_tokens=9, alg="origin"
    )
    wishes = {"max_new_tokens": 100, "steps": 3, "options": {"canvas_length": 8}}
    check(options_of("diffusion_gemma", GEMMA, 16, **wishes), max_new_tokens=100, steps=3, canvas_length=8)
    # In a configuration an option's own name wins over its other one.
    check(options_of("llada", LLADA | {"max_new_tokens": 16}), max_new_tokens=16)


def test_null_is_not_set_but_for_a_wish_that_switches_off() -> None:
    config = {"threshold": 0.5, "temperature": 0.7} | LLADA
    wishes = {"threshold": None, "temperature": None, "steps": None}
    check(options_of("llada", config, options=wishes), threshold=None, temperature=0.7, steps=32)
    check(options_of("llada", LLADA | {"threshold": None}), threshold=None)
    check(options_of("diffusion_gemma", {"confidence_threshold": None}), confidence_threshold=0.005)


@pytest.mark.parametrize(
    "wishes",
    [
        {"max_new_tokens": 3, "options": {"max_new_tokens": 3}},
        {"max_new_tokens": 3, "options": {"gen_length": 3}},
        {"options": {"max_new_tokens": 3, "gen_length": 3}},
    ],
)
def test_an_option_that_is_given_twice_is_refused(wishes: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="^max_new_tokens is given twice, as .* and as .*; leave one out"):
        options_of("llada", LLADA, **wishes)


def test_masked_families_get_whole_blocks_and_steps() -> None:
    check(options_of("llada", LLADA, max_new_tokens=65, steps=33), max_new_tokens=80, steps=35)
    check(options_of("llada", LLADA, max_new_tokens=5), max_new_tokens=5, block_length=5, steps=32)
    check(options_of("llada", LLADA, steps=1), steps=4)
    check(options_of("dream", DREAM, max_new_tokens=65, steps=33), max_new_tokens=65, steps=33)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_answer_of_a_masked_family_ends_at_its_first_end_token(family: str) -> None:
    config = {"mask_token_id": 3}
    check(options_of(family, config | {"eos_token_id": 5}), stop_at_eos=True, eos_token_ids=(5,))
    check(options_of(family, config, options={"eos_token_ids": [5, 6]}), stop_at_eos=True)
    check(options_of(family, config | {"eos_token_id": 5, "stop_at_eos": False}), stop_at_eos=False)
    options = {"stop_at_eos": False}
    check(options_of(family, config | {"eos_token_id": 5}, options=options), stop_at_eos=False)
    check(
        options_of(family, config | {"eos_token_id": 5}, options={"eos_token_ids": ()}),
        stop_at_eos=False,
    )
    check(options_of(family, config), stop_at_eos=False)


@pytest.mark.parametrize(
    ("family", "config", "wishes", "words"),
    [
        ("llada", {}, {}, "mask_token_id is not set by the generation config"),
        ("llada", LLADA, {"max_new_tokens": 0}, f"max_new_tokens is 0; use an integer from 1 to {MOST}"),
        ("llada", LLADA, {"steps": -3}, "steps is -3; use an integer"),
        ("llada", LLADA, {"options": {"block_length": "32"}}, "block_length is '32'; use an integer"),
        ("llada", LLADA | {"gen_length": True}, {}, "gen_length is true; use an integer"),
        (
            "llada",
            LLADA,
            {"options": {"temperature": float("nan")}},
            "temperature is nan; use a number that is finite",
        ),
        ("llada", LLADA, {"options": {"temperature": b"1"}}, "temperature is b'1'; use a number"),
        ("llada", LLADA, {"options": {"steps": 10**400}}, "steps is"),
        ("llada", LLADA, {"options": {"remasking": "x" * 9000}}, "use one of: low_confidence, random"),
        ("llada", LLADA, {"options": {"eos_token_ids": ["x" * 90] * 900}}, "eos_token_ids is"),
        ("llada", LLADA, {"options": {"config": 8}}, "config is not a sampling option of this model"),
        ("llada", LLADA, {"options": {"a\nb": 8}}, r"'a\x0ab' is not a sampling option of this model"),
        ("llada", LLADA, {"options": {"x" * 900: 8}}, "options are: mask_token_id, max_new_tokens, steps"),
        (
            "llada",
            LLADA,
            {"options": {"temperature": 1e39}},
            "temperature is 1e+39; use a number from 0 to 1000000",
        ),
        (
            "llada",
            LLADA,
            {"options": {"temperature": 1e-50}},
            "temperature is 1e-50; use 0, or a number of at",
        ),
        (
            "dream",
            DREAM,
            {"options": {"temperature": 1e-50}},
            "temperature is 1e-50; use 0, or a number of at",
        ),
        ("dream", DREAM, {"options": {"alg_temp": 1e-320}}, "use 0, or a number of at least 1e-06"),
        (
            "diffusion_gemma",
            GEMMA,
            {"options": {"t_min": 0, "t_max": 1e-50}},
            "t_max is 1e-50; use a number from",
        ),
        ("dream", DREAM | {"steps": 4.0}, {}, "steps is 4.0; use an integer"),
        ("dream", DREAM | {"steps": 2.5}, {}, "steps is 2.5; use an integer"),
        ("dream", DREAM, {"max_new_tokens": MOST + 1}, f"use an integer from 1 to {MOST}"),
        ("diffusion_gemma", GEMMA, {"steps": 0}, "steps is 0; use an integer"),
        ("diffusion_gemma", GEMMA, {"options": {"max_length": MOST + 1}}, f"max_length is {MOST + 1}; use"),
        ("dream", DREAM, {"prompt": "x"}, "prompt_length is 'x'; use an integer from 0 to"),
        ("diffusion_gemma", GEMMA, {"options": {"alg": 4}}, "alg is not a sampling option of this model"),
        ("diffusion_gemma", {"sampler_config": {"_cls_name": "Other"}}, {}, "only EntropyBoundSamplerConfig"),
    ],
)
def test_bad_options_have_one_clear_line(
    family: str, config: dict[str, Any], wishes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        options_of(family, config, 16, **wishes)
    assert words in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) < 500


#: What a SamplerModel must not be, and what is said of it.
NO_MODELS: list[tuple[dict[str, Any], str]] = [
    *(({"vocab_size": v}, "vocab_size is ") for v in ("x", None, -1, 2**70, 1.5, True)),
    *(({"hidden_size": v}, "hidden_size is ") for v in (None, "x", -1)),
    ({"canvas_length": "x"}, "canvas_length is 'x'; use an integer from 0"),
    ({"max_positions": 1.5}, "max_positions is 1.5; use an integer from 0"),
    ({"projects": "yes"}, "projects is 'yes'; use True or False"),
    *(({"section": v}, "section is ") for v in (None, 5, [], {"name": {1}}, {"config": object()}, {(): 1})),
    *(({"bundle": v}, "bundle is ") for v in (5, b"ab", "a\0b", "\ud800")),
    *(({"encoded": v}, "encoded are ") for v in (5, None, "ab", {1: 2})),
    ({"encoded": [[1], []]}, "piece 1 of SamplerModel.encoded is empty; leave it out"),
    ({"encoded": [[1], [[2]]]}, "piece 1 of SamplerModel.encoded has shape"),
    ({"encoded": [[1], [1.5]]}, "piece 1 of SamplerModel.encoded holds float64 values"),
    ({"encoded": [[1], [2**70]]}, "has more than 64 bits"),
    *(({"uncached": v}, "SamplerModel.uncached ") for v in ("ab", None, [1.5], [[1]], [[1], [2, 3]])),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "words"), NO_MODELS)
def test_facts_of_a_model_that_are_none_have_one_clear_line(facts: dict[str, Any], words: str) -> None:
    right = SamplerModel({"name": "llada", "config": LLADA}, 50, 8)
    assert CoreSampler(right, [1]).lengths.steps > 0
    for call in (settle, lambda model: CoreSampler(model, [1]), lambda model: CoreSampler.load(model, b"x")):
        with pytest.raises(InvalidOption) as refused:
            call(replace(right, **facts))
        said = str(refused.value)
        assert words in said and "SamplerModel." in said and "\n" not in said and len(said) < 200


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidOption, match="^the model is {}; pass a SamplerModel$"):
        settle({})  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [5, "ab", [("steps", 4)], {5: 1}])
def test_options_without_names_are_refused(options: Any) -> None:
    with pytest.raises(InvalidOption, match="^the options are .*; pass a dict of values by name$"):
        options_of("llada", LLADA, options=options)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UnsupportedBundle, match=f"'mdlm'; supported: {', '.join(PROCEDURES)}$"):
        options_of("mdlm", {})


def test_lengths_are_those_that_the_samplers_reach() -> None:
    llada = lengths_of("llada", LLADA, None, 10, max_new_tokens=65)
    assert llada == Lengths(80, 0, 90, 5, 7, "80 new tokens, whole blocks of 16,")
    by_threshold = lengths_of("llada", LLADA, None, 10, options={"threshold": 0.5})
    assert (by_threshold.canvases, by_threshold.steps) == (4, 16)
    assert lengths_of("llada", LLADA, None, 10, max_new_tokens=5).text == "5 new tokens"
    assert lengths_of("dream", DREAM, None, 10) == Lengths(64, 0, 74, 1, 32, "64 new tokens")
    gemma = lengths_of("diffusion_gemma", GEMMA, 16, 10)
    assert gemma == Lengths(48, 42, 16, 3, 8, "40 new tokens, rounded up to 48, whole canvases of 16,")
    until = lengths_of("diffusion_gemma", {"max_length": 50}, 16, 10)
    assert (until.new_tokens, until.prefix, until.canvases) == (48, 42, 3)
    assert lengths_of("diffusion_gemma", {"max_length": 50}, 16, 2).text == "48 new tokens"
    for told in ({"max_length": 50}, {"max_length": 50, "max_new_tokens": 9}):
        with pytest.raises(
            InvalidOption, match="50 tokens and max_length is 50; use a max_length of at least 51"
        ):
            lengths_of("diffusion_gemma", told, 16, 50)
        assert lengths_of("diffusion_gemma", told, 16, 49).new_tokens == 16


def test_what_passes_the_positions_of_the_model_is_refused() -> None:
    assert options_of("llada", LLADA, None, 36, 100).lengths
    with pytest.raises(PromptTooLong, match="^37 prompt tokens and 64 new tokens, whole blocks of 16, pass"):
        options_of("llada", LLADA, None, 37, 100)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_declared_is_what_holds(family: str) -> None:
    config = {"mask_token_id": 3, "eos_token_id": 5}
    for option in declared(family):
        assert option.help.endswith(".") and option.name == option.name.lower()
        wrong: list[Any] = [{}] if option.type != "bool" else [1]
        if option.minimum is not None:
            wrong.append(option.minimum if option.above_minimum else option.minimum - 1)
        if option.maximum is not None:
            wrong.append(option.maximum + 1)
        for name in (option.name, *option.aliases):
            for value in wrong:
                with pytest.raises(InvalidOption, match=f"^({name}|{option.name}) "):
                    options_of(family, config, options={name: value})
        given = option.choices[-1] if option.choices else option.value
        check(options_of(family, config, options={option.name: given}), **{option.name: given})
        if option.optional:
            check(options_of(family, config, options={option.name: None}), **{option.name: None})
    told = {option.name: option.help for option in declared(family)}
    if family != "dream":
        assert "rounded up to whole" in told["max_new_tokens"]


VALUES = st.one_of(
    st.integers(-2, 300),
    st.sampled_from([1, 2, 0.5, 64, 128, True, [7]]),
    st.sampled_from([0.0, 0.999, 1e-7, -0.25, 1e16, 123456.75, 1e300, 2**63, -(2**80)]),
    st.none(),
    st.sampled_from(["random", "low_confidence", "entropy", "origin", "it's", 'a "b"', "ü\n", "", "\ud800"]),
    st.lists(st.one_of(st.integers(-1, 50), st.just("x"), st.none()), max_size=3),
    st.just({"a": [1.5, None]}),
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    family = draw(st.sampled_from(FAMILIES))
    names = [name for option in declared(family) for name in (option.name, *option.aliases)]
    config = draw(st.dictionaries(st.sampled_from([*names, "bos_token_id"]), VALUES, max_size=4))
    if draw(st.booleans()):
        config |= {"mask_token_id": 3, "eos_token_id": 5}
    return family, config, draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))


@given(asked())
@settings(max_examples=400)
def test_options_are_refused_in_a_line_or_settle_for_good(
    case: tuple[str, dict[str, Any], dict[str, Any]],
) -> None:
    family, config, wishes = case
    try:
        found = options_of(family, config, options=wishes)
    except InvalidOption as error:
        assert "\n" not in str(error)
        return
    values = {name: list(v) if isinstance(v, tuple) else v for name, v in found.values().items()}
    assert options_of(family, config, options=values) == found


#: Wishes of a family's that change nothing, and the end of the line that says so.
UNUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llada", {"persistent_threshold": 0.5}, "persistent_threshold is 0.5, which changes nothing without p"),
    ("llada", {"threshold": 0.9, "steps": 4}, "steps is 4, which changes nothing with an acceptance rule"),
    ("dream", {"persistence": 2, "steps": 4}, "steps is 4, which changes nothing with an acceptance rule"),
    ("diffusion_gemma", {"persistent_entropy": 1}, "persistent_entropy is 1, which changes nothing withou"),
    ("diffusion_gemma", {"stability_threshold": None, "confidence_threshold": 1}, "stability_threshold is n"),
    ("diffusion_gemma", {"confidence_threshold": None, "stability_threshold": 2}, "confidence_threshold is "),
    ("block", {"ahead": 7}, "ahead is 7, which changes nothing in mode diffusion"),
    ("block", {"draft_adapter": 1}, "draft_adapter is 1, which changes nothing in mode diffusion"),
    ("block", {"max_steps_per_block": 7}, "max_steps_per_block is 7, which changes nothing without "),
    ("block", {"delete_token_id": 5, "insert_token_id": 6}, "changes nothing without editing_threshold"),
    ("block", {"entropy_bound": 2}, "entropy_bound is 2, which changes nothing with remasking l"),
    ("block", {"remasking": "entropy", "threshold": 0.5}, "threshold is 0.5, which changes nothing wi"),
    ("block", {"mode": "autoregressive", "steps": 4}, "steps is 4, which changes nothing in mode autoreg"),
    ("block", {"mode": "speculative", "editing_threshold": 0.5}, "changes nothing in mode speculative"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "wishes", "line"), UNUSED, ids=str)
def test_what_changes_nothing_is_refused(family: str, wishes: dict[str, Any], line: str) -> None:
    config = {"mask_token_id": 3}
    with pytest.raises(InvalidOption, match=re.escape(line)) as refused:
        options_of(family, config, options=wishes)
    assert "; leave it out" in str(refused.value)
    # In a config it stands for whoever needs it, and what holds anyway may be said.
    config |= {name: value for name, value in wishes.items() if value is not None}
    nulls = {name: value for name, value in wishes.items() if value is None}
    values = options_of(family, config, options=nulls).values()
    assert options_of(family, config, options=nulls | {n: v for n, v in values.items() if v is not None})
