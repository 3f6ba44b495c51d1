"""The options of the native core's loops against the Python classes: same values, same error texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_sampler import (
    INVALID_ARGUMENT,
    OK,
    Wishes,
    answer_text,
    native_generation_options,
    native_options,
    python_generation_options,
    python_options,
)

from edgekit.flashload.names import nearest
from edgekit.runtime.sampling import SAMPLERS
from edgekit.runtime.sampling.generation_options import MOST
from edgekit.runtime.sampling.options import INTERNAL, specs

NAMES = {
    family: [name for name in SAMPLERS[family].options_type().__dataclass_fields__ if name != "ignored_keys"]
    for family in SAMPLERS
}
OTHERS = ["mask_id", "eos_token_id", "eot_token_id", "gen_length", "max_new_tokens", "bos_token_id", "steps"]
VALUES = st.one_of(
    st.integers(-2, 300),
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 0.999, 1e-7, -0.25, 1e16, 123456.75, 1e300]),
    st.booleans(),
    st.none(),
    st.sampled_from(["random", "low_confidence", "entropy", "origin", "it's", 'a "b"', "ü\n", ""]),
    st.lists(st.one_of(st.integers(-1, 50), st.just("x"), st.none()), max_size=3),
    st.just({"a": [1.5, None]}),
)
# Values that pass more often, so that later checks are reached too.
GOOD = st.sampled_from([1, 2, 0.5, 64, 128, True, [7]])


@st.composite
def option_cases(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    family = draw(st.sampled_from(list(SAMPLERS)))
    names = NAMES[family] + OTHERS
    values = st.one_of(GOOD, VALUES)
    config = draw(st.dictionaries(st.sampled_from(names), values, max_size=4))
    known = st.sampled_from(NAMES[family])
    overrides = draw(st.dictionaries(known, values, max_size=4))
    if draw(st.integers(0, 9)) == 0:
        overrides[draw(st.sampled_from(names))] = draw(values)
    if draw(st.booleans()):
        config.setdefault("mask_token_id", 3)
    if family == "diffusion_gemma" and draw(st.booleans()):
        sampler = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": draw(values)}
        config["sampler_config"] = draw(st.sampled_from([sampler, {}, None, {"_cls_name": "Other"}, 3]))
    return family, config, overrides


@pytest.mark.parametrize("family", SAMPLERS)
def test_the_tables_of_both_have_the_same_names_and_defaults(family: str) -> None:
    """What lists of options say is what the loops go by."""
    told = specs(SAMPLERS[family].options_type())
    assert list(told) == NAMES[family]
    config = {"mask_token_id": 3}
    assert native_options(family, config, {}) == python_options(family, config, {})
    for name, spec in told.items():
        wrong: list[Any] = ["x"] if spec.kind != "choice" else [*spec.choices, "x"][-1:]
        if spec.minimum is not None:
            wrong.append(spec.minimum if spec.exclusive else spec.minimum - 1)
        if spec.maximum is not None:
            wrong.append(spec.maximum + 1)
        for value in wrong:
            found = native_options(family, config, {name: value})
            assert found == python_options(family, config, {name: value})
            assert isinstance(found, tuple) or name in str(found)
    unknown = native_options(family, config, {"zzzzzzzz": 1})
    assert unknown == python_options(family, config, {"zzzzzzzz": 1})
    assert all((name in str(unknown)) != (name in INTERNAL) for name in told)


@given(option_cases())
@settings(max_examples=400)
def test_options_are_read_and_refused_like_in_python(
    case: tuple[str, dict[str, Any], dict[str, Any]],
) -> None:
    assert native_options(*case) == python_options(*case)


@pytest.mark.parametrize(
    ("family", "config", "overrides"),
    [
        ("diffusion_gemma", {}, {"t_min": 0.9}),
        ("diffusion_gemma", {}, {"t_min": 2, "t_max": 1}),
        ("diffusion_gemma", {"entropy_bound": 0.3, "sampler_config": {"entropy_bound": None}}, {}),
        ("diffusion_gemma", {"sampler_config": {"_cls_name": "Confidence", "k": [1, {"a": True}]}}, {}),
        ("diffusion_gemma", {}, {"max_denoising_step": 3}),
        ("diffusion_gemma", {}, {"sampler": 3}),
        ("llada", {"steps": 4}, {}),
        ("llada", {"mask_id": 3, "max_new_tokens": 64}, {"block_length": 32, "steps": 16}),
        ("llada", {"mask_id": 3}, {"gen_length": 100, "block_length": 32}),
        ("llada", {"mask_id": 3}, {"gen_length": 96, "block_length": 32, "steps": 64}),
        ("llada", {"mask_id": 3}, {"threshold": "high", "factor": 1.0}),
        ("llada", {"mask_id": 3}, {"threshold": "high"}),
        ("llada", {"mask_id": 3}, {"threshold": 0.9, "remasking": "random"}),
        ("llada", {"mask_id": 3}, {"block_size": 4}),
        ("llada", {"mask_id": 3}, {"mask_token_id": None}),
        ("dream", {"mask_id": 3}, {"algorithm": "entropy"}),
        ("dream", {"mask_id": 3}, {"stop_at_eos": True}),
        ("dream", {"mask_id": 3, "eos_token_id": 2, "pad_token_id": 1}, {"stop_at_eos": True}),
    ],
)
def test_these_options_are_read_and_refused_like_in_python(
    family: str, config: dict[str, Any], overrides: dict[str, Any]
) -> None:
    assert native_options(family, config, overrides) == python_options(family, config, overrides)


LENGTHS = st.one_of(st.none(), st.integers(1, 700), st.sampled_from([-1, 0, MOST, MOST + 1, 2**63 - 1]))
WISHES = st.builds(Wishes, LENGTHS, LENGTHS)


@given(option_cases(), st.sampled_from([None, 8, 256]), WISHES, st.integers(0, 1000))
@settings(max_examples=600)
def test_options_of_a_generation_are_those_of_python(
    case: tuple[str, dict[str, Any], dict[str, Any]], canvas_length: int | None, wishes: Wishes, prompt: int
) -> None:
    family, config, overrides = case
    wishes = Wishes(wishes.max_new_tokens, wishes.steps, overrides)
    found = native_generation_options(family, config, canvas_length, wishes, prompt)
    assert found == python_generation_options(family, config, canvas_length, wishes, prompt)


@given(st.sampled_from(["llada", "dream"]), WISHES, st.data())
@settings(max_examples=200)
def test_lengths_of_a_generation_are_those_of_python(
    family: str, wishes: Wishes, data: st.DataObject
) -> None:
    """The same with values that are mostly good, so that the rounding is reached."""
    names = st.sampled_from(["gen_length", "max_new_tokens", "block_length", "steps"])
    sizes = st.one_of(st.none(), st.integers(1, 700))
    ends = st.sampled_from([{}, {"eos_token_id": 5}, {"eos_token_ids": []}, {"eos_token_ids": [5, 6]}])
    config = data.draw(st.dictionaries(names, sizes)) | data.draw(ends) | {"mask_token_id": 3}
    known = st.sampled_from(
        [name for name in ("gen_length", *NAMES[family]) if name.endswith(("length", "steps"))]
    )
    wishes = Wishes(wishes.max_new_tokens, wishes.steps, data.draw(st.dictionaries(known, sizes)))
    found = native_generation_options(family, config, None, wishes, 7)
    assert found == python_generation_options(family, config, None, wishes, 7)


def test_a_configuration_that_is_no_object_is_refused() -> None:
    status, text = native_options("llada", [1], {})  # type: ignore[arg-type]
    assert status not in (OK, INVALID_ARGUMENT) and "object" in text


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=8)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@given(JSON)
@settings(max_examples=300)
def test_values_are_written_like_in_python(value: Any) -> None:
    assert answer_text("ekt_python_repr", json.dumps(value)) == repr(value)


@given(st.sampled_from(sum(NAMES.values(), [])), st.lists(st.tuples(st.integers(0, 20), TEXTS), max_size=4))
@settings(max_examples=200)
@example("t_max", [(2, "mi"), (4, "x")])
@example("t_max", [(0, "T_"), (20, "x" * 300)])
def test_the_nearest_name_is_that_of_python(name: str, edits: list[tuple[int, str]]) -> None:
    word = name
    for place, text in edits:
        word = word[:place] + text.replace("\0", "") + word[place + 2 :]
    word = "".join(c for c in word if c.isascii() or c == c.lower())
    for names in NAMES.values():
        assert answer_text("ekt_closest_name", word, json.dumps(names)) == nearest(word, names)
