"""Text to ids and back in the core, beside the `tokenizers` library: of the same files, of the same texts."""

from __future__ import annotations

import copy
import ctypes
import functools
import gc
import itertools
import json
import pickle
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64, c_uint64
from importlib.resources import files
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers.models import BPE

from edgekit.flashload import _native
from edgekit.flashload.errors import EdgekitError, InvalidRequest, MalformedFile, UnsupportedBundle
from edgekit.runtime.tokenizer.core_text import CoreText
from edgekit.tools.bench.mixed_text import lines

#: How published tokenizers split: GPT-4's kind with two limits of digits, LLaDA's, and Mistral's.
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = LLAMA.replace("{1,3}", "")
#: LLaDA's and Ling's, with repetitions that give nothing back.
LING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+"
)
MISTRAL = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def streamed(own: CoreText, pieces: Sequence[Sequence[int]], skip_special: bool = True) -> list[str]:
    """What is certain behind each piece, and at the end."""
    with own.stream(skip_special) as stream:
        return [*(stream.push(piece) for piece in pieces), stream.finish()]


def core(table: str | bytes) -> CoreText:
    return CoreText(table.encode(errors="surrogatepass") if isinstance(table, str) else table)


def trained(prepare: Callable[[Tokenizer], object], size: int = 700, **settings: Any) -> Tokenizer:
    """A tokenizer of a few merges, learned from such lines."""
    own = Tokenizer(BPE(**settings))
    prepare(own)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if "byte_fallback" not in settings else []
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=alphabet,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"],
    )
    own.train_from_iterator(lines(5, 400), trainer)
    own.add_special_tokens(
        ["<|end|>", "<|end|>er", AddedToken("<strip>", lstrip=True, rstrip=True, special=True)]
    )
    own.add_tokens([AddedToken("Ünder", normalized=True), "  two  ", "né"])
    return own


def byte_level(pattern: str, normalizer: Any = None, **options: Any) -> Callable[[Tokenizer], None]:
    def prepare(own: Tokenizer) -> None:
        if normalizer is not None:
            own.normalizer = normalizer
        split = pre_tokenizers.Split(
            Regex(pattern), options.get("behavior", "isolated"), options.get("invert", False)
        )
        last = pre_tokenizers.ByteLevel(add_prefix_space=options.get("prefix", False), use_regex=False)
        own.pre_tokenizer = pre_tokenizers.Sequence([*options.get("before", ()), split, last])
        own.decoder = decoders.ByteLevel()

    return prepare


def gemma(own: Tokenizer) -> None:
    own.normalizer = normalizers.Replace(" ", "▁")
    own.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    own.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    own.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )


def llama2(own: Tokenizer) -> None:
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    own.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def metaspace(scheme: str, split: bool) -> Callable[[Tokenizer], None]:
    def prepare(own: Tokenizer) -> None:
        own.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split)
        own.decoder = decoders.Metaspace("▁", scheme, split)

    return prepare


def gpt2(own: Tokenizer) -> None:
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    own.decoder = decoders.ByteLevel()
    own.post_processor = processors.Sequence(
        [
            processors.ByteLevel(),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]),
        ]
    )


def bare(own: Tokenizer) -> None:
    """No part but the model."""


UNKNOWN = {"unk_token": "<unk>", "fuse_unk": True}
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "llama": lambda: trained(byte_level(LLAMA), ignore_merges=True),
    "qwen": lambda: trained(byte_level(QWEN, normalizers.NFC())),
    "ling": lambda: trained(byte_level(LING)),
    "mistral": lambda: trained(byte_level(MISTRAL)),
    "digits": lambda: trained(byte_level(QWEN, before=[pre_tokenizers.Digits(individual_digits=True)])),
    "inverse": lambda: trained(
        byte_level(r"[^\s]+|\s{2,}?", behavior="contiguous", invert=True, prefix=True)
    ),
    "next": lambda: trained(byte_level(r"\d|\p{P}", behavior="merged_with_next")),
    "removed": lambda: trained(byte_level(r"\s+", behavior="removed")),
    "gpt2": lambda: trained(gpt2),
    "gemma": lambda: trained(gemma, byte_fallback=True, **UNKNOWN),
    "llama2": lambda: trained(llama2, byte_fallback=True, **UNKNOWN),
    "metaspace": lambda: trained(metaspace("always", True), byte_fallback=False, **UNKNOWN),
    "metaspace first": lambda: trained(metaspace("first", False), byte_fallback=False, unk_token="<unk>"),
    "metaspace never": lambda: trained(metaspace("never", True), byte_fallback=False),
    "bare": lambda: trained(bare, byte_fallback=False),
}


