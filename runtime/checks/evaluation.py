"""Computes with Core ML packages on any system, and compares what can be compared without the model's
definition, which takes PyTorch: functions with each other, the vocabulary head with its own table. This is
done in float32; what is computed with every result rounded as declared must be finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.packages import Package
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.engines.base import matrix
from edgekit.runtime.engines.package_engine import OpenedPackage, PackageEngine
from edgekit.runtime.sampling.types import Floats, Ids

NOT_COVERED = (
    "layers were compared with themselves at other lengths and prefixes only, self-conditioning with "
    "nothing: what they compute is not known here"
)
#: Largest difference over the largest value; float16 scales alone are off by 5e-4.
TOLERANCE = 2e-3


def distinct(bundle: Bundle) -> list[str]:
    """The first package of each kind: those that differ in nothing but weights are one."""
    assert bundle.packages is not None
    first: dict[object, str] = {}
    for name, package in bundle.packages.entries.items():
        ports = [
            (f.t, f.p, tuple((p.role, p.shape) for p in (*f.inputs.values(), *f.outputs.values())))
            for f in package.functions
        ]
        first.setdefault((package.kind, tuple(ports)), name)
    return list(first.values())


def evaluate(bundle: Bundle, name: str, seed: int = 0) -> str:
    """Evaluate a package on random inputs and describe what is wrong with the results; empty for nothing."""
    try:
        return _evaluate(bundle, name, seed)
    except EdgekitError as error:
        return str(error)


def _evaluate(bundle: Bundle, name: str, seed: int) -> str:
    engine, rng = PackageEngine(bundle, MilExecutor("float32")), np.random.default_rng(seed)
    declared = PackageEngine(bundle, MilExecutor("declared"))
    with engine.open(name) as opened, declared.open(name) as rounded:
        kind = opened.entry.kind
        if kind == "layers":
            return _layers(bundle, engine, opened, rng) or _rounded(bundle, declared, rounded, rng)
        if kind == "head":
            x, logits = _head_rows(bundle, opened, rng), declared.head_logits
            return _head(bundle, engine, opened, rng) or _finite({"z": logits(x, 1.0, rounded)})
        hidden, t = bundle.model.hidden_size, min(f.t for f in opened.entry.functions)
        x, soft = (_random(rng, 1, t, hidden) for _ in range(2))
        if kind == "final":
            return _norm(x[0], engine.final(x, opened)[0]) or _finite({"y": declared.final(x, rounded)})
        return _finite({"y": declared.self_condition(x, soft, rounded)})


def _pass(
    bundle: Bundle,
    name: str,
    x: Floats,
    positions: Ids,
    prefix: Sequence[tuple[Floats, Floats]] = (),
) -> list[dict[str, np.ndarray]]:
    """The inputs of a chunk's layers for rows x [1, T, H] at positions [T] behind a prefix."""
    inputs = []
    adapter = {"adapter": np.ones((len(positions), 1), np.float32)} if bundle.model.adapters else {}
    for slot, layer in enumerate(own for own in bundle.model.layers if own.run == name):
        none = np.zeros((1, layer.kv_heads, 0, layer.head_dim), np.float32)
        k, v = prefix[slot] if prefix else (none, none)
        inputs.append(
            {
                "x": x,
                "prefix_k": k,
                "prefix_v": v,
                **bundle.model.ropes[layer.rope].tables(positions),
                "mask": _causal_mask(positions, positions[0] - k.shape[2], layer.window),
                "phase": np.zeros(1, np.int64),
                **adapter,
            }
        )
    return inputs


def _results(y: Floats, kept: Sequence[tuple[Floats, Floats]], first: int = 0) -> dict[str, np.ndarray]:
    """The results of a pass for its rows from `first` on."""
    found = {"y": y[:, first:]}
    for slot, (k, v) in enumerate(kept):
        found |= {f"k.{slot}": k[:, :, first:], f"v.{slot}": v[:, :, first:]}
    return found


