"""Chat templates as forms: of published kinds, and those that are none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from edgekit.export.chat_form import NoChatForm, chat_form
from edgekit.export.pipeline import ExportOptions, export
from edgekit.flashload.errors import InvalidRequest, MalformedFile, UnsupportedBundle
from edgekit.runtime.tokenizer import Tokenizer, TokenizerError
from edgekit.runtime.tokenizer.core_text import CoreText

TINY = "tiny-gemma", "tiny-llada", "tiny-block"
SAID = "message['content']"
TURN = "{{ '<' + message['role'] + '>' + " + SAID + " + '</>' }}"
ANSWER = "{% if add_generation_prompt %}<assistant>{% endif %}"
#: As published models write them, by what is special about each.
TEMPLATES = {
    "chatml": "{% for message in messages %}" + TURN + "{% endfor %}" + ANSWER,
    "trims": "{% for message in messages %}" + TURN.replace(SAID, SAID + "|trim") + "{% endfor %}" + ANSWER,
    "a system message of its own": "{% if messages[0]['role'] != 'system' %}<system>I help.</>{% endif %}"
    "{% for message in messages %}" + TURN + "{% endfor %}" + ANSWER,
    "no system message": "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('no') }}{% endif %}" + TURN + "{% endfor %}" + ANSWER,
    "the system message in the first turn": "{% if messages[0]['role'] == 'system' %}"
    "{% set first = messages[0]['content'] + '\n\n' %}{% set rest = messages[1:] %}{% else %}"
    "{% set first = '' %}{% set rest = messages %}{% endif %}{% for message in rest %}"
    "{{ '<' + message['role'] + '>' + (first if loop.first else '') + message['content'] + '</>' }}"
    "{% endfor %}" + ANSWER,
    "the system message in the last turn": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set rest = messages[1:] %}{% set first = messages[0]['content'] %}{% else %}"
    "{% set rest = messages %}{% endif %}{% for message in rest %}{% if message['role'] == 'user' %}"
    "{{ '[INST]' }}{% if loop.last and first is defined %}{{ first + '\n\n' }}{% endif %}"
    "{{ message['content'] + '[/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}",
    "thoughts are left out": "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% set said = message['content'] %}{% if '</think>' in said %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ '<assistant>' + said + '</>' }}"
    "{% else %}"
    + TURN + "{% endif %}{% endfor %}" + ANSWER,
    "it always asks": "{% for message in messages %}" + TURN + "{% endfor %}<assistant>",
}  # fmt: skip
NONE = {
    "it asks for the date": ("{{ strftime_now('%d') }}" + TEMPLATES["chatml"], "asks for the date"),
    "turns are counted": (
        TEMPLATES["chatml"].replace("'<' +", "'<' + loop.index|string +"), "does more than to put texts",
    ),
    "the text is changed": (TEMPLATES["chatml"].replace(SAID, SAID + "|upper"), "leaves out or repeats"),
    "quotes are changed": (
        TEMPLATES["chatml"].replace(SAID, SAID + "|replace('\"', '')"), "does more than to put texts",
    ),
    "one turn alone": (
        "{% if messages|length > 1 %}{{ raise_exception('one turn') }}{% endif %}" + TEMPLATES["chatml"],
        "refuses a user's question: ",
    ),
    "the last turn alone": (TURN.replace("message", "messages[-1]"), "leaves out or repeats"),
    "long texts are refused": (
        "{% if messages|length > 6 %}{{ raise_exception('too long') }}{% endif %}" + TEMPLATES["chatml"],
        "refuses a conversation: ",
    ),
}  # fmt: skip


def tokenizer_json(name: str = "tiny-gemma") -> bytes:
    return (files("edgekit.tools") / "tiny" / name / "tokenizer.json").read_bytes()


def with_template(folder: Path, template: str | None) -> Tokenizer:
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": template}
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(folder)


def said(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    found = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return found if system is None else [{"role": "system", "content": system}, *found]


CHATS: Sequence[list[dict[str, str]]] = (
    said("Hello"), said("", "", ""), said("a", "<think>b</think>\n\nc</think>d", " e "),
    said("Grüße 🦊", "\n x\n", "\u3000y", "z", "a" * 3000),
)  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_published_kinds_of_templates_are_forms(name: str, tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, TEMPLATES[name])
    form = chat_form(tokenizer, tokenizer_json())
    with CoreText(tokenizer_json()) as core:
        core.set_chat_form(form)
        for chat in CHATS:
            assert core.chat(chat) == tokenizer.render_chat(chat)
            system = [{"role": "system", "content": " Be brief. "}, *chat]
            if name == "no system message":
                with pytest.raises(InvalidRequest, match="has no place"):
                    core.chat(system)
            else:
                assert core.chat(system) == tokenizer.render_chat(system)


@pytest.mark.parametrize("name", TINY)
def test_the_tiny_models_have_forms(name: str) -> None:
    tokenizer = Tokenizer(Path(str(files("edgekit.tools") / "tiny" / name)))
    with CoreText(tokenizer_json(name)) as core:
        core.set_chat_form(chat_form(tokenizer, tokenizer_json(name)))
        for chat in (*CHATS, said("a", "b", "c", system="\n d")):
            assert core.chat(chat) == tokenizer.render_chat(chat)


@pytest.mark.parametrize("name", NONE)
def test_templates_that_do_more_are_none(name: str, tmp_path: Path) -> None:
    template, why = NONE[name]
    with pytest.raises(NoChatForm, match=why) as caught:
        chat_form(with_template(tmp_path, template), tokenizer_json())
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_a_template_has_none(tmp_path: Path) -> None:
    with pytest.raises(NoChatForm, match="has no chat template"):
        chat_form(with_template(tmp_path, None), tokenizer_json())


def exported(folder: Path, change: Any) -> tuple[set[str], list[str]]:
    """The tokenizer's files in a bundle, and what its export notes."""
    source = folder / "checkpoint"
    source.mkdir()
    for file in (files("edgekit.tools") / "tiny" / "tiny-llada").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    change(source)
    done = export(source, folder / "bundle", ExportOptions("native"))
    return {path.name for path in (folder / "bundle" / "tokenizer").iterdir()}, list(done.notes)


