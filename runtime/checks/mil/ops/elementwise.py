"""Arithmetic, comparisons and logic on single elements; binary operations broadcast like numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import op
from edgekit.runtime.checks.mil.ops.special import erf
from edgekit.runtime.checks.mil.types import BY_NAME, Array, TensorType

_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": erf,
    "exp": np.exp,
    "exp2": np.exp2,
    "floor": np.floor,
    "logical_not": np.logical_not,
    "round": np.rint,  # halves to the even neighbour
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
}

_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "equal": np.equal,
    "floor_div": np.floor_divide,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": np.mod,  # the sign of the divisor
    "mul": np.multiply,
    "not_equal": np.not_equal,
    "pow": np.power,
    "sub": np.subtract,
}


def _unary(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        return function(x)

    return run


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def run(x: Array, y: Array) -> Array:
        return function(x, y)

    return run


for _name, _function in _UNARY.items():
    op(_name)(_unary(_function))
for _name, _operator in _BINARY.items():
    op(_name)(_binary(_operator))


def _integers(types: Mapping[str, TensorType]) -> str | None:
    return None if types["x"].dtype.is_float else "its rounding is undocumented for integers"


@op("real_div", refuses=_integers, note="floats only: the rounding for integers is undocumented")
def real_div(x: Array, y: Array) -> Array:
    return np.true_divide(x, y)


@op("clip")
def clip(x: Array, alpha: Array, beta: Array) -> Array:
    return np.minimum(np.maximum(x, alpha), beta)


@op("threshold")
def threshold(x: Array, alpha: Array) -> Array:
    return np.maximum(x, alpha)


@op("inverse")
def inverse(x: Array, epsilon: Array | float = 1e-4) -> Array:
    return np.reciprocal(x + epsilon)


@op("log")
def log(x: Array, epsilon: Array | float = 1e-45) -> Array:
    return np.log(x + epsilon)


@op("rsqrt")
def rsqrt(x: Array, epsilon: Array | float = 1e-12) -> Array:
    return np.reciprocal(np.sqrt(x + epsilon))


@op("select", moves=True)
def select(cond: Array, a: Array, b: Array) -> Array:
    return np.where(cond, a, b)


@op("cast", note="floats to integers towards zero")
def cast(x: Array, dtype: str) -> Array:
    wanted = BY_NAME.get(dtype)
    if wanted is None or not wanted.bits:
        raise ValueError(f"unknown type '{dtype}'")
    # The evaluator rounds floats to the declared type, or keeps them in float32 where it was told to.
    return x.astype(np.float32 if wanted.is_float else wanted.numpy)
