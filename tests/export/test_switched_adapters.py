"""LoRA adapters beside the weights, which segments of a pass ask for: compared with PEFT, with the reference,
and with a bundle that has none.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import sealing
from support.bundles import int8_activations, quantized_reference
from support.checkpoints import load_oracle, write_checkpoint
from support.peft_adapters import (
    LAYERS,
    TARGETS,
    adapted_reference,
    add_adapter,
    edit_weights,
    llada_named,
    merged_tensors,
    write_model,
)

import edgekit
from edgekit.export.adapters import switched
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.checkpoint.errors import InvalidAdapter
from edgekit.export.checkpoint.peft_adapter import Adapter
from edgekit.export.models import architecture
from edgekit.export.models.base import DOWN, UP
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.presets import ADAPTER_MODES
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.flashload.errors import EdgekitError, InvalidRequest, MalformedFile
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.onnx import gpu_engine
from edgekit.runtime.generation import Generator, Settings, sampler_model
from edgekit.runtime.sampling import Committed, CoreSampler, HeadRequest, InvalidOption, Pass, drive
from edgekit.runtime.session import Segment, Session, SessionOptions, open_session, read_saved

#: Engines, the median and the largest error of a position relative to the position; those that round
#: activations to int8 as the reference then does.
ENGINES = {
    "native": (1e-5, 5e-2, True),
    "torch": (1e-5, 5e-2, True),
    "onnx": (2e-3, 5e-2, True),
    "onnx-gpu": (1e-5, 1e-4, False),
    "tvm": (1e-5, 5e-2, True),
    "mlx": (1e-5, 1e-4, False),
}
LOGITS = HeadRequest(logits=True)


def write_bundles(folder: Path, scheme: Scheme, written: str, device: str | None = None) -> tuple[Path, Path]:
    """With the adapter, and without."""
    found = []
    for name, adapter in (("adapted", folder / "own"), ("plain", None)):
        precision = "float32" if written == "mlx" else None
        how = ExportOptions(
            written, "mac" if written == "mlx" else "host", scheme, precision=precision, device=device,
            adapter=adapter, adapter_mode="switched",
        )  # fmt: skip
        export(folder / "checkpoint", folder / name, how)
        found.append(folder / name)
    return found[0], found[1]


def reference(folder: Path, scheme: Scheme, written: str) -> ReferenceModel:
    return adapted_reference(folder / "checkpoint", folder / "own", scheme, written)


def texts(model: ReferenceModel, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A prompt, empty for models without a prefix, and a canvas."""
    rng, arch = np.random.default_rng(seed), model.architecture
    return rng.integers(0, arch.vocab_size, 13 * arch.causal_prefix), rng.integers(0, arch.vocab_size, 16)


def logits(session: Session, prompt: np.ndarray, canvas: np.ndarray, text: int, adapter: int) -> np.ndarray:
    """Of a canvas behind a prompt, each with its adapter or 0."""
    with session.open_sequence() as sequence:
        if len(prompt):
            session.run_pass([Segment(sequence, prompt, causal=True, keep_at=0, adapter=text)])
        (answer,) = session.run_pass([Segment(sequence, canvas, LOGITS, adapter=adapter)])
    assert answer is not None and answer.logits is not None
    return answer.logits


