from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import CORPUS, FAMILIES, TOKEN_ROLES, write_tokenizer
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.tokenizer import ChatTemplateError, Tokenizer, TokenizerError

TEXTS = [
    *CORPUS,
    "",
    " ",
    "  leading and trailing  ",
    "tab\tand\r\nline ends\n",
    "café \U0001f9d1\u200d\U0001f680",
    "a\u0301\u0302",
]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hello \n"}],
    [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2", "tool_calls": None},
        {"role": "user", "content": "你好 🙂 <|endoftext|>"},
    ],
]


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, Any]:
    """Our tokenizer and the one of transformers, from the same files."""
    write_tokenizer(tmp_path, request.param)
    return Tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)


def saved(path: Path, **config: Any) -> Path:
    """A Dream-like tokenizer whose tokenizer_config.json has these values changed (None removes)."""
    write_tokenizer(path, "dream")
    file = path / "tokenizer_config.json"
    value = {key: item for key, item in (json.loads(file.read_text()) | config).items() if item is not None}
    file.write_text(json.dumps(value))
    return path


# --- plain text -------------------------------------------------------------------------------------------


def test_encode_and_decode_equal_transformers(pair: tuple[Tokenizer, Any]) -> None:
    ours, reference = pair
    assert ours.vocab_size == len(reference)
    assert (ours.bos_id, ours.eos_id) == (reference.bos_token_id, reference.eos_token_id)
    assert (ours.pad_id, ours.mask_id) == (reference.pad_token_id, reference.mask_token_id)
    for text in TEXTS:
        for special in (True, False):
            ids = ours.encode(text, add_special=special)
            assert ids == reference(text, add_special_tokens=special)["input_ids"]
            for skip in (True, False):
                assert ours.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ours.encode(text)) == text


def test_bos_is_added_to_plain_text_where_the_tokenizer_says_so(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "llada", "llada")
    tokenizer = Tokenizer(tmp_path / "llada")
    assert tokenizer.encode("a")[0] == tokenizer.bos_id
    assert tokenizer.encode("a", add_special=False)[0] != tokenizer.bos_id
    write_tokenizer(tmp_path / "dream", "dream")
    dream = Tokenizer(tmp_path / "dream")
    assert dream.encode("a") == dream.encode("a", add_special=False)


def test_ids_outside_the_vocabulary_have_no_text(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "dream")
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.decode([*tokenizer.encode("ab"), tokenizer.vocab_size + 7, -1, 1 << 70]) == "ab"


def test_stored_truncation_and_padding_are_dropped(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "dream")
    backend = Backend.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=40)
    backend.save(str(tmp_path / "tokenizer.json"))
    text = "Why is the sky blue?"
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_special_tokens_as_dicts_and_from_the_older_file(tmp_path: Path) -> None:
    eos = {"content": "<|im_end|>", "lstrip": False, "__type": "AddedToken"}
    tokenizer = Tokenizer(saved(tmp_path, eos_token=eos, pad_token=None, mask_token=None))
    assert tokenizer.eos_id == tokenizer.token_id("<|im_end|>")
    assert tokenizer.special_tokens["pad_token"] == TOKEN_ROLES["dream"]["pad_token"]
    (tmp_path / "special_tokens_map.json").unlink()
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.pad_id is None and tokenizer.mask_id is None
    assert tokenizer.token_id("<|nothing|>") is None


def test_only_tokenizer_json_is_needed(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "dream")
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").unlink()
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.bos_id is None
    assert tokenizer.decode(tokenizer.encode("hi")) == "hi"


def test_missing_and_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="tokenizer.json: does not exist"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(TokenizerError, match="tokenizer.json: has no model"):
        Tokenizer(tmp_path)
    for text in ("{", "[]"):
        write_tokenizer(tmp_path, "dream")
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(TokenizerError, match="tokenizer_config.json") as error:
            Tokenizer(tmp_path)
        assert "\n" not in str(error.value)
    for template in (3, [{"name": "default"}], ["text"]):
        with pytest.raises(TokenizerError, match="neither text nor a list"):
            Tokenizer(saved(tmp_path, chat_template=template))


