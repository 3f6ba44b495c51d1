"""Options of a generation: what the checkpoint says, what the caller wants, and what neither says."""

from __future__ import annotations

from typing import Any

import pytest

from edgekit.runtime.sampling import SAMPLERS, InvalidOption, UnknownSampler
from edgekit.runtime.sampling.generation_options import MOST, generation_options
from edgekit.runtime.sampling.options import Lengths, specs

LLADA = {"mask_token_id": 3, "gen_length": 64, "steps": 32, "block_length": 16}
DREAM = {"mask_token_id": 3, "max_new_tokens": 64, "steps": 32}
GEMMA = {"max_new_tokens": 40, "max_denoising_steps": 8, "canvas_length": 99}


def check(options: Any, **expected: Any) -> None:
    assert {name: getattr(options, name) for name in expected} == expected


def test_the_checkpoint_decides_what_the_caller_leaves_open() -> None:
    check(generation_options("llada", LLADA), gen_length=64, steps=32, block_length=16, stop_at_eos=False)
    check(generation_options("dream", DREAM), max_new_tokens=64, steps=32, alg="entropy")
    check(
        generation_options("diffusion_gemma", GEMMA, 16),
        max_new_tokens=40, max_denoising_steps=8, canvas_length=16,
    )  # fmt: skip


def test_what_neither_says_has_a_default() -> None:
    config = {"mask_token_id": 3}
    check(generation_options("llada", config), gen_length=128, steps=128, block_length=32)
    check(generation_options("dream", config), max_new_tokens=128, steps=128, alg="entropy")
    check(generation_options("diffusion_gemma", {}), max_new_tokens=256, canvas_length=256)
    empty = dict.fromkeys(("gen_length", "max_new_tokens", "steps", "block_length", "alg"))
    check(generation_options("llada", config | empty), gen_length=128, steps=128, block_length=32)
    check(generation_options("dream", config | empty), max_new_tokens=128, steps=128, alg="entropy")


def test_wishes_win_over_options_and_those_over_the_checkpoint() -> None:
    named = {"gen_length": 48, "steps": 6, "block_length": 24}
    check(generation_options("llada", LLADA, options=named), gen_length=48, steps=6, block_length=24)
    wished = generation_options("llada", LLADA, max_new_tokens=72, steps=9, options=named)
    check(wished, gen_length=72, steps=9, block_length=24)
    check(generation_options("llada", LLADA, options={"max_new_tokens": 32}), gen_length=32)
    check(
        generation_options("dream", DREAM, options={"gen_length": 9, "alg": "origin"}),
        max_new_tokens=9,
        alg="origin",
    )
    wishes = {"max_new_tokens": 100, "steps": 3, "options": {"max_new_tokens": 7, "canvas_length": 8}}
    check(
        generation_options("diffusion_gemma", GEMMA, 16, **wishes),
        max_new_tokens=100, max_denoising_steps=3, canvas_length=8,
    )  # fmt: skip
    # As everywhere, an option's own name wins over its other one.
    check(generation_options("llada", LLADA | {"max_new_tokens": 16}), gen_length=64)


def test_masked_families_get_whole_blocks_and_steps() -> None:
    check(generation_options("llada", LLADA, max_new_tokens=65, steps=33), gen_length=80, steps=35)
    check(generation_options("llada", LLADA, max_new_tokens=5), gen_length=5, block_length=5, steps=32)
    check(generation_options("llada", LLADA, steps=1), steps=4)
    check(generation_options("dream", DREAM, max_new_tokens=65, steps=33), max_new_tokens=65, steps=33)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_answer_of_a_masked_family_ends_at_its_first_end_token(family: str) -> None:
    config = {"mask_token_id": 3}
    check(generation_options(family, config | {"eos_token_id": 5}), stop_at_eos=True, eos_token_ids=(5,))
    check(generation_options(family, config, options={"eos_token_ids": [5, 6]}), stop_at_eos=True)
    check(generation_options(family, config | {"eos_token_id": 5, "stop_at_eos": False}), stop_at_eos=False)
    options = {"stop_at_eos": False}
    check(generation_options(family, config | {"eos_token_id": 5}, options=options), stop_at_eos=False)
    check(
        generation_options(family, config | {"eos_token_id": 5}, options={"eos_token_ids": ()}),
        stop_at_eos=False,
    )
    check(generation_options(family, config), stop_at_eos=False)


