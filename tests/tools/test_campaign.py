"""A hundred edits of a bundle, and every edit that ever did harm: see `edgekit.tools.campaign`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.tools.campaign import tokenizers
from edgekit.tools.campaign.edits import Edit, NotHere, apply, copy_bundle
from edgekit.tools.campaign.hostile import Hostile
from edgekit.tools.campaign.hostile_text import HostileText
from edgekit.tools.campaign.judge import faults
from edgekit.tools.campaign.trial import Trial

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc")

#: What a format's engine is made with.
PACKAGES = {"mlx": "mlx.core", "onnx": "onnxruntime", "coreml": "coremltools", "coreai": "coreai"}
#: Lines of JSON as the command appends them: edits whose faults were mended.
MENDED = Path(__file__).parent / "campaign" / "mended.jsonl"
ROOT = Path(__file__).parents[2]
MENDED_TEXT = MENDED.with_name("mended_text.jsonl")


def campaign(*words: str | Path, of: str = "edgekit.tools.campaign") -> list[dict[str, object]]:
    """What the command counts, in a process of its own: this one has threads, which a fork would lose."""
    done = subprocess.run([sys.executable, "-m", of, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *said, counts = done.stdout.splitlines()
    assert said == []
    found: list[dict[str, object]] = json.loads(counts)
    return found


def test_a_hundred_edits_do_no_harm(shipped_bundle: Callable[[str], Path]) -> None:
    (counts,) = campaign(shipped_bundle("tiny-llada"), "--as-found", "60", "--sealed", "60", "--seed", "11")
    tried = {kind: counts[kind] for kind in ("as found", "sealed")}
    assert all(isinstance(n, int) and n >= 40 for n in tried.values()), tried
    assert counts["as found: faults"] == counts["sealed: faults"] == 0


@pytest.mark.parametrize("written", sorted({json.loads(line)["format"] for line in MENDED.open()}))
def test_what_was_mended_stays_so(shipped_bundle: Callable[..., Path], written: str) -> None:
    if written in PACKAGES:
        pytest.importorskip(PACKAGES[written], reason=f"{PACKAGES[written]} is not installed")
    (counts,) = campaign(shipped_bundle("tiny-llada", written), "--replay", str(MENDED))
    assert (counts.get("sealed") or counts.get("as found")) and not counts.get("impossible")


def test_edits_of_tokenizers_do_no_harm() -> None:
    found = campaign("--edits", "8", "--seed", "11", of="edgekit.tools.campaign.text")
    assert len(found) == 8 and all(row["edits"] == 8 and row["faults"] == 0 for row in found), found


def test_what_was_mended_in_tokenizers_stays_so() -> None:
    found = campaign("--replay", MENDED_TEXT, of="edgekit.tools.campaign.text")
    kept = Counter(json.loads(line)["format"] for line in MENDED_TEXT.open())
    assert {row["kind"]: row["edits"] for row in found if row["edits"]} == kept
    assert not any(row["faults"] for row in found)


@pytest.mark.parametrize("kind", tokenizers.MADE)
def test_edits_of_tokenizers_can_be_kept_and_made_again(tmp_path: Path, kind: str) -> None:
    tokenizers.write(kind, tmp_path)
    for hostile in (HostileText(tmp_path, 3), HostileText(tmp_path, 3)):
        edits = [hostile.edit() for _ in range(150)]
        kept = [Edit.from_dict(json.loads(json.dumps(edit.as_dict()))) for edit in edits]
        assert list(map(str, kept)) == list(map(str, edits))
        actions = {edit.action for edit in edits}
        assert {"set", "rename", "grow", "insert", "flip"} <= actions


def test_the_tokenizers_have_every_part_that_the_core_knows() -> None:
    """Those that the reader of each part compares a type with."""
    known = set()
    for part in ("normalizer", "splitter", "decoder", "tokenizer_reader"):
        source = (ROOT / "runtime/native/src/text" / f"{part}.cpp").read_text(encoding="utf-8")
        known |= set(re.findall(r'type [!=]= "(\w+)"', source)) | set(
            re.findall(r'\{"(\w+)", Behavior', source)
        )
    made = json.dumps(tokenizers.MADE)
    assert len(known) > 15 and {name for name in known if f'"{name}"' not in made} == set()


def test_edits_can_be_kept_and_made_again(tmp_path: Path, native_bundle: Path) -> None:
    hostile = Hostile(native_bundle, 5)
    for number, draw in enumerate((hostile.as_found, hostile.sealed) * 25):
        edit = draw()
        kept = Edit.from_dict(json.loads(json.dumps(edit.as_dict())))
        assert kept.as_dict().keys() == edit.as_dict().keys()
        copies = [tmp_path / f"{number}-{side}" for side in "ab"]
        for copy in copies:
            copy_bundle(native_bundle, copy)
            try:
                apply(kept, copy)
            except NotHere:
                break
        else:
            a, b = (copy / edit.file for copy in copies)
            assert a.is_file() == b.is_file() and a.is_symlink() == b.is_symlink()
            if a.is_file() and not a.is_symlink():
                assert a.read_bytes() == b.read_bytes()


def test_the_judge_sees_what_must_not_happen() -> None:
    fine = Trial(0, '{"token_ids": [1], "text": "a"}', "", 0.1, 10**8, False)
    refused = Trial(2, "", "edgekit: error: damaged\n", 0.1, 10**8, False)

    def what(run: Trial, sealed: bool = False, harmless: bool = False, command: str = "run") -> list[str]:
        return [f.what for f in faults({command: run}, {command: fine}, sealed=sealed, harmless=harmless)]

    assert what(fine) == what(refused) == what(refused, sealed=True) == []
    other = Trial(0, '{"token_ids": [2], "text": "b"}', "", 0.1, 10**8, False)
    assert what(other) == ["another answer"] and what(other, sealed=True) == []
    assert what(refused, harmless=True) and what(fine, command="verify") == ["not found"]
    for wrong in (
        Trial(2, "", "edgekit: error: a\nedgekit: error: b\n", 0.1, 10**8, False),
        Trial(2, "", f"edgekit: error: {'x' * 2000}\n", 0.1, 10**8, False),
        Trial(70, "", "edgekit: internal error: KeyError: 'a'\n", 0.1, 10**8, False),
        Trial(1, "", "Traceback (most recent call last):\n", 0.1, 10**8, False),
        Trial(-11, "", "", 0.1, 10**8, False),
        Trial(0, fine.out, "", 6.0, 10**8, False),
        Trial(0, fine.out, "", 0.1, 10**8 + 400_000_000, False),
        Trial(-9, "", "", 15.0, 10**8, True),
    ):
        assert len(what(wrong, sealed=True)) == 1, wrong


def test_a_trial_tells_how_its_process_ended() -> None:
    script = (
        "import sys\n"
        "from edgekit.tools.campaign.trial import trial\n"
        "for code in ('print(1)', 'raise SystemExit(3)', '1 / 0', 'import os; os.abort()'):\n"
        "    run = trial(lambda: exec(code))\n"
        "    shown = run.code, repr(run.out), 'Traceback' in run.err, run.peak_bytes > 10**6\n"
        "    print(*shown, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "0 '1\\n' False True", "3 '' False True", "70 '' True True", "-6 '' False True"
    ]  # fmt: skip
