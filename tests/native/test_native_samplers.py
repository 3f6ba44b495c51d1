"""Samplers of the core through the C ABI: copies, saved states, and what a driver can do wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_denoiser import FakeDenoiser, ProjectingDenoiser
from support.native_bundles import native_bundle
from support.sampler_runs import core_model, plain

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import (
    ChecksumMismatch,
    EdgekitError,
    InvalidRequest,
    MalformedFile,
    UnsupportedVersion,
)
from edgekit.runtime.sampling import Committed, Draft, HeadOutput, InvalidOption, NonFiniteLogits
from edgekit.runtime.sampling.asks import Denoise, Encode, Forget, Project, Tell
from edgekit.runtime.sampling.core import CoreSampler, SamplerModel
from edgekit.runtime.sampling.drive import drive
from edgekit.runtime.sampling.types import Floats, HeadRequest, Ids
from edgekit.runtime.session import Session, SessionOptions

OPTIONS: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {"max_new_tokens": 12, "canvas_length": 4, "max_denoising_steps": 3},
    "llada": {"mask_token_id": 39, "gen_length": 12, "block_length": 4, "steps": 6, "temperature": 0.7},
    "dream": {
        "mask_token_id": 39, "max_new_tokens": 9, "steps": 5, "top_p": 0.99, "temperature": 1.0,
        "logits_budget_bytes": 320,
    },
}  # fmt: skip
PROMPT = [3, 1, 4]


def sampler(family: str, denoiser: Any, **more: Any) -> CoreSampler:
    return CoreSampler(core_model(family, denoiser), PROMPT, seed=6, options=OPTIONS[family] | more)


def first_pass(own: CoreSampler, denoiser: FakeDenoiser) -> Denoise:
    """Drives it to its first pass."""
    while not isinstance(ask := own.next(), Denoise):
        if isinstance(ask, Encode):
            denoiser.prefill(ask.ids)
    return ask


@pytest.mark.parametrize("family", OPTIONS)
@pytest.mark.parametrize("kind", [FakeDenoiser, ProjectingDenoiser])
def test_copies_of_every_event_go_on_to_the_same_events(family: str, kind: type[FakeDenoiser]) -> None:
    own, denoiser = sampler(family, kind(40)), kind(40)
    copies, events = [], []
    for event in drive(own, denoiser):
        events.append(plain(event))
        copies.append(own.copy())
    for number, branch in enumerate(copies, 1):
        branch.restore()  # its model holds nothing
        found = [plain(event) for event in drive(branch, kind(40))]
        assert found == (events[number:] or events[-1:])


@pytest.mark.parametrize("family", OPTIONS)
def test_branches_of_one_canvas_share_a_model_in_turns(family: str) -> None:
    denoiser = ProjectingDenoiser(40)
    expected = [plain(event) for event in drive(sampler(family, denoiser), ProjectingDenoiser(40))]
    own = sampler(family, denoiser)
    for event in drive(own, denoiser):
        if isinstance(event, Draft):
            break
    branch = own.copy()
    for each in (own, branch):
        each.restore()
        assert [plain(event) for event in drive(each, denoiser)] == expected[1:]


@pytest.mark.parametrize("family", ["diffusion_gemma", "llada", "llada_moe", "dream"])
def test_a_saved_canvas_goes_on_under_other_threads_and_residency(family: str, tmp_path: Path) -> None:
    bundle = native_bundle(tmp_path, family, Scheme("mixed4", 16))
    asked = {"options": {"temperature": 0.8}, "seed": 3} if family == "dream" else {"seed": 3, "steps": 6}

    def begun(session: Session) -> SamplerModel:
        manifest = session.bundle.manifest
        return SamplerModel(
            manifest.sampler, session.vocab_size, session.hidden_size,
            canvas_length=session.model.canvas_length, bundle=session.bundle.digest,
        )  # fmt: skip

    with Session(bundle, SessionOptions(threads=1)) as session:
        model = begun(session)
        expected = [plain(e) for e in drive(CoreSampler(model, [5, 17, 33, 2], **asked), session)]
        own = CoreSampler(model, [5, 17, 33, 2], **asked)
        first = [plain(event) for event in itertools.islice(drive(own, session), 3)]
        state = own.save()
    with Session(bundle, SessionOptions(threads=3, resident_bytes=0)) as session:
        loaded = CoreSampler.load(begun(session), state)
        rest = [plain(event) for event in drive(loaded, session)]
    assert first + rest == expected and len(rest) > 2


def test_lengths_are_those_that_a_session_needs() -> None:
    denoiser = FakeDenoiser(40)
    found = sampler("diffusion_gemma", denoiser).lengths
    assert (found.new_tokens, found.prefix, found.canvas) == (12, 11, 4)
    found = sampler("llada", denoiser).lengths
    assert (found.new_tokens, found.prefix, found.canvas) == (12, 0, 15)


def test_a_conversation_is_saved_with_its_text() -> None:
    denoiser = ProjectingDenoiser(40)
    for _ in drive(sampler("diffusion_gemma", denoiser), denoiser):
        pass
    section = {"name": "diffusion_gemma", "config": {}}
    model = SamplerModel(section, 40, 4, encoded=denoiser.pieces, uncached=denoiser.uncached, bundle="x")
    own = CoreSampler(model, [7, 8], options=OPTIONS["diffusion_gemma"] | {"continue_prefix": True})
    events, states = [], []
    for event in drive(own, denoiser):
        events.append(plain(event))
        states.append(own.save())
    for number, state in enumerate(states, 1):
        other = ProjectingDenoiser(40)
        rest = [plain(event) for event in drive(CoreSampler.load(model, state), other)]
        assert rest == (events[number:] or events[-1:])
        assert other.prefix == denoiser.prefix and other.uncached.tolist() == denoiser.uncached.tolist()


def test_a_state_needs_the_name_of_its_bundle() -> None:
    model = SamplerModel({"name": "llada", "config": {}}, 40, 4)
    with pytest.raises(InvalidRequest, match="does not know its bundle"):
        CoreSampler(model, [1], options=OPTIONS["llada"]).save()


def test_a_pass_wants_its_answer_before_anything_else() -> None:
    denoiser = FakeDenoiser(40)
    own = sampler("llada", denoiser)
    with pytest.raises(InvalidRequest, match="no pass waits"):
        own._answer(HeadOutput(*[np.zeros(1)] * 4))
    ask = first_pass(own, denoiser)
    with pytest.raises(InvalidRequest, match="has no answer"):
        own.next()
    with pytest.raises(InvalidRequest, match="has no answer"):
        own.next()
    assert not isinstance(own.next(denoiser.denoise(ask.ids, ask.request)), Denoise)


Damage = Callable[[HeadOutput], None]


def without(name: str) -> Damage:
    return lambda output: setattr(output, name, None)


def last(name: str, value: float) -> Damage:
    """One entry: all are looked at."""

    def damage(output: HeadOutput) -> None:
        array = np.array(getattr(output, name))
        array.reshape(-1)[-1] = value
        setattr(output, name, array)

    return damage


def broken_scores(value: float) -> Damage:
    """Where scores are not finite, nothing else is looked at: it holds no particular values."""

    def damage(output: HeadOutput) -> None:
        output.log_z[-1] = value
        output.argmax[:] = -1
        output.entropy[:] = np.nan

    return damage


#: Options with which the first pass wants full scores, by family.
FULL = {"llada": {"logits_eos_inf": True, "eos_token_ids": [3]}}
#: Arrays by the family whose first pass wants them.
ARRAYS = [
    ("diffusion_gemma", "argmax"), ("diffusion_gemma", "others"), ("diffusion_gemma", "entropy"),
    ("diffusion_gemma", "log_z"), ("diffusion_gemma", "sample"), ("diffusion_gemma", "sample_prob"),
    ("diffusion_gemma", "soft"), ("dream", "top_ids"), ("dream", "top_z"), ("llada", "logits"),
]  # fmt: skip
IDS = ("argmax", "sample", "top_ids")
BAD_ANSWERS = [
    *((f, without(a), InvalidRequest, f"HeadOutput.{a} is None") for f, a in ARRAYS),
    *((f, last(a, t), InvalidOption, f"{a} holds token {t}; the vocabulary has 40 tokens")
      for f, a in ARRAYS if a in IDS for t in (40, -1, 2**62)),
    *((f, last(a, np.nan), InvalidOption, f"{a} holds NaN, though log_z is finite")
      for f, a in ARRAYS if a not in (*IDS, "log_z")),
    ("llada", last("others", -0.5), InvalidOption, "others holds a negative number"),
    ("diffusion_gemma", last("sample_prob", -0.5), InvalidOption, "sample_prob holds a negative number"),
    *((f, broken_scores(z), NonFiniteLogits, "the scores of 1 of [0-9]+ positions are not finite")
      for f in OPTIONS for z in (np.nan, np.inf, -np.inf)),
]  # fmt: skip


@pytest.mark.parametrize(("family", "damage", "error", "message"), BAD_ANSWERS)
def test_what_no_pass_answers_is_refused_and_asked_for_again(
    family: str, damage: Damage, error: type[EdgekitError], message: str
) -> None:
    full, denoiser = FULL.get(family, {}), ProjectingDenoiser(40)
    expected = [plain(event) for event in drive(sampler(family, denoiser, **full), ProjectingDenoiser(40))]
    own = sampler(family, denoiser, **full)
    ask = first_pass(own, denoiser)
    answer = denoiser.denoise(ask.ids, ask.request, ask.soft)
    damage(answer)
    for _ in range(2):
        with pytest.raises(error, match=message):
            own.next(answer)
    told, answer = [], denoiser.denoise(ask.ids, ask.request, ask.soft)
    while not told or told[-1][0] != "done":
        following = own.next(answer)
        answer = None
        if isinstance(following, Denoise):
            answer = denoiser.denoise(following.ids, following.request, following.soft)
        elif isinstance(following, Project):
            answer = denoiser.project(following.request)
        elif isinstance(following, Encode):
            denoiser.prefill(following.ids)
        elif isinstance(following, Tell):
            told.append(plain(following.event))
    assert told == expected


@pytest.mark.parametrize("family", OPTIONS)
def test_an_error_of_the_model_leaves_the_sampler_where_it_is(family: str) -> None:
    """The pass that failed has no answer: a copy asks for it again."""

    class Failing(ProjectingDenoiser):
        broken = False

        def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
            if self.broken and len(self.calls) == 3:
                raise OSError("the disk is gone")
            return super().denoise(ids, request, soft)

    denoiser = Failing(40)
    expected = [plain(event) for event in drive(sampler(family, denoiser), ProjectingDenoiser(40))]
    own, told = sampler(family, denoiser), []
    denoiser.broken = True
    with pytest.raises(OSError, match="the disk is gone"):
        for event in drive(own, denoiser):
            told.append(plain(event))
    assert told == expected[: len(told)] and own.stats.forwards == 4
    denoiser.broken = False
    told += [plain(event) for event in drive(own.copy(), denoiser)]
    assert told == expected


def test_a_state_is_refused_where_it_does_not_belong() -> None:
    denoiser = ProjectingDenoiser(40)
    own = sampler("dream", denoiser)
    next(drive(own, denoiser))
    state, model = own.save(), core_model("dream", denoiser)
    with pytest.raises(InvalidOption, match="belongs to another bundle: a bundle, not b"):
        CoreSampler.load(SamplerModel(model.section, 40, 4, bundle="b"), state)
    with pytest.raises(InvalidOption, match=r"ek_sampler_model\.bundle is null"):
        CoreSampler.load(SamplerModel(model.section, 40, 4), state)
    with pytest.raises(MalformedFile, match="a model of another size"):
        CoreSampler.load(SamplerModel(model.section, 41, 4, bundle="a bundle"), state)
    with pytest.raises(MalformedFile, match="no saved state"):
        CoreSampler.load(model, b"{}")
    with pytest.raises(UnsupportedVersion, match="version 4, this library reads 3"):
        CoreSampler.load(model, state[:16] + b"\4" + state[17:])
    with pytest.raises(ChecksumMismatch, match="not as it was written"):
        CoreSampler.load(model, state[:-20] + bytes([state[-20] ^ 1]) + state[-19:])


def resealed(state: bytes) -> bytes:
    return state + xxhash.xxh3_64_intdigest(state).to_bytes(8, "little")


@pytest.mark.parametrize("family", OPTIONS)
def test_counters_of_a_state_leave_room_to_count_on(family: str) -> None:
    denoiser = ProjectingDenoiser(40)
    model = core_model(family, denoiser)
    state = sampler(family, denoiser).save()[:-8]
    # Behind the options: model, phase, noise, lengths, counters, the flag of an end, told tokens.
    first = state.index(b"}") + 1 + 8 * 10
    for place in (*range(6), 7):
        at = first + 8 * place
        damaged = state[:at] + (2**63 - 1).to_bytes(8, "little") + state[at + 8 :]
        with pytest.raises(MalformedFile, match="damaged: a number of"):
            CoreSampler.load(model, resealed(damaged))


def test_a_state_has_text_to_encode() -> None:
    denoiser = ProjectingDenoiser(40)
    state = sampler("diffusion_gemma", denoiser).save()[:-8]
    prompt = np.array([3, *PROMPT]).tobytes()
    assert state.count(prompt) == 1
    with pytest.raises(MalformedFile, match="damaged: text that waits"):
        CoreSampler.load(core_model("diffusion_gemma", denoiser), resealed(state.replace(prompt, bytes(8))))


def test_a_probability_of_minus_zero_is_zero() -> None:
    told = []
    for zero in (0.0, -0.0):
        denoiser = ProjectingDenoiser(40)
        own = sampler("llada", denoiser)
        ask = first_pass(own, denoiser)
        answer = denoiser.denoise(ask.ids, ask.request)
        answer.sample = (answer.argmax + 1) % 40
        assert answer.sample_prob is not None
        answer.sample_prob[2] = zero
        tell = own.next(answer)
        assert isinstance(tell, Tell)
        told.append(plain(tell.event))
    assert told[0] == told[1] and not told[0][-1][2]


@given(st.sampled_from(sorted(OPTIONS)), st.integers(0, 11), st.data())
@settings(max_examples=200)
def test_states_of_strangers_end_in_an_error_or_an_answer(
    family: str, event: int, data: st.DataObject
) -> None:
    denoiser = ProjectingDenoiser(40)
    own = sampler(family, denoiser)
    for _ in itertools.islice(drive(own, denoiser), event):
        pass
    state = bytearray(own.save()[:-8])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(16, len(state) - 1))
        state[place : place + 1] = data.draw(st.binary(min_size=0, max_size=2))
    try:
        loaded = CoreSampler.load(core_model(family, denoiser), resealed(bytes(state)))
        for told in itertools.islice(drive(loaded, ProjectingDenoiser(40)), 30):
            assert not isinstance(told, Committed) or all(0 <= token < 40 for token in told.ids)
    except (EdgekitError, ValueError):
        pass


def test_asks_are_what_a_driver_sees() -> None:
    denoiser = ProjectingDenoiser(40)
    own = sampler("dream", denoiser, top_p=0.999)
    assert isinstance(own.next(), Forget)
    ask = own.next()
    assert isinstance(ask, Denoise) and ask.ids.tolist() == PROMPT + [39] * 9 and ask.soft is None
    assert ask.request.top_k == 40 and ask.request.rows is not None
    told = own.next(denoiser.denoise(ask.ids, ask.request))
    assert isinstance(told, Tell | Project)
