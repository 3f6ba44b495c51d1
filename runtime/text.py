"""Text to token ids and back: the checkpoint's own tokenizer and chat template, without transformers.

Chat templates are programs from whoever published the checkpoint. They run in Jinja's sandbox and see plain
JSON data only, never the objects of the caller.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.errors import one_line

if TYPE_CHECKING:
    import jinja2

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
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_FOLDER = "additional_chat_templates"
REPLACEMENT = "\ufffd"


class TokenizerError(EdgekitError):
    """The tokenizer files are missing or malformed."""


class ChatTemplateError(EdgekitError):
    """There is no chat template, or it cannot be applied to these messages."""


class Tokenizer:
    """The tokenizer in directory `path`: tokenizer.json, and tokenizer_config.json if it is there.

    Ids are those of the model. `bos_id`, `eos_id`, `pad_id` and `mask_id` are None where the files name no
    such token.
    Raises TokenizerError.
    """

    def __init__(self, path: str | Path) -> None:
        from tokenizers import Tokenizer as Backend

        self.path = Path(path)
        file = self.path / "tokenizer.json"
        if not file.is_file():
            raise TokenizerError(f"{file}: does not exist; give a directory with a tokenizer")
        try:
            self._backend = Backend.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for any malformed file
            raise TokenizerError(
                f"{file}: is not a tokenizer ({one_line(error)}); download it again"
            ) from error
        # Files saved after training may carry a length limit or padding that is no part of the model.
        self._backend.no_truncation()
        self._backend.no_padding()
        config = _json_object(self.path / "tokenizer_config.json")
        self.special_tokens = _special_tokens(config, _json_object(self.path / "special_tokens_map.json"))
        self.chat_templates = _chat_templates(self.path, config)
        self.bos_id = self._special_id("bos_token")
        self.eos_id = self._special_id("eos_token")
        self.pad_id = self._special_id("pad_token")
        self.mask_id = self._special_id("mask_token")

    @property
    def vocab_size(self) -> int:
        """Number of tokens with a text; the model's embedding may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def token_id(self, token: str) -> int | None:
        """Id of the token spelled exactly `token`, None if there is none."""
        return self._backend.token_to_id(token)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Ids of `text`. add_special: with what the tokenizer puts around a text, usually a bos."""
        return self._backend.encode(text, add_special_tokens=add_special).ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD. skip_special: leave special tokens out."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
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

        if not messages:
            raise ChatTemplateError("a chat needs at least one message")
        conversation = [
            {key: value for key, value in message.items() if value is not None} for message in messages
        ]
        name = self._template_name(template, bool(tools))
        try:
            data = json.loads(
                json.dumps({"messages": conversation, "tools": tools or None, "variables": kwargs})
            )
        except (TypeError, ValueError) as error:
            raise ChatTemplateError(
                f"messages and template variables must be plain JSON data: {error}"
            ) from error
        variables = self.special_tokens | data["variables"]
        try:
            return self._compiled(name).render(
                variables,
                messages=data["messages"],
                tools=data["tools"],
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except jinja2.TemplateError as error:
            message = f"{self.path}: chat template {name!r} refuses this conversation: {one_line(error)}"
            raise ChatTemplateError(message) from error
        except Exception as error:  # the template is a program of its own: any exception can come out of it
            message = f"{self.path}: chat template {name!r} fails: {type(error).__name__}: {one_line(error)}"
            raise ChatTemplateError(message) from error

    def chat_turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        turn: Sequence[Mapping[str, Any]],
        last: int | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Ids that a chat template puts behind an answer: the end of that turn, `turn` (messages), and the
        opening of the model's next turn. `messages` come before the answer, which is not among them: its
        tokens stay as they were committed, whatever the template would make of their text.

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
                f"{self.path}: the chat template leaves earlier answers out, so that no turn can follow one"
            )
        ids = self.encode(behind, add_special=False)
        return ids[1:] if ids and ids[0] == last else ids

    def stream(self, skip_special: bool = True) -> TextStream:
        """A decoder for ids that arrive in pieces."""
        return TextStream(self, skip_special)

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.token_id(token)

    def _template_name(self, template: str | None, with_tools: bool) -> str:
        known = self.chat_templates
        if not known:
            raise ChatTemplateError(
                f"{self.path}: the model has no chat template; give it plain text instead"
            )
        if template is None:
            template = "tool_use" if with_tools and "tool_use" in known else "default"
        if template not in known:
            raise ChatTemplateError(
                f"{self.path}: no chat template {template!r}; there are: {', '.join(known)}"
            )
        return template

    def _compiled(self, name: str) -> jinja2.Template:
        import jinja2

        if name not in self._templates:
            try:
                self._templates[name] = _environment().from_string(self.chat_templates[name])
            except jinja2.TemplateSyntaxError as error:
                where = f"{self.path}: chat template {name!r} line {error.lineno}"
                raise ChatTemplateError(f"{where}: {one_line(error)}") from error
        return self._templates[name]

    @cached_property
    def _templates(self) -> dict[str, jinja2.Template]:
        return {}


class TextStream:
    """Turns ids that arrive piece by piece into text.

    A character may be spread over several tokens, and its bytes over two pieces: what ends in U+FFFD is held
    back until more ids arrive or `finish` is called. The pieces joined are the `decode` of all ids;
    only byte tokens (Gemma's kind) that break off inside a character may leave fewer U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._text = ""
        self._emitted = 0

    def push(self, ids: Iterable[int]) -> str:
        """Take more ids; returns the text that has become certain, perhaps none."""
        self._ids.extend(int(i) for i in ids)
        # All ids are decoded anew: decoders look at neighbours (leading spaces, runs of byte tokens), and a
        # whole answer decodes in milliseconds.
        self._text = self._tokenizer.decode(self._ids, self._skip_special)
        return self._emit(len(self._text.rstrip(REPLACEMENT)))

    def finish(self) -> str:
        """The text still held back; what is incomplete stays U+FFFD."""
        return self._emit(len(self._text))

    def _emit(self, end: int) -> str:
        piece = self._text[self._emitted : end]
        self._emitted = max(self._emitted, end)
        return piece


# --- files --------------------------------------------------------------------------------------------------


def _json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TokenizerError(f"{path}: cannot be read ({error}); download it again") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: is not a JSON object; download it again")
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


def _chat_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> template. Files win over tokenizer_config.json, which has one text or a list of named ones."""
    templates = {}
    if (path / TEMPLATE_FILE).is_file():
        templates["default"] = (path / TEMPLATE_FILE).read_text(encoding="utf-8")
    for file in sorted((path / TEMPLATE_FOLDER).glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    if templates:
        return templates
    inline = config.get("chat_template")
    if inline is None:
        return {}
    if isinstance(inline, str):
        return {"default": inline}
    try:
        return {str(item["name"]): str(item["template"]) for item in inline}
    except (TypeError, KeyError) as error:
        raise TokenizerError(
            f"{path / 'tokenizer_config.json'}: chat_template is neither text nor a list of name and template"
        ) from error


# --- templates ----------------------------------------------------------------------------------------------


def _environment() -> jinja2.Environment:
    """The environment that published templates are written for.

    Whitespace settings, globals and filters are those that transformers documents for chat templates; its
    `{% generation %}` blocks, which mark the assistant's text for training, render as their contents.
    """
    import jinja2.ext
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlocks(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(format: str) -> str:
        return datetime.now().strftime(format)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own filter escapes HTML, which a prompt must not contain.
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment
