"""Bundles for Qualcomm's NPU, in Qualcomm's own emulation of it: layers beside the reference that holds the
same codes of weights and activations, generations, units that stream, and packages compiled for chips.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from support import sealing
from support.bundles import passes, quantized_reference
from support.checkpoints import write_checkpoint
from support.loop_parity import LOOPS, ReferenceDenoiser, check_loop, check_loops, prompt_loop
from support.package_bundles import check_layers, layer_values
from support.qnn_bundles import (
    QnnPrograms,
    activation_codes,
    coded_activations,
    options,
    random_bundle,
)
from support.qnn_chips import name_of, number_in
from support.qnn_matrix import SQUARE
from support.signal_to_noise import decibels

from edgekit.export import ops
from edgekit.export.checkpoint.hub import resolve
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.formats.options import Packaging
from edgekit.export.formats.qnn import contexts
from edgekit.export.formats.qnn.provider import provider
from edgekit.export.output_folder import resumable
from edgekit.export.pipeline import ExportOptions, export, plan_export
from edgekit.export.quantize import Override, Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.export.runs import TABLE_TILE_BYTES
from edgekit.flashload import bundle_set
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.flashload.errors import BundleError, DiskFull, MalformedFile
from edgekit.flashload.manifest import FileEntry
from edgekit.flashload.sizes import size
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.qnn.programs import WEIGHTS_FILE, model_file
from edgekit.runtime.engines.qnn.socs import SOCS
from edgekit.runtime.errors import EngineFailed, PromptTooLong
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import HeadRequest, PhiloxNoise
from edgekit.runtime.session import Session, SessionOptions
from edgekit.runtime.session.session import plan_session
from edgekit.tools.cli import main

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

#: Every dense family, each with one preset and all presets among them. SDAR, Qwen3 and CoDA have norms of few
#: narrow heads, which Qualcomm's operator gets wrong as they come.
CASES = [
    ("llada", "mixed4"), ("llada", "int8"), ("dream", "int4"), ("nemotron_labs_diffusion", "mixed4"),
    ("sdar", "int4"), ("fast_dllm", "mixed4"), ("a2d_qwen2", "int8"), ("a2d_qwen3", "mixed4"),
    ("coda", "int8"),
]  # fmt: skip
#: Families with experts, and the products that what follows in their layers takes.
MIXED = [("llada_moe", "mixed4"), ("llada2_moe", "int8"), ("sdar_moe", "int4"), ("diffusion_gemma", "mixed4")]
TAKEN = {
    "llada_moe": ("self_attn.o_proj",),
    "llada2_moe": ("self_attn.o_proj", "shared_expert.down_proj"),
    "sdar_moe": ("self_attn.o_proj",),
    "diffusion_gemma": ("self_attn.o_proj", "mlp.down_proj"),
}
#: Decibels of a layer: its floats have 16 bits.
LEAST = 60
TINY = ("tiny-llada", Scheme("mixed4", 32))


@pytest.mark.parametrize("family,preset", CASES)
def test_layers_equal_the_reference_with_the_same_codes(tmp_path: Path, family: str, preset: str) -> None:
    bundle, model = random_bundle(tmp_path, family, preset)
    programs = QnnPrograms(bundle)
    with coded_activations(programs, model) as used:
        count = check_layers(programs, model, 1, LEAST)
    assert count == (8 if model.architecture.causal_prefix else 2)
    matrices = {s.name for s in model.architecture.layers[0].weights if s.role != "float"}
    assert {f"layers.{i}.{name}" for i in range(2) for name in matrices} == set(used)


@pytest.mark.parametrize("family,preset", MIXED)
def test_dense_parts_of_layers_with_experts(tmp_path: Path, family: str, preset: str) -> None:
    """They equal the reference with the same codes; router and experts are no matrices of theirs."""
    bundle, model = random_bundle(tmp_path, family, preset)
    programs = QnnPrograms(bundle)
    with coded_activations(programs, model) as used:

        def products(i: int) -> list[torch.Tensor]:
            mixed = model.architecture.layers[i].experts
            return [used[f"layers.{i}.{name}"][-1] for name in TAKEN[family]] if mixed else []

        check_layers(programs, model, 1, LEAST, products)
    assert not [name for name in activation_codes(programs) if "router" in name or "experts" in name]


@pytest.mark.parametrize("family,preset", MIXED)
def test_experts_are_the_cores(tmp_path: Path, family: str, preset: str) -> None:
    """The core reads them out of the flash file, and what follows them in a layer. They round what they
    multiply, so that a last bit of the NPU's may become a step of 8 bits: 40 decibels in place of 60.
    """
    bundle, model = random_bundle(tmp_path, family, preset, 64)
    opened = Bundle.open(bundle)
    assert all(layer.mixture in opened.runs for layer in opened.model.layers if layer.experts)
    with Session(bundle) as session, coded_activations(QnnPrograms(bundle), model):
        found, expected = passes(session, model)
        assert found.logits is not None and decibels(found.logits, expected.numpy()) > 40
        if family in LOOPS:
            check_loops(session, model, 40, slice(1))


def test_streamed_experts_give_what_resident_ones_give(tmp_path: Path) -> None:
    bundle, _ = random_bundle(tmp_path, "llada_moe", "mixed4")
    canvas = np.random.default_rng(4).integers(16, 300, 20)
    answers = []
    for resident in (None, 60_000, 0):
        with Session(bundle, SessionOptions(resident_bytes=resident)) as session:
            answers.append([session.denoise(canvas, HeadRequest(logits=True)).logits for _ in range(2)])
            assert (session.counters()["bytes_read"] > 200_000) == (resident is not None)
    assert all(np.array_equal(answers[0][0], other) for both in answers for other in both)


def test_sixteen_positions(tmp_path: Path) -> None:
    """Of which Qualcomm's norm with a weight makes other numbers before the products of an MLP."""
    bundle, model = random_bundle(tmp_path, "llada", "mixed4", 16)
    programs = QnnPrograms(bundle)
    with coded_activations(programs, model):
        check_layers(programs, model, 1, LEAST)


