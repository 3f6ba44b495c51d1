"""The tokenizer's way from a checkpoint to a bundle.

The runtime reads tokenizer.json. Dream and its relatives ship Qwen2's older pair vocab.json and merges.txt
instead; for those tokenizer.json is written here, so that the runtime needs to know one form only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgekit.export.checkpoint.errors import LinkLeavesFolder, TokenizerFilesMissing
from edgekit.export.checkpoint.text_files import (
    MOST_CONFIG_BYTES,
    is_there,
    read_file,
    read_json_object,
    stays_inside,
)
from edgekit.flashload.errors import cut
from edgekit.runtime.errors import one_line
from edgekit.runtime.tokenizer import (
    CONFIG_FILE,
    MOST_TEMPLATES,
    OLDER_CONFIG_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    Tokenizer,
    TokenizerError,
    most_bytes,
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


def read_tokenizer(source: str | Path) -> dict[str, bytes]:
    """The tokenizer of checkpoint directory `source` as bundles have it: contents by relative name.

    tokenizer.json is built from vocab.json and merges.txt where the checkpoint lacks it.
    Raises WeightsUnreadable, LfsPointer, LinkLeavesFolder, and TokenizerFilesMissing when there is none or
    none that can be converted.
    """
    source = Path(source)
    names = [
        TOKENIZER_FILE,
        *OPTIONAL_FILES,
        *template_files(source)[: MOST_TEMPLATES + 1],
    ]  # more are refused
    files = {
        name: _read(source, name, most_bytes(name) or MOST_CONFIG_BYTES)
        for name in names
        if is_there(source / name)
    }
    if TOKENIZER_FILE not in files:
        files = {TOKENIZER_FILE: _convert(source).to_str(pretty=True).encode(), **files}
    return files


def check_texts(tokenizer: Tokenizer) -> None:
    """Refuse special tokens and templates that no UTF-8 spells: every prompt that holds them would be blamed.

    Raises:
        TokenizerError: which.
    """
    roles, templates = tokenizer.special_tokens, tokenizer.chat_templates
    for what, text in [*roles.items(), *((f"chat template {cut(n)}", t) for n, t in templates.items())]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"{tokenizer.where}: {what} in {CONFIG_FILE} or {OLDER_CONFIG_FILE} holds a lone surrogate "
                f"(character {error.start}), which is no text; download the tokenizer again"
            ) from None


def _convert(source: Path) -> Any:
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    config = _read_object(source, CONFIG_FILE, most_bytes(CONFIG_FILE))
    kind = config.get("tokenizer_class")
    vocab, merges = source / "vocab.json", source / "merges.txt"
    if not vocab.is_file() or not merges.is_file() or kind not in QWEN2_CLASSES:
        found = f" (its tokenizer class is {cut(kind)})" if kind else ""
        raise TokenizerFilesMissing(
            f"{source}: has no {TOKENIZER_FILE}{found}; load the tokenizer with AutoTokenizer of "
            "transformers and save_pretrained it into this directory"
        )
    _read_object(source, vocab.name, _MOST_VOCABULARY_BYTES)
    _read(source, merges.name, _MOST_VOCABULARY_BYTES)
    added = _added_tokens(source, config)
    try:
        with _panics_as_errors():
            model = models.BPE.from_file(str(vocab), str(merges))
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the two files
        raise TokenizerFilesMissing(
            f"{source}: vocab.json and merges.txt do not load ({one_line(error)}); download them again"
        ) from error
    tokenizer = Backend(model)
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


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """A panic of the tokenizers library as a RuntimeError: pyo3 makes it a BaseException, like Ctrl-C."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"the tokenizers library stopped: {one_line(error)}") from error


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
    found = _read_object(source, older.name, _MOST_VOCABULARY_BYTES)
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


def _read(source: Path, name: str, most: int) -> bytes:
    content = read_file(source / name, most, TokenizerFilesMissing)
    _refuse_leaving(source, name)
    return content


def _read_object(source: Path, name: str, most: int) -> dict[str, Any]:
    if not is_there(source / name):
        return {}
    value = read_json_object(source / name, most, TokenizerFilesMissing)
    _refuse_leaving(source, name)
    return value


def _refuse_leaving(source: Path, name: str) -> None:
    if not stays_inside(source / name, source):
        raise LinkLeavesFolder(
            f"{source / name}: is a link to a file outside the checkpoint, which bundles do not take; put "
            "the file itself there"
        )
