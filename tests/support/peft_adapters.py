"""LoRA adapters that PEFT itself makes and saves, for random checkpoints of every family."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from edgekit.export import formats
from edgekit.export.adapters import switched
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.checkpoint.peft_adapter import Adapter
from edgekit.export.formats.options import FormatOptions
from edgekit.export.models import architecture
from edgekit.export.pipeline import _embedding_dtype
from edgekit.export.quantize import Scheme, quantize_weights
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights
from support.checkpoints import _llama_name, write_checkpoint

#: What an adapter changes by default: projections of attention and of dense MLPs, as families store them.
ATTENTION = ["q_proj", "v_proj", "o_proj", "attn_out"]
MLP = ["ff_proj", "ff_out", "gate_proj", "down_proj"]
#: What no expert has, which cannot be switched, and models of few layers.
TARGETS: dict[str, Any] = {
    "llada": ATTENTION + MLP,
    "llada_moe": [*ATTENTION, "gate"],
    "dream": ATTENTION + MLP,
    "diffusion_gemma": [*ATTENTION, "proj"],
}
LAYERS: dict[str, dict[str, Any]] = {
    "llada": {"n_layers": 3},
    "llada_moe": {"num_hidden_layers": 2},
    "dream": {"num_hidden_layers": 2},
    "diffusion_gemma": {"num_hidden_layers": 3},
}


def add_adapter(model: nn.Module, folder: Path, seed: int = 0, **settings: Any) -> Any:
    """A model with an adapter of random values, which is saved in `folder`, both by PEFT."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        adapted = get_peft_model(model, LoraConfig(init_lora_weights=False, **settings))
        adapted.save_pretrained(folder)
    return adapted.eval()


class StoredModules(nn.Module):
    """The tensors of a checkpoint as modules of their names: matrices as linear maps, of which experts are
    some too. Nothing is computed with it.
    """

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        for name, value in load_file(checkpoint / "model.safetensors").items():
            if "vision" in name:
                continue
            path, _, kind = name.rpartition(".")
            at: nn.Module = self
            *parents, last = path.split(".")
            for parent in parents:
                if not hasattr(at, parent):
                    at.add_module(parent, nn.Module())
                at = getattr(at, parent)
            if kind == "weight" and value.ndim == 2:
                own = nn.Linear(*value.shape[::-1], bias=False)
                own.weight.data = value.float()
                at.add_module(last, own)
            else:
                at.register_buffer(f"{last}__{kind}", value)


def merged_tensors(checkpoint: Path, folder: Path, seed: int = 0, **settings: Any) -> dict[str, torch.Tensor]:
    """An adapter saved in `folder`, and the stored matrices with it as PEFT merges them."""
    adapted = add_adapter(StoredModules(checkpoint), folder, seed, **settings)
    merged = adapted.merge_and_unload()
    return {name: value.detach() for name, value in merged.state_dict().items() if name.endswith(".weight")}


def llada_named(folder: Path, layers: int) -> None:
    """Give the adapter of a Llama in `folder` the names that modules have in LLaDA."""
    names = {
        _llama_name(f"model.transformer.blocks.{i}.{part}.weight"): f"model.transformer.blocks.{i}.{part}"
        for i in range(layers)
        for part in ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out")
    }
    modules = {llama.removesuffix(".weight"): ours for llama, ours in names.items()}

    def renamed(name: str) -> str:
        found = re.fullmatch(r"base_model\.model\.(.+)(\.lora_[AB]\.weight)", name)
        assert found is not None
        return f"base_model.model.{modules[found[1]]}{found[2]}"

    edit_weights(folder, lambda tensors: {renamed(name): value for name, value in tensors.items()})
    edit_config(folder, target_modules=sorted(set(modules.values())))


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]) -> None:
    """Replace the tensors of a saved adapter."""
    file = folder / "adapter_model.safetensors"
    tensors = edit(load_file(file))
    file.unlink()
    save_file({name: value.contiguous() for name, value in tensors.items()}, file)


def edit_config(folder: Path, **values: Any) -> None:
    """Change entries of a saved adapter's configuration; `...` removes one."""
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def write_model(folder: Path, family: str, seed: int = 0, rank: int = 3, **settings: Any) -> None:
    """A random `checkpoint`, and an adapter `own` of its layers but the second, which can be switched."""
    write_checkpoint(folder / "checkpoint", family, seed, **LAYERS[family])
    settings = {"target_modules": TARGETS[family], "layers_to_transform": [0, 2]} | settings
    if family == "llada":  # the head is called as a layer's projection, but has no number
        settings["layers_pattern"] = "blocks"
    if family == "diffusion_gemma":
        settings["layers_pattern"] = "layers"
    merged_tensors(folder / "checkpoint", folder / "own", seed, r=rank, **settings)


def adapted_reference(checkpoint: Path, adapter: Path, scheme: Scheme, written: str) -> ReferenceModel:
    """The reference with the codes that a scheme gives a checkpoint in a format, and an adapter beside them:
    on, unless its layers are given factors.
    """
    source = Checkpoint.open(checkpoint)
    arch = architecture(source.config, _embedding_dtype(source))
    arch, weights = switched(arch, Adapter.open(adapter), source)
    choices = formats.load(written)(arch, scheme, FormatOptions()).choices
    return ReferenceModel(arch, quantize_weights(arch, load_float_weights(arch, weights), choices)).eval()
