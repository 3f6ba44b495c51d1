"""Bundles of random weights: the same files as an export, padding and sizes included, and a model that stays
finite.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support import sealing
from support.bundles import TILE_BYTES
from support.checkpoints import write_checkpoint
from support.program_interpreter import BundleInterpreter, run_weights

from edgekit.export.models import architecture
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import EdgekitError, OpenFailed
from edgekit.flashload.reader import FlashFile
from edgekit.runtime.bundle import Bundle
from edgekit.tools.bench import random_bundle
from edgekit.tools.planning import released

#: Family, scheme, checkpoint overrides; sizes that need padding of every kind.
CASES: dict[str, tuple[str, Scheme, dict[str, Any]]] = {
    "llada mixed4": ("llada", Scheme("mixed4", 16), {"n_layers": 2, "mlp_hidden_size": 80, "n_heads": 2}),
    "llada int8": ("llada", Scheme("int8"), {"n_layers": 2, "mlp_hidden_size": 97}),
    "gemma int4": ("diffusion_gemma", Scheme("int4", 16), {"num_hidden_layers": 3}),
    "gemma bf16": ("diffusion_gemma", Scheme("bf16"), {"num_hidden_layers": 2}),
    "dream mixed4": ("dream", Scheme("mixed4"), {"num_hidden_layers": 1}),
    "sdar_moe mixed4": ("sdar_moe", Scheme("mixed4", 16), {"num_hidden_layers": 1, "num_experts": 3}),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "-"))
def test_the_bundle_is_that_of_an_export(tmp_path: Path, case: str) -> None:
    """Every byte count, shape, program and manifest field is the same; weights and what they are called by
    differ.
    """
    family, scheme, overrides = CASES[case]
    write_checkpoint(tmp_path / "checkpoint", family, dtype="bfloat16", **overrides)
    options = ExportOptions("native", scheme=scheme, tile_bytes=TILE_BYTES)
    export(tmp_path / "checkpoint", tmp_path / "export", options)
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    generation = json.loads((tmp_path / "checkpoint" / "generation_config.json").read_text())
    nbytes = random_bundle.write(
        tmp_path / "random", config, scheme, tile_bytes=TILE_BYTES, generation_config=generation
    )
    found, expected = manifests.load(tmp_path / "random"), manifests.load(tmp_path / "export")
    for section in ("model", "programs", "layers"):
        assert getattr(found, section) == getattr(expected, section), section
    # The end of a turn comes from the tokenizer, which a random bundle has none of.
    expected.sampler["config"].pop("eot_token_id", None)
    assert found.sampler == expected.sampler
    for key in ("preset", "parameters", "bytes", "bits_per_weight", "notes", "group_size"):
        assert found.quantization[key] == expected.quantization[key], key
    assert found.weights.size == expected.weights.size == nbytes
    sealing.check_all(tmp_path / "random")
    files = [FlashFile(tmp_path / name / "weights.safetensors") for name in ("random", "export")]
    with files[0] as a, files[1] as b:
        assert list(a.runs) == list(b.runs)
        for name, run in a.runs.items():
            assert run.tensors == b.runs[name].tensors


def test_activations_stay_finite_through_many_layers(tmp_path: Path, rng: np.random.Generator) -> None:
    """As large after 32 layers as sums of 32 terms are; padding is checked when weights are read."""
    for name, scheme in (("llada", Scheme("mixed4", 16)), ("gemma", Scheme("int4", 16))):
        config = tiny(name, layers=32 if name == "llada" else 8)
        random_bundle.write(tmp_path / name, config, scheme, tile_bytes=TILE_BYTES)
        with BundleInterpreter(tmp_path / name, rounding=True) as interpreter:
            hidden = interpreter.bundle.model.hidden_size
            x = rng.standard_normal((1, 6, hidden)).astype(np.float32)
            sizes = [float(np.sqrt((y**2).mean())) for y, _, _ in interpreter.layers(x)]
            table = interpreter.bundle.model.embedding
            rows = run_weights(interpreter.file, table.runs[0], {"": (table.starts[1], hidden)}).values[""]
        assert all(0.3 < s < 3 * math.sqrt(2 * len(sizes)) for s in sizes), sizes
        assert 0.8 < math.sqrt((rows**2).mean() * hidden) < 1.25
        assert abs(rows.mean()) < 0.01


def tiny(name: str, layers: int) -> dict[str, Any]:
    """A released model's configuration with other sizes."""
    if name == "llada":
        config = released.llada_8b(layers)
        return config | {"d_model": 80, "n_heads": 5, "n_kv_heads": 5, "mlp_hidden_size": 112,
                         "vocab_size": 391, "embedding_size": 391}  # fmt: skip
    config = released.diffusion_gemma_26b(layers)
    text = config["text_config"] | {
        "hidden_size": 96, "intermediate_size": 80, "moe_intermediate_size": 32, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_global_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32,
        "num_experts": 5, "top_k_experts": 2, "vocab_size": 391,
    }  # fmt: skip
    return config | {"text_config": text}


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path: Path) -> None:
    digests = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        random_bundle.write(tmp_path / name, tiny("llada", 1), Scheme(), seed=seed)
        digests.append(manifests.load(tmp_path / name).weights.sha256)
    assert digests[0] == digests[1] != digests[2]


