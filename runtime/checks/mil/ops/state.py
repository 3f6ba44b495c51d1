"""Memory that lives between runs. coremltools' coreml_update_state is saved as write_state and read_state."""

from __future__ import annotations

from edgekit.runtime.checks.mil.ops.registry import IOS18, State, op
from edgekit.runtime.checks.mil.types import Array


@op("read_state", since=IOS18, moves=True, states=("input",))
def read_state(input: State) -> Array:
    return input.array.copy()


@op("write_state", since=IOS18, moves=True, states=("input",))
def write_state(input: State, data: Array) -> tuple[()]:
    if input.array.shape != data.shape:
        raise ValueError(f"the state has shape {input.array.shape}, the data {data.shape}")
    input.array[...] = data
    return ()
