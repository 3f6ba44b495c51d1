"""`edgekit options`, and settings by name on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import edgekit
from edgekit.export.checkpoint.hub import SHIPPED_MODELS
from edgekit.runtime import generation
from edgekit.tools.cli import main
from edgekit.tools.setting_table import allowed


def output(*words: str | Path) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", SHIPPED_MODELS)
def test_the_list_is_that_of_the_interface_and_opens_no_session(
    shipped_bundle: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = shipped_bundle(name)

    def session(*_: Any) -> Any:
        raise AssertionError("a session was opened")

    monkeypatch.setattr(generation, "open_session", session)
    with edgekit.load(bundle) as model:
        expected, family = [asdict(option) for option in model.options()], model.family
    printed = json.loads(output("options", bundle, "--json"))
    assert printed == json.loads(json.dumps({"bundle": str(bundle), "family": family, "options": expected}))
    heading, *lines = output("options", bundle).splitlines()
    assert heading.split() == ["name", "default", "may", "be", "meaning"]
    assert [line.split()[0] for line in lines] == [option["name"] for option in expected]
    for line, option in zip(lines, expected, strict=True):
        assert f" {json.dumps(option['default'])} " in line and line.endswith(option["help"])


def test_what_is_listed_can_be_set(shipped_bundle: Callable[[str], Path]) -> None:
    """Every name with its default, as it is printed: the same answer."""
    for name in SHIPPED_MODELS:
        bundle = shipped_bundle(name)
        words: list[str] = []
        for option in json.loads(output("options", bundle, "--json"))["options"]:
            words += ["--set", f"{option['name']}={json.dumps(option['default'])}"]
        prompt = "What is 23 + 45?"
        assert output("run", bundle, prompt, *words) == output("run", bundle, prompt) == "68\n"


def option(**changed: Any) -> edgekit.Option:
    found = {
        "name": "x", "type": "float", "default": 0, "minimum": None, "maximum": None, "above_minimum": False,
        "choices": (), "optional": False, "help": "",
    }  # fmt: skip
    return edgekit.Option(**{**found, **changed})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "number"),
        ({"type": "int", "minimum": 1}, "integer from 1"),
        (
            {"minimum": 0, "above_minimum": True, "maximum": 1, "optional": True},
            "number above 0 to 1 or null",
        ),
        ({"type": "str", "choices": ("entropy", "origin")}, "entropy or origin"),
        ({"type": "bool"}, "true or false"),
        ({"type": "ids"}, "list of token ids"),
    ],
)
def test_ranges_are_words(changed: dict[str, Any], said: str) -> None:
    assert allowed(option(**changed)) == said
