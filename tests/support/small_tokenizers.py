"""Small tokenizers of every kind that checkpoints come with, in folders that transformers reads too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = "abcdefghijklmnopqrstuvwxyz0#:.[]/"
SPACE = "\u2581"


def byte_level() -> Tokenizer:
    """GPT-2's kind. One merge joins the ends of two words."""
    merges = [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        ("Ġ", "w"),
        ("Ċ", "Ċ"),
        ("#", "#"),
        ("r", "x"),
    ]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def metaspace(scheme: str) -> Tokenizer:
    """SentencePiece's kind with byte tokens; `scheme` says which texts get a space in front."""
    merges = [(SPACE, "h"), (SPACE + "h", "e"), ("l", "l"), ("ll", "o"), (SPACE, SPACE)]
    made = Tokenizer(characters(merges))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    made.decoder = sentencepiece_decoder(strip=scheme != "never")
    return made


def prepend() -> Tokenizer:
    """Llama's kind: the normalizer puts a space in front of every stretch between special tokens."""
    made = Tokenizer(characters([(SPACE, "h"), (SPACE + "h", "e"), ("l", "l"), ("ll", "o"), ("r", "x")]))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    made.decoder = sentencepiece_decoder(strip=True)
    return made


def characters(merges: list[tuple[str, str]]) -> models.BPE:
    """Byte pair encoding by characters; those that are none of LETTERS are tokens of their bytes."""
    words = ["<unk>", *BYTES, SPACE, *LETTERS, *map("".join, merges)]
    vocab = {word: i for i, word in enumerate(words)}
    return models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "metaspace never": lambda: metaspace("never"),
    "metaspace first": lambda: metaspace("first"),
    "metaspace always": lambda: metaspace("always"),
    "prepend": prepend,
}


def sentencepiece_decoder(strip: bool) -> decoders.Decoder:
    """strip: a text begins without the space that was put in front of it."""
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, *[decoders.Strip(" ", 1, 0)] * strip])


def write(folder: Path, kind: str, template: str | None = None) -> Path:
    """The tokenizer of `kind` with SPECIAL's tokens in `folder`."""
    made = KINDS[kind]()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
