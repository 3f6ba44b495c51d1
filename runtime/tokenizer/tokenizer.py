"""Text to token ids and back: the checkpoint's own tokenizer and chat template, without transformers.

Chat templates are programs from whoever published the checkpoint. They run in Jinja's sandbox and see plain
JSON data only, never the objects of the caller.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.flashload.errors import BundleError, InvalidRequest
from edgekit.flashload.files import read_table
from edgekit.runtime.errors import one_line
from edgekit.runtime.tokenizer.canvas_text import CanvasText
from edgekit.runtime.tokenizer.core_text import CoreText
from edgekit.runtime.tokenizer.errors import ChatTemplateError, TokenizerError, of_files
from edgekit.runtime.tokenizer.text_stream import TextStream

if TYPE_CHECKING:
    import jinja2

    from edgekit.runtime.tokenizer.template_sandbox import ChatEnvironment

# Names under which tokenizer_config.json gives special tokens; templates see them as variables.
SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
OLDER_CONFIG_FILE = "special_tokens_map.json"
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_FOLDER = "additional_chat_templates"
# The largest published tokenizer.json has 35 MB, the largest template 30 kB.
MOST_TOKENIZER_BYTES = 128 << 20
MOST_CONFIG_BYTES = 8 << 20
MOST_TEMPLATE_BYTES = 128 << 10
MOST_TEMPLATES = 64


class Tokenizer:
    """The tokenizer in directory `path`: tokenizer.json, and the files beside it that say more.

    Ids are those of the model. `bos_id`, `eos_id`, `pad_id` and `mask_id` are None where the files name no
    such token. The core reads tokenizer.json (`ek_text_open_json` in edgekit.h), and refuses what it does not
    know. Threads may use a tokenizer together.
    Raises TokenizerError.
    """

    def __init__(self, path: str | Path) -> None:
        self._load(_folder_files(Path(path)), str(path))

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], where: str) -> Tokenizer:
        """The tokenizer in `files`, contents by relative name; `where` names their place in messages.

        Names that have an effect: tokenizer.json, tokenizer_config.json, special_tokens_map.json,
        chat_template.jinja and additional_chat_templates/NAME.jinja.
        Raises TokenizerError.
        """
        tokenizer = cls.__new__(cls)
        tokenizer._load(files, where)
        return tokenizer

    def _load(self, files: Mapping[str, bytes], where: str) -> None:
        self.where = where
        for name, content in files.items():
            if (most := most_bytes(name)) and len(content) > most:
                raise TokenizerError(f"{where}/{name}: has {len(content)} bytes, more than any such file")
        if TOKENIZER_FILE not in files:
            raise TokenizerError(
                f"{where}/{TOKENIZER_FILE}: does not exist; give a directory with a tokenizer"
            )
        with of_files(where):
            self._core = CoreText(files[TOKENIZER_FILE])
        config = _json_object(files, CONFIG_FILE, where)
        self.special_tokens = _special_tokens(config, _json_object(files, OLDER_CONFIG_FILE, where))
        self.chat_templates = _chat_templates(files, config, where)
        self.bos_id = self._special_id("bos_token")
        self.eos_id = self._special_id("eos_token")
        self.pad_id = self._special_id("pad_token")
        self.mask_id = self._special_id("mask_token")

    @property
    def vocab_size(self) -> int:
        """Number of tokens with a text; the model's embedding may have more rows."""
        return self._core.count()

    def token_id(self, token: str) -> int | None:
        """Id of the token spelled exactly `token`, None if there is none."""
        return self._core.find(token)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Ids of `text`. add_special: with what the tokenizer puts around a text, usually a bos.

        Raises InvalidRequest for text that no UTF-8 spells, TokenizerError.
        """
        check_text(text, "the text")
        with of_files(self.where):
            return self._core.encode(text, add_special)

    def encode_behind(self, text: str) -> list[int]:
        """Ids of a text that goes on behind another one: a tokenizer that puts a space before every text puts
        none here, and no token reaches over the border. Raises as `encode` does.
        """
        check_text(text, "the text")
        with of_files(self.where):
            return self._core.encode_behind(text)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD, and ids that are no token are left out.
        skip_special: leave special tokens out. Raises TokenizerError.
        """
        with of_files(self.where):
            return self._core.decode([int(i) for i in ids], skip_special)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Ids of a conversation; arguments as in `render_chat`. Only the template writes bos."""
        text = self.render_chat(
            messages, add_generation_prompt=add_generation_prompt, template=template, tools=tools, **kwargs
        )
        return self.encode(text, add_special=False)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Apply a chat template.

        messages: dicts with `role`, `content` and whatever else the template reads; keys whose value is None
        are left out. add_generation_prompt: end with the opening of the model's turn. template: name of one
        of `chat_templates`; without it "tool_use" where it exists and tools are given, else "default".
        kwargs: variables for the template, such as `enable_thinking`.
        Raises ChatTemplateError.
        """
        import jinja2

        from edgekit.runtime.tokenizer.template_sandbox import allowance

        if not messages:
            raise ChatTemplateError("a chat needs at least one message")
        conversation = [
            {key: value for key, value in message.items() if value is not None} for message in messages
        ]
        name = self._template_name(template, bool(tools))
        try:
            plain = json.dumps({"messages": conversation, "tools": tools or None, "variables": kwargs})
            data = json.loads(plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(
                f"messages and template variables must be plain JSON data: {error}"
            ) from error
        variables = self.special_tokens | data["variables"]
        compiled = self._compiled(name)
        try:
            with allowance(len(plain)):
                return compiled.render(
                    variables,
                    messages=data["messages"],
                    tools=data["tools"],
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                )
        except jinja2.TemplateError as error:
            message = f"{self.where}: chat template {name!r} refuses this conversation: {one_line(error)}"
            raise ChatTemplateError(message) from error
        except Exception as error:  # the template is a program of its own: any exception can come out of it
            message = f"{self.where}: chat template {name!r} fails: {type(error).__name__}: {one_line(error)}"
            raise ChatTemplateError(message) from error

    def template_constants(self, template: str | None = None) -> tuple[list[str], list[int]]:
        """Texts and whole numbers that stand in the expressions of a chat template, each once. Raises
        ChatTemplateError.
        """
        from jinja2 import nodes

        name = self._template_name(template, False)
        self._compiled(name)
        tree = self._environment.parse(self.chat_templates[name])
        found = [node.value for node in tree.find_all(nodes.Const)]
        texts = dict.fromkeys(value for value in found if isinstance(value, str))
        return list(texts), sorted({value for value in found if type(value) is int})

    def chat_turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        turn: Sequence[Mapping[str, Any]],
        last: int | None = None,
        /,
        **kwargs: Any,
    ) -> list[int]:
        """Ids that a chat template puts behind an answer: the end of that turn, `turn` (messages), and the
        opening of the model's next turn. `messages` come before the answer, which is not among them: its
        tokens stay as they were committed, whatever the template would make of their text. What follows is
        encoded as in the middle of a text, and never merged with the answer's last token.

        `last` is the answer's last token: an end of turn that the model has written itself is not repeated.
        kwargs: variables for the template. Raises ChatTemplateError.
        """
        mark = "answer"
        while any(mark in str(m.get("content")) for m in (*messages, *turn)) or len(mark) < 16:
            mark += str(len(mark))
        answer = {"role": "assistant", "content": mark}
        text = self.render_chat([*messages, answer, *turn], **kwargs)
        _, found, behind = text.rpartition(mark)
        if not found:
            raise ChatTemplateError(
                f"{self.where}: the chat template leaves earlier answers out, so that no turn can follow one"
            )
        ids = self.encode_behind(behind)
        return ids[1:] if ids and ids[0] == last else ids

    def stream(self, skip_special: bool = True) -> TextStream:
        """A decoder for ids that arrive in pieces."""
        return TextStream(self._core, self.where, skip_special)

    def canvas_text(self, mask_id: int | None) -> CanvasText:
        """What a screen draws of an answer while it resolves. `mask_id`: the token of open places, None
        for a family that guesses at every place.
        """
        return CanvasText(self._core, self.where, mask_id)

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.token_id(token)

    def _template_name(self, template: str | None, with_tools: bool) -> str:
        known = self.chat_templates
        if not known:
            raise ChatTemplateError(
                f"{self.where}: the model has no chat template; give it plain text instead"
            )
        if template is None:
            template = "tool_use" if with_tools and "tool_use" in known else "default"
        if not isinstance(template, str) or template not in known:
            raise ChatTemplateError(
                f"{self.where}: no chat template {template!r}; there are: {', '.join(known)}"
            )
        return template

    def _compiled(self, name: str) -> jinja2.Template:
        import jinja2

        if name in self._templates:
            return self._templates[name]
        source, where = self.chat_templates[name], f"{self.where}: chat template {name!r}"
        if len(source) > MOST_TEMPLATE_BYTES:
            raise ChatTemplateError(f"{where}: has {len(source)} characters, more than any chat template")
        try:
            self._templates[name] = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"{where} line {error.lineno}: {one_line(error)}") from error
        except Exception as error:  # Python's compiler and Jinja's have limits of their own
            raise ChatTemplateError(f"{where}: does not compile: {one_line(error)}") from error
        return self._templates[name]

    @cached_property
    def _environment(self) -> ChatEnvironment:
        from edgekit.runtime.tokenizer.template_sandbox import ChatEnvironment

        return ChatEnvironment()

    @cached_property
    def _templates(self) -> dict[str, jinja2.Template]:
        return {}