def shipped(name: str) -> Tokenizer:
    return Tokenizer.from_str(
        (files("edgekit.tools") / "tiny" / name / "tokenizer.json").read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("kind", [*KINDS, "tiny-gemma", "tiny-llada", "tiny-block"])
def test_ids_and_texts_are_those_of_the_library(kind: str) -> None:
    oracle = KINDS[kind]() if kind in KINDS else shipped(kind)
    own, found = core(oracle.to_str()), random.Random(kind)
    added = [token.content for token in oracle.get_added_tokens_decoder().values()]
    size = oracle.get_vocab_size()
    assert own.count() == size
    for token in ("a", "<s>", "<|end|>", "no such token", "Ġ"):
        assert own.find(token) == oracle.token_to_id(token)
    for text in ["", " ", "a", *lines(found.randrange(1000), 1500, added)]:
        for special in (True, False):
            ids = own.encode(text, special)
            assert ids == oracle.encode(text, add_special_tokens=special).ids, repr(text)
        given = (
            ids if found.random() < 0.5 else [found.randrange(size + 5) for _ in range(found.randint(0, 12))]
        )
        for skip in (True, False):
            whole = oracle.decode(given, skip_special_tokens=skip)
            assert own.decode(given, skip) == whole, given
            cuts = sorted(found.randint(0, len(given)) for _ in range(found.randint(0, 6)))
            pieces = [given[a:b] for a, b in itertools.pairwise([0, *cuts, len(given)])]
            parts = streamed(own, pieces, skip)
            assert "".join(parts) == whole, pieces
            if "\ufffd" not in whole:
                assert "\ufffd" not in "".join(parts)
    own.close()


# "inverse" puts a space in front of each word, so also of one that begins where the text goes on.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "inverse"])
def test_a_text_that_goes_on_has_the_ids_that_it_has_behind_another_one(kind: str) -> None:
    oracle, found = KINDS[kind](), random.Random(kind)
    added, compared = [token.content for token in oracle.get_added_tokens_decoder().values()], 0
    with core(oracle.to_str()) as own:
        for text in ["", " ", "a", "  two  ", "<s>a", *lines(found.randrange(1000), 600, added)]:
            ids = own.encode_behind(text)
            for front in ("ab.", "ab 0", "ab", "ab "):
                there = behind(oracle, front, text)
                compared += there is not None
                assert there in (None, ids), (front, text)
    assert compared > 150


def behind(oracle: Tokenizer, front: str, text: str) -> list[int] | None:
    """The ids of a text behind another one; None where a token or word has characters of both."""
    before, border = oracle.encode(front, add_special_tokens=False).ids, len(front)
    if isinstance(oracle.pre_tokenizer, pre_tokenizers.Sequence):
        words = oracle.pre_tokenizer.pre_tokenize_str(front + text)
        if all(begin != border for _, (begin, _) in words):
            return None
    whole = oracle.encode(front + text, add_special_tokens=False)
    crossing = any(begin < border < end for begin, end in whole.offsets)
    return None if crossing or whole.ids[: len(before)] != before else whole.ids[len(before) :]


@pytest.mark.parametrize("kind", ["llama2", "metaspace", "metaspace first", "gpt2"])
def test_nothing_is_put_in_front_of_a_text_that_goes_on(kind: str) -> None:
    """But behind a token in it, as in the middle of a text."""
    with core(KINDS[kind]().to_str()) as own:
        for text in ("two words", "<s>two", "x<s> two<s>", "  two  y"):
            assert own.decode([*own.encode("ab", False), *own.encode_behind(text)]) == own.decode(
                own.encode("ab" + text, False)
            )
        assert own.encode_behind("ab") != own.encode("ab", False)


def test_wrong_arguments_of_texts_are_refused() -> None:
    count, ids = c_int64(-5), (c_int64 * 4)()
    with core(of_bytes().to_str()) as own:
        text, library, to = own._handle, own._core, ctypes.byref(count)
        for function, given, said in (
            ("count", (None, to), "the text is null"),
            ("count", (text, None), "count is null"),
            ("encode_behind", (None, b"a", 1, ids, 4, to), "the text is null"),
            ("encode_behind", (text, None, 1, ids, 4, to), "utf8 is null"),
            ("encode_behind", (text, b"a", 1, ids, 4, None), "count is null"),
            ("encode_behind", (text, b"a", 1 << 60, ids, 4, to), "it can have"),
            ("encode_behind", (text, b"\xff", 1, ids, 4, to), "at byte 0"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                _native.check(getattr(library, f"ek_text_{function}")(*given))
        assert count.value == -5
        small = library.ek_text_encode_behind(text, b"aaba", 4, ids, 2, ctypes.byref(count))
        with pytest.raises(_native.NativeCallFailed, match="has 3 ids, the buffer 2"):
            _native.check(small)
        assert count.value == 3 and ids[:] == [0, 0, 0, 0]
        _native.check(library.ek_text_encode_behind(text, b"aaba", 4, None, 0, ctypes.byref(count)))
        _native.check(library.ek_text_encode_behind(text, None, 0, ids, 4, ctypes.byref(count)))
        assert count.value == 0


def test_what_no_token_is_spelled_as_or_numbered_is_none() -> None:
    with core(of_bytes().to_str()) as own:
        assert own.find("\udcff") is None and own.find("ab\0") is None and own.find("ab") == 259
        assert own.decode([257, 1 << 70, -(1 << 70), -1, 258]) == "ab"


def test_a_tokenizer_is_for_one_owner_and_is_given_back_with_it() -> None:
    own = core(of_bytes().to_str())
    for wrong in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidRequest, match="a CoreText cannot be"):
            wrong(own)
    stream, handle = own.stream(), own._handle
    del own  # the stream needs it
    gc.collect()
    assert handle and stream.push([257]) == "a"
    del stream
    gc.collect()
    assert not handle


def test_threads_use_a_tokenizer_together() -> None:
    oracle = KINDS["qwen"]()
    texts = list(lines(3, 200, []))
    wanted = [oracle.encode(text).ids for text in texts]
    with core(oracle.to_str()) as own, ThreadPoolExecutor(4) as threads:

        def read(_: int) -> None:
            for text, ids in zip(texts, wanted, strict=True):
                assert own.encode(text) == ids and own.find("<s>") == 1
                assert "".join(streamed(own, [ids[:3], ids[3:]])) == own.decode(ids)

        list(threads.map(read, range(8)))


def of_bytes() -> Tokenizer:
    """Gemma's kind: characters that are no token are one token for each byte."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {
        "\u2581": 256,
        "a": 257,
        "b": 258,
        "ab": 259,
    }
    own = Tokenizer(BPE(vocabulary, [("a", "b")], byte_fallback=True))
    own.normalizer = normalizers.Replace(" ", "\u2581")
    own.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    own.add_special_tokens(["<s>"])
    return own


@pytest.mark.parametrize("make", [KINDS["llama"], of_bytes], ids=["byte level", "byte tokens"])
def test_a_character_that_is_not_whole_is_held_back(make: Callable[[], Tokenizer]) -> None:
    oracle = make()
    own = core(oracle.to_str())
    for rare in "🦊\U0001f9ffꙮ\U000e0041":
        ids = own.encode(f"ab {rare}", add_special=False)
        if oracle.decode(ids[:-1])[-1] == "\ufffd":
            break
    before, *rest = streamed(own, [ids[:-1], [], ids[-1:], own.encode("b", add_special=False)])
    assert before == "ab " and rest[0] == "" and "".join(rest) == f"{rare}b"
    assert streamed(own, [ids[:-1]]) == ["ab ", oracle.decode(ids[:-1])[3:]]
    own.close()


def test_a_character_that_no_buffer_holds_is_refused() -> None:
    room, size = ctypes.create_string_buffer(4), c_uint64()
    with core(of_bytes().to_str()) as own, own.stream() as stream:
        ids = own.encode("🦊ab")
        take, handle = stream._core.ek_text_stream_take, stream._handle
        _native.check(stream._core.ek_text_stream_push(handle, (c_int64 * len(ids))(*ids), len(ids)))
        with pytest.raises(_native.NativeCallFailed, match="3 bytes, a character more"):
            _native.check(take(handle, room, 3, ctypes.byref(size)))
        _native.check(take(handle, None, 0, ctypes.byref(size)))
        assert size.value == len("🦊ab".encode())
        for expected in ("🦊", "ab", ""):
            _native.check(take(handle, room, 4, ctypes.byref(size)))
            assert room.raw[: size.value].decode() == expected


def test_a_long_run_of_bytes_is_given_out_as_far_as_it_is_text() -> None:
    own = core(of_bytes().to_str())
    letter = own.encode("é")
    held = streamed(own, [letter] * 33)
    assert len(letter) == 2 and held[:32] == [""] * 32 and held[32] == 33 * "é"
    wrong = [letter * 10, letter[:1], [own.find("<s>")], [own.find("a")]]
    assert streamed(own, wrong) == ["", "", "", "\ufffd" * 21 + "a", ""]
    assert streamed(own, wrong, skip_special=False)[2] == "\ufffd" * 21 + "<s>"
    own.close()


def test_a_long_run_of_bytes_that_begins_a_text_loses_no_character() -> None:
    """As by Llama 2's decoder, for which nothing is forgotten there."""
    oracle = of_bytes()
    oracle.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    with core(oracle.to_str()) as own:
        for text in ("🦊" * 60, "é🦊ꙮ" * 40, "ꙮa" * 60):
            ids = [own.find(f"<0x{byte:02X}>") or 0 for byte in text.encode()]
            assert "".join(streamed(own, [[each] for each in ids])) == text


def test_a_long_text_is_decoded_piece_by_piece() -> None:
    """Time that grows with the square of the length would be seen here: 200,000 pieces."""
    own = core(shipped("tiny-gemma").to_str())
    ids = own.encode("What is 23 + 45? " * 20_000)
    assert "".join(streamed(own, [[each] for each in ids])) == own.decode(ids)
    own.close()


@pytest.mark.parametrize(
    "pattern",
    [
        "a|ab", "ab|a", "(?:a|ab)c?", "a*?b", "a+?", "a{2}", "a{2,}", "a{1,3}?b", "[a-c]+", "[^a-c]+",
        "[a-z&&[^b]]+", r"\p{Lu}", r"\P{L}+", r"\p{^L}+", r"[\s\S]", r"\s+(?!\S)|\s+", r"\s+(?=\s)|.",
        r"(?i:k|S)", r"\x41|\x{1F600}", r"[\]\-a]+", r"[-a]+", r"[a-]+", r".+", r"\w+", r"\W",
        r"\d{1,3}(?:,\d)*", r"a|b(?!c)|bc", r"[\r\n]+|\t",
        r"a++", "(?:a?+b)*ac", "[ab]?+c", "[a-c]*+[d-z]", "(?:a++|b)+c?", " ?[^a-c]++[ab]*", "(?i:k*+s++)",
        r"a++(?!a)|.", "[ab]++(?:|a)",
        r"(?:a|b)*c", r"(?i:don't|'ve)", r"[\p{L}\p{M}']+", r"\n", r"\\|\.", "ü|é+", "a{,2}b",
    ],
)  # fmt: skip
def test_expressions_match_what_the_library_matches(pattern: str) -> None:
    def table(own: Tokenizer) -> None:
        own.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")

    # Each character is a token, and each pair of them is merged where no border is between.
    letters = "abcABCkKsSſK don'tve,.-]\\\n\r\t 12345\U0001f600üéÜ"
    vocabulary = {letter: number for number, letter in enumerate(dict.fromkeys(letters))}
    pairs = [(x, y) for x in vocabulary for y in vocabulary]
    whole = vocabulary | {x + y: len(vocabulary) + n for n, (x, y) in enumerate(pairs)}
    oracle = Tokenizer(BPE(whole, pairs))
    table(oracle)
    own, found = core(oracle.to_str()), random.Random(pattern)
    for _ in range(1500):
        text = "".join(found.choice(letters) for _ in range(found.randint(1, 14)))
        assert own.encode(text) == oracle.encode(text).ids, repr(text)
    own.close()


def test_characters_are_of_the_kinds_that_the_library_knows() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for pattern in (
        r"\p{L}",
        r"\p{N}",
        r"\p{M}",
        r"\p{P}",
        r"\p{S}",
        r"\p{Lu}|\p{Lt}",
        r"\p{Cn}",
        r"\s",
        r"\w",
        r"\W",
        r"\d",
        # Within a set Oniguruma has other raised digits and fractions of Latin-1.
        r"[\w]",
        r"[\W]",
        r"[^\w]",
        r"[\w\s]",
        r"[^\W\d]",
        r"[[\w]&&[^a]]",
        r"[\s]",
        r"[\d]",
    ):
        oracle = Tokenizer(BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True))
        oracle.pre_tokenizer = pre_tokenizers.Split(Regex(f"(?:{pattern})+"), "isolated")
        own = core(oracle.to_str())
        for begin in range(0, len(every), 20_000):
            # As many unknown words as there are borders between those that match and others.
            text = "".join(every[begin : begin + 20_000])
            assert len(own.encode(text)) == len(oracle.encode(text).ids), (pattern, hex(begin))
        own.close()


def test_texts_are_composed_as_the_library_does() -> None:
    oracle = Tokenizer(BPE({chr(i): i for i in range(256)}, []))
    oracle.normalizer = normalizers.NFC()
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    oracle = trained(byte_level(r".+|\n+", normalizers.NFC()), 300)
    own, found = core(oracle.to_str()), random.Random(1)
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    marks = [
        c
        for begin in (0x300, 0x483, 0x591, 0x610, 0x1AB0, 0x1DC0, 0x20D0, 0x302A)
        for c in every[begin : begin + 40]
    ]
    hangul = every[0x1100:0x1200] + every[0xAC00:0xAC80]
    for begin in range(0, len(every), 5000):
        text = "\n".join(every[begin : begin + 5000])
        assert own.encode(text) == oracle.encode(text).ids, hex(begin)
    for _ in range(20_000):
        of = [
            found.choice(found.choice((every, marks, hangul, every[:0x2000])))
            for _ in range(found.randint(1, 6))
        ]
        text = "".join(of)
        assert own.encode(text) == oracle.encode(text).ids, [hex(ord(c)) for c in text]
    own.close()


def changed(path: Sequence[str | int], value: Any) -> str:
    table = json.loads(shipped("tiny-gemma").to_str())
    at = table
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(table)


SPLIT = ("pre_tokenizer", "pretokenizers", 0)


def with_expression(pattern: str) -> str:
    return changed((*SPLIT, "pattern"), {"Regex": pattern})


def sequence(part: str, count: int) -> str:
    """With a part of so many steps."""
    step: dict[str, Any] = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
    member = f"{part}s"
    if part == "pre_tokenizer":
        step, member = {"type": "Digits"}, "pretokenizers"
    return changed((part,), {"type": "Sequence", member: [step] * count})


def with_added(texts: Iterable[str], **options: bool) -> str:
    table = [{"content": f"{number:04d}{text[4:]}", **options} for number, text in enumerate(texts)]
    return changed(("added_tokens",), table)


METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}