def test_a_product_of_as_many_rows_as_columns(tmp_path: Path) -> None:
    bundle, model = random_bundle(tmp_path, "llada", "mixed4", **SQUARE)
    programs = QnnPrograms(bundle)
    with coded_activations(programs, model):
        check_layers(programs, model, 1, LEAST)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReferenceModel]:
    """The shipped LLaDA, in packages of two layers, and tiles of the head in the flash file."""
    (name, scheme), folder = TINY, tmp_path_factory.mktemp("tiny")
    export(resolve(name), folder / "bundle", options(scheme, Packaging((24, 48), layers_per_chunk=2)))
    return folder / "bundle", quantized_reference(resolve(name), scheme, "qnn")


def test_layers_of_the_shipped_model(tiny: tuple[Path, ReferenceModel]) -> None:
    """Two layers at once."""
    bundle, model = tiny
    programs = QnnPrograms(bundle)
    with coded_activations(programs, model) as used:
        assert check_layers(programs, model, 3, LEAST) == 6
    assert sum(map(len, used.values())) == 2 * 6 * 7


def test_the_norm_is_the_processors(tiny: tuple[Path, ReferenceModel]) -> None:
    bundle, model = tiny
    programs, rng = QnnPrograms(bundle), np.random.default_rng(7)
    for name, function in programs.entries["final"]["functions"].items():
        (given,) = function["inputs"]
        values = {"x": rng.standard_normal(given["shape"]).astype(np.float32)}
        found = programs.run("final", name, values)["y"]
        norm = model._unit("norm.")["weight"]
        expected = ops.rms_norm(torch.from_numpy(values["x"]), norm, model.architecture.norm_eps)
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llada", "dream", "a2d_qwen3"])
def test_the_head_is_the_cores(tmp_path: Path, family: str) -> None:
    """Its table lies in the flash file, once where it is tied to the embedding; what the last norm gives is
    multiplied with it as in a bundle of the core's own format.
    """
    bundle, model = random_bundle(tmp_path, family, "mixed4")
    opened = Bundle.open(bundle)
    assert opened.packages is not None and not opened.packages.head
    runs = {name for name in opened.runs if name.startswith(("embedding", "head"))}
    assert any(name.startswith("head") for name in runs) != opened.model.tied_head
    rng, canvas = np.random.default_rng(3), 24
    request = HeadRequest(temperature=0.7, gumbel=PhiloxNoise(5).gumbel(canvas, opened.model.vocab_size),
                          top_k=4, logits=True)  # fmt: skip
    with Session(bundle) as session, coded_activations(QnnPrograms(bundle), model):
        ids = rng.integers(0, session.vocab_size, canvas)
        found = session.denoise(ids, request)
        expected = ReferenceDenoiser(model).denoise(ids, request)
    assert found.logits is not None and expected.logits is not None
    assert decibels(found.logits, expected.logits) > 50
    z = torch.from_numpy(found.logits)
    np.testing.assert_array_equal(found.argmax, z.argmax(-1))
    np.testing.assert_allclose(found.log_z, z.logsumexp(-1), rtol=1e-5)
    noisy = z + torch.from_numpy(np.ascontiguousarray(request.gumbel(0, z.shape[1]).reshape(z.shape)))
    np.testing.assert_array_equal(found.sample, noisy.argmax(-1))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_passes_of_few_positions_stay_within_the_ranges(tmp_path: Path, family: str) -> None:
    """Where a token sees hardly another: the codes of activations cut little off what the float model has."""
    bundle, model = random_bundle(tmp_path, family, "mixed4")
    rng, tokens = np.random.default_rng(1), model.architecture.vocab_size
    texts = [torch.from_numpy(rng.integers(0, tokens, (1, n))) for n in (1, 2, 3) for _ in range(24)]
    with torch.no_grad():
        expected = [model.hidden(ids).numpy() for ids in texts]
        with coded_activations(QnnPrograms(bundle), model):
            found = [model.hidden(ids).numpy() for ids in texts]
    assert min(map(decibels, found, expected)) > 40