# Of these the library takes some, and panics at others.
UNREADABLE = {
    "its model is 'WordPiece'": {"model": {"type": "WordPiece", "vocab": {"a": 0}}},
    "its normalizer is 'NFKC'": {"normalizer": {"type": "NFKC"}},
    "its normalizer is 'Replace of an expression'": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": "(?=)"}, "content": "x"}
    },
    "its normalizer is 'Precompiled'": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}
    },
    "its pre_tokenizer is 'FixedLength'": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "its pre_tokenizer is 'ByteLevel behind ByteLevel'": {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 9}
    },
    "its post_processor is 'TemplateProcessing that repeats the text'": {
        "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}] * 9,
                           "special_tokens": {}},
    },
    "'X' is missing": {
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "X"}}],
                           "special_tokens": {}},
    },
}  # fmt: skip


@pytest.mark.parametrize("said", UNREADABLE)
def test_what_the_core_does_not_read_is_one_line(tmp_path: Path, said: str) -> None:
    table = json.loads((saved(tmp_path) / "tokenizer.json").read_text())
    files = {"tokenizer.json": json.dumps(table | UNREADABLE[said]).encode()}
    with pytest.raises(TokenizerError, match="^the bundle/tokenizer.json: ") as error:
        Tokenizer.from_files(files, "the bundle")
    assert said in str(error.value) and "\n" not in str(error.value)


def repeated(kind: str, count: int, text: str, content: str) -> dict[str, Any]:
    steps = [{"type": "Replace", "pattern": {"String": text}, "content": content}] * count
    return {kind.removesuffix("s"): {"type": "Sequence", kind: steps}}


AMPLIFIERS = {
    "replacements of a text": repeated("normalizers", 9, "e", "e" * 10),
    "replacements of an answer": repeated("decoders", 9, "e", "e" * 10),
    "one long replacement": repeated("normalizers", 1, "e", "x" * 100),
    "sequences in sequences": {
        "normalizer": {"type": "Sequence", "normalizers": [
            repeated("normalizers", 3, "e", "e" * 3)["normalizer"]] * 3},
    },
    "a beginning, then replacements": {
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "x" * 99},
            *[{"type": "Replace", "pattern": {"String": "x"}, "content": "x" * 9}] * 9]},
    },
    "a beginning of each word": {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"String": "e"}, "behavior": "Isolated", "invert": False},
            *[{"type": "Metaspace", "replacement": letter, "prepend_scheme": "always", "split": False}
              for letter in "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"]]},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", AMPLIFIERS)
def test_a_tokenizer_that_makes_much_of_little_is_stopped(tmp_path: Path, name: str) -> None:
    table = json.loads((saved(tmp_path) / "tokenizer.json").read_text())
    files = {"tokenizer.json": json.dumps(table | AMPLIFIERS[name]).encode()}
    tokenizer = Tokenizer.from_files(files, "the bundle")
    e = tokenizer.token_id("e")
    with pytest.raises(
        TokenizerError, match=r"^the bundle/tokenizer.json: makes more than \d+ bytes of a text of \d+"
    ) as error:
        tokenizer.decode([e] * 5000) if "answer" in name else tokenizer.encode("e" * 5000)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("pieces", "ids", "fine"), [(2, 1, True), (1, 65, False), (500, 200, False)])
def test_tokens_around_every_text_are_few(tmp_path: Path, pieces: int, ids: int, fine: bool) -> None:
    table = json.loads((saved(tmp_path) / "tokenizer.json").read_text())
    own = {"id": "q", "ids": [1] * ids, "tokens": ["q"] * ids}
    single = [
        {"Sequence": {"id": "A", "type_id": 0}},
        *[{"SpecialToken": {"id": "q", "type_id": 0}}] * pieces,
    ]
    around = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {"q": own}}
    nested = {"type": "Sequence", "processors": [around]}
    for processor in (around, nested):
        files = {"tokenizer.json": json.dumps(table | {"post_processor": processor}).encode()}
        if fine:
            assert len(Tokenizer.from_files(files, "the bundle").encode("a", add_special=True)) > pieces
            continue
        with pytest.raises(TokenizerError, match="puts more tokens around texts than any tokenizer"):
            Tokenizer.from_files(files, "the bundle")


def test_text_that_is_not_utf8_is_refused_in_one_line(tmp_path: Path) -> None:
    tokenizer = Tokenizer(saved(tmp_path))
    for call in (
        lambda: tokenizer.encode("a\udcff"),
        lambda: tokenizer.chat([{"role": "user", "content": "\udcff"}]),
    ):
        with pytest.raises(InvalidRequest, match="not UTF-8"):
            call()