def first_behind(*steps: dict[str, Any], normalizer: Any = None) -> str:
    """With something in front of the first word alone, behind steps that split."""
    table = json.loads(changed(("normalizer",), normalizer))
    table["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, METASPACE]}
    return json.dumps(table)


def byte_fallback(vocabulary: dict[str, int]) -> str:
    """Of bytes, with tokens like <0x34> for others."""
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": True}
    return json.dumps({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "model": model})


def around(count: int) -> dict[str, Any]:
    """A part that puts nothing around texts, in so many pieces."""
    pieces = [{"SpecialToken": {"id": "<eos>"}}] * (count - 1) + [{"Sequence": {"id": "A"}}]
    return {"type": "TemplateProcessing", "single": pieces, "special_tokens": {"<eos>": {"ids": []}}}


@pytest.mark.parametrize(
    ("table", "error", "said"),
    [
        ("", MalformedFile, "an object is expected"),
        ("[]", MalformedFile, "an object is expected"),
        ("{}", MalformedFile, "has no model"),
        ('{"model": {}}', MalformedFile, "has no vocabulary"),
        ('{"model": {"vocab": {"a": 0}}, "model": {"vocab": {"a": 0}}}', MalformedFile, "two models"),
        ('{"model": {"vocab": {"a": 0, "b": 0}}}', MalformedFile, "another token's"),
        ('{"model": {"vocab": {"a": 0, "a": 1}}}', MalformedFile, "two ids for one token"),
        ('{"model": {"vocab": {"a": -1}}}', MalformedFile, "the id -1"),
        ('{"model": {"vocab": {"a": 99999999}}}', MalformedFile, "more than any vocabulary"),
        ('{"model": {"vocab": {"a": 1.5}}}', MalformedFile, "an integer"),
        ('{"model": {"vocab": [["a", -1.0]]}}', MalformedFile, "no single vocabulary"),
        ('{"model": {"vocab": {"\\ud800": 0}}}', MalformedFile, "half a surrogate pair"),
        ('{"model": {"vocab": {"a": 0}, "merges": ["a a"]}}', MalformedFile, "'aa' is no token"),
        ('{"model": {"vocab": {"a": 0}, "merges": ["aa"]}}', MalformedFile, "a blank between them"),
        ('{"model": {"vocab": {"a": 0}, "merges": [["a"]]}}', MalformedFile, "a merge of one token"),
        ('{"model": {"vocab": {"a": 0, "aa": 1}, "merges": ["a a", "a a"]}}', MalformedFile, "twice"),
        (changed(("model", "type"), "WordPiece"), UnsupportedBundle, "its model is 'WordPiece'"),
        (changed(("model", "dropout"), 0.1), UnsupportedBundle, "dropout"),
        (changed(("model", "end_of_word_suffix"), "</w>"), UnsupportedBundle, "end_of_word_suffix"),
        (changed(("model", "unk_token"), "none"), MalformedFile, "unk_token 'none' is no token"),
        (changed(("normalizer",), {"type": "NFKC"}), UnsupportedBundle, "its normalizer is 'NFKC'"),
        (changed(("decoder",), {"type": "WordPiece"}), UnsupportedBundle, "its decoder is 'WordPiece'"),
        (changed(("post_processor",), {"type": "BertProcessing"}), UnsupportedBundle, "post_processor"),
        (changed(("added_tokens", 0, "single_word"), True), UnsupportedBundle, "as a single word"),
        (changed((*SPLIT, "behavior"), "Odd"), UnsupportedBundle, "Split Odd"),
        (with_expression("(a)"), UnsupportedBundle, "a group of this kind at byte 0"),
        (with_expression("a*"), UnsupportedBundle, "matches a text of no length"),
        (with_expression(r"(?<=a)b"), UnsupportedBundle, "a group of this kind"),
        (with_expression("a++a"), UnsupportedBundle, "gives nothing back at byte 1"),
        (with_expression("b[ab]++(?!b)"), UnsupportedBundle, "gives nothing back at byte 5"),
        (with_expression("(?:ba?+)*ac"), UnsupportedBundle, "gives nothing back"),
        (with_expression("(?:ab)++"), UnsupportedBundle, "gives nothing back"),
        (with_expression("a{2,3}+"), UnsupportedBundle, "gives nothing back"),
        (with_expression(r"(?i:ss)"), UnsupportedBundle, "in another case"),
        (with_expression(r"\p{Greek}"), UnsupportedBundle, "a property"),
        (with_expression(r"\p{Word}"), UnsupportedBundle, "a property"),
        (with_expression(r"a\b"), UnsupportedBundle, "an escape"),
        (with_expression(r"a\B"), UnsupportedBundle, "an escape"),
        (with_expression("[[:word:]]"), UnsupportedBundle, "a set of this kind"),
        (with_expression("[a"), UnsupportedBundle, "a set without an end"),
        (with_expression("(?:" * 99 + "a" + ")" * 99), UnsupportedBundle, "larger than any"),
        (with_expression("(?:(?:a{999}){999}){999}"), UnsupportedBundle, "larger than any"),
        (with_expression("(?:a|b)*a(?:a|b){20}"), UnsupportedBundle, "larger than any"),
        (with_expression("(?:" * 9 + "){999}" * 9 + "a"), UnsupportedBundle, "larger than any"),
        (with_expression("(?!"), UnsupportedBundle, "an end where something is to stand at byte 3"),
        (changed(("decoder",), {"type": "Metaspace", "replacement": ""}), MalformedFile, "one character"),
        (changed(("pre_tokenizer",), {"type": "Metaspace", "replacement": ""}), MalformedFile, "'' in line"),
        (changed(("decoder",), {"type": "Metaspace", "replacement": "ab"}), MalformedFile, "'ab' in line"),
        (sequence("normalizer", 17), UnsupportedBundle, "its normalizer has more than 16 steps"),
        (sequence("pre_tokenizer", 17), UnsupportedBundle, "its pre_tokenizer has more than 16 steps"),
        (sequence("decoder", 17), UnsupportedBundle, "its decoder has more than 16 steps"),
        (changed(("added_tokens", 0, "content"), "a" * 4097), UnsupportedBundle, "a text of 4097 bytes"),
        (changed(("model", "vocab", "a" * 4097), 9999), MalformedFile, "a token of 4097 bytes"),
        (with_added("a" * 4096 for _ in range(1025)), UnsupportedBundle, "more than 4194304 bytes"),
        (changed(("post_processor",), around(65)), MalformedFile, "more tokens around texts"),
        (
            changed(("post_processor",), {"type": "Sequence", "processors": [around(1)] * 2}),
            UnsupportedBundle, "'a second TemplateProcessing'",
        ),
        (
            changed(("added_tokens",), [{"content": "a", "rstrip": True}, {"content": "\t", "lstrip": True}]),
            UnsupportedBundle, "another is of blanks and takes in those in front",
        ),
        (first_behind({"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed"}),
         UnsupportedBundle, "'Metaspace first behind a Split Removed'"),
        (first_behind(METASPACE, {"type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithNext"}),
         UnsupportedBundle, "'Metaspace first behind another and a Split'"),
        (first_behind(normalizer={"type": "Prepend", "prepend": "a"}),
         UnsupportedBundle, "behind a normalizer that moves characters"),
        (first_behind(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": ""}),
         UnsupportedBundle, "behind a normalizer that moves characters"),
        (first_behind({"type": "Digits"}, normalizer={"type": "NFC"}),
         UnsupportedBundle, "behind a normalizer that moves characters"),
        (byte_fallback({"<0x34>": 0, "a": 1}), UnsupportedBundle, "byte_fallback behind ByteLevel"),
        ('{"model": {"vocab": {"a": 0}, "type": "BPE", "type": "BPE"}}', MalformedFile, "two parts called"),
        ('{"normalizer": ' + "[" * 600 + "]" * 600 + "}", MalformedFile, "nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_no_tokenizer_is_one_line(table: str, error: type[EdgekitError], said: str) -> None:
    with pytest.raises(error) as caught:
        core(table)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("fused", [False, True])
def test_bytes_stand_before_the_unknown_character_before_them(fused: bool) -> None:
    """As the library has it, where some bytes are tokens."""
    vocabulary = {"<unk>": 0, "a": 1, "<0xC3>": 2, "<0xA9>": 3, "<0x62>": 4}
    oracle = Tokenizer(BPE(vocabulary, [], unk_token="<unk>", fuse_unk=fused, byte_fallback=True))
    with core(oracle.to_str()) as own:
        for letters in itertools.product("aéüb", repeat=6):
            text = "".join(letters)
            assert own.encode(text) == oracle.encode(text).ids, text


@pytest.mark.parametrize("normalized", [False, True])
def test_special_tokens_that_a_normalizer_changes_are_left_out_as_by_the_library(normalized: bool) -> None:
    oracle = of_bytes()
    oracle.normalizer = normalizers.Prepend("\u2581")
    oracle.add_special_tokens([AddedToken("<t>", normalized=normalized)])
    oracle.add_tokens([AddedToken("<u>", normalized=normalized)])
    with core(oracle.to_str()) as own:
        ids = [257, *(own.find(token) or 0 for token in ("<s>", "<t>", "<u>")), 258]
        for skip in (False, True):
            assert own.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("behavior", ["isolated", "merged_with_next", "contiguous"])
def test_what_begins_a_text_behind_a_split_is_what_the_library_finds(behavior: str) -> None:
    oracle = trained(metaspace("first", False), byte_fallback=False, unk_token="<unk>")
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("[0-9]|o"), behavior), oracle.pre_tokenizer]
    )
    oracle.add_tokens([AddedToken("<t>")])
    with core(oracle.to_str()) as own:
        for text in ("two words", "one 2", "23", " 5", "o", "<t>two", "<t>", "a<t>o"):
            assert own.encode(text) == oracle.encode(text).ids, text


def test_an_expression_that_almost_matches_everywhere_ends() -> None:
    own = core(with_expression("a*b"))
    assert own.encode("aab" * 5000)
    with pytest.raises(UnsupportedBundle, match="takes too long on this text"):
        own.encode("a" * 100_000)
    own.close()


def test_an_expression_that_almost_matches_more_ends() -> None:
    """It finds a character, and reads to the end of the text each time, for there might be more."""
    with core(with_expression(r"a[\s\S]*b|a")) as own:
        assert own.encode("a" * 60 + "b")
        with pytest.raises(UnsupportedBundle, match="takes too long on this text"):
            own.encode("a" * 100_000)


def test_added_tokens_that_almost_are_there_end() -> None:
    added = [{"content": "a" * length + "b", "normalized": False} for length in range(1, 600)]
    with core(changed(("added_tokens",), added)) as own:
        assert own.encode("ab" * 20_000)
        with pytest.raises(UnsupportedBundle, match="looking for its added tokens takes too long"):
            own.encode("a" * 100_000)


def test_blanks_that_many_added_tokens_take_in_are_gone_through_once() -> None:
    """Time that grows with the square of the length would be seen here: 400,000 blanks."""
    oracle = KINDS["bare"]()
    oracle.add_tokens(
        [AddedToken(" ", rstrip=True), AddedToken("\t", rstrip=True), AddedToken("x", lstrip=True)]
    )
    with core(oracle.to_str()) as own:
        for text in ("  \t x\t  ab x ", " \t" * 9 + "a", "x  x\t"):
            assert own.encode(text) == oracle.encode(text).ids
        assert len(own.encode(" " * 400_000)) == 400_000


def test_parts_between_tokens_do_not_grow_without_bound() -> None:
    """Each of them may grow a little, whatever its length."""
    table = json.loads(changed(("normalizer",), {"type": "Prepend", "prepend": "ab" * 1500}))
    table["added_tokens"] = [{"content": "!", "normalized": False}]
    with core(json.dumps(table)) as own:
        assert own.encode("ab")
        with pytest.raises(UnsupportedBundle, match="makes more than 64000 bytes of a text of 1000"):
            own.encode("a!" * 500)


@pytest.mark.parametrize("kind", ["llama2", "metaspace", "bare"])
def test_a_long_text_is_streamed_behind_few_tokens(kind: str) -> None:
    """A decoder that looks at the beginning of a text does not look at all of it: 30,000 pieces, more than
    would be decoded together with all before them.
    """
    oracle = KINDS[kind]()
    with core(oracle.to_str()) as own:
        ids = own.encode("two words, 23 + 45? \n né" * 2_000)[:30_000]
        assert "".join(streamed(own, [[each] for each in ids])) == own.decode(ids)


def test_a_stream_whose_texts_hang_together_ends() -> None:
    """Of a decoder that looks at the beginning of a text, which bytes alone do not let go."""
    oracle = of_bytes()
    oracle.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    with core(oracle.to_str()) as own, own.stream() as stream:
        byte = own.find("<0x41>")
        assert byte is not None
        stream.push([byte] * 50_000)
        with pytest.raises(UnsupportedBundle, match="looks at all 50[0-9]{3} ids again"):
            for _ in range(1000):
                stream.push([byte])


def test_a_decoder_that_looks_at_the_whole_text_gives_it_at_the_end() -> None:
    last = {"type": "Replace", "pattern": {"String": "ab"}, "content": "\u00e9"}
    table = json.loads(changed(("decoder",), {"type": "Sequence", "decoders": [{"type": "Fuse"}, last]}))
    with core(json.dumps(table)) as own:
        a, b = own.find("a"), own.find("b")
        assert a is not None and b is not None
        assert streamed(own, [[a], [b], [a], [a] * 50_000]) == ["", "", "", "", "\u00e9" + "a" * 50_001]


#: The library panics over a token without a text.
STRIP = functools.partial(decoders.Strip, "a", 0, 1)
STEPS: Sequence[Callable[[], Any]] = (
    decoders.Fuse,
    decoders.ByteFallback,
    decoders.ByteLevel,
    lambda: decoders.Replace("ab", "x"),
    lambda: decoders.Replace("\u2581", " "),
    lambda: decoders.Replace("x", "<0x41>"),
    lambda: decoders.Strip(" ", 1, 0),
    STRIP,
    lambda: decoders.Metaspace("\u2581", "always"),
    lambda: decoders.Metaspace("\u2581", "never"),
)


def test_streams_of_any_decoder_give_the_text_of_all_ids() -> None:
    """All sequences of up to three steps, and some of four."""
    texts = [
        "a",
        "b",
        "ab",
        "x",
        "\u2581",
        "\u2581a",
        " ",
        " a",
        "\u00e9",
        "\u00c3",
        "\u00a9",
        "\u0120",
        "\ufffd",
        "g",
    ]
    texts += [
        "<0x4",
        "1>",
        "\u2581<0x41>",
        "<0x20>",
        "<0x41>",
        "<0xC3>",
        "<0xA9>",
        "<0xFC>",
        "<0xE2>",
        "<0x82>",
    ]
    found = random.Random(5)
    orders = [order for count in (1, 2, 3) for order in itertools.product(STEPS, repeat=count)]
    orders += [tuple(found.choice(STEPS) for _ in range(4)) for _ in range(1000)]
    for order in orders:
        oracle = Tokenizer(BPE({text: number for number, text in enumerate(texts)}, []))
        oracle.add_special_tokens(["<s>"])
        oracle.decoder = decoders.Sequence([step() for step in order])
        own = core(oracle.to_str())
        for _ in range(8):
            ids = [found.randrange(len(texts) + 2) for _ in range(found.randint(1, 12))]
            skip, size = found.random() < 0.5, found.randint(1, 3)
            whole, said = own.decode(ids, skip), (oracle.decoder, ids)
            if not any(step is STRIP for step in order):
                assert oracle.decode(ids, skip_special_tokens=skip) == whole, said
            pieces = [ids[at : at + size] for at in range(0, len(ids), size)]
            assert "".join(streamed(own, pieces, skip)) == whole, said
        own.close()


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_a_text_does_not_grow_without_bound(part: str) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
    own = core(changed((part,), {"type": "Sequence", f"{part}s": [step] * 6}))
    with pytest.raises(UnsupportedBundle, match="makes more than 64000 bytes of a text of 1000"):
        own.encode("a" * 1000) if part == "normalizer" else own.decode([own.find("a")] * 1000)
    own.close()


@pytest.mark.parametrize("text", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_text_that_is_no_utf8_is_refused(text: bytes) -> None:
    own = core(shipped("tiny-gemma").to_str())
    with pytest.raises(InvalidRequest, match=f"not UTF-8 at byte {len(text) - len(text.lstrip(b'a'))}"):
        own.encode(text)
    own.close()


def test_damaged_files_never_end_the_process() -> None:
    """Bytes changed, left out and repeated; what opens also encodes and decodes."""
    whole, found = shipped("tiny-gemma").to_str().encode(), random.Random(3)
    opened = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(found.randint(1, 3)):
            at = found.randrange(len(data))
            kind = found.randrange(4)
            if kind == 0:
                data[at] = found.randrange(256)
            elif kind == 1:
                del data[at : at + found.randint(1, 30)]
            elif kind == 2:
                data[at:at] = data[at : at + found.randint(1, 30)]
            else:
                data[at:at] = found.choice([b"null", b"{", b'"', b"9" * 30, b"-1", b"[", b"\\u0000"])
        try:
            own = core(bytes(data))
        except EdgekitError as error:
            assert "\n" not in str(error) and "report it" not in str(error)
            continue
        opened += 1
        own.decode(own.encode("What is 12 + 34? ü\U0001f600<eos>"))
        own.close()
    assert opened > 20
