"""The ONNX bundle end to end: engine against reference, streamed against resident, stored codes against the
quantizer's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import bundles
from support.bundles import int8_activations, make_bundle, quantized_reference
from support.head_oracle import check_saturated, others

from edgekit.export.ops import unpack_codes
from edgekit.export.quantize import Override, Scheme
from edgekit.flashload.reader import FlashFile
from edgekit.runtime.engines.onnx import integer_product
from edgekit.runtime.engines.onnx.integer_product import INT8, UINT8, is_exact
from edgekit.runtime.engines.onnx.programs import check_program
from edgekit.runtime.engines.unpack import unpack_int4
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import Committed, Done, HeadRequest, PhiloxNoise
from edgekit.runtime.session import Session, SessionOptions
from edgekit.runtime.telemetry import load_onnxruntime

#: Family, scheme, checkpoint overrides. Odd head counts, GQA, odd row counts, one expert, float experts,
#: short windows.
CASES: dict[str, tuple[str, Scheme, dict[str, Any]]] = {
    "gemma mixed4": ("diffusion_gemma", Scheme("mixed4"),
                     {"moe_intermediate_size": 32, "num_hidden_layers": 3}),
    "gemma bf16": ("diffusion_gemma", Scheme("bf16"), {"num_hidden_layers": 2, "num_attention_heads": 3,
                   "num_key_value_heads": 3, "num_global_key_value_heads": 1}),
    "llada int4": ("llada", Scheme("int4"), {"n_layers": 2, "mlp_hidden_size": 160}),
    "llada int8": ("llada", Scheme("int8"), {"n_layers": 2, "n_heads": 3, "d_model": 96, "n_kv_heads": 1}),
    "llada_moe mixed4": ("llada_moe", Scheme("mixed4", 32, (Override("layers.1.experts.*", 16),)),
                         {"num_experts": 5, "num_experts_per_tok": 3, "num_hidden_layers": 2}),
    "dream mixed4": ("dream", Scheme("mixed4", 16), {"num_hidden_layers": 2, "num_attention_heads": 7,
                     "num_key_value_heads": 1, "hidden_size": 112, "vocab_size": 391}),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.replace(" ", "-"))
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, Scheme]:
    family, scheme, overrides = CASES[request.param]
    bundle = make_bundle(tmp_path_factory.mktemp("onnx"), family, scheme, **overrides)
    return bundle, quantized_reference(bundle.parent / "checkpoint", scheme), scheme


def passes(session: Session, model: Any) -> tuple[Any, torch.Tensor]:
    with int8_activations():
        return bundles.passes(session, model)


@pytest.mark.parametrize("right", [INT8, UINT8])
def test_engine_equals_the_reference_with_rounded_activations(
    case: tuple[Path, Any, Scheme], right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With either variant of the programs, as far as the processor allows. The same codes and the same
    rounding leave the order of float sums alone. Where that makes a rounding fall the other way, one
    activation moves by a step and its position by a few per mille: most positions must agree closely, all of
    them roughly.
    """
    if right == INT8 and not is_exact(load_onnxruntime(), INT8):
        pytest.skip("the product of uint8 and int8 is wrong on this processor")
    monkeypatch.setattr(integer_product, "right_operand", lambda: right)
    bundle, model, _ = case
    with Session(bundle) as session:
        out, expected = passes(session, model)
    assert out.logits is not None
    error = np.linalg.norm(out.logits - expected.numpy(), axis=1) / np.linalg.norm(expected.numpy(), axis=1)
    assert np.median(error) < 2e-3 and error.max() < 5e-2, f"relative error by position: {np.round(error, 5)}"
    assert (out.argmax == expected.argmax(-1).numpy()).mean() > 0.9


def test_the_engine_takes_every_program_that_is_written(case: tuple[Path, Any, Scheme]) -> None:
    programs = list(case[0].glob("**/*.onnx"))
    assert len(programs) > 5
    for program in programs:
        check_program(program.read_bytes())


