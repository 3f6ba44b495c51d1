"""Commands on every bundle of a campaign: it generates, is looked at and is verified."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from edgekit.tools.campaign.tokenizers import CHAT, TOKENIZER

#: Formats whose runtime is not on this system: their packages are evaluated instead.
EVALUATED = ("coreml",)


def preload(format_name: str) -> None:
    """Import what the commands will, without starting threads or opening files of a bundle."""
    import edgekit.runtime.engine_registry
    import edgekit.runtime.generation
    import edgekit.tools.answer_display
    import edgekit.tools.cli
    import edgekit.tools.commands.inspect
    import edgekit.tools.commands.run
    import edgekit.tools.commands.verify

    row = edgekit.runtime.engine_registry.running(format_name)
    if format_name in EVALUATED:
        import edgekit.runtime.checks.mil_executor
    elif row is not None and row.gives != "core":
        row.load()


#: Denoising steps of an answer: more of them show nothing more about a bundle.
STEPS = 2


def generating(bundle: Path, format_name: str, prompt: str, tokens: int) -> Callable[[], None]:
    """`edgekit run --json`, or the same through the evaluator of packages."""
    if format_name not in EVALUATED:
        length = ("--max-new-tokens", str(tokens), "--steps", str(STEPS))
        return _command("run", str(bundle), "-p", prompt, *length, "--json")

    def evaluate() -> None:
        from edgekit.runtime.checks.mil_executor import MilExecutor
        from edgekit.runtime.generation import Generator, Prompt, Settings
        from edgekit.runtime.sampling import Committed
        from edgekit.tools.failures import failure

        settings = Settings(max_new_tokens=tokens, steps=STEPS)
        try:
            with Generator(bundle, executor=MilExecutor()) as generator:
                ids = [
                    int(token)
                    for event in generator.generate(Prompt(prompt), settings)
                    if isinstance(event, Committed)
                    for token in event.ids
                ]
                print(json.dumps({"token_ids": ids, "text": generator.tokenizer.decode(ids)}))
        except Exception as error:
            found = failure(error)
            found.show()
            sys.exit(found.exit_code)

    return evaluate


def inspecting(bundle: Path) -> Callable[[], None]:
    return _command("inspect", str(bundle))


def verifying(bundle: Path) -> Callable[[], None]:
    return _command("verify", str(bundle))


def _command(*words: str) -> Callable[[], None]:
    def run() -> None:
        from edgekit.tools.cli import main

        main(list(words), prog_name="edgekit")

    return run


#: Encoded, decoded and streamed in time that goes with their length: quadratic time would be seen.
_TEXTS = (
    "", "a", "<s>ab</s> \n\t 12 l'Été ▁▁ 🦊\ufffd e\u0301\u0327", "  two  " * 9,
    "a" * 100_000, " " * 100_000, "🦊é1" * 10_000, "ab ba\n" * 10_000,
)  # fmt: skip
_STREAMED = 20_000  # ids of the last of them, one at a time; of the others a few
_CHATS = (("user",), ("system", "user"), ("user", "assistant", "user"))


def reading_text(folder: Path) -> Callable[[], None]:
    """The core's way through the tokenizer.json and chat.json of a folder."""

    def read() -> None:
        from edgekit.flashload.errors import EdgekitError
        from edgekit.runtime.tokenizer.core_text import CoreText
        from edgekit.tools.failures import REFUSED

        refused = 0

        def refuse(error: EdgekitError) -> None:
            """A text may be refused as well as a file; only the first is said."""
            nonlocal refused
            if not str(error).isprintable() or "report it" in str(error):
                raise error
            if not refused:
                print(f"edgekit: error: {error}", file=sys.stderr)
            refused = REFUSED

        try:
            with CoreText((folder / TOKENIZER).read_bytes()) as own:
                for text in _TEXTS:
                    try:
                        ids = own.encode(text)
                        own.decode(ids, skip_special=False)
                        own.decode(own.encode_behind(text))
                        with own.stream() as stream:
                            for each in ids[: _STREAMED if text is _TEXTS[-1] else 100]:
                                stream.push([each])
                            stream.finish()
                    except EdgekitError as error:
                        refuse(error)
                own.set_chat_form((folder / CHAT).read_bytes())
                for roles in _CHATS:
                    try:
                        own.chat([{"role": role, "content": " a</think>\n"} for role in roles])
                    except EdgekitError as error:
                        refuse(error)
        except EdgekitError as error:
            refuse(error)
        sys.exit(refused)

    return read


def answer(out: str) -> tuple[list[int], str] | None:
    """Token ids and text of what `generating` printed; None if it is no answer."""
    try:
        table = json.loads(out)
        return table["token_ids"], table["text"]
    except (ValueError, KeyError, TypeError):
        return None