def test_a_special_token_that_is_no_text_has_no_id(tmp_path: Path) -> None:
    tokenizer = Tokenizer(saved(tmp_path, bos_token="\ud800"))
    assert tokenizer.bos_id is None and tokenizer.token_id("\udcff") is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_files_that_are_no_files_are_refused(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path)
    for make in (
        os.mkfifo,
        lambda p: os.symlink("/dev/zero", p),
        os.mkdir,
        lambda p: os.symlink("nowhere", p),
    ):
        (path / name).unlink(missing_ok=True)
        make(path / name)
        with pytest.raises(TokenizerError, match=f"{name}: (is not a regular file|cannot open)"):
            Tokenizer(path)
        if (path / name).is_dir():
            (path / name).rmdir()


def test_a_file_larger_than_any_of_its_kind_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with open(path / "tokenizer.json", "wb") as file:
        file.truncate(1 << 40)  # no bytes on the disk
    with pytest.raises(TokenizerError, match="tokenizer.json: has 1099511627776 bytes"):
        Tokenizer(path)


# --- chat -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", CHATS)
def test_chat_equals_transformers(pair: tuple[Tokenizer, Any], messages: list[dict[str, Any]]) -> None:
    ours, reference = pair
    for prompt in (True, False):
        for extra in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            arguments: dict[str, Any] = {"add_generation_prompt": prompt, **extra}
            text = reference.apply_chat_template(messages, tokenize=False, **arguments)
            assert ours.render_chat(messages, **arguments) == text
            ids = reference.apply_chat_template(messages, return_dict=False, **arguments)
            assert ours.chat(messages, **arguments) == ids


