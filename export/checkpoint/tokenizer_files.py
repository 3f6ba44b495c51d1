"""The tokenizer's way from a checkpoint to a bundle.

The runtime reads tokenizer.json. Dream and its relatives ship Qwen2's older pair vocab.json and merges.txt
instead; for those tokenizer.json is written here, so that the runtime needs to know one form only.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from edgekit.export.checkpoint.errors import TokenizerFilesMissing

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
OPTIONAL_FILES = (
    TOKENIZER_CONFIG,
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
)
# Templates beyond the default one, in the layout of transformers 5.
TEMPLATE_FOLDER = "additional_chat_templates"

# Byte-level BPE after this split and NFC. Classes that share it, by their name in tokenizer_config.json.
QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer", "DreamTokenizerFast")
QWEN2_SPLIT = "|".join((
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",  # English contractions
    r"[^\r\n\p{L}\p{N}]?\p{L}+",      # a word with the character before it
    r"\p{N}",                         # single digits
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",     # punctuation
    r"\s*[\r\n]+",                    # line ends
    r"\s+(?!\S)",                     # spaces before a space or the end
    r"\s+",
))  # fmt: skip


def tokenizer_files(source: str | Path) -> dict[str, Path]:
    """Files of checkpoint directory `source` that a bundle takes as they are: relative name -> path."""
    source = Path(source)
    names = [TOKENIZER, *OPTIONAL_FILES]
    names += [f"{TEMPLATE_FOLDER}/{path.name}" for path in sorted((source / TEMPLATE_FOLDER).glob("*.jinja"))]
    return {name: source / name for name in names if (source / name).is_file()}


def copy_tokenizer(source: str | Path, target: str | Path) -> list[str]:
    """Put the tokenizer of checkpoint directory `source` into directory `target`; returns the names written.

    tokenizer.json is built from vocab.json and merges.txt where the checkpoint lacks it.
    Raises TokenizerFilesMissing when there is no tokenizer, or none that can be converted.
    """
    source, target = Path(source), Path(target)
    files = tokenizer_files(source)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    if TOKENIZER not in files:
        _convert(source).save(str(target / TOKENIZER))
        written.append(TOKENIZER)
    for name, path in files.items():
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target / name)
        written.append(name)
    return written


def _convert(source: Path) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    config = _read_object(source / TOKENIZER_CONFIG)
    kind = config.get("tokenizer_class")
    vocab, merges = source / "vocab.json", source / "merges.txt"
    if not vocab.is_file() or not merges.is_file() or kind not in QWEN2_CLASSES:
        found = f" (its tokenizer class is {kind})" if kind else ""
        raise TokenizerFilesMissing(
            f"{source}: has no {TOKENIZER}{found}; load the tokenizer with AutoTokenizer of transformers "
            "and save_pretrained it into this directory"
        )
    try:
        model = models.BPE.from_file(str(vocab), str(merges))
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the two files
        raise TokenizerFilesMissing(f"{source}: vocab.json and merges.txt do not load ({error})") from error
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    for token_id, token in _added_tokens(source, config):
        tokenizer.add_tokens([AddedToken(**token)])
        if tokenizer.token_to_id(token["content"]) != token_id:
            got = tokenizer.token_to_id(token["content"])
            raise TokenizerFilesMissing(
                f"{source / TOKENIZER_CONFIG}: token {token['content']} has id {token_id} there and "
                f"{got} after vocab.json; the two files belong to different checkpoints"
            )
    return tokenizer


def _added_tokens(source: Path, config: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """(id, AddedToken arguments) in id order, from tokenizer_config.json or the older added_tokens.json."""
    flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    declared = config.get("added_tokens_decoder")
    if declared:
        found = [
            (int(key), {flag: value[flag] for flag in flags if flag in value})
            for key, value in declared.items()
        ]
    else:
        older = _read_object(source / "added_tokens.json")
        found = [
            (id_, {"content": token, "special": True, "normalized": False}) for token, id_ in older.items()
        ]
    return sorted(found, key=lambda pair: pair[0])


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TokenizerFilesMissing(f"{path}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise TokenizerFilesMissing(f"{path}: is not a JSON object")
    return value
