"""Text of ids that arrive in pieces, against the decode of all ids."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import small_tokenizers
from support.checkpoints import write_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from edgekit.runtime.tokenizer import Tokenizer, TokenizerError

#: Byte tokens in a row that the core holds back at most.
MOST_HELD_BYTES = 64


def pieces(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("byte_level")
    write_tokenizer(path, "dream")
    return Tokenizer(path)


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Gemma's kind: spaces as U+2581, unknown characters as <0x..> tokens, one per byte."""
    path = tmp_path_factory.mktemp("byte_fallback")
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581": 256, "a": 257, "b": 258, "ab": 259}
    backend = Backend(models.BPE(vocab=vocab, merges=[("a", "b")], byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(path)
    return Tokenizer(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=30), cuts=st.lists(st.integers(0, 200), max_size=8))
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_streamed_text_is_the_text(
    request: pytest.FixtureRequest, kind: str, text: str, cuts: list[int]
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode(text)
    stream = tokenizer.stream()
    out = [stream.push(piece) for piece in pieces(ids, cuts)]
    assert "".join(out) + stream.finish() == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(out)
    assert stream.finish() == ""


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 383), max_size=30), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_streamed_noise_is_the_decoded_noise(byte_level: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    """A canvas may decode to anything, invalid UTF-8 included."""
    stream = byte_level.stream(skip_special=False)
    out = [stream.push(piece) for piece in pieces(ids, cuts)]
    assert "".join(out) + stream.finish() == byte_level.decode(ids, skip_special=False)


def test_incomplete_character_is_held_back(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("ok 🦊!")
    fox = next(n for n in range(len(ids)) if "\ufffd" in byte_level.decode(ids[: n + 1]))
    stream = byte_level.stream()
    assert stream.push(ids[: fox + 1]) == "ok "
    assert stream.push([]) == ""
    assert stream.push(ids[fox + 1 :]) == "🦊!"
    assert stream.finish() == ""
    cut = byte_level.stream()
    assert cut.push(ids[: fox + 1]) == "ok "
    assert cut.finish() == "\ufffd"


def test_special_tokens_in_a_stream(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "llada")
    tokenizer = Tokenizer(tmp_path)
    ids = tokenizer.encode("hi<|eot_id|>")
    assert tokenizer.stream().push(ids) == "hi"
    assert tokenizer.stream(skip_special=False).push(ids) == "<|startoftext|>hi<|eot_id|>"


# --- byte tokens ------------------------------------------------------------------------------------------

# Parts of characters, whole characters as their bytes, and what may stand between them.
BYTES = st.one_of(
    st.sampled_from([0x41, 0x20, 0x0A, 0xC3, 0xA9, 0xE6, 0x97, 0xA5, 0xF0, 0x9F, 0x80, 0xFF]).map(
        lambda b: [b]
    ),
    st.sampled_from("A\u00e9\u65e5\U0001f98a").map(lambda text: list(text.encode())),
)


@pytest.fixture(scope="module", params=["metaspace never", "metaspace first", "metaspace always", "prepend"])
def with_bytes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(small_tokenizers.write(tmp_path_factory.mktemp("with_bytes"), request.param))


def byte_tokens(tokenizer: Tokenizer, values: list[int]) -> list[int]:
    ids = [tokenizer.token_id(f"<0x{value:02X}>") for value in values]
    assert None not in ids
    return [i for i in ids if i is not None]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(
        st.one_of(BYTES, BYTES, st.sampled_from(["a", "\u2581", "\u2581he", "</s>", "beyond"])), max_size=16
    ),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    skip=st.booleans(),
)
def test_streamed_byte_tokens_are_the_decoded_ones(
    with_bytes: Tokenizer, data: list[list[int] | str], cuts: list[int], skip: bool
) -> None:
    """At most 64 tokens in a row: valid or not, cut wherever, special tokens and unknown ids between them."""
    ids: list[int] = []
    for item in data:
        known = with_bytes.token_id(item) if isinstance(item, str) else None
        ids += (
            byte_tokens(with_bytes, item) if isinstance(item, list) else [99999 if known is None else known]
        )
    stream = with_bytes.stream(skip)
    out = [stream.push(piece) for piece in pieces(ids, cuts)]
    assert "".join(out) + stream.finish() == with_bytes.decode(ids, skip)


def test_a_run_of_byte_tokens_is_given_out_when_it_ends(with_bytes: Tokenizer) -> None:
    ids, letter = byte_tokens(with_bytes, list("AB\u00e9".encode())), with_bytes.token_id("a")
    assert letter is not None
    stream = with_bytes.stream()
    assert stream.push([letter, *ids]) == "a"
    assert stream.push([letter]) == "AB\u00e9a"
    assert stream.push(ids) == "" and stream.finish() == "AB\u00e9"
    broken = with_bytes.stream()
    assert broken.push(ids[:2]) == "" and broken.push(byte_tokens(with_bytes, [0xFF])) == ""
    assert broken.push([letter]) == "\ufffd" * 3 + "a", "one wrong byte makes a whole run U+FFFD"


def test_an_answer_of_byte_tokens_alone_is_not_held_back_for_ever(with_bytes: Tokenizer) -> None:
    text = "\u65e5" * MOST_HELD_BYTES
    ids = byte_tokens(with_bytes, list(text.encode()))
    stream = with_bytes.stream()
    assert stream.push(ids[:MOST_HELD_BYTES]) == ""
    assert stream.push(ids[MOST_HELD_BYTES:-1]) == "", "the last character is incomplete, and with it the run"
    assert stream.push(ids[-1:]) == text
    assert stream.push(byte_tokens(with_bytes, [0xFF])) == ""
    rest = stream.finish()
    assert rest and rest.strip("\ufffd") == "", "what was given out stays"


def test_texts_that_look_like_byte_tokens_are_texts(tmp_path: Path) -> None:
    """Where no part of the decoder takes them for bytes."""
    made = Backend(models.BPE({"<0x41>": 0, "<unk>": 1}, [], unk_token="<unk>"))
    made.decoder = decoders.Fuse()
    made.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path).stream().push([0]) == "<0x41>"


# --- use --------------------------------------------------------------------------------------------------


def test_a_stream_outlives_what_it_was_made_from(tmp_path: Path) -> None:
    tokenizer = Tokenizer(small_tokenizers.write(tmp_path, "byte level"))
    ids, stream = tokenizer.encode("hello 🦊"), tokenizer.stream()
    del tokenizer
    gc.collect()
    assert "".join([*(stream.push([each]) for each in ids), stream.finish()]) == "hello 🦊"


def test_threads_take_turns_at_a_stream(byte_level: Tokenizer) -> None:
    ids, stream = byte_level.encode("a"), byte_level.stream()
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda _: "".join(stream.push(ids) for _ in range(500)), range(8)))
    assert "".join(parts) + stream.finish() == "a" * 4000


def test_a_text_that_hangs_together_without_bound_is_refused_in_one_line(tmp_path: Path) -> None:
    """Of bytes alone, behind which a decoder that looks at the beginning forgets nothing."""
    made = Backend(models.BPE({"<0x61>": 0}, []))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.save(str(tmp_path / "tokenizer.json"))
    stream = Tokenizer(tmp_path).stream()
    stream.push([0] * 50_000)
    with pytest.raises(TokenizerError, match=f"^{tmp_path}/tokenizer.json: its decoder looks at all"):
        for _ in range(1000):
            stream.push([0])
