"""Every family on every provider, against the reference that holds the same codes (in the folder tests):

    python -m support.provider_matrix [--only TEXT] [PROVIDER...]

`--only` takes the models whose name, such as "llada_moe int4" or "tiny-gemma", contains a text. A line is a
layer kind of a random model, a whole pass of it, or a whole generation of a model that comes with edgekit.
Errors are relative to the largest number; of generations the table has their tokens, and how many decisions
rounding turned. Where activations are rounded to int8, the last digit of a number decides about an integer in
the next layer: whole passes may be further off than their layers. Ends with 1 where an error is over 1e-3, of
such passes over 3e-2, or where a provider failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from edgekit.export.checkpoint.hub import SHIPPED_MODELS, resolve
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from support.bundles import TILE_BYTES, make_bundle
from support.provider_cases import STEP, elsewhere
from support.providers import PROVIDERS

#: Sizes that all formats can store, by family: odd head counts, groups of heads, several experts a row.
SIZES: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {"moe_intermediate_size": 32, "num_hidden_layers": 3},
    "llada": {"n_layers": 1, "mlp_hidden_size": 160},
    "llada_moe": {"num_experts": 5, "num_experts_per_tok": 3, "num_hidden_layers": 2},
    "dream": {"num_hidden_layers": 1, "num_attention_heads": 7, "num_key_value_heads": 1,
              "hidden_size": 224, "vocab_size": 391},
}  # fmt: skip
PRESETS = "mixed4", "int4", "int8", "bf16"
GROUP_SIZE = 32
WHOLE_PASS = "whole pass"
FAILED = "failed"

#: A line's name, and what each provider gives: an error, or words.
Line = tuple[str, dict[str, float | str]]


def model(folder: Path, family: str, preset: str, providers: list[str]) -> Iterator[Line]:
    """The lines of a random model."""
    lines: dict[str, dict[str, float | str]] = {}
    for name in providers:
        own, provider = folder / name, PROVIDERS[name]
        scheme = Scheme(preset, GROUP_SIZE)
        how = {"precision": provider.precision, "device": provider.device}
        try:
            make_bundle(own, family, scheme, 0, provider.format, **how, **SIZES[family])
            errors = elsewhere("model", own, name, preset, str(GROUP_SIZE))["errors"]
        except pytest.skip.Exception as skipped:
            print(f"{name}: {skipped}", file=sys.stderr)
            continue
        except Exception as failed:
            print(f"{name}: {failed}", file=sys.stderr)
            errors = {WHOLE_PASS: FAILED}
        for what, error in errors.items():
            lines.setdefault(f"{family} {preset}, {what}", {})[name] = error
    yield from lines.items()


def generation(folder: Path, shipped: str, providers: list[str]) -> Line:
    """The line of a generation."""
    found: dict[str, float | str] = {}
    for name in providers:
        own, provider = folder / name, PROVIDERS[name]
        how = ExportOptions(
            provider.format, scheme=Scheme("mixed4", 32), tile_bytes=TILE_BYTES, precision=provider.precision,
            device=provider.device,
        )  # fmt: skip
        try:
            export(resolve(shipped), own / "bundle", how)
            made = elsewhere("generation", own, name, shipped)
        except pytest.skip.Exception as skipped:
            print(f"{name}: {skipped}", file=sys.stderr)
            continue
        except Exception as failed:
            print(f"{name}: {failed}", file=sys.stderr)
            found[name] = FAILED
            continue
        found[name] = f"{made['tokens']} tokens, {made['differences']} turned"
    return f"{shipped}, generation", found


def most(provider: str, what: str) -> float:
    """The largest error that a line may have."""
    return STEP if what == WHOLE_PASS and PROVIDERS[provider].rounds else 1e-3


def main(*arguments: str) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m support.provider_matrix")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("providers", nargs="*", metavar="PROVIDER", help=", ".join(PROVIDERS))
    wanted = parser.parse_args(arguments)
    if unknown := set(wanted.providers) - set(PROVIDERS):
        parser.error(f"no provider {min(unknown)!r}; there are {', '.join(PROVIDERS)}")
    providers = wanted.providers or list(PROVIDERS)
    table = Table("", *providers)
    wrong = []

    def add(line: Line) -> None:
        name, found = line
        what = name.rpartition(", ")[2]
        wrong.extend(
            f"{name}: {provider}"
            for provider, error in found.items()
            if error == FAILED or (isinstance(error, float) and not error < most(provider, what))
        )
        cells = (found.get(provider, "-") for provider in providers)
        shown = [each if isinstance(each, str) else f"{each:.0e}" for each in cells]
        print(name, *shown, sep="  ", file=sys.stderr)
        table.add_row(name, *shown)

    for family in SIZES:
        for preset in PRESETS:
            if wanted.only not in f"{family} {preset}":
                continue
            with tempfile.TemporaryDirectory() as folder:
                for line in model(Path(folder), family, preset, providers):
                    add(line)
    for shipped in SHIPPED_MODELS:
        if wanted.only not in shipped:
            continue
        with tempfile.TemporaryDirectory() as folder:
            add(generation(Path(folder), shipped, providers))
    Console(width=200).print(table)
    for each in wrong:
        print(f"wrong: {each}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
