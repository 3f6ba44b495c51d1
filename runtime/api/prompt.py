"""What a prompt may be, and its token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from edgekit.runtime.sampling.errors import InvalidPrompt
from edgekit.runtime.text import Tokenizer

#: A message of a chat: `role`, `content` and what else the chat template reads, as plain JSON data.
Message: TypeAlias = Mapping[str, Any]
#: Text, the messages of a chat, or token ids in a list or an array of one dimension.
Prompt: TypeAlias = str | Sequence[Message] | Iterable[int]


def held(prompt: Prompt) -> str | list[Any]:
    """A prompt that can be looked at more than once. Raises InvalidPrompt for what is none of the three."""
    if isinstance(prompt, str):
        return prompt
    shape = getattr(prompt, "shape", (0,))
    if len(shape) != 1:
        raise InvalidPrompt(f"the prompt has shape {tuple(shape)}; give one flat list of token ids")
    if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
        found = type(prompt).__name__
        raise InvalidPrompt(f"a prompt of type {found} is not understood; give text, messages or token ids")
    return list(prompt)


def messages_of(prompt: str | list[Any], system: str | None = None) -> list[dict[str, Any]] | None:
    """A prompt as messages, text as the user's; None for token ids. Raises InvalidPrompt."""
    if isinstance(prompt, str):
        found: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    else:
        if not prompt or not isinstance(prompt[0], Mapping):
            return None
        found = []
        for number, item in enumerate(prompt):
            if not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
                raise InvalidPrompt(
                    f'message {number} is no dict with a "role"; write {{"role": "user", "content": ...}}'
                )
            found.append({str(key): value for key, value in item.items()})
    if system is not None:
        found.insert(0, {"role": "system", "content": system})
    return found


def ids_of(prompt: str | list[Any]) -> list[int]:
    """Token ids as they were given. Raises InvalidPrompt for anything else."""
    ids = []
    for number, item in enumerate(prompt):
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise InvalidPrompt(
                f"item {number} of the prompt is of type {type(item).__name__}; give text, chat messages "
                '(dicts with "role" and "content") or token ids (integers)'
            )
        ids.append(int(item))
    return ids


def encode(
    tokenizer: Tokenizer, prompt: Prompt, system: str | None, raw: bool, variables: Mapping[str, Any] | None
) -> list[int]:
    """Token ids of the first prompt of a conversation; see `Model.encode`. Raises InvalidPrompt and
    ChatTemplateError.
    """
    prompt = held(prompt)
    messages = messages_of(prompt, system)
    if messages is None:
        check_template_unused("token ids are taken as they are", system, variables)
        return ids_of(prompt)
    if isinstance(prompt, str) and (raw or not tokenizer.chat_templates):
        why = "raw leaves the chat template out" if raw else "the model has no chat template"
        check_template_unused(why, system, variables)
        return tokenizer.encode(prompt)
    if raw:
        raise InvalidPrompt(
            "raw leaves the chat template out, which messages need; give text, or leave raw away"
        )
    return tokenizer.chat(messages, **(variables or {}))


def check_template_unused(why: str, system: str | None, variables: Mapping[str, Any] | None) -> None:
    """Raises InvalidPrompt for what only a chat template could take."""
    for name, value in (("system", system), ("chat_template_kwargs", variables)):
        if value:
            raise InvalidPrompt(f"{why}, so there is no place for {name}; leave it away")
