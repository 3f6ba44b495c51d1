"""Programs of an ONNX bundle that are not what its manifest and weights speak of: one line, no traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from sealing import relist

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.manifest import load
from edgekit.runtime.engines.onnx import OnnxEngine
from edgekit.runtime.errors import EngineFailed

SHAPE = (1, 4, 8)


def write(folder: Path, program: str, model: onnx.ModelProto, **entry: Any) -> dict[str, Any]:
    (folder / f"{program}.onnx").write_bytes(model.SerializeToString())
    names = [i.name for i in model.graph.input], [o.name for o in model.graph.output]
    return {"file": f"{program}.onnx", "inputs": names[0], "outputs": names[1], **entry}


def graph(
    inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]], *nodes: onnx.NodeProto
) -> onnx.ModelProto:
    def values(shapes: dict[str, tuple[int, ...]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]

    made = helper.make_graph(list(nodes), "g", values(inputs), values(outputs))
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def node(operator: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], **attributes)


X = np.ones(SHAPE, np.float32)
GAIN = {"gain": np.full(8, 2, np.float32)}
GOOD = graph({"x": SHAPE, "w.gain": (8,)}, {"y": SHAPE}, node("Mul", ["x", "w.gain"], "y"))
WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "an unknown weight": (
        graph({"x": SHAPE, "w.grain": (8,)}, {"y": SHAPE}, node("Mul", ["x", "w.grain"], "y")), {}, "w.grain",
    ),
    "an unknown input": (
        graph({"z": SHAPE, "w.gain": (8,)}, {"y": SHAPE}, node("Mul", ["z", "w.gain"], "y")), {}, "takes 'z'",
    ),
    "another type": (
        helper.make_model(
            helper.make_graph(
                [node("Identity", ["x"], "y")], "g",
                [helper.make_tensor_value_info("x", TensorProto.INT64, SHAPE)],
                [helper.make_tensor_value_info("y", TensorProto.INT64, SHAPE)],
            ), opset_imports=[helper.make_opsetid("", 21)], ir_version=10,
        ), {}, "onnxruntime failed in program final",
    ),
    "another shape": (
        graph({"x": SHAPE}, {"y": (1, 4)}, node("ReduceSum", ["x"], "y", keepdims=0)), {},
        "onnxruntime|expected",
    ),
    "another result": (graph({"x": SHAPE}, {"q": SHAPE}, node("Neg", ["x"], "q")), {}, "gives no y"),
    "outputs that the manifest names otherwise": (GOOD, {"outputs": ["y", "k"]}, "has the outputs y and"),
    "a file that is missing": (GOOD, {"file": "nowhere.onnx"}, "nowhere.onnx.*not among the files"),
    "no file": (GOOD, {"file": 3}, "no file or no outputs"),
    "no outputs": (GOOD, {"outputs": None}, "no file or no outputs"),
}  # fmt: skip


@pytest.fixture
def bundle(float_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(float_bundle, tmp_path / "bundle"))


@pytest.fixture
def engine(bundle: Path) -> Callable[[Any], OnnxEngine]:
    def opened(entries: Any) -> OnnxEngine:
        relist(bundle, *(file.name for file in bundle.glob("*.onnx")))
        manifest = load(bundle)
        manifest.programs["entries"] = entries
        return OnnxEngine(BundleFolder(bundle), manifest, 1)

    return opened


def test_a_program_that_fits_runs(engine: Callable[[Any], OnnxEngine], bundle: Path) -> None:
    y = engine({"final": write(bundle, "final", GOOD)}).final(X, GAIN)
    np.testing.assert_array_equal(y, 2 * X)


@pytest.mark.parametrize("name", WRONG)
def test_a_program_that_does_not_fit_is_refused(
    engine: Callable[[Any], OnnxEngine], bundle: Path, name: str
) -> None:
    model, entry, says = WRONG[name]
    with pytest.raises((EngineFailed, InvalidRequest), match=says) as error:
        engine({"final": write(bundle, "final", model, **entry)}).final(X, GAIN)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize("entries", [None, [], {}, {"final": None}, {"final": "final.onnx"}])
def test_a_manifest_without_the_program_is_refused(engine: Callable[[Any], OnnxEngine], entries: Any) -> None:
    with pytest.raises(EngineFailed, match="has no program final"):
        engine(entries).final(X, GAIN)