def test_two_steps_of_a_generation_are_those_of_the_reference(tiny: tuple[Path, ReferenceModel]) -> None:
    """A token that differs would have to be one whose margin is below the error: none does."""
    bundle, model = tiny
    with Generator(bundle) as generator:
        loop = prompt_loop(generator, "What is 23 + 45?", Settings(max_new_tokens=16, steps=2))
    with (
        Session(bundle) as session,
        coded_activations(QnnPrograms(bundle), model),
    ):
        assert check_loop(session, model, loop, 60) == []


def test_streamed_packages_give_what_resident_ones_give(tiny: tuple[Path, ReferenceModel]) -> None:
    bundle, model = tiny
    canvas = np.random.default_rng(4).integers(16, 512, 20)
    answers = []
    for resident in (None, 900_000, 0):
        with Session(bundle, SessionOptions(resident_bytes=resident)) as session:
            read = [session.counters()["bytes_read"]]
            for _ in range(2):
                out = session.denoise(canvas, HeadRequest(logits=True))
                answers.append(out.logits)
                read.append(session.counters()["bytes_read"])
        assert (read[2] > read[1] > read[0]) == (resident is not None)
    assert all(np.array_equal(answers[0], other) for other in answers[1:])
    expected = ReferenceDenoiser(model).denoise(canvas, HeadRequest(logits=True)).logits
    assert answers[0] is not None and expected is not None and decibels(answers[0], expected) > 40


def test_a_bundle_of_one_package_streams(tmp_path: Path) -> None:
    """Which is all that is read ahead: no memory would be saved by opening it anew, and none is asked for."""
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=2, n_heads=4, n_kv_heads=2)
    how = options(Scheme("mixed4", 32), Packaging((24,), layers_per_chunk=2))
    export(tmp_path / "checkpoint", tmp_path / "bundle", replace(how, tile_bytes=TABLE_TILE_BYTES))
    opened = Bundle.open(tmp_path / "bundle")
    for memory in (None, 8_000_000_000):
        plan = plan_session(opened, SessionOptions(canvas=24, resident_bytes=0, memory_bytes=memory))
        assert (plan.pinned_bytes, plan.ring_bytes) == (0, plan.streamed_bytes)
    with Session(tmp_path / "bundle", SessionOptions(resident_bytes=0)) as session:
        session.denoise(np.arange(16, 36), HeadRequest())
        assert session.counters()["bytes_read"] > 0


def test_activations_have_the_codes_of_what_was_seen(tiny: tuple[Path, ReferenceModel]) -> None:
    """Every product of a layer has codes; queries, keys and values share those of what they multiply."""
    codes = activation_codes(QnnPrograms(tiny[0]))
    assert len(codes) == 6 * 7
    for i in range(6):
        q, k, v = (codes[f"layers.{i}.self_attn.{name}_proj"] for name in "qkv")
        assert q[0] == k[0] == v[0] and len({q[1], k[1], v[1]}) == 3
    scales = [scale for own in codes.values() for scale, _ in own]
    assert min(scales) > 0 and max(scales) < 0.1


# --- packages compiled for chips ----------------------------------------------------------------------------


def test_a_compiled_package_computes_what_its_source_does(
    tiny: tuple[Path, ReferenceModel], tmp_path: Path
) -> None:
    """The emulation loads binaries of one graph."""
    bundle, model = tiny
    programs = QnnPrograms(bundle)
    package, name = "layers.2-3", "t24_p0"
    function = programs.entries[package]["functions"][name]
    values = layer_values(np.random.default_rng(0), model, function)
    expected = programs.run(package, name, values)
    files = contexts.compile_package(
        bundle / programs.entries[package]["path"], [name], "sm8650", tmp_path / "made", 1 << 30
    )
    assert [file.suffix for file in files] == [".onnx", ".bin"]
    ort, qnn, devices = provider()
    settings = ort.SessionOptions()
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path()})
    session = ort.InferenceSession(str(files[0]), settings)
    feed = {f["name"]: np.float32(values[f["role"]]) for f in function["inputs"]}
    names = [f["name"] for f in function["outputs"]]
    for found, role in zip(session.run(names, feed), [f["role"] for f in function["outputs"]], strict=True):
        assert np.array_equal(found, expected[role]), role


def test_functions_of_a_package_share_weights_in_a_binary(
    tiny: tuple[Path, ReferenceModel], tmp_path: Path
) -> None:
    package = tiny[0] / "packages/layers.0-1.qnn"
    sizes = {}
    for names in (["t24_p0"], ["t24_p0", "t48_p0"]):
        files = contexts.compile_package(package, names, "sm8750", tmp_path / str(len(names)), 1 << 30)
        (binary,) = (file for file in files if file.suffix == ".bin")
        sizes[len(names)] = binary.stat().st_size
        assert len(files) == 1 + len(names)
        assert number_in(binary) == (SOCS["sm8750"].model, len(names))
    stored = (package / WEIGHTS_FILE).stat().st_size
    assert stored < sizes[1] < sizes[2] < sizes[1] + stored / 2


