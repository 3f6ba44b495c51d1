"""Write a checkpoint of random bfloat16 weights in the layout of a real model, at any size, in constant
memory.

    python -m edgekit.tools.bench.random_checkpoint llada-8b OUT [--layers 8] [--vocab 32000]

It has the real tensor names and shapes, so that an export of it costs what an export of the real one costs.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgekit.export.models import architecture
from edgekit.tools.planning import released

#: Values drawn once and repeated, unless they are to be distinct.
BLOCK_VALUES = 1 << 22


def write(out: Path, config: dict[str, Any], seed: int = 0, *, distinct: bool = False) -> int:
    """Write the checkpoint that this config.json describes; returns its number of parameters. Its values
    repeat unless they are `distinct`, which compilers need: they store what is equal once.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config))
    _write_tokenizer(out)
    rng = np.random.default_rng(seed)

    def drawn() -> np.ndarray:
        values = rng.standard_normal(BLOCK_VALUES, np.float32) * np.float32(0.02)
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    block = drawn()
    entries, offset = {}, 0
    for name, shape in architecture(config, "bfloat16").stored_shapes().items():
        end = offset + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(out / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, offset // 2, BLOCK_VALUES):
            file.write(block[: offset // 2 - start].data)
            block = drawn() if distinct else block
    return offset // 2


def _write_tokenizer(out: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<unk>": 0, "<eos>": 1, "<mask>": 2}
    vocabulary |= {c: i + 3 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(out / "tokenizer.json"))


@click.command()
@click.argument("model", type=click.Choice(list(released.MODELS)))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--layers", type=click.IntRange(1), help="Fewer layers than the model has.")
@click.option("--vocab", type=click.IntRange(259), help="Fewer tokens than the model has.")
def main(model: str, out: Path, layers: int | None, vocab: int | None) -> None:
    """Write a random checkpoint of MODEL's layout to OUT."""
    total = write(out, released.config(model, layers, vocab))
    click.echo(f"{out}: {total:,} parameters, {2 * total / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
