"""Computes with Core ML packages on any system, and compares what can be compared without the model's
definition, which takes PyTorch: functions with each other, the vocabulary head with its own table. This is
done in float32; what is computed with every result rounded as declared must be finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.packages import Function, Package
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.checks.package_functions import MASKED, PackageFunctions
from edgekit.runtime.engines.base import matrix
from edgekit.runtime.errors import UnsupportedBundle
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
    rng = np.random.default_rng(seed)
    with (
        PackageFunctions(bundle, name, MilExecutor("float32")) as own,
        PackageFunctions(bundle, name, MilExecutor("declared")) as rounded,
    ):
        kind, function = own.entry.kind, own.shortest()
        if kind == "layers":
            return _layers(bundle, own, rng) or _rounded(bundle, rounded, rng)
        if kind == "head":
            x = _head_rows(bundle, function, rng)
            return _head(bundle, own, x, rng) or _finite(_scores(rounded, x, 1.0))
        x, soft = (_random(rng, 1, function.t, bundle.model.hidden_size) for _ in range(2))
        if kind == "final":
            given = {"x": x}
            return _norm(x[0], own.call(function, given)["y"][0]) or _finite(rounded.call(function, given))
        return _finite(rounded.call(function, {"embedded": x, "soft": soft}))


def _run(
    bundle: Bundle,
    package: PackageFunctions,
    function: Function,
    x: Floats,
    positions: Ids,
    prefix: Sequence[tuple[Floats, Floats]] = (),
) -> dict[str, np.ndarray]:
    """The results of a chunk's layers for rows x [1, T, H] at positions [T] behind a prefix, by role."""
    rows = len(positions)
    arrays: dict[str, np.ndarray] = {"x": x, "phase": np.zeros(1, np.int64)}
    if bundle.model.adapters:
        arrays["adapter"] = np.ones((rows, 1), np.float32)
    for slot, (layer, most) in enumerate(zip(package.layers, function.prefixes, strict=True)):
        none = np.zeros((1, layer.kv_heads, 0, layer.head_dim), np.float32)
        k, v = prefix[slot] if prefix else (none, none)
        kept = k.shape[2]
        arrays[f"prefix_k.{slot}"], arrays[f"prefix_v.{slot}"] = k, v
        tables = bundle.model.ropes[layer.rope].tables(positions)
        arrays |= {f"{name}.{layer.rope}": table for name, table in tables.items()}
        mask = f"mask.{'full' if layer.window is None else layer.window}"
        arrays[mask] = _mask(_seen(positions, positions[0] - kept, layer.window), most, function.t)
    return _of_rows(package.call(function, arrays), slice(rows))