def check_text(text: str, what: str) -> None:
    """Raises InvalidRequest, which begins with `what`, for text that no UTF-8 spells."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # the operating system's way to pass on bytes that are not UTF-8
        raise InvalidRequest(
            f"{what} is not UTF-8 (character {error.start} is a lone surrogate); give it so encoded"
        ) from error


# --- files --------------------------------------------------------------------------------------------------


def most_bytes(name: str) -> int:
    """Largest size of the tokenizer file `name`, 0 if a file of that name has no effect."""
    if name == TOKENIZER_FILE:
        return MOST_TOKENIZER_BYTES
    if name in (CONFIG_FILE, OLDER_CONFIG_FILE):
        return MOST_CONFIG_BYTES
    return MOST_TEMPLATE_BYTES if name == TEMPLATE_FILE or _template_stem(name) else 0


def _template_stem(name: str) -> str:
    """NAME of additional_chat_templates/NAME.jinja, empty for any other name."""
    folder, _, file = name.partition("/")
    if folder != TEMPLATE_FOLDER or "/" in file or not file.endswith(".jinja"):
        return ""
    return file.removesuffix(".jinja")


def template_files(folder: Path) -> list[str]:
    """Names, relative to `folder`, of its templates beyond the default one, in order."""
    names = (f"{TEMPLATE_FOLDER}/{path.name}" for path in (folder / TEMPLATE_FOLDER).glob("*.jinja"))
    return sorted(name for name in names if _template_stem(name))


def _folder_files(folder: Path) -> dict[str, bytes]:
    """The files of a tokenizer in `folder`: relative name -> contents."""
    names = [TOKENIZER_FILE, CONFIG_FILE, OLDER_CONFIG_FILE, TEMPLATE_FILE, *template_files(folder)]
    try:
        return {
            name: read_table(folder / name, most_bytes(name), "such file", "download it again")
            for name in names
            if os.path.lexists(folder / name)
        }
    except BundleError as error:
        raise TokenizerError(str(error)) from error


def _text(files: Mapping[str, bytes], name: str, where: str) -> str:
    try:
        return files[name].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{where}/{name}: is not UTF-8 text ({error}); download it again") from error


def _json_object(files: Mapping[str, bytes], name: str, where: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(_text(files, name, where))
    except RecursionError as error:
        raise TokenizerError(f"{where}/{name}: is nested too deeply; download it again") from error
    except ValueError as error:
        raise TokenizerError(f"{where}/{name}: cannot be read ({error}); download it again") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{where}/{name}: is not a JSON object; download it again")
    return value


def _special_tokens(config: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, str]:
    """Role -> token text. A value is a string or a dict with `content`; the config wins over the map."""
    found = {}
    for name in SPECIAL_TOKEN_NAMES:
        value = config.get(name)
        if value is None:
            value = older.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _chat_templates(files: Mapping[str, bytes], config: Mapping[str, Any], where: str) -> dict[str, str]:
    """Name -> template. Files win over tokenizer_config.json, which has one text or a list of named ones."""
    named = {stem: name for name in sorted(files) if (stem := _template_stem(name))}
    if TEMPLATE_FILE in files:
        named.setdefault("default", TEMPLATE_FILE)
    templates = {stem: _text(files, name, where) for stem, name in named.items()}
    if not templates:
        templates = _inline_templates(config.get("chat_template"), f"{where}/{CONFIG_FILE}")
    if len(templates) > MOST_TEMPLATES:
        raise TokenizerError(f"{where}: has {len(templates)} chat templates, more than any tokenizer")
    return templates


def _inline_templates(inline: Any, where: str) -> dict[str, str]:
    if inline is None:
        return {}
    if isinstance(inline, str):
        return {"default": inline}
    if not isinstance(inline, list) or not all(
        isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
        for item in inline
    ):
        raise TokenizerError(f"{where}: chat_template is neither text nor a list of name and template")
    return {item["name"]: item["template"] for item in inline}