def _layers(bundle: Bundle, engine: PackageEngine, opened: OpenedPackage, rng: np.random.Generator) -> str:
    """The shortest and the longest function on the same rows, all that is padding hidden; and the same rows
    in two passes, the first one's keys and values as the prefix of the second.
    """
    name, functions = opened.entry.name, sorted(opened.entry.functions, key=lambda f: (f.t, f.p))
    positions = np.arange(max(1, functions[0].t - 1))
    x = _random(rng, 1, len(positions), bundle.model.hidden_size)
    inputs = _pass(bundle, name, x, positions)
    results = []
    for function in (functions[0], *functions[1:][-1:]):
        results.append(engine.call(opened, function, inputs))
        if wrong := _finite(_results(*results[-1])):
            return f"function {function.name}: {wrong}"
    names = f"functions {functions[0].name} and {functions[-1].name} disagree"
    if wrong := _difference(names, _results(*results[0]), _results(*results[-1])):
        return wrong
    behind = next((f for f in functions if f.p), None)
    windows = [layer.window - 1 for layer in bundle.model.layers if layer.window is not None]
    first = min([len(positions) // 2, behind.p if behind else 0, *windows])
    if behind is None or first == 0:
        return ""
    _, prefix = engine.call(opened, functions[0], _pass(bundle, name, x[:, :first], positions[:first]))
    split = engine.call(opened, behind, _pass(bundle, name, x[:, first:], positions[first:], prefix))
    names = f"function {behind.name} behind a prefix and {functions[0].name} at once disagree"
    return _difference(names, _results(*split), _results(*results[0], first))


def _rounded(bundle: Bundle, engine: PackageEngine, opened: OpenedPackage, rng: np.random.Generator) -> str:
    """The shortest function, every result rounded as declared: nothing overflows."""
    function = min(opened.entry.functions, key=lambda f: (f.t, f.p))
    x = _random(rng, 1, function.t, bundle.model.hidden_size)
    inputs = _pass(bundle, opened.entry.name, x, np.arange(function.t))
    wrong = _finite(_results(*engine.call(opened, function, inputs)))
    return f"function {function.name}, rounded as declared: {wrong}" if wrong else ""


def _norm(x: Floats, y: Floats) -> str:
    """A norm multiplies every row by the same weights once it is divided by its root mean square."""
    unit = x / np.sqrt(np.square(x).mean(1, keepdims=True))
    weight = (y * unit).sum(0) / np.square(unit).sum(0)
    return _difference("the rows are normed differently", {"y": y}, {"y": weight * unit})


def _head(bundle: Bundle, engine: PackageEngine, opened: OpenedPackage, rng: np.random.Generator) -> str:
    """Scores against the embedding table where it is the head's as well; all else against the scores."""
    entry, model = opened.entry, bundle.model
    x, temperature = _head_rows(bundle, opened, rng), 0.75
    rows = len(x)
    z = engine.head_logits(x, temperature, opened)
    table = _table(bundle, entry) if model.tied_head else None
    if table is not None:
        cap = float(bundle.manifest.model.get("softcap") or 0)
        expected = x @ table.T
        expected = (cap * np.tanh(expected / cap) if cap else expected) / np.float32(temperature)
        if wrong := _difference("the scores are not the table's", {"z": z}, {"z": expected}):
            return wrong
    noise = rng.gumbel(size=z.shape).astype(np.float32)
    top = z.max(1)
    e = np.exp(z - top[:, None])
    others = np.where(np.arange(z.shape[1]) == z.argmax(1)[:, None], 0, e)
    expected_parts = {"top": top, "sum_others": others.sum(1), "sum_z_others": (others * z).sum(1)}
    for sampled in (False, True):
        soft = model.self_conditioning
        part = engine.head_tile(x, temperature, noise if sampled else None, soft, opened)
        if not np.allclose(z[np.arange(rows), part.arg], top, rtol=TOLERANCE):
            return "the highest scores are of other tokens"
        wanted = dict(expected_parts)
        if sampled:
            wanted["score"] = (z + noise).max(1)
            assert part.sample is not None
            wanted["sample_z"] = z[np.arange(rows), part.sample]
        if soft and table is not None:
            wanted["soft"] = e @ table
        found = {key: getattr(part, key) for key in wanted}
        if wrong := _difference("the statistics are not those of the scores", found, wanted):
            return wrong
    return ""


def _head_rows(bundle: Bundle, opened: OpenedPackage, rng: np.random.Generator) -> Floats:
    return _random(rng, min(f.t for f in opened.entry.functions), bundle.model.hidden_size)


def _random(rng: np.random.Generator, *shape: int) -> Floats:
    """Normal numbers that float16 has: inputs are rounded to it."""
    return rng.standard_normal(shape).astype(np.float16).astype(np.float32)


def _table(bundle: Bundle, entry: Package) -> Floats:
    """The rows of a tile, from the flash file."""
    parts = []
    with bundle.open_weights() as file:
        for run, start, stop in bundle.model.embedding.spans():
            first, end = max(start, entry.start), min(stop, entry.start + entry.rows)
            if first < end:
                tensors = {t.name.removeprefix(run + "."): t.name for t in file.run(run).tensors}
                rows = first - start, end - first
                parts.append(matrix({n: file.read_rows(full, *rows) for n, full in tensors.items()}))
    return np.concatenate(parts)


def _causal_mask(positions: Ids, first: int, window: int | None) -> Floats:
    """Additive mask [T, P + T] over a prefix from absolute position `first` on and the rows themselves."""
    distance = positions[:, None] - np.arange(first, positions[-1] + 1)
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return np.where(hidden, np.float32(-1e30), np.float32(0))


def _finite(found: Mapping[str, np.ndarray]) -> str:
    wrong = [name for name, array in found.items() if not np.isfinite(array).all()]
    return f"{wrong[0]} is not finite" if wrong else ""


def _difference(what: str, found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> str:
    for name, array in expected.items():
        error, scale = np.abs(found[name] - array).max(), max(np.abs(array).max(), 1e-6)
        if not error <= TOLERANCE * scale:
            return f"{what}: {name} is off by {error:.3g} where {scale:.3g} is the largest"
    return ""
