"""Tokens that a chat template puts behind an answer, against one long prompt of transformers'."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import small_tokenizers
from transformers import AutoTokenizer

from edgekit.runtime.tokenizer import Tokenizer

# By what stands behind an answer.
TEMPLATES = {
    "special token": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "special token, then text": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
    "plain text": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}### User:\n{% else %}"
    "### Answer:\n{% endif %}{{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}"
    "### Answer:\n{% endif %}",
    "space": "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}assistant :",
    "newline": "{% for m in messages %}{{ m.content }}\n{% endfor %}",
}
NOTHING = "{% for m in messages %}{{ m.content }}{% endfor %}"
# Their last characters merge with none of what the templates put behind them.
ANSWERS = ("hello", "hello world", "xyz", "and more #0")


def long_prompt(reference: Any, messages: list[dict[str, str]], border: int) -> tuple[list[int], list[int]]:
    """Ids of the whole text, and those of them that begin from character `border` on; no token crosses it."""
    text = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    found = reference(text, add_special_tokens=False, return_offsets_mapping=True)
    assert found["input_ids"] == ids
    assert all(stop <= border or start >= border for start, stop in found["offset_mapping"])
    return ids, [i for i, (start, _) in zip(ids, found["offset_mapping"], strict=True) if start >= border]


@pytest.mark.parametrize("behind", TEMPLATES)
@pytest.mark.parametrize("kind", small_tokenizers.KINDS)
def test_a_turn_has_the_ids_of_one_long_prompt(tmp_path: Path, kind: str, behind: str) -> None:
    small_tokenizers.write(tmp_path, kind, TEMPLATES[behind])
    own, reference = Tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for answer in ANSWERS:
        for words in ("hello", "and  more\n", "[more] é 日本 🙂", "x"):
            before, turn = [{"role": "user", "content": "hello world"}], [{"role": "user", "content": words}]
            messages = [*before, {"role": "assistant", "content": answer}, *turn]
            text = own.render_chat(messages)
            border = text.index(answer, len(own.render_chat(before, add_generation_prompt=False))) + len(
                answer
            )
            ids, expected = long_prompt(reference, messages, border)
            assert own.chat_turn(before, turn) == expected, (answer, words)
            assert ids[: len(ids) - len(expected)] + own.chat_turn(before, turn) == ids


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.text(alphabet="ahelo0#:.[]/ \n\u0301é日", max_size=12))
@pytest.mark.parametrize("kind", small_tokenizers.KINDS)
def test_no_text_of_a_turn_is_lost(tmp_path: Path, kind: str, words: str) -> None:
    """Whatever merges with what: behind an answer's ids, a turn decodes to what the template wrote."""
    if not (tmp_path / "tokenizer.json").exists():
        small_tokenizers.write(tmp_path, kind, NOTHING)
    own = Tokenizer(tmp_path)
    answer = own.encode("xyz", add_special=False)
    ids = own.chat_turn([{"role": "user", "content": "hello"}], [{"role": "user", "content": words}])
    text = own.decode([*answer, *ids], skip_special=False)
    whole = own.decode(own.encode("xyz" + words, add_special=False), skip_special=False)
    assert composed(text) in (composed(whole), composed("xyz" + words))


def composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("kind", ["byte level", "prepend"])
def test_no_token_reaches_over_the_border(tmp_path: Path, kind: str) -> None:
    """'rx' is one token: a turn that begins with 'x' is not what stands behind 'answer' in one text."""
    small_tokenizers.write(tmp_path, kind, NOTHING)
    own = Tokenizer(tmp_path)
    joined = own.encode("answerx", add_special=False)
    assert joined[-1] == own.token_id("rx")
    ids = own.chat_turn([{"role": "user", "content": "hello"}], [{"role": "user", "content": "xhe"}])
    assert own.decode([own.token_id("0"), *ids]) == "0xhe"
    assert own.token_id("\u2581") not in ids and ids[0] == own.token_id("x")
