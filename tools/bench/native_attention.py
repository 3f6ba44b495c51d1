"""How near does the native core's attention come to the processor's multiply-add rate, and to torch?

One layer's attention at a time, in the shapes of LLaDA-8B and DiffusionGemma-26B: 256 positions over a
prefix. The limit is the rate of fused multiply-adds that touch no memory, measured in the same process.
Masked shapes are those of prefill; their rate counts hidden keys too, of which the native core skips whole
blocks. Outside the timed window: drawing of inputs, joining the prefix and the canvas and repeating shared
heads for torch, and starting threads. Ways alternate; a figure is the median over the rounds, with the range
of the middle half.

    cmake -G Ninja -S . -B build/native -DCMAKE_BUILD_TYPE=Release -DEDGEKIT_TESTING=ON
    ninja -C build/native
    python -m edgekit.tools.bench.native_attention build/native/libedgekit_testing.so
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

INSTRUCTION_SETS = ("avx512", "avx2", "neon", "scalar")


@dataclass(frozen=True)
class Shape:
    model: str
    heads: int
    kv_heads: int
    head_dim: int
    prefix: int
    masked: bool = False
    positions: int = 256

    @property
    def operations(self) -> float:
        """Floating point operations of both products."""
        return 4.0 * self.heads * self.head_dim * self.positions * (self.prefix + self.positions)

    @property
    def name(self) -> str:
        keys = f"{self.prefix + self.positions} keys{', masked' * self.masked}"
        return f"{self.model} {self.heads}/{self.kv_heads} x {self.head_dim}, {keys}"


SHAPES = (
    Shape("LLaDA", 32, 32, 128, 0),
    Shape("LLaDA", 32, 32, 128, 768),
    Shape("LLaDA", 32, 32, 128, 2048),
    Shape("Gemma sliding", 16, 8, 256, 1024),
    Shape("Gemma global", 16, 2, 512, 2048),
    Shape("Gemma sliding", 16, 8, 256, 768, masked=True),
    Shape("Gemma global", 16, 2, 512, 768, masked=True),
)


class Strided(ctypes.Structure):
    """An array as the core takes it: pointer, four sizes, four distances in elements."""

    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]

    @classmethod
    def of(cls, x: np.ndarray) -> Strided:
        return cls(
            x.ctypes.data, (ctypes.c_int64 * 4)(*x.shape), (ctypes.c_int64 * 4)(*(s // 4 for s in x.strides))
        )


def causal_mask(shape: Shape) -> np.ndarray | None:
    if not shape.masked:
        return None
    keys, positions = np.arange(shape.prefix + shape.positions), np.arange(shape.positions)
    hidden = keys[None] > positions[:, None] + shape.prefix
    return np.where(hidden, np.float32(-1e30), np.float32(0))


def ways(
    core: ctypes.CDLL, pool: ctypes.c_void_p, shape: Shape, threads: int
) -> dict[str, Callable[[], Any]]:
    """The candidates that are timed, by name."""
    import torch
    import torch.nn.functional as F

    rng = np.random.default_rng(0)
    scale = shape.head_dim**-0.5

    def joined_heads(heads: int) -> np.ndarray:
        flat = rng.standard_normal((1, shape.positions, heads, shape.head_dim), np.float32)
        return flat.transpose(0, 2, 1, 3)

    def buffer() -> np.ndarray:
        return rng.standard_normal((1, shape.kv_heads, shape.prefix, shape.head_dim), np.float32)

    q, k, v = joined_heads(shape.heads), joined_heads(shape.kv_heads), joined_heads(shape.kv_heads)
    prefix_k, prefix_v, y, mask = buffer(), buffer(), joined_heads(shape.heads), causal_mask(shape)
    core.ekt_attention_scratch_bytes.restype = ctypes.c_uint64
    size = core.ekt_attention_scratch_bytes(
        threads, ctypes.c_int64(shape.head_dim), ctypes.c_int64(shape.prefix + shape.positions)
    )
    memory = np.zeros(size + 64, np.uint8)
    scratch = ctypes.c_void_p(memory.ctypes.data + -memory.ctypes.data % 64)
    arrays = [Strided.of(x) for x in (q, k, v, prefix_k, prefix_v)]
    out = Strided.of(y)
    pointer = ctypes.c_void_p(None if mask is None else mask.ctypes.data)

    def native() -> np.ndarray:
        core.ekt_attention(
            pool, *map(ctypes.byref, arrays), pointer, ctypes.c_float(scale), ctypes.byref(out), scratch
        )
        return y

    repeat = shape.heads // shape.kv_heads
    keys, values = (
        torch.from_numpy(np.concatenate(pair, 2)).repeat_interleave(repeat, 1).contiguous()
        for pair in ((prefix_k, k), (prefix_v, v))
    )
    queries = torch.from_numpy(np.ascontiguousarray(q))
    added = None if mask is None else torch.from_numpy(mask)

    def reference() -> torch.Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=added, scale=scale)

    worst = np.abs(native() - reference().numpy()).max()
    if worst > 1e-4:
        raise SystemExit(f"{shape.name}: differs from torch by {worst}; a wrong result is not worth timing")
    alive = (memory, mask, q, k, v, prefix_k, prefix_v)  # the core only has their addresses
    return {"native": lambda: (native(), alive), "torch": reference}


def peak_rate(core: ctypes.CDLL, instruction_set: str, threads: int) -> float:
    """Operations per second of multiply-adds in registers, on `threads` threads at once; 0 if not known."""
    core.ekt_multiply_adds.restype = ctypes.c_double

    def run(_: int) -> float:
        kept = ctypes.c_float()
        rounds = ctypes.c_int64(10_000_000)
        return float(core.ekt_multiply_adds(instruction_set.encode(), rounds, ctypes.byref(kept)))

    with ThreadPoolExecutor(threads) as executor:
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            operations = sum(executor.map(run, range(threads)))
            best = max(best, operations / (time.perf_counter() - start))
    return best


def measure(run: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, in turn."""
    samples: dict[str, list[float]] = {name: [] for name in run}
    for _ in range(rounds):
        for name, way in run.items():
            start = time.perf_counter()
            way()
            samples[name].append(time.perf_counter() - start)
    return samples


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.argument("library", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--rounds", default=7, show_default=True, type=click.IntRange(min=2), help="Samples of a figure."
)
@click.option("--instruction-set", help="One of avx512, avx2, neon, scalar.  [default: the best here]")
@click.option("--only", default="", help="Part of the name of the shapes to measure.")
def main(library: Path, threads: int, rounds: int, instruction_set: str | None, only: str) -> None:
    import torch

    torch.set_num_threads(threads)
    core = ctypes.CDLL(str(library.resolve()))
    candidates = (instruction_set,) if instruction_set else INSTRUCTION_SETS
    chosen = next((name for name in candidates if core.ekt_float_use(name.encode())), None)
    if chosen is None:
        raise click.ClickException(f"no {instruction_set} here; known: {', '.join(INSTRUCTION_SETS)}")
    core.ekt_float_pool_open.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(core.ekt_float_pool_open(threads))
    peak = peak_rate(core, chosen, threads)
    click.echo(f"{chosen}, {threads} threads, multiply-adds in registers: {peak / 1e9:.0f} GFLOP/s")
    results = []
    for shape in SHAPES:
        if only not in shape.name:
            continue
        samples = measure(ways(core, pool, shape, threads), rounds)
        line = f"{shape.name:44}"
        for name, seconds in samples.items():
            low, middle, high = statistics.quantiles(seconds, n=4)
            rate = shape.operations / middle
            share = f" = {rate / peak:4.0%}" if peak else ""
            line += f"  {name} {middle * 1e3:7.2f} ms ({low * 1e3:.2f}-{high * 1e3:.2f})"
            line += f", {rate / 1e9:4.0f} GFLOP/s{share}"
        click.echo(line)
        results.append({"shape": shape.name, "seconds": samples, "operations": shape.operations})
    core.ekt_float_pool_close(pool)
    summary = {"instruction_set": chosen, "threads": threads, "peak": peak, "results": results}
    click.echo(json.dumps(summary))


if __name__ == "__main__":
    main()
