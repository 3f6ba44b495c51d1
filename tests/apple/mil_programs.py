"""Core ML packages written by coremltools, and its own idea of what their operations give.

Importing this module imports coremltools, without the remarks that it logs; tests that do so are skipped
where it is missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgekit.runtime.checks.mil import Evaluator

# Read while coremltools is imported; its progress bars would fill the output of a failing test.
os.environ.setdefault("TQDM_DISABLE", "1")
logging.getLogger("coremltools").setLevel(logging.ERROR)

ct = pytest.importorskip("coremltools")

from coremltools.converters.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import Function, Program, types  # noqa: E402
from coremltools.converters.mil.mil.program import Placeholder  # noqa: E402

Array = NDArray[Any]
TARGETS = {16: ct.target.iOS16, 17: ct.target.iOS17, 18: ct.target.iOS18, 26: ct.target.iOS26}
#: Types that a model can take. Others go in as int32 and are cast by the program's first operation.
_INPUT_TYPES = {np.dtype("f2"): types.fp16, np.dtype("f4"): types.fp32, np.dtype("i4"): types.int32}
_CASTS = {np.dtype(name): name for name in ("bool", "int8", "uint8", "int16", "uint16")}


@dataclass(frozen=True)
class Case:
    """One operation with its arguments: `tensors` are inputs of the program, `constants` are constants.

    `expected` computes the results; without it they are those of coremltools' value inference.
    """

    op: str
    tensors: Mapping[str, Array | Sequence[Array]]
    constants: Mapping[str, Any] = field(default_factory=dict)
    expected: Callable[[], Any] | None = None
    ios: tuple[int, ...] = (18,)
    label: str = ""

    @property
    def name(self) -> str:
        dtypes = {a.dtype.str[1:] for a in self.arrays().values()}
        return "_".join([self.op, *sorted(dtypes), *([self.label] if self.label else [])])

    def arrays(self) -> dict[str, Array]:
        """The tensors by a name for each, those of lists one by one."""
        result: dict[str, Array] = {}
        for key, value in self.tensors.items():
            if isinstance(value, np.ndarray):
                result[key] = value
            else:
                result.update({f"{key}{i}": v for i, v in enumerate(value)})
        return result


def save_program(program: Any, path: Path, ios: int = 18) -> Path:
    """Saves a program as it is: no pass of coremltools changes it."""
    model = ct.convert(
        program,
        source="milinternal",
        convert_to="mlprogram",
        minimum_deployment_target=TARGETS[ios],
        pass_pipeline=ct.PassPipeline.EMPTY,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    model.save(str(path))
    return path


def program_of(
    inputs: Mapping[str, tuple[tuple[int, ...], Any]], body: Callable[..., Any], ios: int = 18
) -> Any:
    """A program: inputs as name: (shape, type), and a function that builds the outputs from them."""
    placeholders = {name: Placeholder(shape, dtype=dtype) for name, (shape, dtype) in inputs.items()}
    with Function(placeholders, opset_version=TARGETS[ios]) as function:
        results = body(**function.inputs)
        function.set_outputs(list(results) if isinstance(results, (list, tuple)) else [results])
    program = Program()
    program.add_function("main", function)
    return program


def saved(
    path: Path, inputs: Mapping[str, tuple[tuple[int, ...], Any]], body: Callable[..., Any], ios: int = 18
) -> Path:
    """The package of `program_of`."""
    return save_program(program_of(inputs, body, ios), path, ios)


def evaluate_cases(cases: Sequence[Case], ios: int, folder: Path, **options: Any) -> dict[str, list[Array]]:
    """The results of all cases, evaluated from one saved package."""
    feeds: dict[str, Array] = {}
    inputs: dict[str, tuple[tuple[int, ...], Any]] = {}
    for case in cases:
        for key, array in case.arrays().items():
            feeds[f"{case.name}__{key}"] = array
            dtype = array.dtype if array.dtype in _INPUT_TYPES else np.dtype("i4")
            # A model cannot take scalars; such an input is squeezed.
            inputs[f"{case.name}__{key}"] = (array.shape or (1,), _INPUT_TYPES[dtype])
    outputs: dict[str, list[str]] = {}

    def body(**variables: Any) -> list[Any]:
        made = []
        for case in cases:
            ready = {}
            for key, array in case.arrays().items():
                variable = variables[f"{case.name}__{key}"]
                if array.dtype in _CASTS:
                    variable = mb.cast(x=variable, dtype=_CASTS[array.dtype])
                ready[key] = variable if array.shape else mb.squeeze(x=variable, axes=[0])
            arguments: dict[str, Any] = {
                key: ready[key]
                if isinstance(value, np.ndarray)
                else [ready[f"{key}{i}"] for i in range(len(value))]
                for key, value in case.tensors.items()
            }
            results = getattr(mb, case.op)(**arguments, **case.constants)
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            outputs[case.name] = []
            for result in results:
                # A model gives float and int32 tensors only, and no scalars.
                if types.builtin_to_string(result.dtype) not in ("fp16", "fp32", "int32"):
                    result = mb.cast(x=result, dtype="int32")
                if result.rank == 0:
                    result = mb.expand_dims(x=result, axes=[0])
                outputs[case.name].append(result.name)
                made.append(result)
        return made

    path = saved(folder / f"ops{ios}.mlpackage", inputs, body, ios)
    results = Evaluator(path, **options).run({n: a.reshape(a.shape or (1,)) for n, a in feeds.items()})
    return {name: [results[o] for o in names] for name, names in outputs.items()}


def inferred(case: Case, ios: int) -> list[Array]:
    """What coremltools computes when all arguments are constants.

    It computes float16 in float16, rounding at every step inside of an operation. So it is given the same
    numbers in float32.
    """
    arguments = {key: _widened(value) for key, value in {**case.tensors, **case.constants}.items()}
    with Function({}, opset_version=TARGETS[ios]):
        results = getattr(mb, case.op)(**arguments)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        values = [result.val for result in results]
    assert all(value is not None for value in values), f"coremltools does not evaluate {case.op}"
    return [np.asarray(value) for value in values]


def _widened(value: Any) -> Any:
    if isinstance(value, list):
        return [_widened(entry) for entry in value]
    return value.astype(np.float32) if getattr(value, "dtype", None) == np.float16 else value
