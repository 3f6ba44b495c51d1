"""What the engines in Python state about their memory, from what a bundle stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgekit.flashload.format import Run
from edgekit.runtime.bundle import Bundle, Model
from edgekit.runtime.engines.base import ALLOWANCE_BYTES, EngineBytes, Lengths

#: glibc's DEFAULT_MMAP_THRESHOLD_MAX on 64 bits: freed blocks up to it may stay with the process.
LARGEST_HEAP_BLOCK = 32 << 20


def stored_weights(bundle: Bundle, lengths: Lengths, *, copies: bool, uint8: bool) -> EngineBytes:
    """For an engine whose programs take stored weights. `copies`: it copies them; `uint8`: it also copies
    8-bit matrices.
    """
    layer, head = _activations(bundle.model, bundle.runs, lengths)
    if any(each.experts for each in bundle.model.layers):
        layer *= lengths.segments  # every segment waits for the experts with what comes before them
    return EngineBytes(layer, _scratch(bundle.model, bundle.runs, copies, uint8), head, ALLOWANCE_BYTES)


def unpacked_in_blocks(bundle: Bundle, lengths: Lengths, block: int) -> EngineBytes:
    """For an engine that unpacks so many bytes of codes at a time, and widens a matrix of 16 bits. Its arrays
    come and go: of those that were freed the heap keeps about as much again, and a block of the largest size.
    """
    layer, head = (2 * nbytes for nbytes in _activations(bundle.model, bundle.runs, lengths))
    if any(each.experts for each in bundle.model.layers):
        layer *= lengths.segments
    widened = [2 * t.nbytes for run in bundle.runs.values() for t in run.tensors if t.dtype == "BF16"]
    return EngineBytes(layer, max([block, *widened]) + LARGEST_HEAP_BLOCK, head, ALLOWANCE_BYTES)


def kept_rows(model: Model, lengths: Lengths) -> int:
    """Keys and values of all sequences, in bytes."""
    width = sum(2 * 4 * layer.kv_heads * layer.head_dim for layer in model.layers)
    return width * lengths.segments * (lengths.kept + lengths.rows)


def _activations(model: Model, runs: Mapping[str, Run], lengths: Lengths) -> tuple[int, int]:
    """Outputs of one layer at a time in float32 with their int8 forms and its attention scores; and what a
    tile of the head takes.
    """
    layer, rows, seen = 0, lengths.rows, lengths.rows + lengths.kept
    for kind in {x.program: x for x in model.layers}.values():
        tensors = runs[kind.run].tensors
        outputs = sum(s.shape[0] for s in tensors if s.name.endswith(".scales") or s.dtype == "BF16")
        query = next(
            (s.shape for s in tensors if ".q_proj." in s.name and s.name.endswith("scales")),
            (model.hidden_size,),
        )
        heads = max(1, query[0] // kind.head_dim)
        attention = 3 * heads * rows * seen * 4 + 4 * heads * seen * kind.head_dim * 4
        layer = max(layer, 2 * rows * (outputs + 8 * model.hidden_size) * 4 + attention)
    table = model.head or model.embedding
    tile = max(stop - start for _, start, stop in table.spans())
    head = 6 * lengths.head_rows * tile * 4 + 3 * lengths.head_rows * model.hidden_size * 4
    if model.self_conditioning:
        head += 2 * tile * model.hidden_size * 4
    return layer, max(0, head - layer)  # one after the other


def _scratch(model: Model, runs: Mapping[str, Run], copies: bool, uint8: bool) -> int:
    """Unpacked and widened weights, and the weights themselves where the engine copies them."""
    dense = [runs[x.run] for x in model.layers]
    experts = [runs[x.experts[0]] for x in model.layers if x.experts]
    tables = [runs[r] for r in (model.head or model.embedding).runs]
    others = [runs["self_conditioning"]] if model.self_conditioning else []

    def of(run: Run) -> int:
        sizes = {s.name: 8 * s.shape[0] * s.shape[1] for s in run.tensors if s.dtype == "BF16"}
        adapters = sum(size for name, size in sizes.items() if ".lora_" in name)  # beside their matrices
        widened = max(sizes.values(), default=0) + adapters
        widened += sum(2 * s.nbytes for s in run.tensors if s.dtype == "F16")
        return widened + (run.length if copies else 0)

    passing = max(max(map(of, dense)) + max(map(of, experts), default=0), max(map(of, tables), default=0))
    return passing + _unpacked([*dense, *experts, *others], uint8)


def _unpacked(runs: Sequence[Run], uint8: bool) -> int:
    """Buffers of 8-bit codes: an engine keeps one for each name that a matrix has in its run."""
    buffers: dict[str, int] = {}
    for run in runs:
        for s in run.tensors:
            name = s.name.removeprefix(run.name + ".")
            if name.endswith(".packed"):
                size = 2 * s.shape[0] * s.shape[1]
            elif uint8 and s.dtype == "I8":
                size = s.nbytes
            else:
                continue
            matrix = name.rpartition(".")[0]
            buffers[matrix] = max(size, buffers.get(matrix, 0))
    return sum(buffers.values())