def expected_logits(model: ReferenceModel, prompt: np.ndarray, canvas: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        kv = model.encode(torch.from_numpy(prompt)[None]) if len(prompt) else None
        return model.denoise(torch.from_numpy(canvas)[None], kv)[0].numpy()


def options(**more: Any) -> SessionOptions:
    return SessionOptions(positions=64, canvas=32, sequences=4, **more)


# --- beside PEFT --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", TARGETS)
@torch.no_grad()
def test_passes_are_those_of_peft(tmp_path: Path, family: str) -> None:
    """In bfloat16, which checkpoint and adapter have exactly."""
    write_checkpoint(tmp_path / "checkpoint", family, dtype="bfloat16", **LAYERS[family])
    targets: Any = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if family in ("llada", "dream"):
        targets += ["gate_proj", "up_proj", "down_proj"]
    if family == "diffusion_gemma":
        targets = r"model\.decoder\.layers.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|down_proj)"
    oracle = load_oracle(tmp_path / "checkpoint")
    model = add_adapter(oracle, tmp_path / "own", r=4, lora_alpha=8, target_modules=targets)
    for name, value in model.named_parameters():
        if "lora_" in name:
            value.copy_(value.bfloat16().float())
    edit_weights(tmp_path / "own", lambda tensors: {n: t.bfloat16() for n, t in tensors.items()})
    if family == "llada":
        llada_named(tmp_path / "own", 3)
    adapted, _ = write_bundles(tmp_path, Scheme("bf16"), "native")
    prompt, canvas = texts(quantized_reference(tmp_path / "checkpoint", Scheme("bf16"), "native"))
    ids = torch.from_numpy(canvas)[None]

    def theirs() -> np.ndarray:
        if family == "diffusion_gemma":
            out = model(input_ids=torch.from_numpy(prompt)[None], decoder_input_ids=ids)
        else:
            out = model(input_ids=ids, attention_mask=torch.zeros(1, 1, 16, 16), use_cache=False)
        found: np.ndarray = out.logits[0].numpy()
        return found

    # The embedding's scale is rounded to the stored type, which the oracle in float32 does not do.
    most = 2e-2 if family == "diffusion_gemma" else 1e-4
    with open_session(adapted, options()) as session:
        on, off = (logits(session, prompt, canvas, 0, adapter) for adapter in (1, 0))
        assert np.abs(on - theirs()).max() < most
        with model.disable_adapter():
            assert np.abs(off - theirs()).max() < most
    assert np.abs(on - off).max() > 0.1


# --- the adapter that Nemotron-Labs-Diffusion drafts with ---------------------------------------------------


@pytest.fixture
def drafting(tmp_path: Path) -> tuple[Path, Any]:
    """A bundle of a checkpoint with `linear_spec_lora`, and the model with it in PEFT."""
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, "nemotron_labs_diffusion", dtype="bfloat16")
    oracle, own = load_oracle(folder), folder / "linear_spec_lora"
    model = add_adapter(oracle, own, r=4, lora_alpha=8, target_modules=["o_proj"])
    for name, value in model.named_parameters():
        if "lora_" in name:
            value.data = value.data.bfloat16().float()
    stored = "base_model.model.model.", "base_model.model.encoder."
    edit_weights(own, lambda tensors: {n.replace(*stored): t.bfloat16() for n, t in tensors.items()})
    export(folder, tmp_path / "bundle", ExportOptions("native", scheme=Scheme("bf16")))
    return tmp_path / "bundle", model


def test_drafts_are_computed_with_it_and_nothing_else(drafting: tuple[Path, Any]) -> None:
    bundle, model = drafting
    opened = Bundle.open(bundle)
    assert opened.model.adapters == ("draft",)
    facts, prompt = sampler_model(opened), [5, 9, 2, 7, 11]
    tokens: dict[str, list[int]] = {}
    with open_session(opened, options(segments=4)) as session:
        for name, own in (
            ("greedy", {"mode": "autoregressive"}),
            ("drafted", {"mode": "speculative"}),
            ("drafted without", {"mode": "speculative", "draft_adapter": 0}),
            ("diffusion", {"mode": "diffusion"}),
        ):
            sampler = CoreSampler(facts, prompt, max_new_tokens=24, options={"block_length": 6, **own})
            watched = Watched(sampler)
            ids = [e.ids for e in drive(watched, session.sequence) if isinstance(e, Committed)]
            tokens[name] = np.concatenate(ids).tolist()
            with_adapter = {(block == 0, adapter) for block, adapter in watched.segments}
            drafts = {(True, 1)} if name == "drafted" else {(True, 0)} if name != "greedy" else set()
            assert with_adapter == {(False, 0), *drafts}, name
        canvas = np.arange(3, 15)
        for adapter in (0, 1):
            found = logits(session, np.empty(0, np.int64), canvas, 0, adapter)
            with torch.no_grad(), nullcontext() if adapter else model.disable_adapter():
                ids = torch.from_numpy(canvas)[None]
                mask = torch.zeros(1, 1, len(canvas), len(canvas))
                theirs = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[0].numpy()
            assert np.abs(found - theirs).max() < 1e-4
    assert tokens["drafted"] == tokens["drafted without"] == tokens["greedy"], "an adapter changes no token"


