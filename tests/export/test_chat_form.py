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


#: ChatML that does something else with what is said.
def with_said(said: str, begin: str = "{% for message in messages %}") -> str:
    return begin + TURN.replace(SAID, f"({said})") + "{% endfor %}" + ANSWER


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
    "long texts are cut off": (with_said(f"{SAID}[:200]"), "does more than to put texts"),
    "very long texts are cut off": (with_said(f"{SAID}[:5000]"), "does more than to put texts"),
    "tabs are replaced": (with_said(SAID + r".replace('\t', '    ')"), "does more than to put texts"),
    "line ends are replaced": (with_said(SAID + r".replace('\r\n', '\n')"), "does more than to put texts"),
    "a word is another one": (with_said(f"{SAID}.replace('user', 'you')"), "does more than to put texts"),
    "earlier turns are left out": (
        with_said(SAID, "{% for message in messages[-8:] %}"), "does more than to put texts",
    ),
    "many turns are too many": (
        with_said(SAID, "{% for message in messages[-40:] %}"), "does more than to put texts",
    ),
    "thoughts are marked": (
        with_said(f"{SAID}.replace('</think>', '</thought>')"), "does more than to put texts",
    ),
    "many marks": (
        with_said(SAID + "".join(f".replace('<{n}>', '')" for n in range(100, 110))), "does more than to put",
    ),
    "very many marks": (
        "{% set marks = " + str([f"<{n}>" for n in range(300)]) + " %}" + TEMPLATES["chatml"],
        "written with more than 256 texts",
    ),
    "long texts are refused": (
        "{% if messages|length > 6 %}{{ raise_exception('too long') }}{% endif %}" + TEMPLATES["chatml"],
        "refuses a conversation: ",
    ),
}  # fmt: skip


#: Templates that treat a mark in a content in their own way, and what the form refuses, by role.
REFUSING = {
    "a picture": (
        with_said(f"{SAID}.replace('<image>', '[img]')"),
        [("user", "<image>"), ("assistant", "<image>"), ("system", "<image>")],
    ),
    "a switch": (
        TEMPLATES["chatml"] + "{% if '/no_think' in messages[-1].content %}<think>{% endif %}",
        [("user", "/no_think")],
    ),
    "an answer's part": (
        with_said(f"{SAID}.split('<answer>')[-1] if message.role == 'assistant' else {SAID}"),
        [("assistant", "<answer>")],
    ),
    "a tool's answer": (
        with_said(f"'tool' if {SAID}.startswith('<tool>') and {SAID}.endswith('</tool>') else {SAID}"),
        [("user", "<tool>"), ("assistant", "<tool>"), ("system", "<tool>")],
    ),
    "a tool's answer is no question": (  # as Qwen3 does it
        "{% set asked = namespace(last=-1) %}{% for message in messages %}{% if message.role == 'user' "
        f"and not ({SAID}.startswith('<tool>') and {SAID}.endswith('</tool>')) %}}"
        "{% set asked.last = loop.index0 %}{% endif %}{% endfor %}"
        + with_said(
            f"{SAID}.split('</think>')[-1].lstrip('\n') if '</think>' in {SAID} and "
            f"message.role == 'assistant' and loop.index0 < asked.last else {SAID}"
        ),
        [("user", "<tool>")],
    ),
    "a token is left out": (
        with_said(f"{SAID}.replace(eos_token, '')"),
        [("user", "<eos>"), ("assistant", "<eos>"), ("system", "<eos>")],
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


@pytest.mark.parametrize("name", REFUSING)
def test_contents_that_a_template_treats_in_its_own_way_are_refused(name: str, tmp_path: Path) -> None:
    template, refused = REFUSING[name]
    tokenizer = with_template(tmp_path, template)
    form = chat_form(tokenizer, tokenizer_json())
    assert {(each["role"], each["text"]) for each in json.loads(form)["refused"]} == set(refused)
    with CoreText(tokenizer_json()) as core:
        core.set_chat_form(form)
        for chat in (*CHATS, said("a", "b", "c", system="\n d")):
            assert core.chat(chat) == tokenizer.render_chat(chat)
        for role, mark in refused:
            chat = said("a", "b", "c", system="d")
            place = {"system": 0, "assistant": 2, "user": 3}[role]
            chat[place]["content"] += f"x{mark}y"
            with pytest.raises(InvalidRequest, match=f"message {place} has '{mark}' in it") as caught:
                core.chat(chat)
            assert "\n" not in str(caught.value)


def test_a_form_without_refused_texts_is_read_as_before() -> None:
    tokenizer = Tokenizer(Path(str(files("edgekit.tools") / "tiny" / "tiny-gemma")))
    form = json.loads(chat_form(tokenizer, tokenizer_json()))
    assert form.pop("refused") == []
    with CoreText(tokenizer_json()) as core:
        core.set_chat_form(json.dumps(form | {"version": 1}).encode())
        assert core.chat(CHATS[1]) == tokenizer.render_chat(CHATS[1])


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
            (json.dumps(whole | {"version": 3}), UnsupportedBundle, "version 3"),
            *((json.dumps({k: v for k, v in whole.items() if k != name}), MalformedFile, name)
              for name in whole),
            *((json.dumps(whole | {name: 5.5}), MalformedFile, "chat.json") for name in whole),
            (json.dumps(whole | {"begin": "x" * (1 << 20)}), MalformedFile, "a form of chats has few"),
            *((json.dumps(whole | {name: "\ud800"}), MalformedFile, "half a surrogate pair")
              for name in ("begin", "reply", "next", "answer", "thought")),
            (json.dumps(whole | {"thought": "x" * 4097}), UnsupportedBundle, "4097 bytes in line 1"),
            (json.dumps(whole | {"refused": [{"role": "user", "text": ""}]}), MalformedFile, "an empty text"),
            (json.dumps(whole | {"refused": [{"role": "user"}]}), MalformedFile, "text"),
            (json.dumps(whole | {"refused": [{"role": "user", "text": "x"}] * 65}), MalformedFile, "than 64"),
        ):  # fmt: skip
            with pytest.raises(error, match=why):
                core.set_chat_form(table.encode())
