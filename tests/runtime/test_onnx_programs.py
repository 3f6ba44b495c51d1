"""Programs of an ONNX bundle that are not what its manifest and weights speak of: one line, no traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.sealing import relist

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.manifest import load
from edgekit.runtime.engines.onnx.engine import OnnxEngine
from edgekit.runtime.engines.onnx.programs import Refused, check_program
from edgekit.runtime.errors import EngineFailed

SHAPE = (1, 4, 8)


def write(folder: Path, program: str, model: onnx.ModelProto, **entry: Any) -> dict[str, Any]:
    (folder / f"{program}.onnx").write_bytes(model.SerializeToString())
    names = [i.name for i in model.graph.input], [o.name for o in model.graph.output]
    return {"file": f"{program}.onnx", "inputs": names[0], "outputs": names[1], **entry}


def graph(
    inputs: dict[str, tuple[Any, ...]], outputs: dict[str, tuple[Any, ...]], *nodes: onnx.NodeProto
) -> onnx.ModelProto:
    def values(shapes: dict[str, tuple[Any, ...]]) -> list[onnx.ValueInfoProto]:
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
                [node("Abs", ["x"], "y")], "g",
                [helper.make_tensor_value_info("x", TensorProto.INT64, SHAPE)],
                [helper.make_tensor_value_info("y", TensorProto.INT64, SHAPE)],
            ), opset_imports=[helper.make_opsetid("", 21)], ir_version=10,
        ), {}, "onnxruntime failed in program final",
    ),
    "another shape": (
        graph({"x": SHAPE}, {"y": (1, 4)}, node("ReduceSum", ["x"], "y", keepdims=0)), {},
        "onnxruntime|expected",
    ),
    "another result": (graph({"x": SHAPE}, {"q": SHAPE}, node("Abs", ["x"], "q")), {}, "gives no y"),
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


def looping(model: onnx.ModelProto) -> None:
    def scalar(name: str, kind: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, [])

    nodes = [node("Identity", ["c"], "co"), node("Identity", ["s"], "so")]
    body = helper.make_graph(
        nodes, "body",
        [scalar("i", TensorProto.INT64), scalar("c", TensorProto.BOOL), scalar("s", TensorProto.FLOAT)],
        [scalar("co", TensorProto.BOOL), scalar("so", TensorProto.FLOAT)],
    )  # fmt: skip
    model.graph.node.append(helper.make_node("Loop", ["n", "t", "z"], ["r"], body=body))


def elsewhere(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer.add(name="c", data_type=TensorProto.FLOAT, dims=[8])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def in_an_attribute(model: onnx.ModelProto) -> None:
    elsewhere(model)
    constant = model.graph.initializer.pop()
    model.graph.node[0].attribute.append(helper.make_attribute("value", constant))


def with_a_graph(model: onnx.ModelProto) -> None:
    body = helper.make_graph([], "body", [], [])
    model.graph.node[0].attribute.append(helper.make_attribute("body", body))


def function(model: onnx.ModelProto) -> None:
    model.functions.add(name="Mul", domain="")


HOSTILE: dict[str, tuple[Callable[[onnx.ModelProto], Any], str]] = {
    "a loop": (looping, "uses the operator 'Loop', which no export writes"),
    "a growing constant": (
        lambda m: m.graph.node.append(node("ConstantOfShape", ["n"], "r")), "the operator 'ConstantOfShape'",
    ),
    "an operator of somebody else": (
        lambda m: m.graph.node.append(node("Mul", ["x", "x"], "r", domain="com.microsoft")),
        "'com.microsoft'",
    ),
    "a graph in an attribute": (with_a_graph, "holds a graph within its graph"),
    "functions of its own": (function, "defines functions"),
    "a constant elsewhere": (elsewhere, "takes constants from another file"),
    "a constant elsewhere in an attribute": (in_an_attribute, "takes constants from another file"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_export_writes_does_not_reach_the_runtime(
    engine: Callable[[Any], OnnxEngine], bundle: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, says = HOSTILE[name]
    model = onnx.ModelProto()
    model.CopyFrom(GOOD)
    change(model)
    opened = engine({"final": write(bundle, "final", model)})
    monkeypatch.setattr(opened._ort, "InferenceSession", None)
    with pytest.raises(EngineFailed, match=says) as error:
        opened.final(X, GAIN)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize(
    "data",
    [b"", b"\x08\x0a", b"\x18\x00\x00\x00ORTM" + bytes(64), b"\x3a\x7f", b"\x3a\xff", b"\x3b", b"\x00\x00"],
)
def test_what_is_no_model_is_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="is not an ONNX model|ONNX Runtime's own format"):
        check_program(data)


@given(st.integers(0, 1 << 30), st.binary(max_size=3))
def test_damaged_models_are_refused_or_still_within_the_rules(at: int, bytes_put: bytes) -> None:
    """Where both read a model, what is found includes what the library finds."""
    data = bytearray(GOOD.SerializeToString())
    at %= len(data)
    data[at : at + len(bytes_put)] = bytes_put
    try:
        check_program(bytes(data))
    except Refused:
        return
    try:
        read = onnx.ModelProto.FromString(bytes(data))
    except Exception:
        return
    for each in read.graph.node:
        one = onnx.ModelProto(graph=onnx.GraphProto(node=[each]))
        check_program(one.SerializeToString())


def test_a_program_that_holds_a_field_twice_is_judged_by_both() -> None:
    """Readers take the last."""
    twice = node("Loop", ["x"], "y").SerializeToString() + node("Abs", ["x"], "y").SerializeToString()
    assert onnx.NodeProto.FromString(twice).op_type == "Abs"
    model = b"\x3a" + bytes([len(twice) + 2]) + b"\x0a" + bytes([len(twice)]) + twice
    with pytest.raises(Refused, match="Loop"):
        check_program(model)


def test_the_runtime_writes_no_lines_of_its_own(
    engine: Callable[[Any], OnnxEngine], bundle: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = graph({"x": SHAPE}, {"y": SHAPE}, node("Reshape", ["x", "x"], "y"))
    fails = graph({"x": (1, 4, 8), "w.gain": ("n",)}, {"y": SHAPE}, node("Mul", ["x", "w.gain"], "y"))
    for model in broken, fails:
        with pytest.raises(EngineFailed, match="onnxruntime"):
            engine({"final": write(bundle, "final", model)}).final(X, {"gain": np.ones(5, np.float32)})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("entries", [None, [], {}, {"final": None}, {"final": "final.onnx"}])
def test_a_manifest_without_the_program_is_refused(engine: Callable[[Any], OnnxEngine], entries: Any) -> None:
    with pytest.raises(EngineFailed, match="has no program final"):
        engine(entries).final(X, GAIN)