@pytest.mark.parametrize(
    ("family", "config", "wishes", "words"),
    [
        ("llada", {}, {}, "mask_token_id is not set by the generation config"),
        ("llada", LLADA, {"max_new_tokens": 0}, f"max_new_tokens is 0; use an integer, 1..{MOST}"),
        ("llada", LLADA, {"steps": -3}, "steps is -3; use an integer"),
        ("llada", LLADA, {"options": {"block_length": "32"}}, "block_length is '32'; use an integer"),
        ("llada", LLADA | {"gen_length": True}, {}, "gen_length is True; use an integer"),
        ("llada", LLADA, {"options": {"block_size": 8}}, "did you mean block_length"),
        ("llada", LLADA, {"options": {"config": 8}}, "config is not a sampling option of this model"),
        ("dream", DREAM | {"steps": 2.5}, {}, "steps is 2.5; use an integer"),
        ("dream", DREAM, {"max_new_tokens": MOST + 1}, f"use an integer, 1..{MOST}"),
        ("diffusion_gemma", GEMMA, {"steps": 0}, "steps is 0; use an integer"),
        ("diffusion_gemma", GEMMA, {"options": {"max_length": MOST + 1}}, f"max_length is {MOST + 1}; use"),
        ("diffusion_gemma", GEMMA, {"options": {"steps": 4}}, "steps is not a sampling option of this model"),
    ],
)
def test_bad_options_have_one_clear_line(
    family: str, config: dict[str, Any], wishes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        generation_options(family, config, 16, **wishes)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UnknownSampler, match="mdlm"):
        generation_options("mdlm", {})


def test_lengths_are_those_that_the_loops_reach() -> None:
    assert generation_options("llada", LLADA, max_new_tokens=65).lengths(10) == Lengths(80, 0, 90)
    assert generation_options("dream", DREAM).lengths(10) == Lengths(64, 0, 74)
    assert generation_options("diffusion_gemma", GEMMA, 16).lengths(10) == Lengths(48, 42, 16)
    until = generation_options("diffusion_gemma", {"max_length": 50}, 16)
    assert until.lengths(10) == Lengths(48, 42, 16)
    for told in ({"max_length": 50}, {"max_length": 50, "max_new_tokens": 9}):
        with pytest.raises(
            InvalidOption, match="50 tokens and max_length is 50; use a max_length of at least 51"
        ):
            generation_options("diffusion_gemma", told, 16).lengths(50)
        assert generation_options("diffusion_gemma", told, 16).lengths(49).new_tokens == 16


def test_lengths_are_told_with_what_they_are_rounded_to() -> None:
    gemma = generation_options("diffusion_gemma", GEMMA, 16)
    assert gemma.new_tokens_text(10) == "40 new tokens, rounded up to 48, whole canvases of 16,"
    assert generation_options("diffusion_gemma", {"max_length": 50}, 16).new_tokens_text(2) == "48 new tokens"
    llada = generation_options("llada", LLADA, max_new_tokens=65)
    assert llada.new_tokens_text(10) == "80 new tokens, whole blocks of 16,"
    assert generation_options("llada", LLADA, max_new_tokens=5).new_tokens_text(10) == "5 new tokens"
    assert generation_options("dream", DREAM).new_tokens_text(10) == "64 new tokens"
    for family in ("diffusion_gemma", "llada"):
        told = {name: spec.help for name, spec in specs(SAMPLERS[family].options_type()).items()}
        lengths = {"gen_length", "max_new_tokens", "max_length"} & set(told)
        assert lengths and all("rounded up to whole" in told[name] for name in lengths)
