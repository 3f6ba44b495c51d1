"""Write a checkpoint of random bfloat16 weights in the layout of LLaDA-8B, at any size, in constant memory.

    python -m edgekit.tools.bench.random_checkpoint OUT --layers 8 --vocab 32000

It has the real tensor names and shapes, so that an export of it costs what an export of the real one costs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

#: Values drawn once and repeated: what is measured does not depend on them being distinct.
BLOCK_VALUES = 1 << 22


def config(layers: int, width: int, intermediate: int, heads: int, vocab: int) -> dict[str, object]:
    """The config.json of LLaDA-8B with other dimensions."""
    return {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "activation_type": "silu", "alibi": False,
        "block_type": "llama", "block_group_size": 1, "d_model": width, "dtype": "bfloat16",
        "embedding_size": vocab, "vocab_size": vocab, "eos_token_id": 1, "pad_token_id": 1,
        "mask_token_id": 2, "include_bias": False, "include_qkv_bias": False, "layer_norm_type": "rms",
        "max_sequence_length": 4096, "mlp_hidden_size": intermediate, "mlp_ratio": 4, "n_heads": heads,
        "n_kv_heads": heads, "n_layers": layers, "rms_norm_eps": 1e-5, "rope": True, "rope_theta": 500000.0,
        "scale_logits": False, "weight_tying": False,
    }  # fmt: skip


def shapes(layers: int, width: int, intermediate: int, vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensor names and shapes in the order in which the file holds them."""
    yield "model.transformer.wte.weight", (vocab, width)
    for i in range(layers):
        block = f"model.transformer.blocks.{i}."
        yield block + "attn_norm.weight", (width,)
        yield block + "ff_norm.weight", (width,)
        for name in ("q_proj", "k_proj", "v_proj", "attn_out"):
            yield f"{block}{name}.weight", (width, width)
        for name in ("ff_proj", "up_proj"):
            yield f"{block}{name}.weight", (intermediate, width)
        yield block + "ff_out.weight", (width, intermediate)
    yield "model.transformer.ln_f.weight", (width,)
    yield "model.transformer.ff_out.weight", (vocab, width)


def write(
    out: Path, layers: int, width: int, intermediate: int, heads: int, vocab: int, seed: int = 0
) -> int:
    """Write the checkpoint; returns its number of parameters."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config(layers, width, intermediate, heads, vocab)))
    _write_tokenizer(out)
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(BLOCK_VALUES, np.float32) * np.float32(0.02)
    block = (values.view(np.uint32) >> 16).astype(np.uint16)
    entries, offset, total = {}, 0, 0
    for name, shape in shapes(layers, width, intermediate, vocab):
        size = int(np.prod(shape))
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + 2 * size]}
        offset, total = offset + 2 * size, total + size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(out / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        left = total
        while left:
            file.write(block[: min(left, BLOCK_VALUES)].data)
            left -= min(left, BLOCK_VALUES)
    return total


def _write_tokenizer(out: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<unk>": 0, "<eos>": 1, "<mask>": 2}
    vocabulary |= {c: i + 3 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(out / "tokenizer.json"))


@click.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--layers", default=32, show_default=True)
@click.option("--width", default=4096, show_default=True)
@click.option("--intermediate", default=12288, show_default=True)
@click.option("--heads", default=32, show_default=True)
@click.option("--vocab", default=126464, show_default=True)
def main(out: Path, layers: int, width: int, intermediate: int, heads: int, vocab: int) -> None:
    """Write a random checkpoint of LLaDA's layout to OUT."""
    total = write(out, layers, width, intermediate, heads, vocab)
    click.echo(f"{out}: {total:,} parameters, {2 * total / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
