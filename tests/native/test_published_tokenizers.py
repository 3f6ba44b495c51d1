"""Tokenizers and chat templates of published models in the core, beside `tokenizers` and Jinja."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgekit.export.chat_form import NoChatForm, chat_form
from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.tokenizer import Tokenizer
from edgekit.runtime.tokenizer.core_text import CoreText
from edgekit.tools.bench.text import compare

FOLDER = Path(__file__).parents[2] / "build" / "tokenizers"
NAMES = ("gemma2", "gemma3", "llama3", "mistral_nemo", "qwen2_5", "qwen3")
#: Of `python -m edgekit.tools.bench.text` 100,000 have been compared.
LINES = 1000
CHATS = (
    ["What is 12 + 34?"],
    [" Grüße 🦊\n", "<think>x</think>\n\nHallo", "naïve\u3000"],
    ["a", "b", "c", "", "\n\ne"],
)


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest) -> Path:
    found = FOLDER / str(request.param)
    if not (found / "tokenizer.json").is_file() and not os.environ.get("EDGEKIT_TOKENIZERS"):
        pytest.skip("needs what .ci/tokenizers fetches")
    return found


def test_lines_of_all_kinds_are_what_the_library_makes_of_them(folder: Path) -> None:
    found = compare(folder, LINES, seed=7)
    assert (found.differences, found.first) == (0, "") and found.vocabulary > 100_000


def test_conversations_have_the_templates_ids(folder: Path) -> None:
    tokenizer, data = Tokenizer(folder), (folder / "tokenizer.json").read_bytes()
    if folder.name == "gemma2":
        with pytest.raises(NoChatForm, match="has no chat template"):
            chat_form(tokenizer, data)
        return
    with CoreText(data) as core:
        core.set_chat_form(chat_form(tokenizer, data))
        for texts in CHATS:
            chat = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
            for messages in (chat, [{"role": "system", "content": "Be brief."}, *chat]):
                ids = core.encode(core.chat(messages), add_special=False)
                assert ids == tokenizer.chat(messages), messages
        if folder.name == "qwen3":  # then the thought of an earlier answer stays
            answered = [*chat[:2], {"role": "user", "content": "<tool_response>\n5\n</tool_response>"}]
            with pytest.raises(InvalidRequest, match="message 2 has '<tool_response>' in it"):
                core.chat(answered)