def test_a_bundle_has_the_form_or_says_what_applications_lack(tmp_path: Path) -> None:
    def template(text: str) -> Any:
        def change(source: Path) -> None:
            path = source / "tokenizer_config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": text}))

        return change

    def unknown(source: Path) -> None:
        path = source / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": {"type": "NFKC"}}))

    cases: list[tuple[Any, bool, str]] = [
        (lambda source: None, True, ""),
        (template(NONE["turns are counted"][0]), False, "write the conversation's text themselves"),
    ]
    for number, (change, has, note) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        names, notes = exported(folder, change)
        assert ("chat.json" in names) == has
        about = [line for line in notes if "without Python" in line]
        assert len(about) == (0 if has else 1) and all(note in line for line in about)
    (tmp_path / "unknown").mkdir()
    with pytest.raises(TokenizerError, match="checkpoint/tokenizer.json: its normalizer is 'NFKC'"):
        exported(tmp_path / "unknown", unknown)
    assert not (tmp_path / "unknown" / "bundle").exists()


@pytest.mark.parametrize(
    ("chat", "why"),
    [
        ([], "do not end with the user's"),
        (said("a", "b"), "do not end with the user's"),
        (said("a") + said("b"), "message 1 is of role 'user', where one of 'assistant' is to stand"),
        (said("a", system="b")[::-1], "message 1 is of role 'system'"),
        ([{"role": "tool", "content": ""}], "message 0 is of role 'tool'"),
        ([{"role": "system", "content": "a"}], "do not end with the user's"),
    ],
)
def test_conversations_of_another_order_are_refused(chat: list[dict[str, str]], why: str) -> None:
    tokenizer = Tokenizer(Path(str(files("edgekit.tools") / "tiny" / "tiny-gemma")))
    with CoreText(tokenizer_json()) as core:
        core.set_chat_form(chat_form(tokenizer, tokenizer_json()))
        with pytest.raises(InvalidRequest, match=why):
            core.chat(chat)


def test_what_is_no_form_is_one_line() -> None:
    whole = json.loads(chat_form(Tokenizer(Path(str(files("edgekit.tools") / "tiny" / "tiny-gemma"))),
                                 tokenizer_json()))  # fmt: skip
    with CoreText(tokenizer_json()) as core:
        with pytest.raises(Exception, match="has no form of chats"):
            core.chat(said("a"))
        for table, error, why in (
            ("{", MalformedFile, "chat.json"),
            ("[]", MalformedFile, "an object"),
            (json.dumps(whole | {"version": 2}), UnsupportedBundle, "version 2"),
            *((json.dumps({k: v for k, v in whole.items() if k != name}), MalformedFile, name)
              for name in whole),
            *((json.dumps(whole | {name: 5.5}), MalformedFile, "chat.json") for name in whole),
            (json.dumps(whole | {"begin": "x" * (1 << 20)}), MalformedFile, "a form of chats has few"),
            *((json.dumps(whole | {name: "\ud800"}), MalformedFile, "half a surrogate pair")
              for name in ("begin", "reply", "next", "answer", "thought")),
            (json.dumps(whole | {"thought": "x" * 4097}), UnsupportedBundle, "4097 bytes in line 1"),
        ):  # fmt: skip
            with pytest.raises(error, match=why):
                core.set_chat_form(table.encode())