def _of_rows(results: Mapping[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
    """Those of some rows: y [1, T, H], k and v [1, KV, T, D]."""
    return {role: array[:, rows] if role == "y" else array[:, :, rows] for role, array in results.items()}


def _layers(bundle: Bundle, package: PackageFunctions, rng: np.random.Generator) -> str:
    """The shortest and the longest function on the same rows, all that is padding hidden; and the same rows
    in two passes, the first one's keys and values as the prefix of the second.
    """
    functions = sorted(package.entry.functions, key=lambda f: (f.t, f.p))
    positions = np.arange(max(1, functions[0].t - 1))
    x = _random(rng, 1, len(positions), bundle.model.hidden_size)
    results = []
    for function in (functions[0], *functions[1:][-1:]):
        results.append(_run(bundle, package, function, x, positions))
        if wrong := _finite(results[-1]):
            return f"function {function.name}: {wrong}"
    names = f"functions {functions[0].name} and {functions[-1].name} disagree"
    if wrong := _difference(names, results[0], results[-1]):
        return wrong
    behind = next((f for f in functions if f.p), None)
    windows = [layer.window - 1 for layer in bundle.model.layers if layer.window is not None]
    first = min([len(positions) // 2, behind.p if behind else 0, *windows])
    if behind is None or first == 0:
        return ""
    before = _run(bundle, package, functions[0], x[:, :first], positions[:first])
    prefix = [(before[f"k.{slot}"], before[f"v.{slot}"]) for slot in range(len(package.layers))]
    split = _run(bundle, package, behind, x[:, first:], positions[first:], prefix)
    names = f"function {behind.name} behind a prefix and {functions[0].name} at once disagree"
    return _difference(names, split, _of_rows(results[0], slice(first, None)))


def _rounded(bundle: Bundle, package: PackageFunctions, rng: np.random.Generator) -> str:
    """The shortest function, every result rounded as declared: nothing overflows."""
    function = package.shortest()
    x = _random(rng, 1, function.t, bundle.model.hidden_size)
    wrong = _finite(_run(bundle, package, function, x, np.arange(function.t)))
    return f"function {function.name}, rounded as declared: {wrong}" if wrong else ""


def _norm(x: Floats, y: Floats) -> str:
    """A norm multiplies every row by the same weights once it is divided by its root mean square."""
    unit = x / np.sqrt(np.square(x).mean(1, keepdims=True))
    weight = (y * unit).sum(0) / np.square(unit).sum(0)
    return _difference("the rows are normed differently", {"y": y}, {"y": weight * unit})


def _head(bundle: Bundle, package: PackageFunctions, x: Floats, rng: np.random.Generator) -> str:
    """Scores against the embedding table where it is the head's as well; all else against the scores."""
    model, temperature, rows = bundle.model, 0.75, len(x)
    z = _scores(package, x, temperature)["z"]
    table = _table(bundle, package.entry) if model.tied_head else None
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
    expected_parts = {"max": top, "sum_others": others.sum(1), "sum_z_others": (others * z).sum(1)}
    for sampled in (False, True):
        soft = model.self_conditioning
        part = _head_call(package, x, temperature, noise if sampled else None, soft)
        if not np.allclose(z[np.arange(rows), part["argmax"]], top, rtol=TOLERANCE):
            return "the highest scores are of other tokens"
        wanted = dict(expected_parts)
        if sampled:
            wanted["score"] = (z + noise).max(1)
            wanted["sample_z"] = z[np.arange(rows), part["sample"]]
        if soft and table is not None:
            wanted["soft"] = e @ table
        if wrong := _difference("the statistics are not those of the scores", part, wanted):
            return wrong
    return ""


def _scores(package: PackageFunctions, x: Floats, temperature: float) -> dict[str, np.ndarray]:
    return _head_call(package, x, temperature, None, False, logits=True)


def _head_call(
    package: PackageFunctions,
    x: Floats,
    temperature: float,
    noise: Floats | None,
    soft: bool,
    logits: bool = False,
) -> dict[str, np.ndarray]:
    """The results of the smallest function of the head that gives these, for rows x [R, H], by role."""
    form = noise is not None, soft, logits
    offered = [
        f
        for f in package.entry.functions
        if f.t >= len(x) and form == (f.samples, "soft" in f.outputs, "z" in f.outputs)
    ]
    if not offered:
        named = zip(("sample", "soft", "logits"), form, strict=True)
        wanted = "_".join(["head", *(name for name, on in named if on)])
        raise UnsupportedBundle(
            f"package {package.entry.name} has no function {wanted}; export the bundle again"
        )
    arrays = {"x": x, "temperature": np.array([temperature], np.float32)}
    if noise is not None:
        arrays["noise"] = noise
    found = package.call(min(offered, key=lambda f: f.t), arrays)
    return {role: array[: len(x)] for role, array in found.items()}


def _head_rows(bundle: Bundle, function: Function, rng: np.random.Generator) -> Floats:
    return _random(rng, function.t, bundle.model.hidden_size)


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


def _mask(seen: np.ndarray, prefix: int, length: int) -> Floats:
    """The additive mask [length, prefix + length] of a function for rows that see `seen` [T, P + T]. Rows
    that are padding see what the last one sees: nobody looks at them, and they must be numbers.
    """
    rows, kept = len(seen), seen.shape[1] - len(seen)
    mask = np.full((length, prefix + length), MASKED)
    mask[:rows, :kept][seen[:, :kept]] = 0
    mask[:rows, prefix : prefix + rows][seen[:, kept:]] = 0
    mask[rows:] = mask[rows - 1]
    return mask


def _seen(positions: Ids, first: int, window: int | None) -> np.ndarray:
    """Which keys each row sees [T, P + T]: a prefix from absolute position `first` on, and the rows."""
    distance = positions[:, None] - np.arange(first, positions[-1] + 1)
    seen: np.ndarray = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return seen


def _finite(found: Mapping[str, np.ndarray]) -> str:
    wrong = [name for name, array in found.items() if not np.isfinite(array).all()]
    return f"{wrong[0]} is not finite" if wrong else ""


def _difference(what: str, found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> str:
    for name, array in expected.items():
        error, scale = np.abs(found[name] - array).max(), max(np.abs(array).max(), 1e-6)
        if not error <= TOLERANCE * scale:
            return f"{what}: {name} is off by {error:.3g} where {scale:.3g} is the largest"
    return ""
