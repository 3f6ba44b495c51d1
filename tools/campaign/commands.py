"""Commands on every bundle of a campaign: it generates, is looked at and is verified."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

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


def answer(out: str) -> tuple[list[int], str] | None:
    """Token ids and text of what `generating` printed; None if it is no answer."""
    try:
        table = json.loads(out)
        return table["token_ids"], table["text"]
    except (ValueError, KeyError, TypeError):
        return None