GOLDEN = {
    "diffusion_gemma": "<bos><|turn>user\nhi<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
    "llada": "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "llada_moe": "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>hi<|role_end|>"
    "<role>ASSISTANT</role>",
    "llada2_moe": "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>hi<|role_end|>"
    "<role>ASSISTANT</role>",
    "dream": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    "<|im_start|>assistant\n",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_chat_text_of_each_family(tmp_path: Path, family: str) -> None:
    write_tokenizer(tmp_path, family)
    tokenizer = Tokenizer(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(messages) == GOLDEN[family]
    ids = tokenizer.chat(messages)
    assert tokenizer.decode(ids, skip_special=False) == GOLDEN[family]
    assert ids.count(tokenizer.bos_id) == ("bos" in GOLDEN[family] or "startoftext" in GOLDEN[family])
    if family == "diffusion_gemma":
        assert tokenizer.render_chat(messages, enable_thinking=True).endswith("<|turn>model\n")


FEATURES = {
    "whitespace": "{% for m in messages %}\n    {% if m.role == 'user' %}\n  U: {{ m.content }}\n"
    "    {% endif %}\n{% endfor %}\nend\n",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}"
    "{% continue %}never{% endfor %}",
    "generation block": "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %};"
    "{% endfor %}",
    "scoping": "{% set ns = namespace(x=0) %}{% for m in messages %}{% set ns.x = ns.x + 1 %}"
    "{% generation %}{% set inner = 1 %}{{ inner }}{% endgeneration %}"
    "{% endfor %}{{ ns.x }}{{ inner }}",
    "json": "{{ messages | tojson }}{{ {'b': '<&>', 'a': 'é'} | tojson(indent=2, sort_keys=true) }}"
    "{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }}",
    "date": "{{ strftime_now('%Y') }}",
    "special tokens": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ mask_token }}|{{ unk_token }}",
    "variables": "{{ flag }}{{ nothing }}{{ nothing is defined }}{{ tools is none }}{{ documents is none }}"
    "{{ add_generation_prompt }}",
    "methods": "{% for m in messages %}{{ m.content.strip().split(' ')[0].upper() }}{{ m.get('x', 'd') }}"
    "{% endfor %}{{ messages[0].items() | list }}{{ messages[-1]['role'] ~ messages[:1] | length }}",
    "idioms": "{%- set ns = namespace(found=false, text='', last=messages|length - 1) %}"
    "{%- for m in messages[::-1] if m.role != 'system' %}{% set ns.text = ns.text + m.content|trim + '\n' %}"
    "{% if loop.first or loop.last or loop.index0 % 2 == 0 %}"
    "{{ '%s/%d' % (m.role, loop.revindex) }}{% endif %}"
    "{% else %}none{% endfor %}{{ ns.text * 2 }}"
    "{{ ns.text.replace('H', 'J').rstrip('\n') | indent(2, true) }}"
    "{{ messages | map(attribute='role') | unique | sort | join(', ', ) }}{{ 2 ** 10 + 7 // 2 }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ [1, 2] + [3] }}{{ (1, flag) }}",
    "filters": "{{ messages | groupby('role') | list }}{{ ' a b ' | title | center(20) }}"
    "{{ {'b': 1, 'a': 2} | dictsort }}{{ [3, 1, 2] | sort(reverse=true) | first }}"
    "{{ [1, 2, 3, 4] | batch(3, 0) | list }}{{ none }}"
    "{{ ['x', 'y'] | map('upper') | join('-') }}{{ [[1], [2]] | sum(start=[]) }}{{ 'a' | default('b') }}"
    "{{ '%05.1f' | format(3.14159) }}{{ 'abc' | replace('b', '<') | e }}{{ '12' | int + 1.5 | round }}"
    "{{ 'one two' | wordcount }}{{ [1, 2, 3] | slice(2) | list }}{{ 'long text' | truncate(5) }}{{ true }}"
    "{{ messages | rejectattr('role', 'in', ['user']) | map('items') | map('list') | list | string }}",
    "text methods": "{% set t = 'Ab,c\td' %}{{ t.split(',')[-1].expandtabs(4) }}"
    "{{ '{0:>6}|{a!r}'.format(t, a=1) }}"
    "{{ ','.join(['a', 'b']) }}{{ t.ljust(9, '.') }}{{ t.find('c') }}{{ t.rsplit(',', 1) }}{{ t.encode() }}"
    "{{ t.startswith(('A', 'b')) }}{{ t.partition(',') }}{{ t.lower().capitalize().swapcase() }}{{ t[1:3] }}"
    "{{ '7'.zfill(3) }}{{ 'x'.isdigit() or 'y'.isalpha() }}{{ t.removeprefix('A').strip('bd') }}"
    "{{ t.count('b') }}",
    "recursion": "{% for n in [[1, [2, [3]]], [4]] recursive %}{% if n is iterable %}"
    "({{ loop(n) }}){% else %}"
    "{{ n }}.{{ loop.depth }}{% endif %}{% endfor %}{% set c = cycler('a', 'b') %}"
    "{{ c.next() }}{{ c.next() }}"
    "{% set j = joiner(', ') %}{{ j() }}x{{ j() }}y{% filter upper %}z{% endfilter %}{{ dict(a=1).get('a') }}"
    "{% block tail %}{% for i in range(3) %}{{ loop.cycle('o', 'e') }}{% endfor %}{% endblock %}"
    "{{ self.tail() }}"
    "{% set cap %}[{{ flag[1] }}]{% endset %}{{ cap | length }}{{ caller is defined }}"
    "{{ range(2, 9, 3) | list }}",
    "macro": "{% macro turn(m) %}[{{ m.role }}]{{ caller() }}{% endmacro %}"
    "{% for m in messages %}{% call turn(m) %}{{ m.content }}{% endcall %}{% endfor %}",
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("messages", CHATS)
def test_template_features_render_as_in_transformers(
    tmp_path: Path, feature: str, messages: list[dict[str, Any]]
) -> None:
    path = saved(tmp_path, chat_template=FEATURES[feature])
    reference = AutoTokenizer.from_pretrained(path)
    expected = reference.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, flag=[1, "x"]
    )
    text = Tokenizer(path).render_chat(messages, flag=[1, "x"])
    assert text == expected and text
    if feature == "date":
        assert abs(int(text) - datetime.now().year) <= 1


