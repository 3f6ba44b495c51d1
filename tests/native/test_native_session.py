"""The native session end to end: equal to the torch reference, whatever is resident and however many threads,
and within its memory budget.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.bundles import int8_activations, quantized_reference
from support.checkpoints import write_checkpoint
from support.head_oracle import check_saturated, others
from support.native_bundles import native_bundle
from support.native_testing import library
from support.watched import run_watched
from test_native_export import CASES

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload import errors
from edgekit.flashload.errors import BudgetExceeded
from edgekit.runtime import process
from edgekit.runtime.sampling import Committed, HeadRequest, PhiloxNoise, generate
from edgekit.runtime.session import Session, SessionOptions

Case = tuple[Path, Any]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.replace(" ", "-"))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A bundle, and the reference model holding the same codes."""
    family, scheme, overrides = CASES[request.param]
    bundle = native_bundle(tmp_path_factory.mktemp("session"), family, scheme, **overrides)
    return bundle, quantized_reference(bundle.parent / "checkpoint", scheme)


def passes(session: Session, arch: Any, prompt: int = 43) -> tuple[Any, Any, Any]:
    """A canvas after a prefix, which comes in two calls and several chunks, longer than the windows: ids of
    both, the first step's soft embedding, and the second step's output.
    """
    rng = np.random.default_rng(0)
    ids, canvas = rng.integers(0, arch.vocab_size, prompt), rng.integers(0, arch.vocab_size, 16)
    first = None
    session.reset()
    if arch.causal_prefix:
        session.prefill(ids[:13])
        session.prefill(ids[13:])
        assert session.prefix_length == prompt
        first = session.denoise(canvas, HeadRequest(soft=True)).soft
    request = HeadRequest(temperature=0.7, logits=True, soft=arch.causal_prefix, top_k=7)
    return (ids, canvas), first, session.denoise(canvas, request, first)


