"""Rows of formats, engines and targets: edgekit's own, and those of an installed distribution."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support import sealing
from support.checkpoints import write_checkpoint
from support.reference_packages import random_packages
from test_style import FRAMEWORKS

from edgekit import targets
from edgekit.export import formats
from edgekit.export.formats.base import Format
from edgekit.export.quantize import quantize_matrix
from edgekit.flashload import manifest as manifests
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.registry import BrokenPlugin, Registry
from edgekit.runtime.bundle import Bundle, packages
from edgekit.runtime.engine_registry import ENGINES, OWN, running
from edgekit.tools.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "format-of-your-own.md"
POINTS = """\
[edgekit.formats]
toy = edgekit_toy:ROW
native = edgekit_toy:ROW
absent = edgekit_nowhere:ROW
other = edgekit_toy:ROW
[edgekit.engines]
toy = edgekit_toy_engine:ROW
[edgekit.targets]
toaster = edgekit_toy:TARGET
broken = edgekit_toy_broken:TARGET
"""
ENGINE = """\
from edgekit.runtime.engine_registry import EngineRow

ROW = EngineRow("toy", format="toy", title="the toy", factory="edgekit_toy_engine:Toy", threads=True)
"""


def example() -> dict[str, str]:
    """The files of the page's format, by name."""
    blocks = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in blocks] == [
        "edgekit_toy/__init__.py",
        "edgekit_toy/writer.py",
        "pyproject.toml",
    ]
    return dict(blocks)


def install(folder: Path, name: str, points: str, **files: str) -> None:
    """What pip leaves of a distribution in a folder of sys.path."""
    metadata = folder / f"{name.replace('-', '_')}-1.5.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (metadata / "entry_points.txt").write_text(points)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the distribution edgekit-toy is installed."""
    files = {name: content for name, content in example().items() if name.endswith(".py")}
    files |= {"edgekit_toy_engine.py": ENGINE, "edgekit_toy_broken.py": "raise RuntimeError('no\\nbread')"}
    install(tmp_path / "site", "edgekit-toy", POINTS, **files)
    for name in [n for n in sys.modules if n.startswith("edgekit_toy")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


def edgekit(site: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgekit", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(site), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_installed_distribution_adds_a_format_and_a_target(toy: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    done = edgekit(toy, "export", tmp_path / "checkpoint", "--target", "toaster", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    manifest = manifests.load(tmp_path / "out")
    assert manifest.programs["format"] == "toy" and manifest.programs["layout"] == "toy-1"
    assert manifest.provenance["versions"]["edgekit-toy"] == "1.5"
    assert "programs/layers.json" in manifest.files
    expected = quantized(tmp_path / "checkpoint", "layers.0.self_attn.q_proj")
    with FlashFile(tmp_path / "out" / manifest.weights.file) as file:
        slot = next(s for s in file.run("layers.0").tensors if s.name == "layers.0.self_attn.q_proj")
        assert np.array_equal(file.read_rows(slot.name), expected)


def quantized(checkpoint: Path, name: str) -> np.ndarray:
    """What the quantizer makes of a matrix of a layer, with the target's preset."""
    from edgekit.export.checkpoint import Checkpoint
    from edgekit.export.models import architecture
    from edgekit.export.quantize import Scheme, choose
    from edgekit.export.weights import read_rows

    source = Checkpoint.open(checkpoint)
    arch = architecture(source.config)
    spec = next(s for unit, s in arch.weights() if f"{unit}.{s.name}" == name)
    choice = choose(arch, Scheme("int8", 32))[name]
    import torch

    value = torch.from_numpy(read_rows(source, spec, 0, spec.shape[0]))
    return quantize_matrix(value, choice.bits, choice.group_size).dequantize().numpy()


def test_pages_and_the_shell_list_what_is_installed(toy: Path) -> None:
    page = " ".join(edgekit(toy, "export", "--help").stdout.split())
    assert (
        "Device family: host, mac, ios, android, rtx, jetson, rpi, broken or toaster. [default: host]" in page
    )
    assert (
        "Format: native, onnx, onnx-gpu, tvm, mlx, coreml, coreai, qnn, absent, other or toy. "
        "Default: the target's." in page
    )
    page = " ".join(edgekit(toy, "run", "--help-all").stdout.split())
    assert "Insist on an engine: native, torch, onnx, onnx-gpu, tvm, mlx, coreml, coreai, qnn or toy." in page
    page = " ".join(edgekit(toy, "export", "--help-all").stdout.split())
    assert "float16 or float32 (mlx, coreml, coreai). Default" in page
    found = edgekit(
        toy, _EDGEKIT_COMPLETE="bash_complete", COMP_WORDS="edgekit export m --target ", COMP_CWORD="4"
    )
    assert {"plain,host", "plain,toaster"} <= set(found.stdout.split()) and "broken" not in found.stdout
    found = edgekit(
        toy, _EDGEKIT_COMPLETE="bash_complete", COMP_WORDS="edgekit export m --target toaster --format ",
        COMP_CWORD="6",
    )  # fmt: skip
    assert found.stdout.split() == ["plain,toy"]


def test_engines_are_found_by_name_and_by_format(toy: Path) -> None:
    own = ["native", "torch", "onnx", "onnx-gpu", "tvm", "mlx", "coreml", "coreai", "qnn"]
    assert list(ENGINES) == [*own, "toy"]
    row = running("toy")
    assert row is not None and row.title == "the toy" and row.threads and row is ENGINES.find("toy")
    assert running("gguf") is None and running("") is None
    for own in OWN:
        assert running(own.format, own.name) is own
    assert running("native") is ENGINES.find("native") and running("onnx", "torch") is None


def test_an_executor_of_another_distribution_runs_packages(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle is Core ML's, under the name of another format."""
    assert [row.format for row in OWN if packages.packaged(row.format)] == ["coreml", "coreai", "qnn"]
    code = "from edgekit.runtime.engine_registry import EngineRow\n"
    code += "ROW = EngineRow('crate', format='crate', title='crates', factory='x:Y', gives='executor')\n"
    points = "[edgekit.engines]\ncrate = edgekit_crate:ROW\nbad = edgekit_toy_broken:ROW\n"
    install(tmp_path / "more", "edgekit-crate", points, **{"edgekit_crate.py": code})
    monkeypatch.syspath_prepend(tmp_path / "more")
    assert packages.packaged("crate")
    assert not any(map(packages.packaged, ("toy", "bad", "gguf", "")))
    bundle, _ = random_packages(tmp_path, "llada", [(16, 0)], n_layers=1)
    sealing.edit(bundle, lambda table: table["programs"].update(format="crate", layout="crate-2"))
    held = Bundle.open(bundle).packages
    assert held is not None and held.format == "crate" and held.lengths()


def test_versions_of_systems_are_listed_with_their_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    row = formats.FormatRow("crate", "x:Y", "crate-2", (), packages=True, versions={"30": "30", "31": "31"})
    monkeypatch.setitem(formats.FORMATS.own, "crate", row)
    page = " ".join(CliRunner().invoke(main, ["export", "--help-all"]).stdout.split())
    assert "18 (coreml), 26 (coreml), 27 (coreai), 30 (crate) or 31 (crate). Default" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--target", "broken"],
            "target broken comes with edgekit-toy 1.5, which fails with RuntimeError: no bread",
        ),
        (
            ["--target", "toater"],
            "unknown target 'toater'; did you mean toaster? supported: host, mac, ios, android, rtx, jetson,",
        ),
    ],
)
def test_a_broken_row_is_one_line_for_who_asks_for_it(toy: Path, words: list[str], said: str) -> None:
    result = edgekit(toy, "export", "tiny-llada", *words)
    assert result.returncode == 2 and said in " ".join(result.stderr.split()), result.stderr