def test_named_templates(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | tojson }}"},
    ]
    path = saved(tmp_path, chat_template=named)
    tokenizer, reference = Tokenizer(path), AutoTokenizer.from_pretrained(path)
    messages, tools = CHATS[0], [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert tokenizer.render_chat(messages) == "plain"
    expected = reference.apply_chat_template(messages, tools=tools, tokenize=False)
    assert tokenizer.render_chat(messages, tools=tools) == expected != "plain"
    assert tokenizer.render_chat(messages, tools=tools, template="default") == "plain"
    for template, shown in (("rag", "'rag'"), (["rag"], r"\['rag'\]")):
        with pytest.raises(
            ChatTemplateError, match=f"no chat template {shown}; there are: default, tool_use"
        ):
            tokenizer.render_chat(messages, template=template)  # type: ignore[arg-type]


def test_a_tokenizer_from_files_in_memory_is_that_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_tokenizer(folder, "diffusion_gemma")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("{{ messages[0].content }}!")
    (folder / "additional_chat_templates" / "rag.txt").write_text("no template")
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    files |= {"notes/chat_template.jinja": b"\xff", "additional_chat_templates/a/b.jinja": b"\xff"}
    ours, theirs = Tokenizer.from_files(files, "the bundle"), Tokenizer(folder)
    talk = [{"role": "user", "content": "Hello there"}]
    assert ours.chat_templates == theirs.chat_templates and "rag" in ours.chat_templates
    assert ours.special_tokens == theirs.special_tokens and ours.mask_id == theirs.mask_id
    assert ours.chat(talk, template="rag") == theirs.chat(talk, template="rag")
    with pytest.raises(TokenizerError, match=r"^the bundle/tokenizer.json: does not exist"):
        Tokenizer.from_files({}, "the bundle")
    with pytest.raises(TokenizerError, match=r"^the bundle/tokenizer_config.json: has .* more than any"):
        Tokenizer.from_files(files | {"tokenizer_config.json": b" " * (9 << 20)}, "the bundle")


def test_template_files_win_over_the_config(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "chat_template.jinja").write_text("from the file é", encoding="utf-8")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    tokenizer, reference = Tokenizer(path), AutoTokenizer.from_pretrained(path)
    assert tokenizer.chat_templates == reference.chat_template
    assert tokenizer.render_chat(CHATS[0]) == "from the file é"
    assert tokenizer.render_chat(CHATS[0], tools=[{}]) == "with tools"


def test_no_template_and_no_messages(tmp_path: Path) -> None:
    tokenizer = Tokenizer(saved(tmp_path, chat_template=None))
    with pytest.raises(ChatTemplateError, match="no chat template; give it plain text"):
        tokenizer.chat(CHATS[0])
    with pytest.raises(ChatTemplateError, match="at least one message"):
        Tokenizer(saved(tmp_path)).chat([])


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{% for %}", "line 1"),
        ("\n{% endif %}", "line 2"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe|undefined"),
    ],
)
def test_templates_that_fail_or_are_not_allowed(tmp_path: Path, template: str, says: str) -> None:
    tokenizer = Tokenizer(saved(tmp_path, chat_template=template))
    with pytest.raises(ChatTemplateError, match=says) as error:
        tokenizer.render_chat(CHATS[0])
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_templates_see_plain_data_only(tmp_path: Path) -> None:
    tokenizer = Tokenizer(saved(tmp_path))
    with pytest.raises(ChatTemplateError, match="plain JSON data"):
        tokenizer.chat([{"role": "user", "content": Path("/")}])
    with pytest.raises(ChatTemplateError, match="plain JSON data"):
        tokenizer.chat(CHATS[0], helper=print)


@pytest.mark.parametrize("place", ["model", "vocab", "merges", "truncation", "added_tokens"])
def test_a_tokenizer_of_values_alone_is_refused(tmp_path: Path, place: str) -> None:
    """Each would take some 100 bytes."""
    write_tokenizer(tmp_path, "llada")
    content, values = json.loads((tmp_path / "tokenizer.json").read_text()), [0] * 2_000_000
    if place == "vocab":
        content["model"]["vocab"]["grown"] = values
    elif place in ("model", "merges"):
        content["model"]["grown" if place == "model" else "merges"] = values
    else:
        content[place] = values
    text = json.dumps(content, separators=(",", ":"))
    said = "is expected" if place in ("vocab", "merges") else "it has more values than any of our files"
    with pytest.raises(TokenizerError, match=rf"^here/tokenizer.json: not valid JSON \(.*{said}") as error:
        Tokenizer.from_files({"tokenizer.json": text.encode()}, "here")
    assert "\n" not in str(error.value)
