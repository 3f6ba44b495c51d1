"""What reports of the same benchmark have in common, whatever language asked for it."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner

from edgekit.tools.cli import main


def bench(*words: object) -> str:
    """What `edgekit bench` prints."""
    done = CliRunner().invoke(main, ["bench", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def counts(test: dict[str, Any]) -> dict[str, Any]:
    """What no clock changes."""
    names = (
        "prompt_tokens", "committed_tokens", "canvas_tokens", "prefill_passes", "denoise_passes",
        "head_passes", "pass_rows",
    )  # fmt: skip
    columns = ("kind", "rows", "segments", "head_rows", "attended", "expert_rows")
    at = [test["passes"]["columns"].index(name) for name in columns]
    sequences = [{k: v for k, v in each.items() if not k.endswith("seconds")} for each in test["sequences"]]
    return {
        **{name: test[name] for name in names},
        "passes": [[row[i] for i in at] for row in test["passes"]["rows"]],
        "sequences": sequences,
    }


def check_equal_counts(own: dict[str, Any], python: dict[str, Any], forwards: int) -> None:
    """`own`, of two tests with a meter of the caller's, beside the report of `edgekit bench`."""
    assert own.keys() == python.keys() and own["bundle"] == python["bundle"]
    for name in ("pinned", "streamed", "ring"):
        assert own["plan"][name] == python["plan"][name]
    assert len(own["tests"]) == len(python["tests"]) == 2
    for test, other in zip(own["tests"], python["tests"], strict=True):
        assert test["energy"][0]["meter"] == "own" and test["energy"][0]["joules"] > 0
        assert counts(test) == counts(other)
        # What is read ahead of a pass that does not come depends on when that is known.
        assert min(test["bytes_read"], other["bytes_read"]) > 0
        assert abs(test["bytes_read"] - other["bytes_read"]) <= python["plan"]["ring"]
        assert test["denoise_passes"] == (forwards or test["sequences"][0]["forwards"])
        assert test["sequences"][0]["done"] == (not forwards)