def test_the_packages_of_the_own_chip_are_opened(chips: Path, tmp_path: Path) -> None:
    """In place of their sources, of which the emulation makes the same; those of another chip are left."""
    found = {}
    for chip in (None, "sm8550-ab", "sm8650"):
        done = _in_a_process(chips, chip, tmp_path / f"{chip}.npy")
        assert done.stdout == "loaded\n", done.stderr
        found[chip] = np.load(tmp_path / f"{chip}.npy")
    assert np.array_equal(found[None], found["sm8550-ab"]) and np.array_equal(found[None], found["sm8650"])
    # Which ones are opened is seen where one is damaged.
    shutil.copytree(chips, tmp_path / "bundle")
    (binary,) = (tmp_path / "bundle/compiled/sm8550/layers.0").glob("*.bin")
    binary.write_bytes(bytes(binary.stat().st_size))
    assert f"layers.0/{binary.name}" in _in_a_process(tmp_path / "bundle", "sm8550").stderr
    assert _in_a_process(tmp_path / "bundle", "sm8650").returncode == 0


@pytest.mark.parametrize(
    ("chip", "taken"),
    [("sm8550-ab", "npu"), ("SM8550", "npu"), ("sm8650", "native"), (None, "npu")],
)
def test_a_bundle_for_other_chips_is_passed_over(tmp_path: Path, chip: str | None, taken: str) -> None:
    """By what the process has told when it loaded the libraries."""
    members = (Member("npu", "qnn", {}, ("sm8550",)), Member("native", "native", {}))
    entries = {f"{member.path}/edgekit.json": FileEntry(1, "0" * 64, "0" * 16) for member in members}
    bundle_set.save(BundleSet(members, entries), tmp_path)
    code = (
        "import sys; from edgekit.flashload import bundle_set\n"
        "from edgekit.runtime.engines.qnn.libraries import load_runtime\n"
        "load_runtime(sys.argv[2] or None)\n"
        "print(bundle_set.choose(sys.argv[1], ['native', 'qnn'], listed=True).name)"
    )
    words = [sys.executable, "-c", code, str(tmp_path), chip or ""]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == f"{taken}\n", done.stderr


def test_a_compiled_program_names_files_beside_it_alone(chips: Path, tmp_path: Path) -> None:
    shutil.copytree(chips, tmp_path / "bundle")
    name = "compiled/sm8550/layers.0/t24_p0.ctx.onnx"
    model = onnx.load(tmp_path / "bundle" / name)
    (own,) = (a for a in model.graph.node[0].attribute if a.name == "ep_cache_context")
    own.s = b"../../../edgekit.json"
    (tmp_path / "bundle" / name).write_bytes(model.SerializeToString())
    sealing.relist(tmp_path / "bundle", name)
    assert "names a file that is not beside it" in _in_a_process(tmp_path / "bundle", "sm8550").stderr
    # Nor one that is listed elsewhere under the name of one beside it, which nothing compares.
    beside, elsewhere = "compiled/sm8550/layers.0/other.bin", "elsewhere/layers.0/other.bin"
    own.s = b"other.bin"
    (tmp_path / "bundle" / name).write_bytes(model.SerializeToString())
    (binary,) = (tmp_path / "bundle/compiled/sm8550/layers.0").glob("t24*.bin")
    for copy in (beside, elsewhere):
        (tmp_path / "bundle" / copy).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(binary, tmp_path / "bundle" / copy)
    sealing.edit(
        tmp_path / "bundle", lambda manifest: manifest["programs"]["compiled"]["sm8550"].append(elsewhere)
    )
    sealing.relist(tmp_path / "bundle", name, elsewhere)
    assert "names a file that is not beside it" in _in_a_process(tmp_path / "bundle", "sm8550").stderr


def test_a_provider_that_the_application_has_registered_is_taken() -> None:
    """ONNX Runtime refuses a second registration of a name."""
    code = """
from ctypes import CDLL, CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_uint32, c_void_p, cast
from edgekit.runtime.engines.qnn import libraries
class Base(__import__("ctypes").Structure):
    _fields_ = [("get_api", CFUNCTYPE(POINTER(c_void_p), c_uint32)), ("get_version", CFUNCTYPE(c_char_p))]
runtime = CDLL(str(libraries._library("onnxruntime", "libonnxruntime.so.*", "capi")))
runtime.OrtGetApiBase.restype = POINTER(Base)
table = runtime.OrtGetApiBase()[0].get_api(22)
env = c_void_p()
create = CFUNCTYPE(c_void_p, c_int, c_char_p, POINTER(c_void_p))(table[3])
register = CFUNCTYPE(c_void_p, c_void_p, c_char_p, c_char_p)(table[301])
provider = str(libraries._library("onnxruntime_qnn", "libonnxruntime_providers_qnn.so")).encode()
assert create(4, b"application", byref(env)) is None
assert register(env, b"QNNExecutionProvider", provider) is None
assert register(env, b"QNNExecutionProvider", provider) is not None
libraries.load_runtime()
print("loaded")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "loaded\n", done.stderr


@pytest.mark.parametrize("chip", SOCS)
def test_qualcomms_library_calls_a_chip_as_edgekit_does(
    chip: str, tiny: tuple[Path, ReferenceModel], tmp_path: Path
) -> None:
    model = SOCS[chip].model
    assert name_of(model).lower() == chip
    package = tiny[0] / "packages/layers.0-1.qnn"
    files = contexts.compile_package(package, ["t24_p0"], chip, tmp_path / "made", 1 << 30)
    assert [number_in(file)[0] for file in files if file.suffix == ".bin"] == [model]


def test_qualcomms_library_does_not_know_every_number() -> None:
    assert name_of(9999) == ""


@pytest.fixture(scope="module")
def chips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose packages are compiled for two chips."""
    folder = tmp_path_factory.mktemp("chips")
    write_checkpoint(folder / "checkpoint", "llada", n_layers=2)
    told = Told()
    export(folder / "checkpoint", folder / "bundle", for_chips(), told)
    (folder / "told.json").write_text(json.dumps(told.lines))
    return folder / "bundle"


