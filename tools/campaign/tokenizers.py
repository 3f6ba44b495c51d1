"""Small tokenizers of every kind that the core reads, and a form of chats, for the campaign to damage."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

#: What the core reads texts by: a tokenizer.json and a chat.json in one folder.
TOKENIZER, CHAT = "tokenizer.json", "chat.json"
#: Tiny models, whose tokenizers are taken as they are.
TINY = ("tiny-gemma", "tiny-llada", "tiny-block")

_CHAT: dict[str, Any] = {
    "version": 1,
    "begin": "<s>user\n",
    "system": {"before": "<s>system\n", "after": "</s>\n<s>user\n", "trim": True, "last": False},
    "reply": "</s>\n<s>model\n",
    "next": "</s>\n<s>user\n",
    "answer": "</s>\n<s>model\n",
    "trim_user": True,
    "trim_assistant": False,
    "thought": "</think>",
}


def _added(content: str, **options: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": 0, "content": content, **flags, **options}


_ADDED = [
    _added("<s>", special=True),
    _added("</s>", lstrip=True, rstrip=True),
    _added("  two  ", normalized=True),
]


def _replace(what: str, by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": what}, "content": by}


def _split(behavior: str, invert: bool = False, **pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def _model(tokens: str, **options: Any) -> dict[str, Any]:
    names = [*tokens, "ab", "ba", "abab", "<s>", "<unk>"]
    merges = [["a", "b"], ["b", "a"], "ab ab"]
    return {
        "type": "BPE",
        "vocab": {name: number for number, name in enumerate(names)},
        "merges": merges,
        **options,
    }


def _sequence(member: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", member: list(steps)}


_AROUND = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}
_BYTES = "".join(map(chr, (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))))
_LLAMA = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}

#: Together they have every part that the core knows.
MADE: dict[str, dict[str, Any]] = {
    "bytes": {
        "added_tokens": _ADDED,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": _sequence("pretokenizers", _split("Isolated", Regex=_LLAMA), _BYTE_LEVEL),
        "post_processor": _sequence("processors", {"type": "ByteLevel"}, _AROUND),
        "decoder": {"type": "ByteLevel"},
        "model": _model(_BYTES, ignore_merges=True),
    },
    "gpt2": {
        "added_tokens": _ADDED,
        "pre_tokenizer": _sequence(
            "pretokenizers", {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}
        ),
        "decoder": {"type": "ByteLevel"},
        "model": _model(_BYTES),
    },
    "fallback": {
        "added_tokens": _ADDED,
        "normalizer": _sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, _replace(" ", "▁")),
        "pre_tokenizer": _split("MergedWithPrevious", String="▁"),
        "post_processor": _AROUND,
        "decoder": _sequence(
            "decoders",
            _replace("▁", " "),
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ),
        "model": _model("ab▁", byte_fallback=True, unk_token="<unk>", fuse_unk=True),
    },
    "metaspace": {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "model": _model("ab▁ ", unk_token="<unk>"),
    },
    "split": {
        "pre_tokenizer": _sequence(
            "pretokenizers",
            _split("Removed", String=" "),
            _split("MergedWithNext", Regex="a?b|[^ab&&[^c]]{1,3}"),
            _split("Contiguous", invert=True, Regex=r"\p{L}(?=\s)|\d"),
        ),
        "model": _model("ab c1"),
    },
}
for _table in MADE.values():  # places for edits
    for _part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        _table.setdefault(_part, None)
    _table.setdefault("added_tokens", [])
# Tokens of bytes, as SentencePiece has them.
MADE["fallback"]["model"]["vocab"] |= {f"<0x{byte:02X}>": 100 + byte for byte in range(256)}


def write(kind: str, folder: Path) -> None:
    """Both files of a kind of `MADE` or `TINY`."""
    if kind in MADE:
        text = json.dumps(MADE[kind], ensure_ascii=False)
    else:
        text = (files("edgekit.tools") / "tiny" / kind / TOKENIZER).read_text(encoding="utf-8")
    (folder / TOKENIZER).write_text(text, encoding="utf-8")
    (folder / CHAT).write_text(json.dumps(_CHAT), encoding="utf-8")