class Watched:
    """A sampler, with block and adapter of every segment that it asks for."""

    def __init__(self, sampler: CoreSampler) -> None:
        self._sampler = sampler
        self.segments: list[tuple[int, int]] = []

    def next(self, answer: Any = None) -> Any:
        ask = self._sampler.next(answer)
        if isinstance(ask, Pass):
            self.segments += [(rows.block, rows.adapter) for rows in ask.segments]
        return ask

    def copy(self) -> Watched:
        return Watched(self._sampler.copy())


def test_another_adapter_takes_its_place(drafting: tuple[Path, Any], tmp_path: Path) -> None:
    """Which is merged, or drafts nothing."""
    folder = tmp_path / "checkpoint"
    for mode in ADAPTER_MODES:
        how = ExportOptions(
            "native", adapter=folder / "linear_spec_lora", adapter_name="style", adapter_mode=mode
        )
        export(folder, tmp_path / mode, how)
        opened = Bundle.open(tmp_path / mode)
        assert opened.model.adapters == (("style",) if mode == "switched" else ())
        assert "draft_adapter" not in opened.manifest.sampler["config"]


# --- every engine -------------------------------------------------------------------------------------------


FAMILIES = (("llada", "int4"), ("llada_moe", "int8"), ("diffusion_gemma", "mixed4"), ("dream", "bf16"))


