"""Prompts: the forms that they may have, and their token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from edgekit.flashload.names import shown, unknown
from edgekit.runtime.prompt_text import check_said, check_spelled, refused_as_prompt
from edgekit.runtime.sampling.errors import InvalidPrompt
from edgekit.runtime.tokenizer import Tokenizer

#: A message of a chat: `role`, `content` and what else the chat template reads, as plain JSON data. The
#: content is text, or a list of parts of type "text", which are joined. The role is one of `ROLES`.
Message: TypeAlias = Mapping[str, Any]
#: Text, the messages of a chat, or token ids in a list or an array of one dimension.
Prompt: TypeAlias = str | Sequence[Message] | Iterable[int]
#: Templates write any other down as it is, which no model has seen.
ROLES = ("system", "user", "assistant", "tool", "developer", "model")
#: A message may have one of these and no content: what was done in place of speaking.
_IN_PLACE_OF_CONTENT = ("tool_calls", "tool_responses")
_WANTED = 'text, chat messages (dicts with "role" and "content") or token ids (integers)'


def held(prompt: Prompt) -> str | list[Any]:
    """A prompt that can be looked at more than once. Raises InvalidPrompt for one that is empty, for text
    that no UTF-8 spells, and for what is none of the three.
    """
    given: str | list[Any]
    if isinstance(prompt, str):
        check_spelled(prompt, "the prompt")
        given = prompt
    else:
        given = _flat(prompt, "prompt", "text, messages or token ids")
    check_said(given)
    return given


def _flat(given: Iterable[Any], what: str, wanted: str) -> list[Any]:
    shape = getattr(given, "shape", (0,))
    if len(shape) != 1:
        raise InvalidPrompt(f"the {what} has shape {tuple(shape)}; give one flat list of token ids")
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidPrompt(f"a {what} of type {type(given).__name__} is not understood; give {wanted}")
    return list(given)


def messages_of(prompt: str | list[Any], system: str | None = None) -> list[dict[str, Any]] | None:
    """A prompt as messages, text as the user's; None for token ids. The content of each is one text. Raises
    InvalidPrompt.
    """
    if isinstance(prompt, str):
        found: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    else:
        if not prompt or not isinstance(prompt[0], Mapping):
            return None
        found = [_message(item, number) for number, item in enumerate(prompt)]
    if system is not None:
        found.insert(0, {"role": "system", "content": system})
    return found


def _message(item: Any, number: int) -> dict[str, Any]:
    if not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
        raise InvalidPrompt(
            f'message {number} is no dict with a "role"; write {{"role": "user", "content": ...}}'
        )
    if item["role"] not in ROLES:
        raise InvalidPrompt(f"message {number}: {unknown('role', item['role'], ROLES)}")
    found = {str(key): value for key, value in item.items()}
    content = found.get("content")
    if content is None:
        if not any(found.get(name) for name in _IN_PLACE_OF_CONTENT):
            raise InvalidPrompt(f'message {number} has no "content"; give it a text')
        return found
    if not isinstance(content, str):
        # Templates that know no parts would write the list down as Python does.
        found["content"] = content = _joined(content, number)
    check_spelled(content, f"the content of message {number}")
    return found


def _joined(parts: Any, number: int) -> str:
    """The text of a content that is given in parts."""
    where = f"the content of message {number}"
    if not isinstance(parts, list | tuple):
        raise InvalidPrompt(f"{where} is of type {type(parts).__name__}; give text")
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind != "text":
            raise InvalidPrompt(f"part {place} of {where} is of type {shown(kind)}; only text is supported")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise InvalidPrompt(f'part {place} of {where} is no text; write {{"type": "text", "text": ...}}')
    return "".join(part["text"] for part in parts)


def ids_of(given: str | list[Any], what: str = "prompt", wanted: str = _WANTED) -> list[int]:
    """Token ids as they were given. Raises InvalidPrompt for anything else."""
    ids = []
    for number, item in enumerate(given):
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            found = type(item).__name__
            raise InvalidPrompt(f"item {number} of the {what} is of type {found}; give {wanted}")
        ids.append(int(item))
    return ids


def ids_to_decode(given: Iterable[Any], vocab_size: int) -> list[int]:
    """Token ids of a model. Raises InvalidPrompt for anything else."""
    what, wanted = "list of ids", "token ids (integers)"
    ids = ids_of(_flat(given, what, wanted), what, wanted)
    for place, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise InvalidPrompt(
                f"token {token} at position {place} is outside the model's vocabulary of {vocab_size} tokens"
            )
    return ids


def check_template_arguments(system: Any, raw: Any, variables: Any) -> None:
    """Raises InvalidPrompt for what is not of the type that `Model.encode` declares, and for a system message
    that no UTF-8 spells.
    """
    if system is not None:
        check_spelled(system, "system")
    if not isinstance(raw, bool):
        raise InvalidPrompt(f"raw is {shown(raw)}; use True or False")
    if variables is None:
        return
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise InvalidPrompt(
            f"chat_template_kwargs is {shown(variables)}; give a dict of variables for the chat template"
        )
    if "messages" in variables:
        raise InvalidPrompt("chat_template_kwargs has messages, which the prompt gives; leave it away")


def encode(
    tokenizer: Tokenizer, prompt: Prompt, system: str | None, raw: bool, variables: Mapping[str, Any] | None
) -> list[int]:
    """Token ids of the first prompt of a conversation; see `Model.encode`. Raises InvalidPrompt
    and ChatTemplateError.
    """
    check_template_arguments(system, raw, variables)
    prompt = held(prompt)
    messages = messages_of(prompt, system)
    if messages is None:
        check_template_unused("token ids are taken as they are", system, variables)
        return ids_of(prompt)
    if isinstance(prompt, str) and (raw or not tokenizer.chat_templates):
        why = "raw leaves the chat template out" if raw else "the model has no chat template"
        check_template_unused(why, system, variables)
        with refused_as_prompt():
            return tokenizer.encode(prompt)
    if raw:
        raise InvalidPrompt(
            "raw leaves the chat template out, which messages need; give text, or leave raw away"
        )
    with refused_as_prompt():
        return tokenizer.chat(messages, **(variables or {}))


def check_template_unused(why: str, system: str | None, variables: Mapping[str, Any] | None) -> None:
    """Raises InvalidPrompt for what only a chat template could take."""
    for name, value in (("system", system), ("chat_template_kwargs", variables)):
        if value:
            raise InvalidPrompt(f"{why}, so there is no place for {name}; leave it away")
