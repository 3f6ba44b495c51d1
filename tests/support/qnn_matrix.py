"""Every dense family in Qualcomm's emulation of its NPU, against the reference that holds the same codes of
weights and activations (in the folder tests):

    python -m support.qnn_matrix [FAMILY...]

A line is a family and a preset: the fewest decibels among two random layers and all lengths, of what a layer
gives and of its keys and values; the same beside the reference whose activations are not made codes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from support.dense_checkpoints import FAMILIES
from support.package_bundles import layer_results, layer_values
from support.qnn_bundles import QnnPrograms, coded_activations, random_bundle
from support.signal_to_noise import decibels

#: One head of keys and values that is as wide as a text of 24 tokens is long.
SQUARE: dict[str, Any] = {"n_kv_heads": 1, "d_model": 96}
#: By name a family and its sizes.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "odd": ("dream", {
        "num_hidden_layers": 2, "num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 224,
        "vocab_size": 391,
    }),
    "square": ("llada", SQUARE),
}  # fmt: skip
#: Families that are dense, and shapes that they may have.
DENSE = ("llada", "dream", *(family for family in FAMILIES if family != "sdar_moe"), *SHAPES)
PRESETS = "mixed4", "int4", "int8"


def fewest(folder: Path, family: str, preset: str) -> dict[str, tuple[float, float]]:
    """The fewest decibels by output, with codes of activations in the reference and without."""
    name, sizes = SHAPES.get(family, (family, {}))
    bundle, model = random_bundle(folder, name, preset, **sizes)
    programs, rng, found = QnnPrograms(bundle), np.random.default_rng(1), dict[str, tuple[float, float]]()
    for package, entry in programs.entries.items():
        layers = [i for i, own in enumerate(programs.manifest.layers) if own["package"] == package]
        for function in entry["functions"] if layers else ():
            values = layer_values(rng, model, entry["functions"][function])
            got = programs.run(package, function, values)
            with coded_activations(programs, model):
                with_codes = layer_results(model, layers, values, values["x"])
            without = layer_results(model, layers, values, values["x"])
            for role, array in got.items():
                own = decibels(array, with_codes[role]), decibels(array, without[role])
                before = found.get(role[0], own)
                found[role[0]] = min(before[0], own[0]), min(before[1], own[1])
    return found


def main() -> None:
    print("| | layer | keys | values |\n|---|---|---|---|")
    for family in sys.argv[1:] or DENSE:
        for preset in PRESETS:
            with tempfile.TemporaryDirectory() as folder:
                found = fewest(Path(folder), family, preset)
            each = " | ".join("{:.1f} ({:.1f})".format(*found[role]) for role in "ykv")
            print(f"| {family} {preset} | {each} |", flush=True)


if __name__ == "__main__":
    main()