def test_a_skew_makes_the_rows_of_routers_unequal(tmp_path: Path) -> None:
    scales = []
    for name, skew in (("even", 0.0), ("skewed", 1.5)):
        random_bundle.write(tmp_path / name, tiny("gemma", 2), Scheme("int4", 16), skew=skew)
        with FlashFile(tmp_path / name / "weights.safetensors") as file:
            scales.append(file.load("layers.0")[1]["layers.0.router.proj.scales"].copy())
    experts = tiny("gemma", 2)["text_config"]["num_experts"]
    even, skewed = scales
    assert not skewed[experts:].any(), "padding"
    factors = np.sort(skewed[:experts] / even[:experts])[::-1]
    np.testing.assert_allclose(factors, np.arange(1, experts + 1) ** -1.5, rtol=1e-6)
    with pytest.raises(EdgekitError, match="this preset has none"):
        random_bundle.write(tmp_path / "bf16", tiny("gemma", 2), Scheme("bf16"), skew=1.0)
    assert not (tmp_path / "bf16").exists()


def test_a_bundle_is_replaced_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("llada", 1)
    random_bundle.write(tmp_path, config, Scheme("int8"))
    with pytest.raises(EdgekitError, match="already exists"):
        random_bundle.write(tmp_path, config, Scheme("int4", 16))
    assert Bundle.open(tmp_path).manifest.quantization["preset"] == "int8"

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(random_bundle, "_tensors", fails)
        random_bundle.write(tmp_path, config, Scheme("int4", 16), overwrite=True)
    with pytest.raises(OpenFailed, match="not a bundle"):
        Bundle.open(tmp_path)
    random_bundle.write(tmp_path, config, Scheme("int4", 16), overwrite=True)
    assert Bundle.open(tmp_path).manifest.quantization["preset"] == "int4"


def test_configurations_are_those_of_the_released_models() -> None:
    """Parameters as published: all of LLaDA-8B; of DiffusionGemma what its vision tower does not hold."""
    counts = {}
    for name in released.MODELS:
        arch = architecture(released.config(name), "bfloat16")
        counts[name] = sum(math.prod(shape) for shape in arch.stored_shapes().values())
        short = architecture(released.config(name, 2), "bfloat16")
        assert len(short.layers) == 2
        assert {x.kind for x in short.layers} == {x.kind for x in arch.layers}
    assert counts["llada-8b"] == 8_015_581_184
    # The scalars of 30 layers, one for either phase, are not counted as parameters.
    assert counts["diffusion-gemma-26b"] - 2 * 30 + vision_parameters() == 25_823_778_864


def vision_parameters() -> int:
    """Of the released tower: 27 layers of width 1152 (feed-forward 4304, heads of 72), patches of 768 values,
    position tables, the standardization, and the projection to the text width.
    """
    layer = 4 * 1152 * 1152 + 3 * 4304 * 1152 + 4 * 1152 + 2 * 72
    return 27 * layer + 1152 * 768 + 2 * 10240 * 1152 + 2816 * 1152


def test_the_command_names_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(released.MODELS, "llada-8b", lambda layers: tiny("llada", layers))
    arguments = ["llada-8b", str(tmp_path / "out"), "--layers", "3", "--quant", "int8"]
    result = CliRunner().invoke(random_bundle.main, arguments)
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / 'out'}: " in result.output
    assert len(Bundle.open(tmp_path / "out").model.layers) == 3
    result = CliRunner().invoke(random_bundle.main, arguments)
    assert result.exit_code == 1 and "already exists" in result.output


MEASURE = """
import resource, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_random_bundle import tiny
from edgekit.export.quantize import Scheme
from edgekit.tools.bench import random_bundle
random_bundle.POOL_ELEMENTS, random_bundle.CUT_ELEMENTS = 4 << 20, 1 << 20
config = tiny("llada", 3)
random_bundle.write(Path({out!r}, "small"), config, Scheme("int8"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
config |= dict(d_model=1280, mlp_hidden_size=12800, vocab_size=32768, embedding_size=32768)
print(random_bundle.write(Path({out!r}, "large"), config, Scheme("int8")), end=" ")
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_bundle(tmp_path: Path) -> None:
    code = MEASURE.format(paths=[str(p) for p in Path(__file__).parents[:2]], out=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    nbytes, before, after = (int(x) for x in done.stdout.split()[-3:])
    assert nbytes > 200 << 20
    assert (after - before) * 1024 < 40 << 20, f"{(after - before) / 1024:.0f} MB more"