def test_head_statistics_are_those_of_the_logits(case: tuple[Path, Any, Scheme]) -> None:
    bundle, model, _ = case
    with Session(bundle) as session:
        out, _ = passes(session, model)
    assert out.logits is not None and out.top_ids is not None and out.top_z is not None
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


def test_statistics_hold_where_probabilities_round_to_one(case: tuple[Path, Any, Scheme]) -> None:
    bundle, model, _ = case
    canvas = np.random.default_rng(2).integers(0, model.architecture.vocab_size, 16)
    with Session(bundle) as session:
        check_saturated(lambda t: session.denoise(canvas, HeadRequest(temperature=t, logits=True)))


def test_gumbel_sample_is_the_argmax_with_noise(case: tuple[Path, Any, Scheme]) -> None:
    bundle, model, _ = case
    rng = np.random.default_rng(5)
    canvas = rng.integers(0, model.architecture.vocab_size, 11)
    rows, draw = np.array([9, 2, 2, 0]), PhiloxNoise(5).gumbel(4, model.architecture.vocab_size)
    noise = draw(0, draw.vocab_size)
    with Session(bundle) as session:
        if model.architecture.causal_prefix:
            session.prefill(canvas)
        out = session.denoise(canvas, HeadRequest(rows=rows, gumbel=draw, gumbel_scale=0.5, logits=True))
        assert out.logits is not None and out.sample is not None and out.sample_prob is not None
        np.testing.assert_array_equal(out.sample, (out.logits + np.float32(0.5) * noise).argmax(-1))
        p = torch.softmax(torch.from_numpy(out.logits), -1).numpy()
        np.testing.assert_allclose(out.sample_prob, p[np.arange(4), out.sample], rtol=1e-4)
        again = session.project(HeadRequest(rows=rows, logits=True))
        np.testing.assert_array_equal(again.logits, out.logits)


@pytest.mark.parametrize("resident", [0, 40_000])
def test_streamed_equals_resident_bit_for_bit(case: tuple[Path, Any, Scheme], resident: int) -> None:
    bundle, model, _ = case
    with Session(bundle) as session, Session(bundle, SessionOptions(resident_bytes=resident)) as streamed:
        assert not session.plan.streamed and streamed.plan.streamed
        assert streamed.plan.pinned_bytes <= resident
        a, _ = passes(session, model)
        b, _ = passes(streamed, model)
        np.testing.assert_array_equal(a.logits, b.logits)
        np.testing.assert_array_equal(a.soft, b.soft)
        read = streamed.statistics()["bytes_read"]
        # Every pass reads what is not pinned; what was read ahead for a next pass is at most a ring more
        # each time.
        assert read >= streamed.plan.streamed_bytes


def test_generation_streams_repeats_and_reports(case: tuple[Path, Any, Scheme]) -> None:
    bundle, _, _ = case
    settings = Settings(max_new_tokens=20, steps=5, seed=11)
    answers = []
    for resident in (None, 0):
        with Generator(bundle, resident_bytes=resident) as generator:
            for _ in range(2):
                events = list(generator.generate("Why is the sky blue?", settings))
                assert isinstance(events[-1], Done)
                stats = events[-1].stats
                answers.append(np.concatenate([e.ids for e in events if isinstance(e, Committed)]).tolist())
                streamed = generator.session.plan.streamed_bytes
                assert (
                    (stats.engine["bytes_read"] >= stats.forwards * streamed)
                    if resident == 0
                    else streamed == 0
                )
    assert all(a == answers[0] for a in answers)


