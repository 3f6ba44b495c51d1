"""Damaged, foreign and misused packages: one clear line each, at open where possible."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mil_programs import Array, ct, mb, saved, types

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.checks.mil import (
    CoremltoolsMissing,
    EvaluationFailed,
    Evaluator,
    InvalidInput,
    MalformedBlob,
    MalformedPackage,
    NotAPackage,
    Package,
    TruncatedBlob,
    UnknownFunction,
    UnsupportedOps,
    UnsupportedPackage,
    schema,
)

MODEL = Path("Data", "com.apple.CoreML", "model.mlmodel")
WEIGHTS = Path("Data", "com.apple.CoreML", "weights", "weight.bin")
weight = np.arange(48, dtype=np.float16).reshape(4, 12)
Change = Callable[[Any], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def body(x: Any, index: Any) -> list[Any]:
        rows = mb.gather(x=weight, indices=index, axis=0, name="rows")
        return [mb.add(x=mb.mul(x=x, y=rows, name="product"), y=np.float16(1), name="y")]

    inputs = {"x": ((2, 12), types.fp16), "index": ((2,), types.int32)}
    return saved(tmp_path_factory.mktemp("original") / "p.mlpackage", inputs, body)


@pytest.fixture
def package(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "p.mlpackage")
    return tmp_path / "p.mlpackage"


FEEDS: dict[str, Any] = {"x": np.ones((2, 12), np.float16), "index": np.array([3, 1], np.int32)}


def test_the_undamaged_package_runs(package: Path) -> None:
    assert np.array_equal(Evaluator(package).run(FEEDS)["y"], weight[[3, 1]] + 1)


def refuses(error: type[EdgekitError], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(error) as raised:
        call()
    assert re.search(message, str(raised.value)), str(raised.value)
    assert "\n" not in str(raised.value) and type(raised.value) is error


def test_something_that_is_no_package(package: Path, tmp_path: Path) -> None:
    refuses(NotAPackage, "absent does not exist", lambda: Package(tmp_path / "absent"))
    refuses(NotAPackage, r"model\.mlmodel is a file; expected the folder", lambda: Package(package / MODEL))
    refuses(NotAPackage, r"has no Manifest\.json$", lambda: Package(package / "Data"))
    compiled = tmp_path / "model.mlmodelc"
    compiled.mkdir()
    (compiled / "coremldata.bin").touch()
    refuses(NotAPackage, "it is a compiled model, open the .mlpackage", lambda: Package(compiled))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "does not name a model: JSONDecodeError"),
        ("[]", "does not name a model: TypeError"),
        ('{"rootModelIdentifier": "a", "itemInfoEntries": {}}', "does not name a model: KeyError 'a'"),
        ('{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "../../x"}}}', "is not inside"),
        ('{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "/etc/passwd"}}}', "is not inside"),
        ('{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "gone"}}}', "does not exist"),
    ],
)
def test_a_manifest_that_leads_nowhere(package: Path, content: str, message: str) -> None:
    (package / "Manifest.json").write_text(content)
    refuses(MalformedPackage, rf"Manifest\.json .*{message}", lambda: Package(package))


def test_the_manifest_decides_which_file_is_the_model(package: Path) -> None:
    manifest = json.loads((package / "Manifest.json").read_text())
    entry = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]
    (package / MODEL).rename((package / MODEL).with_name("other"))
    entry["path"] = "com.apple.CoreML/other"
    (package / "Manifest.json").write_text(json.dumps(manifest))
    assert "y" in Evaluator(package).run(FEEDS)


def test_a_model_file_that_is_none(package: Path) -> None:
    content = (package / MODEL).read_bytes()
    (package / MODEL).write_bytes(content[: len(content) // 2])
    refuses(MalformedPackage, r"model\.mlmodel is not a Core ML model", lambda: Package(package))
    (package / MODEL).write_bytes(b"")
    refuses(MalformedPackage, r"model\.mlmodel describes no model", lambda: Package(package))


def changed(package: Path, change: Change) -> Path:
    model = schema.parse_model((package / MODEL).read_bytes(), "")
    change(model)
    (package / MODEL).write_bytes(model.SerializeToString())
    return package


def block(model: Any) -> Any:
    return model.mlProgram.functions["main"].block_specializations["CoreML8"]


def operation(model: Any, kind: str, number: int = 0) -> Any:
    return [op for op in block(model).operations if op.type == kind][number]


def stored(model: Any) -> Any:
    """The value of the constant that lies in the weight file."""
    (value,) = [
        op.attributes["val"]
        for op in block(model).operations
        if op.type == "const" and op.attributes["val"].WhichOneof("value") == "blobFileValue"
    ]
    return value


def rename_input(model: Any) -> None:
    operation(model, "mul").inputs["x"].arguments[0].name = "nowhere"


CHANGES: dict[str, tuple[Change, type[EdgekitError], str]] = {
    "later version": (
        lambda m: setattr(m, "specificationVersion", 11),
        UnsupportedPackage, r"specification version 11; known are 6 \(iOS 15\) to 10 \(iOS 26\)"),
    "network": (
        lambda m: m.neuralNetwork.SetInParent(),
        UnsupportedPackage, "holds a neuralNetwork, not an ML Program"),
    "function": (
        lambda m: m.mlProgram.functions["extra"].SetInParent(),
        MalformedPackage, r"describes the functions \['main'\] and has \['extra', 'main'\]"),
    "default": (
        lambda m: setattr(m.description, "defaultFunctionName", "other"),
        MalformedPackage, "no function 'other', which is to be the default"),
    "image": (
        lambda m: m.description.input[0].type.imageType.SetInParent(),
        UnsupportedPackage, "input 'x' is a imageType; only arrays are supported"),
    "array type": (
        lambda m: setattr(m.description.input[0].type.multiArrayType, "dataType", 65568),
        MalformedPackage, r"input 'x' is described as fp32 and declared fp16\[2, 12\]"),
    "array shape": (
        lambda m: m.description.input[0].type.multiArrayType.shape.append(3),
        MalformedPackage, r"input 'x' is described with shape \[2, 12, 3\] and declared fp16\[2, 12\]"),
    "input name": (
        lambda m: setattr(m.description.input[0], "name", "z"),
        MalformedPackage, r"describes the inputs \['index', 'z'\] and takes \['index', 'x'\]"),
    "output name": (
        lambda m: setattr(m.description.output[0], "name", "z"),
        MalformedPackage, "describes the output 'z', which the program does not give"),
    "operation set": (
        lambda m: setattr(m.mlProgram.functions["main"], "opset", "CoreML12"),
        MalformedPackage, "has no block for its operation set 'CoreML12'"),
    "undefined value": (rename_input, MalformedPackage, "mul 'product' uses 'nowhere', which no earlier"),
    "value defined twice": (
        lambda m: setattr(operation(m, "add").outputs[0], "name", "product"),
        MalformedPackage, "add 'y' defines 'product' a second time"),
    "output": (
        lambda m: block(m).outputs.append("nothing"),
        MalformedPackage, "nothing defines the output 'nothing'"),
    "unknown argument": (
        lambda m: operation(m, "mul").inputs["z"].CopyFrom(operation(m, "mul").inputs["x"]),
        UnsupportedOps, r"operations that are not covered: mul with z: 'product'"),
    "lacking argument": (
        lambda m: operation(m, "mul").inputs.pop("y"),
        MalformedPackage, "mul 'product' lacks y"),
    "two arguments": (
        lambda m: operation(m, "mul").inputs["y"].arguments.extend(operation(m, "mul").inputs["x"].arguments),
        MalformedPackage, "mul 'product' has 2 values for 'y'"),
    "immediate value": (
        lambda m: operation(m, "const", 1).attributes["val"].immediateValue.tensor.ints.values.extend([1, 2]),
        MalformedPackage, "const '.*' is declared .* and has 3 elements"),
    "immediate type": (
        lambda m: operation(m, "const", 1).attributes["val"].immediateValue.tensor.floats.values.append(1),
        MalformedPackage, "const '.*' is declared .* and stored as floats"),
    "element type": (
        lambda m: setattr(operation(m, "mul").outputs[0].type.tensorType, "dataType", 77),
        MalformedPackage, "mul 'product': output 'product' has the unknown element type 77"),
    "weight type": (
        lambda m: setattr(stored(m).type.tensorType, "dataType", 11),
        MalformedBlob, r"is declared fp32\[4, 12\]; its record at 64 of .*weight\.bin holds fp16$"),
    "larger weight": (
        lambda m: setattr(stored(m).type.tensorType.dimensions[0].constant, "size", 5),
        TruncatedBlob, r"is declared fp16\[5, 12\]; .* holds 48 elements instead of 60"),
    "smaller weight": (
        lambda m: setattr(stored(m).type.tensorType.dimensions[0].constant, "size", 3),
        MalformedBlob, r"is declared fp16\[3, 12\]; .* holds 48 elements instead of 36"),
    "weight offset": (
        lambda m: setattr(stored(m).blobFileValue, "offset", 1 << 33),
        TruncatedBlob, "record at 8589934592 lies outside the file"),
    "no record there": (
        lambda m: setattr(stored(m).blobFileValue, "offset", 128),
        MalformedBlob, "record at 128 starts with 0x3c000000 instead of 0xdeadbeef"),
    "weight file elsewhere": (
        lambda m: setattr(stored(m).blobFileValue, "fileName", "@model_path/../../../secret"),
        MalformedBlob, "weight file '@model_path/../../../secret' is not below @model_path/"),
    "another weight file": (
        lambda m: setattr(stored(m).blobFileValue, "fileName", "@model_path/weights/0.bin"),
        MalformedBlob, r"weights/0\.bin: cannot be opened: No such file"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_program_is_refused_at_open(name: str, package: Path) -> None:
    change, error, message = CHANGES[name]
    changed(package, change)
    refuses(error, message, lambda: Evaluator(package))
    refuses(error, re.escape(str(package)), lambda: Evaluator(package))


def test_a_damaged_weight_file_is_refused_at_open(package: Path) -> None:
    content = (package / WEIGHTS).read_bytes()
    (package / WEIGHTS).write_bytes(content[:150])
    refuses(TruncatedBlob, "promises 96 bytes at 128; the file has 150 bytes", lambda: Evaluator(package))
    (package / WEIGHTS).unlink()
    refuses(MalformedBlob, "cannot be opened", lambda: Evaluator(package))
    (package / WEIGHTS).write_bytes(content)
    evaluator = Evaluator(package)
    (package / WEIGHTS).write_bytes(content[:150])
    refuses(TruncatedBlob, "ends at 150", lambda: evaluator.run(FEEDS))


def test_every_uncovered_operation_is_named_in_one_line(tmp_path: Path) -> None:
    def body(x: Any) -> Any:
        for _ in range(4):
            x = mb.depth_to_space(x=mb.space_to_depth(x=x, block_size=2), block_size=2)
        i = mb.cast(x=x, dtype="int32")
        return [mb.local_response_norm(x=x, size=3, name="lrn"), mb.real_div(x=i, y=i, name="ratio")]

    path = saved(tmp_path / "p.mlpackage", {"x": ((1, 4, 4, 4), types.fp32)}, body)
    refuses(
        UnsupportedOps,
        r"p\.mlpackage: function 'main' uses operations that are not covered: "
        r"depth_to_space: 'depth_to_space_0', 'depth_to_space_1', 'depth_to_space_2' and 1 more; "
        r"local_response_norm: 'lrn'; real_div \(its rounding is undocumented for integers\): 'ratio'; "
        r"space_to_depth: .* and 1 more$",
        lambda: Evaluator(path),
    )


def test_control_flow_is_not_covered(tmp_path: Path) -> None:
    def body(x: Any) -> Any:
        positive = mb.greater(x=mb.reduce_sum(x=x), y=0.0)
        up, down = (lambda: mb.add(x=x, y=1.0)), (lambda: mb.sub(x=x, y=1.0))
        return mb.cond(pred=positive, _true_fn=up, _false_fn=down, name="branch")

    path = saved(tmp_path / "p.mlpackage", {"x": ((3,), types.fp32)}, body)
    refuses(UnsupportedOps, "not covered: cond: 'branch'", lambda: Evaluator(path))


def test_functions_are_listed(package: Path) -> None:
    refuses(UnknownFunction, "has no function 'other', only main", lambda: Evaluator(package, "other"))


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": FEEDS["x"]}, "takes the inputs x, index; index is missing"),
        ({}, "x, index are missing"),
        ({**FEEDS, "z": 1}, "z is unknown"),
        ({**FEEDS, "x": np.ones((2, 11), np.float16)}, r"input 'x' has shape \[2, 11\]; expected \[2, 12\]"),
        ({**FEEDS, "x": np.ones((2, 12), int)}, "input 'x' is int64; expected fp16"),
        ({**FEEDS, "index": np.array([1.0, 2.0])}, "input 'index' is float64; expected int32"),
        ({**FEEDS, "index": np.array([1, 2**40])}, "input 'index' has values that do not fit int32"),
        ({**FEEDS, "x": np.full((2, 12), "a")}, "input 'x' is <U1; expected fp16"),
    ],
)
def test_inputs_that_do_not_fit(package: Path, feeds: dict[str, Array], message: str) -> None:
    evaluator = Evaluator(package)
    refuses(InvalidInput, message, lambda: evaluator.run(feeds))
    refuses(
        InvalidInput, "has the states none, given are s", lambda: evaluator.run(FEEDS, {"s": np.zeros(1)})
    )


def test_inputs_of_a_related_type_are_converted(package: Path) -> None:
    evaluator = Evaluator(package)
    wide = {"x": FEEDS["x"].astype(np.float64) / 3, "index": [3, 1]}
    expected = {"x": (FEEDS["x"].astype(np.float64) / 3).astype(np.float16), "index": FEEDS["index"]}
    assert np.array_equal(evaluator.run(wide)["y"], evaluator.run(expected)["y"])


def test_an_optional_input_has_a_default(package: Path) -> None:
    def change(model: Any) -> None:
        model.description.input[0].type.isOptional = True
        model.description.input[0].type.multiArrayType.floatDefaultValue = 2.0

    evaluator = Evaluator(changed(package, change))
    assert evaluator.inputs["x"].default == 2.0
    assert np.array_equal(evaluator.run({"index": FEEDS["index"]})["y"], 2 * weight[[3, 1]] + 1)


@pytest.mark.parametrize("index", [[4, 0], [0, -1]])
def test_an_index_outside_names_the_operation(package: Path, index: list[int]) -> None:
    evaluator = Evaluator(package)
    refuses(
        EvaluationFailed,
        rf"p\.mlpackage: .*: gather 'rows': index {max(index, key=abs)} is outside .* of 4 elements",
        lambda: evaluator.run({**FEEDS, "index": np.array(index, np.int32)}),
    )


def test_a_result_of_another_shape_than_declared_is_an_error(package: Path) -> None:
    def change(model: Any) -> None:
        operation(model, "mul").outputs[0].type.tensorType.dimensions[0].constant.size = 5

    evaluator = Evaluator(changed(package, change))
    refuses(EvaluationFailed, r"mul 'product' gives shape \[2, 12\]; declared is fp16\[5, 12\]",
            lambda: evaluator.run(FEEDS))  # fmt: skip


def test_outputs_do_not_share_memory_with_inputs(tmp_path: Path) -> None:
    path = saved(tmp_path / "p.mlpackage", {"x": ((3,), types.fp32)}, lambda x: mb.identity(x=x, name="y"))
    x = np.ones(3, np.float32)
    evaluator = Evaluator(path)
    found = evaluator.run({"x": x})["y"]
    found[:] = 7
    assert (x == 1).all() and (evaluator.run({"x": x})["y"] == 1).all()


def test_missing_definitions_name_the_extra(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith(("coremltools.proto", schema._PACKAGE))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(schema.PathFinder, "find_spec", lambda name: None)
    schema._model_class.cache_clear()
    try:
        refuses(CoremltoolsMissing, r"pip install 'edgekit\[coreml\]'", lambda: Package(package))
    finally:
        schema._model_class.cache_clear()


def test_the_definitions_are_those_of_coremltools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported under another name they are the same classes, so a process may hold both."""
    monkeypatch.delitem(sys.modules, "coremltools.proto")
    schema._model_class.cache_clear()
    assert schema._model_class() is ct.proto.Model_pb2.Model
    assert schema._PACKAGE in sys.modules


def test_reading_a_package_imports_neither_coremltools_nor_torch(package: Path) -> None:
    code = (
        "import sys, numpy as np; from edgekit.runtime.checks.mil import Evaluator; "
        f"y = Evaluator({str(package)!r}).run({{'x': np.ones((2, 12), np.float16), 'index': [3, 1]}})['y']; "
        "print(y.sum(), *sorted({'coremltools', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split() == [str((weight[[3, 1]] + 1).sum())]
