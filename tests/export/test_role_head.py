"""Role heads in bundles: every engine's scores are those of PyTorch, and what is wrong with one is said."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import package_bundles, sealing
from support.bundles import TILE_BYTES, int8_activations, quantized_reference
from support.checkpoints import write_checkpoint
from support.far_engine import FAR, OWN_MEMORY, opened
from support.reference_denoiser import ReferenceDenoiser
from support.role_heads import random_head, write_head
from support.sampler_runs import committed

from edgekit.export.checkpoint.errors import CheckpointError, WeightsUnreadable
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.export.role_head import FILE, RoleHead, read_role_head
from edgekit.flashload.errors import EdgekitError, InvalidRequest, ResumeMismatch
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.generation import sampler_model
from edgekit.runtime.sampling import Draft, HeadRequest, InvalidOption, generate
from edgekit.runtime.session import Segment, Session, SessionOptions, open_session

HIDDEN = 64
LAYERS = {"llada": {"n_layers": 2}, "dream": {"num_hidden_layers": 2}}
KIND = '{"activation": "relu", "roles": ["premise", "connective", "derived", "conclusion", "filler"]}'
ROWS = np.array([9, 0, 3, 3])
CANVAS = np.random.default_rng(5).integers(0, 200, 16)
NEEDED = {"mlx": "mlx.core", "coreml": "coremltools", "onnx": "onnxruntime"}


def written(folder: Path, form: str, family: str = "llada", preset: str = "bf16") -> tuple[Path, RoleHead]:
    """A random model with a role head, exported."""
    write_checkpoint(folder / "checkpoint", family, **LAYERS[family])
    config = json.loads((folder / "checkpoint" / "config.json").read_text())
    head = write_head(folder / "checkpoint", config.get("d_model") or config["hidden_size"])
    scheme = Scheme(preset, 16)
    if form == "coreml":
        options = package_bundles.options(form, scheme, "float32")
    else:
        options = ExportOptions(form, scheme=scheme, tile_bytes=TILE_BYTES)
    export(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle", head


@torch.no_grad()
def expected(folder: Path, head: RoleHead, form: str, preset: str = "bf16") -> np.ndarray:
    model = quantized_reference(folder / "checkpoint", Scheme(preset, 16), form)
    found: np.ndarray = head.scores(model.hidden(torch.from_numpy(CANVAS)[None])[0]).numpy()
    return found


@pytest.mark.parametrize("engine", ["native", "torch", "onnx", "mlx", "coreml"])
def test_scores_are_those_of_pytorch(tmp_path: Path, engine: str) -> None:
    if engine in NEEDED:
        pytest.importorskip(NEEDED[engine])
    form = "native" if engine == "torch" else engine
    bundle, head = written(tmp_path, form)
    wanted = expected(tmp_path, head, form)
    executor = MilExecutor("float32") if engine == "coreml" else None
    options = SessionOptions(canvas=16)
    with open_session(bundle, options, engine=None if executor else engine, executor=executor) as session:
        assert session.role_head
        some = session.denoise(CANVAS, HeadRequest(rows=ROWS, roles=True)).roles
        all_rows = session.project(HeadRequest(roles=True, top_k=2)).roles
        plain = session.denoise(CANVAS, HeadRequest(rows=ROWS))
    assert some is not None and all_rows is not None and plain.roles is None
    np.testing.assert_array_equal(some, all_rows[ROWS])
    np.testing.assert_allclose(all_rows, wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())


def test_quantized_models_are_asked_as_they_are(tmp_path: Path) -> None:
    """Segments of a pass too; weights that stream leave every bit as it is."""
    bundle, head = written(tmp_path, "native", "dream", "mixed4")
    with int8_activations():
        wanted = expected(tmp_path, head, "native", "mixed4")
    request = HeadRequest(roles=True)
    with Session(bundle, SessionOptions(sequences=2)) as session, session.open_sequence() as other:
        segments = [Segment(session.sequence, CANVAS, request), Segment(other, CANVAS[:7], HeadRequest())]
        first, second = session.run_pass(segments)
    with Session(bundle, SessionOptions(resident_bytes=0)) as session:
        streamed = session.denoise(CANVAS, request).roles
    assert first is not None and first.roles is not None and second is not None and second.roles is None
    np.testing.assert_array_equal(first.roles, streamed)
    error = np.linalg.norm(first.roles - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.median(error) < 1e-4 and error.max() < 5e-2


@pytest.mark.parametrize("family", LAYERS)
def test_an_answer_in_logic_order_is_the_reference_models(tmp_path: Path, family: str) -> None:
    bundle, head = written(tmp_path, "native", family)
    model = quantized_reference(tmp_path / "checkpoint", Scheme("bf16"), "native")
    options = {"order": "logic", "max_new_tokens": 12, "block_length": 6}
    with Session(bundle) as session:
        section = session.bundle.manifest.sampler
        events = list(generate(session, section, [5, 6, 7], options=options))
    wanted = list(generate(ReferenceDenoiser(model, head), section, [5, 6, 7], options=options))
    plain = generate(ReferenceDenoiser(model), section, [5, 6, 7], options=options | {"order": "confidence"})
    assert committed(events) == committed(wanted)
    orders = [[e.accepted.tolist() for e in each if isinstance(e, Draft)] for each in (events, wanted, plain)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("mode", [OWN_MEMORY, FAR], ids=["own-memory", "far"])
def test_hidden_states_come_from_memory_that_the_session_cannot_read(bundle: Path, mode: int) -> None:
    request, options = HeadRequest(rows=ROWS, roles=True), SessionOptions(canvas=16)
    with Session(bundle, options) as session:
        near = session.denoise(CANVAS, request).roles
    with opened(bundle, lambda: options, mode) as (session, _):
        np.testing.assert_array_equal(session.denoise(CANVAS, request).roles, near)
        np.testing.assert_array_equal(session.project(request).roles, near)


# --- memory and refusals ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("roles"), "native")[0]


@pytest.fixture(scope="module")
def without(bundle: Path) -> Path:
    folder = bundle.parent / "without"
    shutil.copytree(bundle.parent / "checkpoint", folder / "checkpoint", ignore=lambda *_: [FILE])
    options = ExportOptions("native", scheme=Scheme("bf16", 16), tile_bytes=TILE_BYTES)
    export(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle"


def test_the_plan_counts_its_weights(bundle: Path, without: Path) -> None:
    heads = []
    for folder in (bundle, without):
        with Session(folder, SessionOptions(canvas=8)) as session:
            heads.append(session.plan.head)
    hidden = Bundle.open(bundle).model.hidden_size
    width = hidden // 4
    weights = 4 * (hidden * width + width + 5 * width + 5)
    assert 0 < heads[0] - heads[1] - weights <= 4 * 8 * (hidden + width + 10)


def test_a_bundle_without_one_says_so(without: Path) -> None:
    with Session(without) as session:
        assert not session.role_head
        with pytest.raises(
            InvalidRequest, match="has no role head to ask for roles; train one .* export it again$"
        ):
            session.denoise(CANVAS, HeadRequest(roles=True))
        with pytest.raises(InvalidOption, match="order logic needs a role head"):
            list(generate(session, session.bundle.manifest.sampler, [5], options={"order": "logic"}))
    assert not sampler_model(Bundle.open(without)).role_head
    assert "role_head" not in json.loads((without / "edgekit.json").read_text())["model"]


def test_another_head_is_another_export(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle.parent / "checkpoint", tmp_path / "checkpoint")
    shutil.copytree(bundle, tmp_path / "bundle")
    write_head(tmp_path / "checkpoint", Bundle.open(bundle).model.hidden_size, seed=1)
    options = ExportOptions("native", scheme=Scheme("bf16", 16), tile_bytes=TILE_BYTES, resume=True)
    with pytest.raises(ResumeMismatch):
        export(tmp_path / "checkpoint", tmp_path / "bundle", options)


def edited(bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    sealing.edit(copy, lambda manifest: change(manifest["model"]["role_head"]))
    return copy


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 7}, "a role head of width 7 over .* export the bundle again"),
        ({"width": 0}, "width"),
        ({"file": "README.txt"}, "is not among the files"),
        ({"roles": ["premise"]}, "has a role head for other roles"),
        ({"roles": ["connective", "premise", "derived", "conclusion", "filler"]}, "other roles"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    bundle: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    copy = edited(bundle, tmp_path, lambda own: own.update(change))
    with pytest.raises(EdgekitError, match=words):
        Session(copy)


def test_damaged_weights_are_refused(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    data = bytearray((copy / "role_head.bin").read_bytes())
    data[100] ^= 1
    (copy / "role_head.bin").write_bytes(data)
    with pytest.raises(EdgekitError, match=r"role_head\.bin: has xxh3 .*: the file is damaged"):
        Session(copy)


# --- the file beside a checkpoint ---------------------------------------------------------------------------


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    head = write_head(tmp_path, HIDDEN)
    found = read_role_head(tmp_path, HIDDEN)
    assert found is not None and found.width == HIDDEN // 4 and found.digest == head.digest
    assert read_role_head(tmp_path / "elsewhere", HIDDEN) is None
    x = torch.randn(3, HIDDEN)
    inner = torch.nn.functional.linear(x, head.weights["down.weight"], head.weights["down.bias"]).clamp(min=0)
    wanted = torch.nn.functional.linear(inner, head.weights["up.weight"], head.weights["up.bias"])
    torch.testing.assert_close(found.scores(x), wanted)


@pytest.mark.parametrize(
    ("change", "metadata", "words"),
    [
        (lambda t: t.pop("up.bias"), {}, "has no tensor up.bias"),
        (
            lambda t: t.update({"up.weight": torch.zeros(4, 16)}),
            {},
            r"up.weight is \[4, 16\]; .* another model's",
        ),
        (lambda t: t.update({"down.bias": torch.zeros(16).int()}), {}, "down.bias is I32; store it as F32"),
        (lambda t: t["down.weight"].fill_(torch.nan), {}, "down.weight holds what is not finite"),
        (lambda t: None, {"role_head": KIND.replace("relu", "gelu")}, "says role_head .*gelu.*, not "),
        (lambda t: None, {"role_head": "premise"}, "says role_head premise, not "),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], metadata: dict[str, str], words: str
) -> None:
    random_head(HIDDEN).save(tmp_path)
    tensors = load_file(tmp_path / FILE)
    change(tensors)
    save_file(tensors, tmp_path / FILE, {"role_head": KIND} | metadata)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_role_head(tmp_path, HIDDEN)
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError):
        read_role_head(tmp_path, HIDDEN + 4)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize("make", ["mkfifo", "mkdir"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, make: str) -> None:
    getattr(os, make)(tmp_path / FILE)
    with pytest.raises(WeightsUnreadable, match=f"{FILE}: is not a regular file"):
        read_role_head(tmp_path, HIDDEN)


def test_a_model_whose_procedure_has_no_order_leaves_it_out(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "diffusion_gemma", num_hidden_layers=1)
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    write_head(tmp_path / "checkpoint", config["text_config"]["hidden_size"])
    made = export(
        tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions("native", scheme=Scheme("bf16"))
    )
    assert f"{FILE} is not part of the bundle: diffusion_gemma takes no order" in made.notes
    assert not (tmp_path / "bundle" / "role_head.bin").exists()
    assert not sampler_model(Bundle.open(tmp_path / "bundle")).role_head