def test_stored_codes_are_the_quantizers(case: tuple[Path, Any, Scheme]) -> None:
    """Every matrix is read back from the flash file and compared bit for bit; none is float unless asked
    for.
    """
    bundle, model, scheme = case
    weights = model.weights()
    seen = set()
    with FlashFile(bundle / "weights.safetensors") as file:
        for run in file.runs.values():
            buffer, views = file.load(run)
            for name, array in views.items():
                stem, _, kind = name.rpartition(".")
                short = ".".join(
                    p for p in stem.split(".") if not (p.isdigit() and stem.startswith(("embedding", "head")))
                )
                parts = short.split(".experts.")
                expert = None
                if len(parts) == 2 and parts[1][0].isdigit():
                    index, _, rest = parts[1].partition(".")
                    short, expert = f"{parts[0]}.experts.{rest}", int(index)
                short = short.removeprefix("final.")

                def expected(suffix: str, short: str = short, expert: int | None = expert) -> np.ndarray:
                    value = weights[f"{short}.{suffix}"].detach()
                    return (value if expert is None else value[expert]).numpy()

                table = stem.startswith(("embedding.", "head."))
                start = 0
                if table:
                    tiles = [r for r in file.runs if r.startswith(stem.split(".")[0] + ".")]
                    sizes = [file.run(r).tensors[0].shape[0] for r in tiles]
                    start = sum(sizes[: tiles.index(stem)])
                seen.add(f"{short}.{kind}")
                if array.dtype == np.uint16:
                    whole = expected("weight")
                    rows = whole[start : start + array.shape[0]] if table else whole
                    np.testing.assert_array_equal((array.astype(np.uint32) << 16).view(np.float32), rows)
                elif kind == "codes" and table:
                    np.testing.assert_array_equal(array, expected("codes")[start : start + array.shape[0]])
                elif kind == "codes":
                    np.testing.assert_array_equal(
                        array.T, unpack_codes(torch.from_numpy(expected("codes")), 8).numpy()
                    )
                elif kind == "packed":
                    groups = views[f"{stem}.group_scales"]
                    out = unpack_int4(array, groups, np.empty((array.shape[0], groups.shape[1]), np.int8))
                    codes = unpack_codes(torch.from_numpy(expected("codes")), 4).numpy().astype(np.int16)
                    scales = expected("group_scales").astype(np.int16)
                    size = codes.shape[1] // scales.shape[1]
                    np.testing.assert_array_equal(out.T, codes * np.repeat(scales, size, 1))
                elif kind == "group_scales":
                    np.testing.assert_array_equal(array.T, expected("group_scales"))
                elif kind == "scales":
                    np.testing.assert_array_equal(
                        array, expected("scales")[start : start + len(array)] if table else expected("scales")
                    )
                else:
                    whole = (
                        weights[f"{short}.{kind}" if f"{short}.{kind}" in weights else kind].detach().numpy()
                    )
                    np.testing.assert_array_equal(array.reshape(-1), whole.reshape(-1))
            del views, array
            buffer.close()
    matrices = {
        n.rpartition(".")[0] for n in weights if n.endswith((".codes", ".weight")) and weights[n].ndim >= 2
    }
    assert matrices <= {n.rpartition(".")[0] for n in seen}


def test_a_failed_pass_leaves_the_session_usable(
    case: tuple[Path, Any, Scheme], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine error or an interruption in the middle of a streamed pass must not upset the read-ahead of
    the next.
    """
    bundle, model, _ = case
    canvas = np.arange(16) % model.architecture.vocab_size
    with Session(bundle, SessionOptions(resident_bytes=0)) as session:
        if model.architecture.causal_prefix:
            session.prefill(canvas)
        expected = session.denoise(canvas, HeadRequest(logits=True)).logits
        engine: Any = session.engine
        name = "route" if model.architecture.layers[0].experts else "layers"
        real, calls = getattr(engine, name), []

        def fails(*args: Any) -> Any:
            calls.append(args)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(*args)

        monkeypatch.setattr(engine, name, fails)
        with pytest.raises(KeyboardInterrupt):
            session.denoise(canvas, HeadRequest())
        np.testing.assert_array_equal(session.denoise(canvas, HeadRequest(logits=True)).logits, expected)
        calls.clear()
        if model.architecture.causal_prefix:
            with pytest.raises(KeyboardInterrupt):
                session.prefill(canvas)
            assert session.prefix_length == 0
