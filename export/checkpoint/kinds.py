"""Folders and repositories that are no checkpoint of a diffusion language model, told by name, with what to
do about each. Found from names of files and config.json, before weights are read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from edgekit.export.checkpoint.errors import CheckpointError, InvalidConfig, NotForExport
from edgekit.export.checkpoint.safetensors_dir import CONFIG, INDEX, SINGLE_FILE
from edgekit.export.checkpoint.text_files import MOST_CONFIG_BYTES, read_json_object
from edgekit.export.models import FAMILIES
from edgekit.flashload.bundle_set import SET_NAME
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.flashload.names import near

KNOWN = "DiffusionGemma, LLaDA, LLaDA-MoE, Dream, Nemotron-Labs-Diffusion, SDAR, Fast_dLLM v2, a2d or CoDA"
_GIVE = f"give a checkpoint of {KNOWN} in Hugging Face layout"
#: Diffusion language models whose classes are named like those of autoregressive ones.
_OTHER_DIFFUSION = re.compile(r"llada2|sdar|fast_?dllm|mdlm|bd3lm|diffucoder|trado|dllm", re.IGNORECASE)
_AUTOREGRESSIVE = re.compile(
    r"llama|mistral|mixtral|qwen\d|gemma\d?(_text|n)?$|phi\d?|gpt|falcon|olmo|deepseek|granite|cohere|opt$|"
    r"bloom|mamba|rwkv|starcoder|stablelm|smollm|glm|minicpm|nemotron",
    re.IGNORECASE,
)
#: Ends of the names of classes in `architectures`, and what such a model is.
_ARCHITECTURES = (
    (r"ForMaskedLM|ForSequenceClassification|ForTokenClassification|ForQuestionAnswering", "an encoder"),
    (r"ForSpeechSeq2Seq|ForCTC|ForAudio\w+|(Whisper|Wav2Vec2|Speech)\w*", "a speech or audio model"),
    (r"ForImage\w+|ForObjectDetection|ForSemanticSegmentation|(ViT|CLIP|Siglip|Dino\w*)(Vision)?Model",
     "a vision model"),
    (r"ForConditionalGeneration|ForImageTextToText|VLModel", "a vision-language or encoder-decoder model"),
    (r"ForCausalLM|LMHeadModel", "an autoregressive language model"),
)  # fmt: skip
_ENCODERS = re.compile(r"(modern|distil|ro|al|de)?bert(a.*)?$|electra|xlm-roberta", re.IGNORECASE)


def refuse_other_kinds(
    where: str, names: Collection[str], config: Callable[[], Any], run_as: str | None = None
) -> None:
    """Refuse what `export` cannot take. `names` are the paths of the files, with forward slashes; `config`
    gives the parsed config.json, and is called only if that is there. `run_as` is what `edgekit run` calls
    it, where that is not `where`.

    Raises:
        NotForExport: what it is, and what to do.
    """
    said = _by_files(run_as or where, set(names))
    if not said and CONFIG in names:
        said = _by_config(config())
    if said:
        raise NotForExport(f"{where}: {said}")


def refuse_file(path: Path) -> None:
    """Refuse a file that was given in place of a folder, by its name. Raises NotForExport."""
    if path.suffix == ".gguf":
        raise NotForExport(f"{path}: {_GGUF}")


def config_in(path: Path) -> Any:
    """The content of config.json at `path`; None if it cannot be read, which opening it explains."""
    try:
        return read_json_object(path, MOST_CONFIG_BYTES, InvalidConfig)
    except CheckpointError:
        return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean X?" for the nearest of the shipped models, families and folders beside what was named;
    empty if none is near.
    """
    path = Path(name).expanduser()
    try:
        beside = [str(path.parent / p.name) for p in path.parent.iterdir() if p.is_dir()]
    except OSError:
        beside = []
    close = near(name, [*known, *beside], 0.75)
    if not close:  # of folders the last part decides: what leads there is spelled right
        close = [str(path.parent / end) for end in near(path.name, [Path(b).name for b in beside], 0.75)]
    return f"; did you mean {' or '.join(close)}?" if close else ""


_GGUF = (
    "is a GGUF model, which is quantized for llama.cpp already; edgekit quantizes from the original weights, "
    f"so {_GIVE}"
)


def _by_files(run_as: str, names: set[str]) -> str:
    tops = {name.partition("/")[0] for name in names}
    ends = {name.rpartition(".")[2] for name in names if "/" not in name}
    weights = {n for n in names if "/" not in n and n.endswith((".safetensors", INDEX))}
    if MANIFEST_NAME in names or SET_NAME in names:
        return f"is an edgekit bundle already; run it: edgekit chat {shlex.quote(run_as)}"
    if "model_index.json" in names:
        return f"is a diffusers pipeline, which makes images, video or sound; {_GIVE}"
    if "adapter_config.json" in names and not weights & {SINGLE_FILE, INDEX}:
        return (
            "is a PEFT adapter (LoRA or the like), not a whole model; export its base model with it: "
            f"edgekit export MODEL --adapter {shlex.quote(run_as)}"
        )
    if "gguf" in ends and not weights:
        return _GGUF
    if not weights and any(top.endswith((".mlpackage", ".mlmodelc", ".aimodel")) for top in tops):
        return f"holds packages of Core ML or Core AI, which are compiled already; {_GIVE}"
    if not weights and any(name.endswith(".onnx") for name in names):
        return f"is an ONNX model, which is compiled already; {_GIVE}"
    if not weights and ends & {"msgpack", "h5", "tflite"}:
        return (
            "has weights of Flax or TensorFlow only; convert them to safetensors with the save_pretrained "
            "of transformers"
        )
    return ""


def _by_config(config: Any) -> str:
    if not isinstance(config, dict):
        return ""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        own = config.get("quantization")
        if isinstance(own, dict) and {"bits", "group_size"} & set(own):
            return (
                "is quantized for MLX already; edgekit quantizes from the original weights, so give the "
                "checkpoint that it was made from"
            )
        return ""
    named = config.get("architectures")
    classes = [c for c in named if isinstance(c, str)] if isinstance(named, list) else []
    words = [kind, *classes] if isinstance(kind, str) else classes
    called = f"({', '.join(word[:60] for word in words[:2])})"
    if any(_OTHER_DIFFUSION.search(word) for word in words):
        return f"is a diffusion language model {called} of a family that edgekit does not know; {_GIVE}"
    what = next((name for ends, name in _ARCHITECTURES for c in classes if re.search(f"({ends})$", c)), "")
    if not what and isinstance(kind, str):
        if _ENCODERS.match(kind):
            what = "an encoder"
        elif _AUTOREGRESSIVE.match(kind):
            what = "an autoregressive language model"
    if not what and not classes and "vision_config" in config:
        what = "a vision-language model"
    if what == "an autoregressive language model":
        return (
            f"is {what} {called}; edgekit is for diffusion language models, llama.cpp or MLX run this one: "
            f"for edgekit {_GIVE}"
        )
    return f"is {what} {called}; {_GIVE}" if what else ""