def test_rows_that_cannot_be_had(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        BrokenPlugin, match="format absent comes with edgekit-toy 1.5, which fails with ModuleNotF"
    ):
        formats.get("absent")
    with pytest.raises(BrokenPlugin, match="whose edgekit_toy:ROW is no FormatRow of that name; update it"):
        formats.get("other")
    assert [row.name for row in formats.FORMATS.working()] == [*(row.name for row in formats.ROWS), "toy"]
    assert formats.get("native") in formats.ROWS, "edgekit's own rows cannot be taken"
    install(tmp_path / "more", "bakery", "[edgekit.targets]\ntoaster = edgekit_toy:TARGET\n")
    monkeypatch.syspath_prepend(tmp_path / "more")
    with pytest.raises(
        BrokenPlugin, match="toaster comes with bakery 1.5 and edgekit-toy 1.5; uninstall all but"
    ):
        targets.get("toaster")
    assert targets.get("host").name == "host"


def test_metadata_that_cannot_be_read_is_in_nobodys_way(toy: Path, tmp_path: Path) -> None:
    install(tmp_path / "site", "garbled", "[edgekit.targets]\nno equals sign\n")
    page = " ".join(edgekit(toy, "export", "--help").stdout.split())
    assert "Device family: host, mac, ios, android, rtx, jetson, rpi, broken or toaster." in page
    refused = edgekit(toy, "export", "tiny-llada", "--target", "broken")
    assert refused.returncode == 2 and "comes with edgekit-toy 1.5" in " ".join(refused.stderr.split())


def test_own_rows_are_found_without_looking_at_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(self: object) -> list[object]:
        raise AssertionError

    monkeypatch.setattr(Registry, "_added", scan)
    assert "onnx" in formats.FORMATS and formats.get("onnx").layout == "onnx-3"
    assert running("onnx") is ENGINES.find("onnx") and targets.get("ios").formats_for("native") == ("native",)


@pytest.mark.parametrize("row", formats.ROWS, ids=lambda row: row.name)
def test_every_row_has_a_writer(row: formats.FormatRow) -> None:
    for module in row.needs:
        pytest.importorskip(module)
    from edgekit.flashload.registry import resolve

    assert issubclass(resolve(row.writer), Format)


@pytest.mark.parametrize(
    "words", [["--help"], ["export", "--help-all"], ["run", "--help"], ["inspect", "BUNDLE"]]
)
def test_looking_around_imports_no_framework(native_bundle: Path, words: list[str]) -> None:
    given = [str(native_bundle) if word == "BUNDLE" else word for word in words]
    code = (
        "import sys\nfrom edgekit.tools.cli import main\n"
        f"try:\n    main({given!r})\nfinally:\n"
        f"    print('\\nframeworks', *sorted({set(FRAMEWORKS)!r} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "frameworks"