def for_chips(socs: tuple[str, ...] = ("sm8550", "sm8750")) -> ExportOptions:
    cut = Packaging((24,), layers_per_chunk=1)
    return replace(options(Scheme("int4", 32), cut, socs=socs), tile_bytes=TABLE_TILE_BYTES)


class Told:
    """Stages of an export with what each counts, and the units that were done of it."""

    def __init__(self) -> None:
        self.lines: list[list[Any]] = []

    def stage(self, name: str, total: int) -> None:
        self.lines.append([name, total, 0])

    def advance(self, done: int, what: str) -> None:
        self.lines[-1][2] += done


def test_a_bundle_lists_what_was_compiled(chips: Path) -> None:
    bundle = Bundle.open(chips)
    assert bundle.packages is not None
    assert {chip: len(files) for chip, files in bundle.packages.compiled.items()} == {
        "sm8550": 4,
        "sm8750": 4,
    }
    names = [name for files in bundle.packages.compiled.values() for name in files]
    assert all((chips / name).is_file() and name in bundle.manifest.files for name in names)
    binaries = {(chips / name).read_bytes() for name in names if name.endswith(".bin")}
    assert len(binaries) == 4, "chips and layers differ"
    done = CliRunner().invoke(main, ["inspect", str(chips)])
    assert "compiled for sm8550, sm8750" in done.output
    assert CliRunner().invoke(main, ["verify", str(chips)]).exit_code == 0


def test_an_export_says_what_it_compiles(chips: Path, tmp_path: Path) -> None:
    told = json.loads((chips.parent / "told.json").read_text())
    assert ["calibrating", 2, 2] in told
    assert [line for line in told if "sm8" in line[0]] == [
        ["compiling for sm8550", 2, 2],
        ["compiling for sm8750", 2, 2],
    ]
    words = ["--target", "android", "--format", "qnn", "--quant", "int4", "--lengths", "24", "--soc"]
    words += ["sm8550,sm8750", "--layers-per-chunk", "1", "--resume", "-o", str(tmp_path / "bundle")]
    shutil.copytree(chips, tmp_path / "bundle")
    done = CliRunner().invoke(main, ["export", str(chips.parent / "checkpoint"), *words])
    taken = sum(path.stat().st_size for path in chips.rglob("*") if path.is_file())
    taken -= (chips / "edgekit.json").stat().st_size
    assert f"of weights, compiled for sm8550, sm8750; {size(taken)} in all" in done.stdout, done.output


def test_the_space_that_is_asked_for_has_room_for_what_is_compiled(chips: Path) -> None:
    checkpoint = chips.parent / "checkpoint"
    plan, without = (plan_export(checkpoint, for_chips(socs)) for socs in (("sm8550", "sm8750"), ()))
    compiled = sum(path.stat().st_size for path in (chips / "compiled").rglob("*") if path.is_file())
    assert compiled < plan.output_bytes - without.output_bytes
    taken = sum(path.stat().st_size for path in chips.rglob("*") if path.is_file())
    assert taken <= plan.output_bytes < taken + (1 << 20)


