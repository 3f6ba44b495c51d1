"""Runs a function of a saved package with numpy.

Where the program declares float16, the arguments and results of an operation are float16 values; inside of
an operation everything is float32, sums above all, and the result is rounded once. Devices differ here: the
Neural Engine and some GPU kernels round within an operation too, and fused operations do not round in
between. So this is the rounding of the program, not that of a particular kernel. `compute="float32"` leaves
out the rounding of results too; weights keep their stored values, decompressed without rounding. What is
then still wrong is wrong in the graph or in the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgekit.runtime.checks.mil.errors import EvaluationFailed, InvalidInput
from edgekit.runtime.checks.mil.features import Feature
from edgekit.runtime.checks.mil.ops.registry import Call, State
from edgekit.runtime.checks.mil.package import Package
from edgekit.runtime.checks.mil.plan import REFUSALS, Step, check_coverage, compose_weights, steps
from edgekit.runtime.checks.mil.program import Operation, Reference, Value
from edgekit.runtime.checks.mil.rows import ArrayRows, narrowed, widened
from edgekit.runtime.checks.mil.types import FP16, STRING, Array, DType
from edgekit.runtime.checks.mil.values import Constant
from edgekit.runtime.checks.mil.weights import Weights

Compute = Literal["declared", "float32"]
#: Called after each operation with its results, in the order of its outputs.
Observer = Callable[[Operation, tuple[Array, ...]], None]


class Evaluator:
    """One function of a package, ready to run.

    Weights are read, decompressed and dropped by the operation that uses them; large ones in blocks of rows.
    Up to `cache_bytes` of them stay decompressed for the next run, those first used first.

    Args:
        package: a `Package` or the path of one.
        function: its name; the package's default function if None.
        compute: "declared" rounds where the program says float16, "float32" nowhere.

    Raises:
        UnsupportedOps: the function uses operations that are not covered; all are listed.
        UnknownFunction, and the errors of `Package`.
    """

    def __init__(
        self,
        package: Package | str | Path,
        function: str | None = None,
        *,
        compute: Compute = "declared",
        cache_bytes: int = 32 << 20,
    ) -> None:
        if compute not in ("declared", "float32"):
            raise ValueError(f"compute is 'declared' or 'float32', not '{compute}'")
        self.package = package if isinstance(package, Package) else Package(package)
        self._function = self.package.function(function)
        self._where = f"{self.package.path}: function '{self._function.name}'"
        self._call = Call(self._function.opset, compute == "declared")
        signature = self.package.functions[self._function.name]
        self.inputs: Mapping[str, Feature] = signature.inputs
        self.outputs: Mapping[str, Feature] = signature.outputs
        self.states: Mapping[str, Feature] = signature.states
        check_coverage(self._where, self._function)
        weights = compose_weights(self._where, self._function, self._call)
        self._weights = Weights(weights, self._call.rounds, cache_bytes)
        self._steps = steps(self._function, weights)

    def new_states(self) -> dict[str, Array]:
        """The states before the first run: zeros. `run` changes them in place."""
        return {
            name: np.zeros(feature.shape, self._held(feature.dtype)) for name, feature in self.states.items()
        }

    def run(
        self,
        inputs: Mapping[str, Any],
        states: Mapping[str, Array] | None = None,
        observe: Observer | None = None,
    ) -> dict[str, Array]:
        """One evaluation: the outputs by name, in the order of the package.

        Args:
            inputs: an array for each input; floats are rounded to the declared type, integers must fit it.
            states: for a function with states, what `new_states` gave, which this run reads and changes.
            observe: sees every operation and its results, for example to find where rounding sets in.

        Raises:
            InvalidInput: an input or state is missing, surplus, or of another type or shape.
            EvaluationFailed: an operation is not defined for the values it meets, such as an index outside
                of a tensor, or gives another shape than the program declares.
            MalformedBlob, TruncatedBlob: the weight file changed.
        """
        values: dict[str, Array] = self._checked_inputs(inputs)
        memory = self._checked_states(states)
        # Infinities and NaN are results like others; an observer can look for them.
        with np.errstate(all="ignore"):
            for step in self._steps:
                results = self._evaluate(step, values, memory)
                for value, result in zip(step.operation.outputs, results, strict=True):
                    values[value.name] = result
                if observe is not None:
                    observe(step.operation, results)
                for name in step.last_uses:
                    values.pop(name, None)
            # Copies: an output may be a view of an input, or of something larger.
            return {name: np.array(self._array(Reference(name), values), order="C") for name in self.outputs}

    def _held(self, dtype: DType) -> np.dtype[Any]:
        """The numpy type of arrays of this type in this evaluator."""
        return np.dtype(np.float32) if dtype is FP16 and not self._call.rounds else dtype.numpy

    def _checked_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        surplus = [name for name in inputs if name not in self.inputs]
        missing = [n for n, feature in self.inputs.items() if n not in inputs and feature.default is None]
        if surplus or missing:
            wrong = " and ".join(
                f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}"
                for what, names in (("missing", missing), ("unknown", surplus))
                if names
            )
            raise InvalidInput(f"{self._where} takes the inputs {', '.join(self.inputs) or 'none'}; {wrong}")
        result = {}
        for name, feature in self.inputs.items():
            if name in inputs:
                array = feature.checked(inputs[name], f"{self._where}: input '{name}'")
            else:
                array = np.full(feature.shape, feature.default, feature.dtype.numpy)
            result[name] = array.astype(self._held(feature.dtype), copy=False)
        return result

    def _checked_states(self, states: Mapping[str, Array] | None) -> dict[str, State]:
        given = {} if states is None else states
        if given.keys() != self.states.keys():
            raise InvalidInput(
                f"{self._where} has the states {', '.join(self.states) or 'none'}, "
                f"given are {', '.join(given) or 'none'}; pass what new_states() gave"
            )
        for name, feature in self.states.items():
            array, wanted = given[name], self._held(feature.dtype)
            if not isinstance(array, np.ndarray) or array.dtype != wanted or array.shape != feature.shape:
                raise InvalidInput(
                    f"{self._where}: state '{name}' must be an array of {wanted} with shape "
                    f"{list(feature.shape)}, such as new_states() gives"
                )
        return {name: State(array) for name, array in given.items()}

    def _evaluate(
        self, step: Step, values: Mapping[str, Array], memory: Mapping[str, State]
    ) -> tuple[Array, ...]:
        operation, op = step.operation, step.op
        at = f"{self._where}: {operation.type} '{operation.name}'"
        arguments: dict[str, Any] = {}
        for key, bindings in operation.inputs.items():
            if key in op.states and isinstance(bindings[0], Reference):
                arguments[key] = memory[bindings[0].name]
            elif key in op.lists:
                arguments[key] = [self._argument(step, b, values) for b in bindings]
            elif key in op.streams:
                arguments[key] = self._rows(bindings[0], values)
            else:
                arguments[key] = self._argument(step, bindings[0], values)
        try:
            result = op.run(*[self._call] * op.takes_call, **arguments)
        except REFUSALS as error:
            raise EvaluationFailed(f"{at}: {error}") from error
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(operation.outputs):
            raise EvaluationFailed(f"{at} gives {len(results)} values, {len(operation.outputs)} are declared")
        return tuple(
            self._settled(array, value, at) for array, value in zip(results, operation.outputs, strict=True)
        )

    def _settled(self, array: Any, value: Value, at: str) -> Array:
        """A result in the type that is declared for it."""
        array = np.asarray(array)
        if not value.type.fits(array.shape):
            raise EvaluationFailed(f"{at} gives shape {list(array.shape)}; declared is {value.type}")
        return array.astype(self._held(value.type.dtype), copy=False)

    def _argument(self, step: Step, binding: Reference | Constant, values: Mapping[str, Array]) -> Any:
        known: Any = binding
        if isinstance(binding, Reference) and binding.name in self._weights:
            known = self._weights[binding.name]
        if isinstance(known, Constant) and known.dtype is STRING:
            return known.text()
        array = self._array(binding, values)
        return array if step.op.moves else widened(array)

    def _rows(self, binding: Reference | Constant, values: Mapping[str, Array]) -> Any:
        if isinstance(binding, Reference) and binding.name in self._weights:
            return self._weights.rows(binding.name)
        if isinstance(binding, Constant):
            return binding
        return ArrayRows(values[binding.name], self._function.types[binding.name].dtype)

    def _array(self, binding: Reference | Constant, values: Mapping[str, Array]) -> Array:
        if isinstance(binding, Constant):
            return narrowed(binding.all(), binding.dtype, self._call.rounds)
        return values[binding.name] if binding.name in values else self._weights.array(binding.name)