def test_the_session_equals_the_reference_with_rounded_activations(case: Case) -> None:
    """The same integers: what is left is the order of float sums. Where that makes a rounding fall the other
    way, one activation moves by a step and its position by a few per mille.
    """
    bundle, model = case
    arch = model.architecture
    with Session(bundle) as session, torch.no_grad(), int8_activations():
        (ids, canvas), first, out = passes(session, arch)
        kv = model.encode(torch.from_numpy(ids)[None]) if arch.causal_prefix else None
        soft = None if first is None else torch.from_numpy(first)[None]
        expected = model.denoise(torch.from_numpy(canvas)[None], kv, soft)[0].numpy() / np.float32(0.7)
    error = np.linalg.norm(out.logits - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(error) < 1e-5 and error.max() < 2e-2, f"relative error by position: {np.round(error, 7)}"
    assert (out.argmax == expected.argmax(-1)).mean() > 0.99


def test_head_statistics_are_those_of_the_logits(case: Case) -> None:
    bundle, model = case
    with Session(bundle) as session:
        _, _, out = passes(session, model.architecture)
    z = torch.from_numpy(out.logits)
    p = torch.softmax(z, -1)
    assert np.array_equal(out.argmax, z.argmax(-1).numpy())
    np.testing.assert_allclose(out.others, others(z), rtol=1e-5)
    np.testing.assert_allclose(out.log_z, torch.logsumexp(z, -1).numpy(), rtol=1e-5)
    np.testing.assert_allclose(
        out.entropy, torch.distributions.Categorical(p).entropy().numpy(), rtol=1e-4, atol=1e-5
    )
    top = z.topk(7)
    np.testing.assert_array_equal(out.top_z, top.values.numpy())
    np.testing.assert_array_equal(np.take_along_axis(out.logits, out.top_ids, 1), out.top_z)
    if out.soft is not None:
        np.testing.assert_allclose(out.soft, (p @ model.embedding).detach().numpy(), rtol=1e-3, atol=1e-4)


def test_statistics_hold_where_probabilities_round_to_one(case: Case) -> None:
    bundle, model = case
    canvas = np.random.default_rng(2).integers(0, model.architecture.vocab_size, 16)
    with Session(bundle) as session:
        check_saturated(lambda t: session.denoise(canvas, HeadRequest(temperature=t, logits=True)))


def test_samples_are_the_argmax_with_the_specified_noise(case: Case) -> None:
    bundle, model = case
    vocab = model.architecture.vocab_size
    canvas, rows = np.random.default_rng(5).integers(0, vocab, 11), np.array([9, 2, 2, 0])
    noise = PhiloxNoise(3)
    noise.uniform(1)  # so that the draw is not the first
    gumbel = noise.gumbel(4, vocab)
    with Session(bundle) as session:
        if model.architecture.causal_prefix:
            session.prefill(canvas)
        out = session.denoise(canvas, HeadRequest(rows=rows, gumbel=gumbel, gumbel_scale=0.5, logits=True))
        scores = out.logits + np.float32(0.5) * gumbel(0, vocab)
        np.testing.assert_array_equal(out.sample, scores.argmax(-1))
        p = torch.softmax(torch.from_numpy(out.logits), -1).numpy()
        np.testing.assert_allclose(out.sample_prob, p[np.arange(4), out.sample], rtol=1e-4)
        again = session.project(HeadRequest(rows=rows[::-1], logits=True))
        np.testing.assert_array_equal(again.logits, out.logits[::-1])
        with pytest.raises(errors.InvalidRequest, match="noise for 4 positions"):
            session.project(HeadRequest(gumbel=gumbel))
        with pytest.raises(errors.InvalidRequest, match="make their own noise"):
            session.project(HeadRequest(rows=rows, gumbel=lambda a, b: np.zeros((4, b - a), np.float32)))


def test_threads_and_residency_do_not_change_a_bit(case: Case) -> None:
    bundle, model = case
    with Session(bundle, SessionOptions(threads=1)) as session:
        assert session.threads == 1 and session.statistics()["streamed_bytes_per_step"] == 0
        *_, expected = passes(session, model.architecture)
    for threads, resident in ((2, None), (3, 40_000), (1, 0)):
        options = SessionOptions(threads=threads, resident_bytes=resident, positions=5, canvas=4)
        with Session(bundle, options) as session:
            for _ in range(2):  # also with runs that were read ahead
                *_, found = passes(session, model.architecture)
            for name, value in vars(expected).items():
                np.testing.assert_array_equal(getattr(found, name), value, err_msg=f"{name}, {options}")
            stats = session.statistics()
            plan = session.plan
            assert (stats["pinned_bytes"], stats["ring_bytes"]) == (plan.pinned_bytes, plan.ring_bytes)
            assert stats["streamed_bytes_per_step"] == plan.streamed_bytes
            assert stats["pinned_bytes"] <= (plan.pinned_bytes if resident is None else resident)
            # Experts without rows need not be read.
            least = 1 if any(layer.experts for layer in session.model.layers) else 2 * plan.streamed_bytes
            assert (stats["bytes_read"] >= least > 0) == (resident is not None)


def test_generation_repeats_whatever_is_resident(case: Case) -> None:
    bundle, model = case
    arch = model.architecture
    answers = []
    for resident in (None, 0):
        with Session(bundle, SessionOptions(resident_bytes=resident)) as session:
            section = session.bundle.manifest.sampler
            options = {
                "diffusion_gemma": {"canvas_length": arch.canvas_length, "max_new_tokens": 20,
                                    "max_denoising_steps": 4},
                "llada": {"gen_length": 16, "block_length": 8, "steps": 4, "temperature": 0.8,
                          "mask_token_id": 2},
                "dream": {"max_new_tokens": 12, "steps": 4, "temperature": 0.8, "alg": "entropy",
                          "mask_token_id": 2},
            }[section["name"]]  # fmt: skip
            prompt = np.arange(7, dtype=np.int64) % arch.vocab_size + 1
            for _ in range(2):
                session.reset()
                events = generate(session, section, prompt, seed=11, options=options)
                answers.append(np.concatenate([e.ids for e in events if isinstance(e, Committed)]).tolist())
    assert answers[0] and all(a == answers[0] for a in answers)


# --- memory -------------------------------------------------------------------------------------------------

RUN = """
import json, resource, sys
import numpy as np
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session, SessionOptions
options = SessionOptions(memory_bytes=int(sys.argv[2]) or None, positions=0, canvas=128, threads=2)
with Session(sys.argv[1], options) as session:
    canvas = np.random.default_rng(0).integers(0, session.vocab_size, 128)
    for _ in range(2):
        out = session.denoise(canvas, HeadRequest(top_k=4))
    total = session.plan.needs
    print(json.dumps({"top": out.top_z.tolist(), "stats": session.statistics(), "total": total}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 MB of 8-bit weights."""
    folder = tmp_path_factory.mktemp("large")
    write_checkpoint(
        folder / "checkpoint", "llada", dtype="bfloat16",
        d_model=768, n_heads=6, mlp_hidden_size=2112, n_layers=8, vocab_size=2048,
    )  # fmt: skip
    options = ExportOptions("native", scheme=Scheme("int8"), tile_bytes=1 << 20)
    export(folder / "checkpoint", folder / "bundle", options)
    shutil.rmtree(folder / "checkpoint")
    return folder / "bundle"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_the_budget_holds_and_the_answer_is_the_same(large: Path) -> None:
    resident, resident_peak = run_watched(RUN, large, 0)
    assert resident["stats"]["streamed_bytes_per_step"] == 0
    # Room for the process and the passes, and less than half of the weights.
    budget = resident["total"] + 24_000_000
    assert budget < resident_peak, "the budget must be one that the resident run does not keep"
    streamed, peak = run_watched(RUN, large, budget)
    assert 30_000_000 < streamed["stats"]["streamed_bytes_per_step"] < 60_000_000
    assert streamed["top"] == resident["top"]
    assert peak <= budget, f"{peak / 1e6:.1f} MB used of {budget / 1e6:.1f} MB"


CHAT = """
import json, sys
sys.path.insert(0, TESTS)
from support.native_generation import generate
from edgekit.runtime.session import Session, SessionOptions
options = SessionOptions(memory_bytes=int(sys.argv[2]) or None, positions=0, canvas=32, threads=2)
with Session(sys.argv[1], options) as session:
    said, answers, pinned, longest = [], [], [session.plan.pinned_bytes], 0
    for turn in range(4):
        said += range(7, 30)
        answer = generate(session, said, max_new_tokens=64, steps=2)
        assert answer.status == 0, answer.message
        said += answer.answer
        answers.append(answer.answer)
        pinned.append(session.plan.pinned_bytes)
    print(json.dumps({"answers": answers, "pinned": pinned, "total": session.plan.needs}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_weights_give_their_memory_to_longer_generations(large: Path) -> None:
    """Turns of a chat go beyond the lengths that the session was opened for; the budget holds."""
    script = CHAT.replace("TESTS", repr(str(Path(__file__).parents[1])))
    resident, _ = run_watched(script, large, 0)
    # Room for the session as it is opened, and some of the weights.
    budget = resident["total"] + 40_000_000
    streamed, peak = run_watched(script, large, budget)
    assert streamed["answers"] == resident["answers"]
    pinned = streamed["pinned"]
    assert pinned == sorted(pinned, reverse=True) and 0 < pinned[-1] < pinned[0] < resident["pinned"][0]
    assert peak <= budget, f"{peak / 1e6:.1f} MB used of {budget / 1e6:.1f} MB"


def _least_budget(bundle: Path, canvas: int) -> int:
    """Bytes that a session needs at least now: what the process holds counts, and comes and goes."""
    words = r"budget of 1 MB is too small; .* at least \d+ MB \(process"
    with pytest.raises(BudgetExceeded, match=words) as refused:
        Session(bundle, SessionOptions(memory_bytes=1_000_000, canvas=canvas))
    return refused.value.needed_bytes


def test_too_small_a_budget_says_what_would_do(large: Path) -> None:
    needed = _least_budget(large, 32)
    with Session(large, SessionOptions(memory_bytes=needed, canvas=32)) as session:
        assert session.plan.streamed
        with pytest.raises(BudgetExceeded, match="up to 32 positions") as longer:
            session.denoise(np.zeros(64, np.int64), HeadRequest())
        assert longer.value.needed_bytes > needed
        assert session.denoise(np.zeros(32, np.int64), HeadRequest()).argmax.shape == (32,)
    less = int(_least_budget(large, 32) / 1.05)
    with pytest.raises(BudgetExceeded):
        Session(large, SessionOptions(memory_bytes=less, canvas=32))


def test_a_pass_that_is_too_long_names_the_least_budget_for_it_not_the_present_one_and_more(
    large: Path,
) -> None:
    with (
        Session(large, SessionOptions(memory_bytes=8 * 10**9, canvas=32)) as session,
        pytest.raises(BudgetExceeded, match="open the session with canvas = ") as longer,
    ):
        session.denoise(np.zeros(64, np.int64), HeadRequest())
    needed = longer.value.needed_bytes
    with Session(large, SessionOptions(memory_bytes=needed + (8 << 20), canvas=64)) as session:
        assert session.plan.streamed
    less = int(_least_budget(large, 64) / 1.05)
    with pytest.raises(BudgetExceeded):
        Session(large, SessionOptions(memory_bytes=less, canvas=64))


def test_without_a_budget_what_no_machine_has_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    """Scores of a canvas that sees all of itself: 70 TB."""
    gemma = native_bundle(tmp_path, "diffusion_gemma", Scheme("int8"), max_position_embeddings=1 << 22)
    words = (
        r"need \d+ MB \(.*weights .* this machine has \d+ MB; with weights read from the disk .* fewer tokens"
    )
    with pytest.raises(BudgetExceeded, match=words) as refused:
        Session(gemma, SessionOptions(canvas=1 << 22))
    assert refused.value.needed_bytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with Session(gemma, SessionOptions(positions=0, canvas=4)) as session:
        few = session.denoise(np.zeros(4, np.int64), HeadRequest())
        before = process.resident_bytes()
        with pytest.raises(BudgetExceeded, match=words):
            session.denoise(np.zeros(1 << 22, np.int64), HeadRequest(rows=np.array([0])))
        assert process.resident_bytes() - before < 50 << 20
        again = session.denoise(np.zeros(4, np.int64), HeadRequest())
        np.testing.assert_array_equal(few.argmax, again.argmax)


def test_weights_beyond_the_machine_are_said_to_need_a_budget(large: Path) -> None:
    def check(machine: int) -> tuple[int, str, int]:
        message, least = ctypes.create_string_buffer(512), ctypes.c_uint64()
        status = library().ekt_check_machine(
            os.fsencode(large), ctypes.c_int64(32), ctypes.c_uint64(machine), ctypes.byref(least), message
        )
        return status, message.value.decode(), least.value

    assert check(0)[0] == check(1 << 40)[0] == 0
    status, said, least = check(process.resident_bytes() + (40 << 20))
    assert status != 0 and "give a memory budget (--memory), at least" in said, said
    with Session(large, SessionOptions(memory_bytes=least + (8 << 20), canvas=32, threads=2)) as session:
        assert session.plan.streamed
    status, said, _ = check(1 << 20)
    assert status != 0 and "with weights read from the disk it is still" in said, said