def test_a_compiler_without_room_says_so(
    tiny: tuple[Path, ReferenceModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "_CALL", "import sys; sys.exit('Failed to write context cache file')")
    monkeypatch.setattr(contexts, "free_bytes", lambda path: 4096)
    said = r"made: the compiled package takes about .*, and the disk has 4\.1 kB left; delete or move"
    with pytest.raises(DiskFull, match=said + r".*--resume goes on"), resumable(tmp_path):
        contexts.compile_package(
            tiny[0] / "packages/layers.0-1.qnn", ["t24_p0"], "sm8650", tmp_path / "made", 1 << 30
        )
    assert not any(tmp_path.iterdir()), "what lacks bytes takes none"
    monkeypatch.setattr(contexts, "free_bytes", lambda path: 1 << 40)
    with pytest.raises(ExportError, match="QNN cannot compile it for sm8650: Failed to write context"):
        contexts.compile_package(
            tiny[0] / "packages/layers.0-1.qnn", ["t24_p0"], "sm8650", tmp_path / "made", 1 << 30
        )


def test_provenance_names_what_has_compiled(tiny: tuple[Path, ReferenceModel], chips: Path) -> None:
    plain, compiled = (Bundle.open(path).manifest.provenance["versions"] for path in (tiny[0], chips))
    assert compiled.keys() - plain.keys() == {"onnxruntime", "onnxruntime-qnn"}


def test_a_list_of_files_that_are_not_there_is_refused(chips: Path, tmp_path: Path) -> None:
    shutil.copytree(chips, tmp_path / "bundle")
    listed = {"sm8550": ["compiled/none.bin"]}
    sealing.edit(tmp_path / "bundle", lambda table: table["programs"].update(compiled=listed))
    done = CliRunner().invoke(main, ["inspect", str(tmp_path / "bundle")])
    assert "packages compiled for 'sm8550' are not among the files of the bundle" in done.output


def test_a_binary_over_the_limit_says_what_to_change(
    tiny: tuple[Path, ReferenceModel], tmp_path: Path
) -> None:
    said = r"layers.0-1 compiled for sm8650 has .*, over the limit of 1 kB .* use fewer --layers-per-chunk"
    with pytest.raises(ExportError, match=said):
        contexts.compile_package(
            tiny[0] / "packages/layers.0-1.qnn", ["t24_p0"], "sm8650", tmp_path / "made", 1000
        )


def test_what_the_compiler_says_is_told(tiny: tuple[Path, ReferenceModel], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="QNN cannot compile it for sm8650: .*none.npu.onnx"):
        contexts.compile_package(
            tiny[0] / "packages/layers.0-1.qnn", ["none"], "sm8650", tmp_path / "made", 1 << 30
        )
    assert not (tmp_path / "made").exists()


def test_a_compiler_that_the_system_ends_says_what_to_change(
    tiny: tuple[Path, ReferenceModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "_CALL", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ExportError, match="as it does where memory is short; use fewer --layers-per-chunk"):
        contexts.compile_package(
            tiny[0] / "packages/layers.0-1.qnn", ["t24_p0"], "sm8650", tmp_path / "made", 1 << 30
        )


# --- what is refused ----------------------------------------------------------------------------------------


def test_exports_that_the_npu_cannot_take(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "dense", "llada")
    cut = Packaging((24,))

    def refused(kind: type[Exception], match: str, model: str, scheme: Scheme, packaging: Packaging) -> None:
        with pytest.raises(kind, match=match):
            export(tmp_path / model, tmp_path / "bundle", options(scheme, packaging))

    refused(QuantizationError, "has 16 bits; format qnn multiplies codes", "dense", Scheme("bf16", 32), cut)
    wide = Scheme("int4", 32, (Override("layers.0.self_attn.v_proj", 16),))
    refused(QuantizationError, "layers.0.self_attn.v_proj: has 16 bits", "dense", wide, cut)
    refused(QuantizationError, "has groups of 16; .* use --group-size 32", "dense", Scheme("int4", 16), cut)
    refused(
        ExportError, "format qnn is for no version of iOS; leave --min-os out", "dense", Scheme("int8", 32),
        Packaging((24,), minimum_os="18"),
    )  # fmt: skip


def test_a_chunk_over_the_limit_says_what_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgekit.export.formats.qnn.writer.QnnFormat.LIMIT_BYTES", 40_000)
    write_checkpoint(tmp_path / "checkpoint", "llada")
    with pytest.raises(ExportError, match=r"layers.0-1 would have .* over the limit .* --layers-per-chunk 1"):
        export(
            tmp_path / "checkpoint", tmp_path / "bundle",
            options(Scheme("int4", 32), Packaging((24,), layers_per_chunk=2)),
        )  # fmt: skip


def test_names_of_chips() -> None:
    run = CliRunner().invoke
    done = run(main, ["export", "tiny-llada", "--target", "android", "--soc", "sm8651"])
    assert "unknown chip 'sm8651' for format qnn; did you mean sm8650?" in done.output
    done = run(main, ["export", "tiny-llada", "--target", "android", "--soc", "SM8635"])
    assert "chip 'SM8635' is not supported: its NPU has no floats" in done.output
    assert "did you mean" not in done.output
    done = run(main, ["export", "tiny-llada", "--soc", "sm8650"])
    assert "format native compiles for no chips; leave --soc out" in done.output


def test_programs_of_strangers_are_refused(tiny: tuple[Path, ReferenceModel], tmp_path: Path) -> None:
    """Operators that no export writes, and constants out of other files."""
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny[0], bundle)
    name = f"packages/layers.0-1.qnn/{model_file('t24_p0', 'npu')}"
    written = (bundle / name).read_bytes()
    for change, said in (
        (lambda m: setattr(m.graph.node[0], "op_type", "Loop"), "uses the operator 'Loop'"),
        (
            lambda m: setattr(
                next(e for i in m.graph.initializer for e in i.external_data if e.key == "location"),
                "value",
                "../weights.bin",
            ),
            "takes constants from another file than its own",
        ),
    ):
        model = onnx.load_from_string(written)
        change(model)
        (bundle / name).write_bytes(model.SerializeToString())
        with pytest.raises(BundleError, match=model_file("t24_p0", "npu")):
            _denoise(bundle)
        _relist(bundle, name)
        with pytest.raises(EngineFailed, match=said):
            _denoise(bundle)


def _denoise(bundle: Path) -> None:
    with Session(bundle) as session:
        session.denoise(np.arange(16, 36), HeadRequest())


def _relist(bundle: Path, name: str) -> None:
    """List a file as it is now, and what its package has with it."""

    def change(table: dict[str, Any]) -> None:
        for package in table["programs"]["packages"].values():
            package["bytes"] = sum(table["files"][file]["size"] for file in package["files"])

    sealing.relist(bundle, name)
    sealing.edit(bundle, change)


def test_lengths_that_no_function_has_are_refused(tiny: tuple[Path, ReferenceModel]) -> None:
    with Session(tiny[0], SessionOptions(canvas=60)) as session:
        said = "49 positions are more than package layers.0-1 was exported for; its programs take at most 48 "
        with pytest.raises(PromptTooLong, match=said + "positions: ask for fewer new tokens"):
            session.denoise(np.arange(16, 65), HeadRequest())
        assert session.denoise(np.arange(16, 64), HeadRequest()).argmax.shape == (48,)


#: Changes of a function's entry, and what is said of them.
DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a size": (
        lambda f: f["inputs"][0].update(shape=[1, 25, 192]),
        r"has shape \[1, 25, 192\], expected \[1, 24",
    ),
    "a size of none": (lambda f: f["inputs"][0].update(shape=[1, 0, 192]), "has a size of 0"),
    "a type": (lambda f: f["inputs"][0].update(dtype="float64"), "is float64, not float32, float16 or int32"),
    "tokens": (lambda f: f["inputs"][0].update(dtype="int32"), "is of the wrong type"),
    "a role": (lambda f: f["inputs"][0].update(role="y"), "input y is not expected"),
    "one twice": (lambda f: f["inputs"].append(dict(f["inputs"][0])), "is there twice"),
    "one too few": (lambda f: f["outputs"].pop(), "output v.1 is missing"),
    "its length": (lambda f: f.update(t=1 << 40), "is for 1099511627776 positions"),
    "its prefix": (lambda f: f.update(p=8), "prefix_k.0 is missing|expected"),
    "its kind": (lambda f: f.update(kind="final"), "its functions are of several kinds"),
}


