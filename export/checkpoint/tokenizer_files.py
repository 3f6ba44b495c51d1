"""The tokenizer's way from a checkpoint to a bundle.

The runtime reads tokenizer.json. Dream and its relatives ship Qwen2's older pair vocab.json and merges.txt
instead; for those tokenizer.json is written here, so that the runtime needs to know one form only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.export.checkpoint.errors import TokenizerFilesMissing
from edgekit.export.checkpoint.text_files import MOST_CONFIG_BYTES, is_there, read_file, read_json_object
from edgekit.flashload.errors import cut
from edgekit.runtime.errors import one_line
from edgekit.runtime.text import (
    CONFIG_FILE,
    OLDER_CONFIG_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    most_bytes,
    panics_as_errors,
    template_files,
)

OPTIONAL_FILES = (CONFIG_FILE, TEMPLATE_FILE, OLDER_CONFIG_FILE, "generation_config.json")
# vocab.json, merges.txt and added_tokens.json; Qwen2's have 3 MB.
_MOST_VOCABULARY_BYTES = 64 << 20

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
    names = [TOKENIZER_FILE, *OPTIONAL_FILES, *template_files(source)]
    return {name: source / name for name in names if is_there(source / name)}


def copy_tokenizer(source: str | Path, target: str | Path) -> list[str]:
    """Put the tokenizer of checkpoint directory `source` into directory `target`; returns the names written.

    tokenizer.json is built from vocab.json and merges.txt where the checkpoint lacks it.
    Raises WeightsUnreadable, and TokenizerFilesMissing when there is none or none that can be converted.
    """
    source, target = Path(source), Path(target)
    files = tokenizer_files(source)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    if TOKENIZER_FILE not in files:
        _convert(source).save(str(target / TOKENIZER_FILE))
        written.append(TOKENIZER_FILE)
    for name, path in files.items():
        (target / name).parent.mkdir(exist_ok=True)
        content = read_file(path, most_bytes(name) or MOST_CONFIG_BYTES, TokenizerFilesMissing)
        (target / name).write_bytes(content)
        written.append(name)
    return written


def _convert(source: Path) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    config = _read_object(source / CONFIG_FILE, most_bytes(CONFIG_FILE))
    kind = config.get("tokenizer_class")
    vocab, merges = source / "vocab.json", source / "merges.txt"
    if not vocab.is_file() or not merges.is_file() or kind not in QWEN2_CLASSES:
        found = f" (its tokenizer class is {cut(kind)})" if kind else ""
        raise TokenizerFilesMissing(
            f"{source}: has no {TOKENIZER_FILE}{found}; load the tokenizer with AutoTokenizer of "
            "transformers and save_pretrained it into this directory"
        )
    _read_object(vocab, _MOST_VOCABULARY_BYTES)
    read_file(merges, _MOST_VOCABULARY_BYTES, TokenizerFilesMissing)
    added = _added_tokens(source, config)
    try:
        with panics_as_errors():
            model = models.BPE.from_file(str(vocab), str(merges))
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the two files
        raise TokenizerFilesMissing(
            f"{source}: vocab.json and merges.txt do not load ({one_line(error)}); download them again"
        ) from error
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    for token_id, token in added:
        tokenizer.add_tokens([AddedToken(**token)])
        if tokenizer.token_to_id(token["content"]) != token_id:
            got = tokenizer.token_to_id(token["content"])
            raise TokenizerFilesMissing(
                f"{source / CONFIG_FILE}: token {cut(token['content'])} has id {token_id} there and "
                f"{got} after vocab.json; the two files belong to different checkpoints"
            )
    return tokenizer


def _added_tokens(source: Path, config: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """(id, AddedToken arguments) in id order, from tokenizer_config.json or the older added_tokens.json."""
    declared = config.get("added_tokens_decoder")
    if declared:
        where = source / CONFIG_FILE
        if not isinstance(declared, dict):
            raise TokenizerFilesMissing(
                f"{where}: added_tokens_decoder is not a JSON object; download it again"
            )
        tokens = [_declared_token(*item, where) for item in declared.items()]
        return sorted(tokens, key=lambda pair: pair[0])
    older = source / "added_tokens.json"
    found = _read_object(older, _MOST_VOCABULARY_BYTES)
    for token, id_ in found.items():
        if type(id_) is not int:
            raise TokenizerFilesMissing(f"{older}: the id of {token[:40]!r} is no integer; download it again")
    ordered = sorted((id_, token) for token, id_ in found.items())
    return [(id_, {"content": token, "special": True, "normalized": False}) for id_, token in ordered]


def _declared_token(key: str, value: Any, where: Path) -> tuple[int, dict[str, Any]]:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    if (
        not (key.isascii() and key.isdigit() and len(key) < 10)
        or not isinstance(value, dict)
        or not isinstance(value.get("content"), str)
        or not all(isinstance(value.get(flag, False), bool) for flag in flags)
    ):
        raise TokenizerFilesMissing(
            f"{where}: added_tokens_decoder has {key[:40]!r}, which is not an id with the content and "
            "flags of a token; download it again"
        )
    return int(key), {name: value[name] for name in ("content", *flags) if name in value}


def _read_object(path: Path, most: int) -> dict[str, Any]:
    return read_json_object(path, most, TokenizerFilesMissing) if is_there(path) else {}
