"""Edits that fit tokenizer.json: what somebody may write to make the core crash, hang or fill the memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgekit.tools.campaign.edits import Edit
from edgekit.tools.campaign.hostile import HostileFiles
from edgekit.tools.campaign.tokenizers import TOKENIZER

#: Slow for who tries one way after the other, large as a table, or wrong.
EXPRESSIONS = (
    "(?:a+)+$", "(?:a+)+b", "(?:a|a)*b", "(?:a|aa)+c", "a*b", r"a[\s\S]*b|a", r"\s*[\s\S]*x|\s",
    "(?:(?:a*)*)*b",
    r"(?:a|b)*a[\s\S]{12}", r"(?:a|b)*a(?:a|b){11}", "(?:a{999}){999}", "(?:(?:(?:(?:){999}){999}){999})a",
    "(?:(?:|a){500}){500}b", "(?:" * 60 + "a" + ")" * 60, "[" * 60 + "a" + "]" * 60, r"\p{L}" * 800,
    "[" + r"\p{L}\p{^N}" * 300 + "]", r"[\p{L}&&\p{Lu}&&[^A-Z]]+",
    "".join(f"[{chr(a)}-ÿ]" for a in range(97, 123)),
    "a|" * 2000 + "b", ".*", ".+", "", "(", "(?!", "(?=", "(?:", "[", "[^", "[a-", "[a&&", "a{", "a{2",
    "a{2,1}", "\\",
    r"\p", r"\p{", r"\x", r"\x{110000}", "(?<a>b)", r"(a)\1", "a++", "(?!a|b)",
    "(?i:" * 40 + "ß" + ")" * 40, "\ud800",
)  # fmt: skip
IDS: tuple[Any, ...] = (
    -1, 0, 1, 1.0, 1.5, 2**22 - 1, 2**22, 2**31, 2**32, 2**32 - 1, 2**63, -(2**63), 10**400, True, None,
    "0", [0], {},
)  # fmt: skip
TOKENS = (
    "", " ", "\x00", "\ud800", "\udc00a", "\ufffd", "a", "aaaa", "ab", "<0x00>", "<0xFF>", "<0xGG>", "▁",
    "\n", "é",
    "x" * 4096, "x" * 4097, "x" * 10**6,
)  # fmt: skip
MERGES: tuple[Any, ...] = (
    "a", "a b c", "a  b", " ", "", "a b", "b a", "none b", "a none", ["a"], [], ["a", "b", "ab"], ["", ""],
    [1, 2], None,
    ["\ud800", "a"], "x" * 5000 + " a", ["a", ["b"]],
)  # fmt: skip

_MOST_BYTES = 30_000_000


def _replace(what: Any, by: Any) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": what}, "content": by}


class HostileText(HostileFiles):
    """Draws edits of a folder with a tokenizer.json and a chat.json."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed, TOKENIZER)

    def edit(self) -> Edit:
        pick = self._random.random()
        if pick < 0.2:
            return self._of_bytes(self._file())
        if pick < 0.4:
            return self._of_json()
        draw: Callable[[], Edit] = self._random.choice(
            (
                self._expression,
                self._id,
                self._token,
                self._merges,
                self._added,
                self._step,
                self._nested,
                self._repeated,
            )
        )
        return draw()

    def _set(self, *path: Any, value: Any) -> Edit:
        return Edit(TOKENIZER, "set", "json", {"path": list(path), "value": value})

    def _grown(self, path: list[Any], item: Any, count: int) -> Edit:
        """So many of an item, or as many as a file holds that is read at all."""
        count = min(count, _MOST_BYTES // len(json.dumps(item)))
        return Edit(TOKENIZER, "grow", "json", {"path": path, "item": [item], "count": count})

    def _under(self, *above: str) -> list[Any]:
        """The path of something that the intact file has there."""
        found = [path for path in self._trees[TOKENIZER] if path[: len(above)] == list(above)]
        return self._random.choice(found) if found else list(above)

    def _expression(self) -> Edit:
        draw = self._random
        pattern = draw.choice(EXPRESSIONS)
        if draw.random() < 0.3:
            pattern += draw.choice(EXPRESSIONS)
        behavior = draw.choice(("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"))
        split = {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": behavior,
            "invert": draw.random() < 0.3,
        }
        return self._set("pre_tokenizer", value=split)

    def _id(self) -> Edit:
        return self._set(*self._under("model", "vocab"), value=self._random.choice(IDS))

    def _token(self) -> Edit:
        path, name = self._under("model", "vocab"), self._random.choice(TOKENS)
        return Edit(TOKENIZER, "rename", "json", {"path": path, "name": name})

    def _merges(self) -> Edit:
        if self._random.random() < 0.3:
            return self._grown(["model", "merges"], self._random.choice(MERGES), 300_000)
        drawn = [self._random.choice(MERGES) for _ in range(self._random.randint(1, 3))]
        return self._set("model", "merges", value=["a b", *drawn] if self._random.random() < 0.5 else drawn)

    def _added(self) -> Edit:
        draw = self._random
        if draw.random() < 0.2:
            item = {"content": draw.choice(TOKENS), "normalized": draw.random() < 0.5}
            return self._grown(["added_tokens"], item, draw.choice((2, 200_000)))
        length = draw.choice((3, 30, 300))
        texts = draw.choice(
            (
                [draw.choice(TOKENS) for _ in range(4)],
                ["a" * n for n in range(length)],
                ["a" * n + "b" for n in range(length)],
                ["a" * n + letter for n in range(length) for letter in "bcdefghijklmnop"],
                [" ", "\t", "  ", "\n"],
            )
        )
        options = ("lstrip", "rstrip", "normalized", "special", "single_word")
        flags = {name: draw.choice((True, False, False, None)) for name in options}
        return self._set("added_tokens", value=[{"content": text, **flags} for text in texts])

    def _step(self) -> Edit:
        """A step of a part, alone, or many of it one behind the other."""
        draw = self._random
        text, other = draw.choice(TOKENS), draw.choice(TOKENS)
        member, part, steps = draw.choice(
            (
                (
                    "normalizers",
                    "normalizer",
                    (_replace(text, other), {"type": "Prepend", "prepend": text}, {"type": "NFC"}),
                ),
                (
                    "pretokenizers",
                    "pre_tokenizer",
                    (
                        {
                            "type": "Split",
                            "pattern": {"String": text},
                            "behavior": "MergedWithNext",
                            "invert": False,
                        },
                        {
                            "type": "Metaspace",
                            "replacement": text,
                            "prepend_scheme": draw.choice(("always", "first", "odd")),
                        },
                        {"type": "Digits", "individual_digits": draw.choice((True, None, 1))},
                        {"type": "ByteLevel", "add_prefix_space": True},
                    ),
                ),
                (
                    "decoders",
                    "decoder",
                    (
                        _replace(text, other),
                        {"type": "Metaspace", "replacement": text},
                        {
                            "type": "Strip",
                            "content": text,
                            "start": draw.choice(IDS),
                            "stop": draw.choice((0, 1, 2**62)),
                        },
                        {"type": "ByteFallback"},
                        {"type": "ByteLevel"},
                        {"type": "Fuse"},
                    ),
                ),
                (
                    "processors",
                    "post_processor",
                    (
                        {
                            "type": "TemplateProcessing",
                            "single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}]
                            * draw.choice((1, 2, 20_000)),
                            "special_tokens": {"a": {"ids": [draw.choice(IDS)] * draw.choice((0, 1, 1000))}},
                        },
                    ),
                ),
            )
        )
        drawn = [draw.choice(steps) for _ in range(draw.choice((1, 2, 4, 12, 20)))]
        return self._set(part, value=drawn[0] if len(drawn) == 1 else {"type": "Sequence", member: drawn})

    def _nested(self) -> Edit:
        draw = self._random
        part, member = draw.choice(
            (
                ("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"),
                ("decoder", "decoders"), ("post_processor", "processors"),
            )
        )  # fmt: skip
        if draw.random() < 0.4:
            step = draw.choice(
                ({"type": "Fuse"}, {"type": "NFC"}, {"type": "ByteLevel"}, _replace("a", "b"), {}, None)
            )
            grown = {"type": "Sequence", member: [step] * draw.choice((10, 10_000))}
            return self._set(part, value=grown)
        value: Any = draw.choice((None, {"type": "Sequence", member: []}))
        for _ in range(draw.choice((3, 200, 400))):
            value = {"type": "Sequence", member: [value]}
        return self._set(part, value=value)

    def _repeated(self) -> Edit:
        """A member a million times."""
        behind, text = self._random.choice(
            (
                ("{", '"x": 0,'), ("{", '"model": 0,'), ("{", '"added_tokens": [],'),
                ('"model": {', '"x": 0,'),
                ('"model": {', '"type": "BPE",'), ('"vocab": {', '"a": 0,'), ('"vocab": {', '"":'), ("{",
                "{"), ("{", '"'),
                ('"merges": [', '"a b",'), ('"added_tokens": [', "null,"), ('"added_tokens": [', "{},"),
                ("{", " "),
            )
        )  # fmt: skip
        arguments = {"behind": behind, "text": text, "count": self._random.choice((1, 2, 1_000_000))}
        return Edit(TOKENIZER, "insert", "bytes", arguments)
