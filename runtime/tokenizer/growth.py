"""The growth of a text in a tokenizer before it is cut into tokens, and of an answer when it is put together:
a few replacements one behind the other, each of them harmless, make gigabytes of a line.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

#: Bytes for a byte. Published tokenizers stay below 20.
MOST_GROWTH = 64
#: Tokens that are put around every text. Published tokenizers add two or three.
MOST_ADDED = 64
#: The lists of steps within steps.
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")


def growth(*steps: Any) -> int:
    """The most bytes that can come of one byte after all of these parts of a `tokenizers.Tokenizer`, one
    behind the other; None is a part that is not there.
    """
    return math.prod(_of(json.loads(step.__getstate__())) for step in steps if step is not None)


def added(post_processor: Any) -> int:
    """The tokens that a part of a `tokenizers.Tokenizer`, or None, puts around a text."""
    return 0 if post_processor is None else _added(json.loads(post_processor.__getstate__()))


def _added(step: Mapping[str, Any]) -> int:
    if step.get("type") == "Sequence":
        return sum(map(_added, step.get("processors") or ()))
    tokens = step.get("special_tokens")
    if step.get("type") != "TemplateProcessing" or not isinstance(tokens, Mapping):
        return 0
    names = [piece["SpecialToken"]["id"] for piece in step.get("single") or () if "SpecialToken" in piece]
    return sum(len(tokens[name]["ids"]) for name in names if name in tokens)


def _of(step: Mapping[str, Any]) -> int:
    kind = step.get("type")
    if kind == "Sequence":
        return math.prod(_of(each) for name in _LISTS for each in step.get(name) or ())
    if kind == "Replace":
        content, pattern = _bytes(step, "content"), step.get("pattern") or {}
        if "String" in pattern:
            return max(1, -(-content // max(1, _bytes(pattern, "String"))))
        return content + 1  # an expression may match nothing, which is between all characters
    if kind == "Prepend":
        return 1 + _bytes(step, "prepend")
    if kind == "Metaspace":
        return 1 + _bytes(step, "replacement")
    if kind in ("ByteLevel", "BertNormalizer"):
        return 2
    if kind == "Precompiled":
        return _of_map(step.get("precompiled_charsmap") or "")
    if kind == "TemplateProcessing":
        return max(1, sum("Sequence" in piece for piece in step.get("single") or ()))
    return 1


def _bytes(step: Mapping[str, Any], key: str) -> int:
    found = step.get(key)
    return len(found.encode(errors="replace")) if isinstance(found, str) else 0


def _of_map(text: str) -> int:
    """Of a character map: the size of its index, the index, and replacements that end in zero bytes.
    Published ones have up to 33 bytes for a character of three.
    """
    try:
        data = base64.b64decode(text)
    except (binascii.Error, ValueError):  # the library has refused it
        return 1
    replacements = data[4 + int.from_bytes(data[:4], "little") :]
    return max(map(len, replacements.split(b"\0")), default=0) // 3 + 1