@pytest.mark.parametrize("change,said", DAMAGE.values(), ids=list(DAMAGE))
def test_the_core_reads_functions_as_strictly(
    tiny: tuple[Path, ReferenceModel], tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    """Before Python has looked at them: an application has the core alone."""
    shutil.copytree(tiny[0], tmp_path / "bundle")
    functions = lambda table: table["programs"]["packages"]["layers.0-1"]["functions"]  # noqa: E731
    sealing.edit(tmp_path / "bundle", lambda table: change(functions(table)["t24_p0"]))
    with pytest.raises(MalformedFile, match=f"package layers.0-1.*({said})"):
        plan_session(cast(Bundle, SimpleNamespace(path=tmp_path / "bundle")), SessionOptions(canvas=24))


#: Changes of a manifest with experts that the core mixes, and what core and Python say of them.
MIXTURES: dict[str, tuple[Callable[[dict[str, Any]], Any], str, str]] = {
    "no mixtures": (lambda m: m["programs"].pop("mixtures"), "mixtures", "there is no mixture 'moe'"),
    "another name": (lambda m: m["layers"][0]["mixture"].update(program="more"), "more", "no mixture 'more'"),
    "no name": (lambda m: m["layers"][0]["mixture"].pop("program"), "program", "program is missing"),
    "an empty run": (lambda m: m["layers"][0]["mixture"].update(run=""), "mixture of a layer has no name",
                     "mixture: run is empty"),
    "no run": (lambda m: m["layers"][0]["mixture"].update(run="layers.7.mixture"), "no run layers.7.mixture",
               "no run 'layers.7.mixture'"),
    "another run": (lambda m: m["layers"][0]["mixture"].update(run="layers.0.experts.0"), "twice|has no", ""),
    "an expert too few": (lambda m: m["layers"][0]["experts"].pop(), "mixes 21 experts, layer 0 has 20", ""),
    "another router": (lambda m: _mixture(m)["weights"].update(router=[20, 64]), "router chooses among", ""),
    "no experts": (lambda m: m["layers"][0].pop("experts"), "experts", "experts is missing"),
    "a product more": (lambda m: _mixture(m)["inputs"].append("dense.1"), "dense.1", "dense.1 is missing"),
    "a gap": (lambda m: _mixture(m)["inputs"].__setitem__(1, "dense.1"), "which it is not given", ""),
    "another input": (lambda m: _mixture(m)["inputs"].__setitem__(1, "cos"), "y is missing|dense.0", "y is"),
    "no inputs": (lambda m: _mixture(m).pop("inputs"), "inputs", "inputs is missing"),
    "an output": (lambda m: m["programs"]["packages"]["layers.0"]["functions"]["t24_p0"]["outputs"].pop(0),
                  "output dense.0 is missing", "output dense.0 is missing"),
    "one package for two": (lambda m: m["layers"][1].update(package="layers.0", slot=1),
                            "shares package layers.0, which layers with experts cannot", "k.1 is missing"),
}  # fmt: skip


def _mixture(table: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = table["programs"]["mixtures"]["moe"]
    return own


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"num_experts": 21, "num_experts_per_tok": 3}
    return random_bundle(tmp_path_factory.mktemp("mixed"), "llada_moe", "mixed4", **sizes)[0]


@pytest.mark.parametrize("change,said,python", MIXTURES.values(), ids=list(MIXTURES))
def test_mixtures_are_read_strictly(
    mixed: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str, python: str
) -> None:
    shutil.copytree(mixed, tmp_path / "bundle")
    sealing.edit(tmp_path / "bundle", change)
    with pytest.raises(MalformedFile, match=said):
        plan_session(cast(Bundle, SimpleNamespace(path=tmp_path / "bundle")), SessionOptions(canvas=24))
    if python:
        with pytest.raises(MalformedFile, match=python):
            Bundle.open(tmp_path / "bundle").open_weights()


def test_verify_reads_what_packages_declare(tiny: tuple[Path, ReferenceModel], tmp_path: Path) -> None:
    from edgekit.runtime.checks.declarations import damage

    shutil.copytree(tiny[0], tmp_path / "bundle")
    packages = Bundle.open(tmp_path / "bundle").packages
    assert packages is not None
    assert [damage(tmp_path / "bundle", packages, own) for own in packages.entries.values()] == [""] * 4
    file = tmp_path / "bundle/packages/final.qnn" / model_file("t24", "processor")
    file.rename(file.with_name(model_file("t25", "processor")))
    said = damage(tmp_path / "bundle", packages, packages["final"])
    assert said == "has the functions t25, t48, the manifest declares t24, t48"
    with open(tmp_path / "bundle/packages/layers.0-1.qnn" / WEIGHTS_FILE, "r+b") as weights:
        weights.truncate(1000)
    assert "lies behind the end of weights.bin" in damage(
        tmp_path / "bundle", packages, packages["layers.0-1"]
    )


def test_stdout_is_the_answer_alone(
    tiny: tuple[Path, ReferenceModel], capfd: pytest.CaptureFixture[str]
) -> None:
    """The emulation writes a remark there when it begins, in a process of its own here."""
    done = _in_a_process(tiny[0], None)
    assert done.stdout == "loaded\n", done.stderr


def _in_a_process(bundle: Path, chip: str | None, to: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A pass in a process of its own, whose scores are written to a file."""
    code = (
        "import sys; import numpy as np; from edgekit.runtime.engines.qnn.libraries import load_runtime\n"
        "from edgekit.runtime.sampling import HeadRequest; from edgekit.runtime.session import Session\n"
        "load_runtime(sys.argv[2] or None)\n"
        "with Session(sys.argv[1]) as session:\n"
        "    out = session.denoise(np.arange(16, 36), HeadRequest(logits=True))\n"
        "if sys.argv[3]: np.save(sys.argv[3], out.logits)\n"
        "print('loaded')"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(bundle), chip or "", str(to or "")], capture_output=True, text=True
    )


def test_an_emulation_that_takes_more_than_the_budget_is_told(
    tiny: tuple[Path, ReferenceModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", str(tiny[0]), "Hi", "--engine", "qnn", "--max-new-tokens", "4", "--steps", "1"]
    for peak, told in ((7_000_000_000, False), (9_000_000_000, True)):
        monkeypatch.setattr("edgekit.runtime.session.session.peak_bytes", lambda peak=peak: peak)
        done = CliRunner().invoke(main, [*words, "--memory", "8GB"])
        assert done.exit_code == 0, done.output
        said = "note: the process took 9 GB of memory, more than its budget of 8 GB: the emulation takes some"
        assert (said in done.stderr) == told, done.stderr


TALKING = """
import os
from edgekit.runtime.session import Session
denoise = Session.denoise
def talks(self, *given, **named):
    os.write(1, b" <E> Device not found in registry\\n")
    return denoise(self, *given, **named)
Session.denoise = talks
from edgekit.__main__ import main
main()
"""


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_what_the_library_says_is_none_of_the_answer(
    tiny: tuple[Path, ReferenceModel], words: list[str]
) -> None:
    """The emulation says this now and then while packages are closed and opened."""
    command = ["run", str(tiny[0]), "Hi", "--engine", "qnn", "--max-new-tokens", "8", "--steps", "1", *words]
    done = subprocess.run([sys.executable, "-c", TALKING, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Device not found" in done.stderr and "Device" not in done.stdout and done.stdout.endswith("\n")
    assert not words or json.loads(done.stdout)["text"] is not None
