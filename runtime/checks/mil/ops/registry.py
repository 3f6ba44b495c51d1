"""The table of operations: a function per operation, whose signature is the operation's.

A function takes the operation's arguments by their MIL names and returns an array, or a tuple of arrays for
an operation with several outputs. A parameter without a default must be given by the program. A first
parameter named `call` receives the `Call`.

What the functions see, and may leave to the evaluator:
- float16 arguments arrive as float32, and float results are rounded to the type that the program declares. So
  the inside of an operation, sums in particular, is computed in float32. Functions registered with
  `moves=True` only move elements, and see float16 arrays as they are.
- Results are converted to the declared type: an int64 index may be returned where int32 is declared.
- Scalars are arrays of rank 0, strings are `str`. A parameter in `lists` is a list of arrays, one in
  `streams` is a `Rows`, one in `states` a `State`.
- Operations named constexpr_... take each argument as a `Rows` (strings as `str`) and return `Rows`: they are
  evaluated by whoever uses their result.
- ValueError, IndexError and ArithmeticError become one line that names operation and package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgekit.runtime.checks.mil.types import Array, TensorType

Implementation = Callable[..., Any]
F = TypeVar("F", bound=Implementation)
#: Why an operation with arguments of these types is not covered, or None.
Refusal = Callable[[Mapping[str, TensorType]], str | None]

#: Operation sets, as versions of the specification.
IOS15, IOS16, IOS17, IOS18 = 6, 7, 8, 9


@dataclass(frozen=True)
class Call:
    """The circumstances of a call that an operation may ask for: its operation set (IOS15...), and whether
    float16 is rounded at all.
    """

    opset: int
    rounds: bool = True


@dataclass
class State:
    """The memory of a state. Reading copies it, so that a later write does not change what was read."""

    array: Array


@dataclass(frozen=True)
class Op:
    """A covered operation: its implementation, and how its arguments are to be passed."""

    name: str
    group: str
    run: Implementation
    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_call: bool
    since: int = IOS15
    moves: bool = False
    lists: frozenset[str] = frozenset()
    streams: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    refuses: Refusal | None = field(default=None, compare=False)
    note: str = ""


_OPS: dict[str, Op] = {}


def op(
    name: str,
    *,
    since: int = IOS15,
    moves: bool = False,
    lists: tuple[str, ...] = (),
    streams: tuple[str, ...] = (),
    states: tuple[str, ...] = (),
    refuses: Refusal | None = None,
    note: str = "",
) -> Callable[[F], F]:
    """Registers a function as the operation `name`, which exists from operation set `since` on."""

    def register(function: F) -> F:
        if name in _OPS:
            raise RuntimeError(f"operation {name} is registered twice")
        parameters = list(inspect.signature(function).parameters.values())
        takes_call = bool(parameters) and parameters[0].name == "call"
        parameters = parameters[takes_call:]
        _OPS[name] = Op(
            name,
            function.__module__.rpartition(".")[2],
            function,
            tuple(p.name for p in parameters if p.default is inspect.Parameter.empty),
            tuple(p.name for p in parameters if p.default is not inspect.Parameter.empty),
            takes_call, since, moves, frozenset(lists), frozenset(streams), frozenset(states), refuses, note,
        )  # fmt: skip
        return function

    return register


def registered() -> Mapping[str, Op]:
    """The operations registered so far, by name; all of them once `checks.mil.ops` is imported."""
    return _OPS