@pytest.mark.parametrize(
    ("engine", "device", "family", "preset"),
    [
        *((engine, None, *family) for engine in ("native", "torch", "mlx") for family in FAMILIES),
        *((engine, None, "llada", "int4") for engine in ("onnx", "onnx-gpu", "tvm")),
        ("tvm", "x86-64-compiled", "llada", "int4"),
    ],
)
def test_engines_switch_adapters(
    tmp_path: Path, engine: str, device: str | None, family: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On it is the reference's, off to the bit that of a bundle without; alone and in company the same.

    In three texts, since one rounding that falls the other way in a prompt moves all positions behind it.
    """
    median, most, rounds = ENGINES[engine]
    written, scheme = "native" if engine == "torch" else engine, Scheme(preset)
    monkeypatch.setattr(gpu_engine, "PROVIDERS", {"CPUExecutionProvider": "cpu"})
    write_model(tmp_path, family)
    adapted, plain = write_bundles(tmp_path, scheme, written, device)
    model = reference(tmp_path, scheme, written)
    errors = []
    with open_session(adapted, options(), engine=engine) as session:
        for seed in reversed(range(3)):
            prompt, canvas = texts(model, seed)
            with int8_activations() if rounds else nullcontext():
                wanted = expected_logits(model, prompt, canvas)
            on, off = (logits(session, prompt, canvas, which, which) for which in (1, 0))
            errors.append(np.linalg.norm(on - wanted, axis=1) / np.linalg.norm(wanted, axis=1))
        together = in_company(session, prompt, canvas)
    with open_session(plain, options(), engine=engine) as session:
        np.testing.assert_array_equal(off, logits(session, prompt, canvas, 0, 0))
        with pytest.raises(InvalidRequest, match="adapter 1 of a bundle that has none to switch"):
            logits(session, prompt, canvas, 1, 1)
    medians = [np.median(error) for error in errors]
    assert min(medians) < median and np.max(errors) < most, f"relative error by text and position: {errors}"
    assert np.abs(on - off).max() > 0.1 * np.abs(on).max(), "the adapter makes a difference"
    for found, alone in zip(together, (off, on, off, on), strict=True):
        np.testing.assert_array_equal(found, alone)


def in_company(session: Session, prompt: np.ndarray, canvas: np.ndarray) -> list[np.ndarray]:
    """Four canvases in a pass, with and without the adapter in turn, and their prompts in one before."""
    sequences = [session.open_sequence() for _ in range(3)]
    sequences.insert(0, session.sequence)
    session.reset()
    if len(prompt):
        session.run_pass(
            [Segment(own, prompt, causal=True, keep_at=0, adapter=i % 2) for i, own in enumerate(sequences)]
        )
    answers = session.run_pass(
        [Segment(own, canvas, LOGITS, adapter=i % 2) for i, own in enumerate(sequences)]
    )
    found = []
    for answer in answers:
        assert answer is not None and answer.logits is not None
        found.append(answer.logits)
    return found


# --- sessions and generations -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llada", "diffusion_gemma"])
def test_a_generation_is_computed_with_the_adapter_that_is_named(tmp_path: Path, family: str) -> None:
    """Several at a time too."""
    write_model(tmp_path, family)
    adapted, plain = write_bundles(tmp_path, Scheme("bf16"), "native")
    found = {}
    for name, bundle, adapter in (("on", adapted, "own"), ("off", adapted, None), ("plain", plain, None)):
        with Generator(bundle, adapter=adapter) as generator:
            own = Settings(max_new_tokens=16, steps=4, seed=3)
            alone = [ids_of(generator.generate(each, own)) for each in PROMPTS]
            together: dict[int, list[int]] = {}
            for number, event in generator.generate_many(PROMPTS, own, at_once=2):
                if isinstance(event, Committed):
                    together.setdefault(number, []).extend(event.ids.tolist())
            assert list(together.values()) == alone
            found[name] = alone
    assert found["off"] == found["plain"] and found["on"] != found["off"]


@pytest.mark.parametrize("family", ["llada", "diffusion_gemma"])
def test_a_session_computes_with_its_adapter_what_says_nothing_else(tmp_path: Path, family: str) -> None:
    write_model(tmp_path, family)
    adapted, _ = write_bundles(tmp_path, Scheme("int8"), "native")
    with open_session(adapted, options(adapter=1)) as session:
        prompt, canvas = texts(reference(tmp_path, Scheme("int8"), "native"))
        wanted = logits(session, prompt, canvas, 1, 1)
        if len(prompt):
            session.prefill(prompt)
            assert [list(piece) for piece in session.pieces] == [list(prompt)], "it is the session's own text"
        found = session.denoise(canvas, LOGITS).logits
        assert found is not None
        np.testing.assert_array_equal(found, wanted)
        assert np.abs(logits(session, prompt, canvas, 0, 0) - wanted).max() > 0.1


PROMPTS = ["Copy this", "What is it?"]


def ids_of(events: Any) -> list[int]:
    return [int(i) for event in events if isinstance(event, Committed) for i in event.ids]


def test_names_of_adapters_are_checked(tmp_path: Path) -> None:
    write_model(tmp_path, "llada")
    adapted, plain = write_bundles(tmp_path, Scheme("int8"), "native")
    with pytest.raises(InvalidOption, match="unknown adapter 'owm'; did you mean own"):
        Generator(adapted, adapter="owm")
    with pytest.raises(
        InvalidOption, match="the bundle has none beside its weights; export it with --adapter"
    ):
        Generator(plain, adapter="own")
    for bundle, number in ((adapted, 2), (plain, 1)):
        with pytest.raises(InvalidRequest, match=f"adapter {number} of a bundle that has"):
            Session(bundle, options(adapter=number))
    with pytest.raises(InvalidOption, match="adapter"):
        options(adapter=-1)


# --- what is exported ---------------------------------------------------------------------------------------


def test_a_weight_of_several_stored_ones_has_their_adapters_side_by_side(tmp_path: Path) -> None:
    """Each as large as its own rank, those of other rows zeros; of a stored tensor without one too."""
    from edgekit.export.adapters import Beside, _beside
    from edgekit.export.models.base import Part, WeightSpec

    write_checkpoint(tmp_path, "dream", num_hidden_layers=1)
    merged_tensors(
        tmp_path, tmp_path / "own", r=2, target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 5}
    )
    source, adapter = Checkpoint.open(tmp_path), Adapter.open(tmp_path / "own")
    shapes = architecture(source.config).stored_shapes()
    stored = [f"model.layers.0.self_attn.{name}_proj.weight" for name in ("q", "k", "v")]
    rows = [shapes[name][0] for name in stored]
    joined = WeightSpec("qkv", (sum(rows), 64), "attention", tuple(map(Part, stored)))
    weights = Beside(source)
    down, up = _beside(joined, "layers.0.qkv", adapter, shapes, weights)
    assert (down.shape, up.shape) == ((7, 64), (sum(rows), 7))
    product = weights.read("layers.0.qkv" + UP) @ weights.read("layers.0.qkv" + DOWN)
    each = {name: adapter.up(name) @ adapter.down(name) for name in stored[::2]}
    expected = [each.get(name, np.zeros((n, 64), np.float32)) for name, n in zip(stored, rows, strict=True)]
    np.testing.assert_allclose(product, np.concatenate(expected), atol=1e-6)


def test_layers_with_other_adapters_are_of_other_kinds(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "dream", num_hidden_layers=5)
    merged_tensors(
        tmp_path, tmp_path / "own", r=2, target_modules=["q_proj"], layers_to_transform=[0, 1, 3, 4],
        rank_pattern={r"layers.3.self_attn.q_proj": 5},
    )  # fmt: skip
    source = Checkpoint.open(tmp_path)
    arch, _ = switched(architecture(source.config), Adapter.open(tmp_path / "own"), source)
    kinds = ["dense_adapted", "dense_adapted", "dense", "dense_adapted_2", "dense_adapted"]
    assert [layer.kind for layer in arch.layers] == kinds
    assert [layer.uses_adapter for layer in arch.layers] == [kind != "dense" for kind in kinds]


@pytest.mark.parametrize(
    ("family", "targets", "what"),
    [
        ("llada_moe", ["up_proj"], "changes experts"),
        ("llada", r"model\.transformer\.ff_out", "changes the head"),
        ("diffusion_gemma", r".*self_conditioning\..*", "changes the self-conditioning"),
    ],
)
def test_what_is_in_no_layer_cannot_be_switched(tmp_path: Path, family: str, targets: Any, what: str) -> None:
    write_checkpoint(tmp_path / "checkpoint", family, **LAYERS[family])
    merged_tensors(tmp_path / "checkpoint", tmp_path / "own", r=2, target_modules=targets)
    how = ExportOptions("native", adapter=tmp_path / "own", adapter_mode="switched")
    with pytest.raises(InvalidAdapter, match=f"{what}.*merge it: --adapter-mode merged"):
        export(tmp_path / "checkpoint", tmp_path / "out", how)


# --- the native format --------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write_model(tmp_path, "llada")
    how = ExportOptions("native", scheme=Scheme("mixed4"), adapter=tmp_path / "own", adapter_mode="switched")
    export(tmp_path / "checkpoint", tmp_path / "bundle", how)
    return tmp_path / "bundle"


def test_a_bundle_says_what_adapter_it_has(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    assert opened.model.adapters == ("own",)
    (own,) = opened.manifest.model["adapters"]
    targets = ["q_proj", "v_proj", "o_proj"]
    assert own["targets"] == [f"self_attn.{n}" for n in targets] + ["mlp.gate_proj", "mlp.down_proj"]
    assert (own["rank"], own["matrices"]) == (3, 10)
    assert own["bytes"] == 2 * 2 * 3 * (3 * 128 + 2 * 160)
    assert "adapter" not in opened.manifest.provenance
    stored = sum(
        tensor.nbytes for run in opened.runs.values() for tensor in run.tensors if ".lora_" in tensor.name
    )
    assert stored == own["bytes"]


def test_text_that_is_encoded_with_an_adapter_is_no_plain_text(tmp_path: Path) -> None:
    """Another session would encode it without."""
    write_model(tmp_path, "diffusion_gemma")
    adapted, _ = write_bundles(tmp_path, Scheme("int8"), "native")
    ids = np.arange(5)
    with open_session(adapted, options()) as session:
        for adapter in (0, 1):
            with session.open_sequence() as sequence:
                session.run_pass([Segment(sequence, ids, causal=True, keep_at=0, adapter=adapter)])
                assert sequence.prefix_length == 5
                if adapter:
                    with pytest.raises(EdgekitError, match="rows of another adapter"):
                        _ = sequence.pieces
                else:
                    assert [list(piece) for piece in sequence.pieces] == [list(ids)]


def test_a_saved_text_belongs_to_its_adapter(tmp_path: Path) -> None:
    write_model(tmp_path, "diffusion_gemma")
    adapted, _ = write_bundles(tmp_path, Scheme("int8"), "native")
    path, talk = tmp_path / "text.kv", tmp_path / "talk.kv"
    canvas, found = np.arange(8), {}
    for number in (1, 0):
        with open_session(adapted, options(adapter=number)) as session:
            session.prefill(np.arange(5, 17))
            expected = session.denoise(canvas, LOGITS).logits
            if not number:
                names = (
                    r"computed with adapter 1, and this session computes with no adapter; open it with that"
                )
                with pytest.raises(
                    InvalidRequest, match=rf"text\.kv: holds keys and values that were {names}"
                ):
                    session.sequence.load(path)
                assert session.prefix_length == 12, "what is refused changes nothing"
            session.sequence.save(path)
            assert read_saved(path).adapter == number
            session.reset()
            session.sequence.load(path)
            np.testing.assert_array_equal(session.denoise(canvas, LOGITS).logits, expected)
            found[number] = path.read_bytes()
    assert found[0] != found[1]
    few: dict[str, Any] = {"max_new_tokens": 8, "steps": 2}
    with edgekit.load(adapted, adapter="own") as model:
        chat = model.chat(raw=True)
        chat.generate(PROMPTS[0], **few)
        chat.save(talk)
        following = chat.generate(PROMPTS[1], **few)
    with edgekit.load(adapted, adapter="own") as model:
        assert model.chat(resume=talk).generate(PROMPTS[1], **few).ids == following.ids
    with edgekit.load(adapted) as model:
        model.chat(raw=True).generate(PROMPTS[0], **few)  # whose text the model holds then
        with pytest.raises(EdgekitError, match=r"talk\.kv: .* adapter 1, and this .* no adapter"):
            model.chat(resume=talk)


@pytest.mark.parametrize("wrong", [-1, 2, 1 << 40, "1", None, 0.5])
def test_other_adapters_are_refused(bundle: Path, wrong: Any) -> None:
    with open_session(bundle, options()) as session:
        with pytest.raises(EdgekitError) as refused:
            session.run_pass([Segment(session.sequence, np.arange(4), LOGITS, adapter=wrong)])
        assert "adapter" in str(refused.value) and "\n" not in str(refused.value)


def entry(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["programs"]["entries"]["dense_adapted"]
    return found


def first_linear(manifest: dict[str, Any], adapted: bool) -> dict[str, Any]:
    each = (op for op in entry(manifest)["ops"] if op["op"] == "linear" and (len(op["w"]) == 4) == adapted)
    found: dict[str, Any] = next(each)
    return found


#: What a manifest says that it does not mean.
DAMAGES = {
    "no adapter": lambda m: m["model"].pop("adapters"),
    "another input": lambda m: first_linear(m, True)["in"].__setitem__(2, 1),
    "itself": lambda m: first_linear(m, True)["in"].__setitem__(2, first_linear(m, True)["in"][0]),
    "of none": lambda m: first_linear(m, False).update({"in": first_linear(m, True)["in"]}),
    "four inputs": lambda m: first_linear(m, True)["in"].append(0),
    "none of the model": lambda m: m["model"].update(adapters=[]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_wrong_factors_of_a_bundle_are_refused(bundle: Path, damage: str) -> None:
    sealing.edit(bundle, DAMAGES[damage])
    with pytest.raises(EdgekitError) as refused, open_session(bundle, options()) as session:
        session.denoise(np.zeros(4, np.int64), HeadRequest())
    assert "\n" not in str(refused.value) and "dense_adapted" in str(refused.value)


@pytest.mark.parametrize(
    "own",
    [3, [3], [{}], [{"name": "x", "rank": 0, "matrices": 1, "bytes": 1, "targets": []}],
     [{"name": 3, "rank": 1, "matrices": 1, "bytes": 1, "targets": []}],
     [{"name": "x", "rank": 1, "matrices": 1, "bytes": 1, "targets": [3]}]],
    ids=str,
)  # fmt: skip
def test_wrong_adapters_of_a_manifest_are_refused(bundle: Path, own: Any) -> None:
    sealing.edit(bundle, lambda manifest: manifest["model"].update(adapters=own))
    with pytest.raises(MalformedFile, match="adapter"):
        Bundle.open(bundle)
    sealing.edit(bundle, lambda manifest: manifest["model"].update(adapters=[{}, {}]))
    with pytest.raises(EdgekitError):
        Session(bundle)
