"""LoRA adapters of PEFT: what is read of a folder, and merged weights, beside PEFT's own results."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.checkpoints import load_oracle, write_checkpoint
from support.peft_adapters import (
    ATTENTION,
    MLP,
    add_adapter,
    edit_config,
    edit_weights,
    llada_named,
    merged_tensors,
)

import edgekit
from edgekit.export.adapters import Merged, adapter_facts, check_adapter
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.checkpoint.errors import CheckpointError, InvalidAdapter
from edgekit.export.checkpoint.peft_adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter
from edgekit.export.models import architecture
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights
from edgekit.flashload.errors import EdgekitError, ResumeMismatch
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.golden import GOLDEN_FILE
from edgekit.tools import tiny as tiny_models
from edgekit.tools.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "export.md"

FAMILIES = {"llada": {}, "llada_moe": {}, "dream": {}, "diffusion_gemma": {"num_hidden_layers": 3}}
TARGETS = ATTENTION + MLP
#: Settings of LoraConfig.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"r": 3, "target_modules": TARGETS},
    "alpha": {"r": 4, "lora_alpha": 17, "target_modules": ATTENTION},
    "rslora": {"r": 5, "lora_alpha": 9, "use_rslora": True, "target_modules": TARGETS},
    "layers": {"r": 2, "target_modules": TARGETS, "layers_to_transform": [0, 2]},
    "patterns": {
        "r": 4,
        "target_modules": TARGETS,
        "rank_pattern": {"q_proj": 2, r".*\.1\.self_attn.v_proj": 7, r"blocks\.1\.v_proj": 6},
        "alpha_pattern": {"(o_proj|attn_out)": 31, "q_proj": 3},
    },
    "pattern of targets": {"r": 3, "target_modules": r".*\.(0|1)\..*(q_proj|v_proj|ff_proj)"},
}


def merged_source(folder: Path, adapter: Path) -> tuple[Any, Merged]:
    checkpoint, own = Checkpoint.open(folder), Adapter.open(adapter)
    arch = architecture(checkpoint.config)
    check_adapter(arch, own)
    return arch, Merged(checkpoint, own)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_merged_tensors_are_those_of_peft(tmp_path: Path, family: str, name: str) -> None:
    """Every stored matrix, those of experts too."""
    write_checkpoint(tmp_path, family, **FAMILIES[family])
    expected = merged_tensors(tmp_path, tmp_path / "adapter", **SETTINGS[name])
    plain = load_file(tmp_path / "model.safetensors")
    arch, source = merged_source(tmp_path, tmp_path / "adapter")
    changed = 0
    for tensor in arch.stored_shapes():
        value = torch.from_numpy(source.read(tensor))
        wanted = expected.get(tensor, plain[tensor])
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-5)
        changed += not torch.equal(wanted, plain[tensor])
        rows = value.shape[0]
        if wanted.ndim == 2:
            part = source.read_slice(tensor, rows // 3, rows - 1)
            torch.testing.assert_close(
                torch.from_numpy(part), wanted[rows // 3 : rows - 1], rtol=0, atol=1e-5
            )
    assert changed >= 2


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_peft(tmp_path: Path, family: str, seed: int) -> None:
    """With the adapter apart, and merged."""
    rng = np.random.default_rng(seed)
    write_checkpoint(tmp_path, family, seed, **FAMILIES[family])
    oracle, folder = load_oracle(tmp_path), tmp_path / "adapter"
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    targets: Any = attention if family == "llada_moe" else [*attention, "gate_proj", "up_proj", "down_proj"]
    if family == "diffusion_gemma":
        targets = rf"model\.decoder\.layers.*\.({'|'.join([*targets, 'router.proj'])})"
    adapted = add_adapter(oracle, folder, seed, r=5, lora_alpha=11, target_modules=targets)
    if family == "llada":
        llada_named(folder, 3)
    arch, source = merged_source(tmp_path, folder)
    ours = ReferenceModel(arch, load_float_weights(arch, source)).eval()
    ids = torch.from_numpy(rng.integers(0, arch.vocab_size, (2, 16)))
    prompt = torch.from_numpy(rng.integers(0, arch.vocab_size, (2, 11)))

    def theirs(**how: Any) -> torch.Tensor:
        if family == "diffusion_gemma":
            logits = adapted(input_ids=prompt, decoder_input_ids=ids, **how).logits
        else:
            logits = adapted(input_ids=ids, attention_mask=torch.zeros(2, 1, 16, 16), use_cache=False).logits
        assert isinstance(logits, torch.Tensor)
        return logits

    apart, kv = theirs(), None
    with adapted.disable_adapter():
        plain = theirs()
    if family == "diffusion_gemma":
        base = ReferenceModel(arch, load_float_weights(arch, Checkpoint.open(tmp_path))).eval()
        # The adapter of the decoder leaves the encoder as it is, until it is merged: weights are shared.
        assert (ours.denoise(ids, base.encode(prompt)) - apart).abs().max() < 1e-4
        kv = ours.encode(prompt)
    else:
        assert (ours.denoise(ids) - apart).abs().max() < 1e-4
    adapted.merge_adapter()
    found = ours.denoise(ids, kv)
    assert (found - theirs()).abs().max() < 1e-4
    assert (found - plain).abs().max() > 1e-1, "the adapter makes a difference"


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    """A folder with `checkpoint`, and `adapter` for its projections of attention."""
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=2)
    merged_tensors(tmp_path / "checkpoint", tmp_path / "adapter", r=3, target_modules=["q_proj", "attn_out"])
    return tmp_path


@pytest.mark.parametrize("preset", ["mixed4", "int8"])
def test_bundles_with_an_adapter_are_those_of_merged_checkpoints(adapted: Path, preset: str) -> None:
    """Bit for bit: merging comes before quantization."""
    from support.checkpoints import write_weights

    checkpoint, merged = adapted / "checkpoint", adapted / "merged"
    shutil.copytree(checkpoint, merged)
    _, source = merged_source(checkpoint, adapted / "adapter")
    names = Checkpoint.open(checkpoint).names
    write_weights(merged, {name: torch.from_numpy(source.read(name)) for name in names})
    scheme = Scheme(preset)
    one = export(
        checkpoint, adapted / "a", ExportOptions("native", scheme=scheme, adapter=adapted / "adapter")
    )
    export(merged, adapted / "b", ExportOptions("native", scheme=scheme))
    runs = [_runs(adapted / name) for name in "ab"]
    assert runs[0] == runs[1]
    assert one.notes[0] == "adapter adapter of rank 3: 4 matrices merged into the weights"
    own = Bundle.open(adapted / "a").manifest.provenance["adapter"]
    assert own == {
        "name": "adapter",
        "rank": 3,
        "targets": ["self_attn.q_proj", "self_attn.o_proj"],
        "matrices": 4,
        "bytes": 4 * 2 * 3 * 128,
    }


def _runs(bundle: Path) -> dict[str, int]:
    with Bundle.open(bundle).open_weights() as file:
        return {run.name: run.xxh3 for run in file.layout.runs}


def test_a_resumed_export_has_the_same_adapter(adapted: Path) -> None:
    model, output = adapted / "checkpoint", adapted / "bundle"
    export(model, output, ExportOptions("native", adapter=adapted / "adapter"))
    export(model, output, ExportOptions("native", adapter=adapted / "adapter", resume=True))
    with pytest.raises(ResumeMismatch):
        export(model, output, ExportOptions("native", resume=True))
    edit_config(adapted / "adapter", lora_alpha=9)
    with pytest.raises(ResumeMismatch):
        export(model, output, ExportOptions("native", adapter=adapted / "adapter", resume=True))


def test_golden_results_of_the_model_are_not_those_of_the_adapter(tmp_path: Path) -> None:
    model = Path(tiny_models.__file__).parent / "tiny-llada"
    merged_tensors(model, tmp_path / "own", r=2, target_modules=["q_proj"])
    export(model, tmp_path / "plain", ExportOptions("native"))
    export(model, tmp_path / "out", ExportOptions("native", adapter=tmp_path / "own"))
    assert GOLDEN_FILE in Bundle.open(tmp_path / "plain").manifest.files
    assert GOLDEN_FILE not in Bundle.open(tmp_path / "out").manifest.files


def test_names_with_the_adapter_s_are_read(adapted: Path) -> None:
    before = Adapter.open(adapted / "adapter").matrices
    edit_weights(
        adapted / "adapter",
        lambda tensors: {n.replace(".weight", ".default.weight"): t for n, t in tensors.items()},
    )
    after = Adapter.open(adapted / "adapter")
    assert after.matrices.keys() == before.keys()
    assert after.rank == 3


def test_facts_of_an_adapter_tell_weights_that_are_made_of_several(tmp_path: Path) -> None:
    config = write_checkpoint(tmp_path, "llada_moe", num_hidden_layers=1, num_experts=2)
    merged_tensors(tmp_path, tmp_path / "adapter", r=2, target_modules=["gate_proj"])
    facts = adapter_facts(architecture(config), Adapter.open(tmp_path / "adapter"), "own")
    assert (facts["targets"], facts["matrices"], facts["name"]) == (["gate_up"], 2, "own")


# --- the commands -------------------------------------------------------------------------------------------


def test_the_adapter_of_the_page_is_exported_and_switched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says, as it says it."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## LoRA adapters") :].partition("\n## ")[0]
    (made,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (shown,) = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(made, "export.md", "exec"), {})
    lines = [shlex.split(line.removeprefix("$ "), comments=True) for line in shown.splitlines()]
    said = [command(*words[1:]) for words in lines]
    assert "tiny-llada-style-host-mixed4" in said[0]
    answers = [said[2], command(*lines[2][1:-2])]
    assert answers[0] != answers[1]
    with edgekit.load("styles", adapter="style") as model:
        assert model.generate(lines[2][3]).text == answers[0].strip()
    assert "adapter style: rank 4, 6 matrices (self_attn.q_proj)" in command("inspect", "styles")
    assert json.loads(command("inspect", "styles", "--json"))["model"]["adapters"][0]["name"] == "style"
    merged = command("inspect", "tiny-llada-style-host-mixed4")
    assert "adapter style: rank 4, 6 matrices" in merged and "merged into the weights" in merged


def command(*words: str) -> str:
    """What a command says on stdout."""
    found = CliRunner().invoke(main, words, catch_exceptions=False)
    assert found.exit_code == 0, found.stderr
    return found.stdout


def test_the_adapter_of_another_model_is_one_line_of_the_command(adapted: Path) -> None:
    words = ["export", "tiny-llada", "--adapter", str(adapted / "adapter"), "-o", str(adapted / "out")]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 2
    assert (
        found.stderr.splitlines()[-1].startswith("edgekit: error: ")
        and "it is another model's" in found.stderr
    )


# --- what is refused ----------------------------------------------------------------------------------------

FIRST = "base_model.model.model.transformer.blocks.0.q_proj.lora_A.weight"


def renamed(old: str, new: str) -> Any:
    return lambda folder: edit_weights(
        folder, lambda tensors: {n.replace(old, new, 1): t for n, t in tensors.items()}
    )


def with_tensor(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return lambda folder: edit_weights(folder, lambda t: t | {name: torch.zeros(shape, dtype=dtype)})


def config(**values: Any) -> Any:
    return lambda folder: edit_config(folder, **values)


def truncated(folder: Path) -> None:
    file = folder / ADAPTER_WEIGHTS
    file.write_bytes(file.read_bytes()[:-7])


def in_place_of_weights(make: Any) -> Any:
    def change(folder: Path) -> None:
        (folder / ADAPTER_WEIGHTS).unlink()
        make(folder / ADAPTER_WEIGHTS)

    return change


HOSTILE: dict[str, tuple[Any, str]] = {
    "other kind": (config(peft_type="IA3"), "peft_type is 'IA3'; only 'LORA' is supported"),
    "no kind": (config(peft_type=...), "peft_type is missing"),
    "DoRA": (config(use_dora=True), "use_dora is True"),
    "whole modules": (config(modules_to_save=["lm_head"]), "modules_to_save is"),
    "biases": (config(bias="all"), "bias is 'all'; only 'none'"),
    "biases of its own": (config(lora_bias=True), "lora_bias is True"),
    "PiSSA": (config(init_lora_weights="pissa_niter_4"), "init_lora_weights is 'pissa_niter_4'"),
    "OLoRA": (config(init_lora_weights="olora"), "init_lora_weights is 'olora'"),
    "parameters": (config(target_parameters=["experts.up"]), "target_parameters is .*does not know"),
    "tokens": (config(trainable_token_indices=[3]), "trainable_token_indices is .*does not know"),
    "aLoRA": (config(alora_invocation_tokens=[3]), "alora_invocation_tokens is"),
    "QALoRA": (config(use_qalora=True), "use_qalora is True"),
    "layers again": (config(layer_replication=[[0, 2]]), "layer_replication is"),
    "the future": (config(use_hyper_lora=True), "use_hyper_lora is True, which edgekit does not know"),
    "huge rank": (config(r=1 << 40), "r is 1099511627776; expected an integer from 1 to"),
    "no rank": (config(r=0), "r is 0"),
    "rank as text": (config(r="3"), "r is '3'"),
    "other rank": (config(r=4), r"matrices \[3, 64\] and \[64, 3\]; with the rank 4"),
    "rank by pattern": (config(rank_pattern={"q_proj": 2}), r"with the rank 2 of"),
    "alpha": (config(lora_alpha=float("nan")), "lora_alpha. is nan"),
    "patterns of text": (config(alpha_pattern={"q_proj": "x"}), "alpha_pattern is .*object of numbers"),
    "patterns of huge numbers": (config(alpha_pattern={"q_proj": 1e30}), "object of numbers from -1e"),
    "huge values": (
        lambda folder: edit_weights(folder, lambda t: {n: torch.full_like(v, 3e38) for n, v in t.items()}),
        "is beyond float32 with the adapter, whose scale is",
    ),
    "slow pattern": (config(alpha_pattern={"(a+)+x": 2}), r"has the pattern '\(a\+\)\+x'; known are names"),
    "slow pattern 2": (config(alpha_pattern={".*.*.*q": 2}), "has the pattern"),
    "back reference": (config(alpha_pattern={r"(a)\1": 2}), "has the pattern"),
    "no pattern": (config(alpha_pattern={"(q_proj": 2}), "has the pattern"),
    "other targets": (config(target_modules=["k_proj"]), "is none of the modules that adapter_config.json"),
    "excluded": (config(exclude_modules=["q_proj"]), "is none of the modules"),
    "other layers": (config(layers_to_transform=[1]), r"blocks\.0\.\w+ is none of the modules"),
    "nested": (config(task_type={"a": [[[]]] * 3} | {"b": 1 << 70}), "more than 64 bits"),
    "no JSON": (lambda folder: (folder / ADAPTER_CONFIG).write_text("{"), "is not valid JSON"),
    "a list": (lambda folder: (folder / ADAPTER_CONFIG).write_text("[]"), "holds a list"),
    "no configuration": (lambda folder: (folder / ADAPTER_CONFIG).unlink(), "has no adapter_config.json"),
    "no weights": (lambda folder: (folder / ADAPTER_WEIGHTS).unlink(), "has no adapter_model.safetensors"),
    "pickle": (
        lambda folder: (folder / ADAPTER_WEIGHTS).rename(folder / "adapter_model.bin"),
        "only pickle weights",
    ),
    "truncated": (truncated, "has .* bytes, tensor .* ends at"),
    "garbage": (lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes(b"x" * 99), "safetensors header"),
    "device": (in_place_of_weights(lambda file: file.symlink_to("/dev/zero")), "is not a regular file"),
    "pipe": (in_place_of_weights(os.mkfifo), "is not a regular file"),
    "folder": (in_place_of_weights(os.mkdir), "is not a regular file"),
    "loop of links": (in_place_of_weights(lambda file: file.symlink_to(file)), "cannot be opened"),
    "link to nothing": (in_place_of_weights(lambda file: file.symlink_to("nowhere")), "cannot be opened"),
    "half": (
        lambda folder: edit_weights(folder, lambda t: {n: v for n, v in t.items() if n != FIRST}),
        "q_proj has lora_B without lora_A",
    ),
    "nothing": (lambda folder: edit_weights(folder, lambda t: {}), "holds no tensors"),
    "several": (with_tensor(FIRST.replace("weight", "other.weight"), 3, 64), "under two names|several"),
    "of another model": (
        renamed("blocks.0.q_proj", "blocks.7.q_proj"),
        "blocks.7.q_proj, which is no matrix",
    ),
    "of the norm": (renamed("blocks.0.q_proj", "blocks.0.attn_norm"), "none of the modules|no matrix"),
    "other columns": (
        lambda folder: edit_weights(folder, lambda t: t | {FIRST: torch.zeros(3, 63)}),
        r"q_proj is \[64, 63\] for the adapter and \[64, 64\] in the model",
    ),
    "integers": (
        lambda folder: edit_weights(folder, lambda t: t | {FIRST: torch.zeros(3, 64, dtype=torch.int32)}),
        "stored as I32",
    ),
    "vector": (lambda folder: edit_weights(folder, lambda t: t | {FIRST: torch.zeros(3)}), r"matrices \[3\]"),
    "magnitudes": (
        with_tensor("base_model.model.model.transformer.blocks.0.q_proj.lora_magnitude_vector.weight", 64),
        "magnitudes of DoRA",
    ),
    "a bias": (with_tensor("base_model.model.model.transformer.blocks.0.q_proj.bias", 64), "a trained bias"),
    "an embedding": (
        with_tensor("base_model.model.model.transformer.wte.lora_embedding_A", 3, 384),
        "an adapter of an embedding",
    ),
    "another tensor": (with_tensor("x" * 5000, 3), "is no matrix of LoRA"),
    "NaN": (
        lambda folder: edit_weights(folder, lambda t: t | {FIRST: torch.full((3, 64), torch.nan)}),
        "holds NaN or infinity",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_not_supported_ends_in_one_line(adapted: Path, case: str) -> None:
    change, message = HOSTILE[case]
    change(adapted / "adapter")
    with pytest.raises(CheckpointError) as refused:
        export(adapted / "checkpoint", adapted / "out", ExportOptions("native", adapter=adapted / "adapter"))
    said = str(refused.value)
    assert re.search(message, said), said
    assert "\n" not in said and len(said) < 600 and str(adapted / "adapter") in said


def test_the_embedding_and_a_tied_head_are_no_targets(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "dream", tie_word_embeddings=True)
    for module, said in (("model.embed_tokens", "changes the embedding"), ("lm_head", "no matrix of this")):
        folder = tmp_path / module
        merged_tensors(tmp_path, folder, r=2, target_modules=["q_proj"])
        own = f"base_model.model.{module}.lora_"
        edit_weights(
            folder,
            lambda t, own=own: {own + "A.weight": torch.zeros(2, 64), own + "B.weight": torch.zeros(384, 2)},
        )
        edit_config(folder, target_modules=[module])
        with pytest.raises(InvalidAdapter, match=said):
            export(tmp_path, tmp_path / "out", ExportOptions("native", adapter=folder))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["r", "lora_alpha", "rank_pattern", "alpha_pattern", "target_modules", "layers_to_transform",
        "exclude_modules", "layers_pattern", "use_rslora", "bias", "init_lora_weights", "other"]  # fmt: skip


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3))
def test_any_configuration_is_read_or_refused_in_one_line(adapted: Path, values: dict[str, Any]) -> None:
    folder = adapted / "adapter"
    kept = (folder / ADAPTER_CONFIG).read_text()
    try:
        (folder / ADAPTER_CONFIG).write_text(json.dumps(json.loads(kept) | values))
        try:
            read = Adapter.open(folder)
            assert all(np.isfinite(own.scale) for own in read.matrices.values())
        except EdgekitError as error:
            assert "\n" not in str(error) and len(str(error)) < 600
    finally:
        (folder / ADAPTER_CONFIG).write_text(kept)


PATTERNS = ["q_proj", "attn_out", "x.0.q_proj", "(q|k)_proj", ".*q_proj", "0.q"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(PATTERNS), st.integers(1, 9)), max_size=4))
def test_patterns_decide_as_in_peft(adapted: Path, patterns: list[tuple[str, int]]) -> None:
    from peft.utils.other import get_pattern_key

    own, folder = dict(patterns), adapted / "adapter"
    edit_config(folder, alpha_pattern=own, lora_alpha=5)
    for tensor, found in Adapter.open(folder).matrices.items():
        module = tensor.removesuffix(".weight")
        assert found.scale == own.get(get_pattern_key(list(own), module), 5) / 3
