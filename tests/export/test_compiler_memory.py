"""How many layers a package for Qualcomm's NPU has where it is compiled: as many as there is memory for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoints import write_checkpoint

from edgekit.export.formats.options import Packaging
from edgekit.export.formats.packages.cut import MOST_LAYERS
from edgekit.export.formats.qnn import writer
from edgekit.export.formats.qnn.compiler_memory import SHARE, LayerSize, compile_bytes, most_layers
from edgekit.export.pipeline import ExportOptions, ExportPlan, plan_export
from edgekit.export.programs import Lengths
from edgekit.export.quantize import Scheme

FOUR = (128, 256, 512, 1024)
#: Hidden size, layers, lengths and the peak in GB of layers of LLaDA's shape: `tools/bench/RESULTS.md`.
MEASURED = [
    (1024, 1, (256,), 0.365), (1024, 2, (256,), 0.364), (1024, 4, (256,), 0.493), (1024, 8, (256,), 0.795),
    (1024, 1, (128, 256), 0.38), (1024, 2, (128, 256), 0.466), (1024, 4, (128, 256), 0.733),
    (1024, 8, (128, 256), 1.24), (1024, 1, FOUR, 0.696), (1024, 2, FOUR, 1.21), (1024, 4, FOUR, 2.14),
    (1024, 8, FOUR, 4.14), (2048, 2, (256,), 0.673), (2048, 2, (1024,), 1.53), (4096, 1, (256,), 1.1),
    (4096, 2, (256,), 1.98), (4096, 1, (128, 256), 1.85), (4096, 1, FOUR, 5.23),
]  # fmt: skip


def layer(hidden: int) -> LayerSize:
    """Of LLaDA's shape in mixed4."""
    return LayerSize(round(148e6 * (hidden / 4096) ** 2), 11 * hidden, hidden // 128)


@pytest.mark.parametrize(("hidden", "layers", "lengths", "peak_gb"), MEASURED)
def test_the_estimate_is_near_and_above_what_was_measured(
    hidden: int, layers: int, lengths: tuple[int, ...], peak_gb: float
) -> None:
    found = compile_bytes([layer(hidden)] * layers, [Lengths(t, 0) for t in lengths]) / 1e9
    assert peak_gb < found < 1.6 * peak_gb


def test_as_many_layers_as_fit() -> None:
    layers, lengths = [layer(4096)] * 32, [Lengths(t, 0) for t in FOUR]
    for memory in (1 << 30, 8 << 30, 16 << 30, 32 << 30, 1 << 40):
        count = most_layers(layers, lengths, memory, MOST_LAYERS)
        assert count == 1 or compile_bytes(layers[:count], lengths) <= SHARE * memory
        assert count == MOST_LAYERS or compile_bytes(layers[: count + 1], lengths) > SHARE * memory
    assert most_layers(layers, lengths, 1 << 30, MOST_LAYERS) == 1
    assert most_layers(layers, lengths, 1 << 40, MOST_LAYERS) == MOST_LAYERS


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=6)
    return tmp_path / "checkpoint"


def planned(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, memory: int, per_chunk: int | None, *socs: str
) -> tuple[ExportPlan, list[int]]:
    """The plan of an export by a machine of so much memory, and the layers of its packages."""
    monkeypatch.setattr(writer, "describe_machine", lambda: {"memory_bytes": memory})
    monkeypatch.setattr(writer, "check_compiler", lambda: None)
    cut = Packaging((256, 512), layers_per_chunk=per_chunk)
    plan = plan_export(
        checkpoint, ExportOptions("qnn", "android", Scheme("int4", 32), packaging=cut, socs=socs or None)
    )
    packages = plan.format.packages  # type: ignore[attr-defined]
    return plan, [len(package.layers) for package in packages if package.kind == "layers"]


def test_packages_are_cut_by_the_memory_that_compiles_them(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    much, little = 1 << 40, 680_000_000
    assert planned(monkeypatch, checkpoint, much, None, "sm8650")[1] == [6]
    assert planned(monkeypatch, checkpoint, 0, None, "sm8650")[1] == [6], "the system does not tell"
    plan, chunks = planned(monkeypatch, checkpoint, little, None, "sm8650")
    assert 1 < max(chunks) < 6 and sum(chunks) == 6
    (note,) = plan.format.notes()
    assert note.startswith(f"packages have up to {max(chunks)} layers, since compiling takes about ")
    plan, chunks = planned(monkeypatch, checkpoint, 1, None, "sm8650")
    assert chunks == [1] * 6 and plan.format.notes()[0].startswith("packages have one layer, since")


def test_what_is_asked_for_or_not_compiled_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    for socs, per_chunk, chunks in ((("sm8650",), 3, [3, 3]), ((), None, [6])):
        plan, found = planned(monkeypatch, checkpoint, 1, per_chunk, *socs)
        notes = [note.partition(":")[0] for note in plan.format.notes()]
        assert found == chunks and notes == ([] if socs else ["no chip was named"])
