"""What measuring costs is told of equal runs, in turns."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from edgekit.tools.bench import measuring
from edgekit.tools.intervals import median_interval


def test_pairs_of_equal_runs_and_their_ratios(shipped_bundle: Callable[..., Path]) -> None:
    words = [
        str(shipped_bundle("tiny-llada", "native")),
        "--rounds",
        "6",
        "--forwards",
        "4",
        "--new-tokens",
        "8",
    ]
    done = CliRunner().invoke(measuring.main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [list(pair) for pair in found["pairs"]] == [["alone", "measured"], ["measured", "alone"]] * 3
    for pair in found["pairs"]:
        assert pair["alone"]["steps"] == pair["measured"]["steps"] == found["steps"] == 3
    told = {
        name: statistics.median(pair[name]["telling_seconds"] for pair in found["pairs"])
        for name in ("alone", "measured")
    }
    assert found["telling_us"] == 1e6 * (told["measured"] - told["alone"])
    for name in ("seconds", "processor_seconds"):
        ratios = [pair["measured"][name] / pair["alone"][name] for pair in found["pairs"]]
        assert found[name]["median"] == statistics.median(ratios) > 0
        assert tuple(found[name]["interval"]) == median_interval(ratios)


def test_few_pairs_have_no_interval_and_one_draft_no_step(shipped_bundle: Callable[..., Path]) -> None:
    bundle = str(shipped_bundle("tiny-llada", "native"))
    done = CliRunner().invoke(measuring.main, [bundle, "--rounds", "1", "--new-tokens", "4"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("1 pairs of 3 steps of ") and done.stdout.count("too few pairs") == 2
    done = CliRunner().invoke(measuring.main, [bundle, "--new-tokens", "1"])
    assert done.exit_code == 1 and "fewer than two drafts; give more --new-tokens" in done.output
