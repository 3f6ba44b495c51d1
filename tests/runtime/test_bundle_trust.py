"""Bundles from strangers: what is damaged, planted or made up is refused in one line."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support import sealing
from support.bundles import make_bundle

from edgekit.export.quantize import Scheme
from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.errors import BundleError, ChecksumMismatch, EdgekitError
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.generation import Generator, Prompt, Settings
from edgekit.runtime.sampling import Committed
from edgekit.runtime.sampling.types import HeadRequest
from edgekit.runtime.session import open_session
from edgekit.tools.cli import main

FAST = Settings(max_new_tokens=4, steps=1)


def edgekit(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words])


def answer(bundle: Path) -> list[int]:
    """What `run` does: tokenizer, template, programs and weights are all read."""
    with Generator(bundle, threads=1) as generator:
        events = generator.generate(Prompt("hello"), FAST)
        return [int(i) for event in events if isinstance(event, Committed) for i in event.ids]


def flip(path: Path, offset: int) -> None:
    """One bit, modification time kept."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture(scope="module")
def onnx_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of floats: ONNX Runtime's int8 product is not right on every processor."""
    pytest.importorskip("onnxruntime")
    return make_bundle(tmp_path_factory.mktemp("onnx"), "llada", Scheme("bf16"), n_layers=2)


@pytest.fixture(params=["native", "onnx"])
def whole(request: pytest.FixtureRequest, native_bundle: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    made = native_bundle if request.param == "native" else request.getfixturevalue("onnx_bundle")
    return Path(shutil.copytree(made, tmp_path / "copy"))


# --- one bit ----------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_any_file_that_run_reads_is_refused(whole: Path) -> None:
    expected = answer(whole)
    read = ["edgekit.json", "weights.safetensors", "tokenizer/tokenizer.json"]
    read += ["tokenizer/tokenizer_config.json"]
    read += sorted(p.relative_to(whole).as_posix() for p in whole.glob("programs/final.onnx"))
    for name in read:
        size = (whole / name).stat().st_size
        # Of the weights the header; a bit of their runs is another test's.
        places = [9, 200] if name == "weights.safetensors" else [0, size // 2, size - 1]
        for place in places:
            flip(whole / name, place)
            with pytest.raises(BundleError) as caught:
                answer(whole)
            (line,) = str(caught.value).splitlines()
            assert name in line and len(line) < 500
            flip(whole / name, place)
    assert answer(whole) == expected


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        (("model", "ropes", "full", 1), lambda value: value * 2),
        (("model", "config", "mask_token_id"), lambda value: value - 1),
        (("sampler", "config"), lambda value: value | {"eos_token_id": 3}),
    ],
    ids=["rope frequency", "token", "sampler"],
)
def test_edits_of_the_manifest_are_refused_until_it_is_sealed(
    native_bundle: Path, tmp_path: Path, keys: tuple[Any, ...], change: Callable[[Any], Any]
) -> None:
    """By `run`, `inspect` and `verify` in one line each. A digest is no signature: sealed anew it is another
    bundle.
    """
    folder = Path(shutil.copytree(native_bundle, tmp_path / "copy"))
    seal = json.loads((folder / "edgekit.json").read_text())["sha256"]
    table: dict[str, Any] = {}

    def edit(found: dict[str, Any]) -> None:
        at: Any = found
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = change(at[keys[-1]]) if keys[-1] in at or isinstance(at, list) else change(7)
        table.update(found)

    sealing.edit(folder, edit)
    sealed = (folder / "edgekit.json").read_bytes()
    (folder / "edgekit.json").write_bytes(sealed[:15] + seal.encode() + sealed[79:])
    with pytest.raises(ChecksumMismatch, match="its SHA-256 is not the one that it begins with"):
        answer(folder)
    for words in (["run", folder, "-p", "a"], ["inspect", folder]):
        result = edgekit(*words)
        assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert edgekit("verify", folder).exit_code == 1
    (folder / "edgekit.json").write_bytes(sealed)
    assert edgekit("verify", folder).exit_code == 0


def test_a_run_of_another_export_is_refused(native_bundle: Path, tmp_path: Path) -> None:
    """Weights with a header that is right in itself, but of another bundle."""
    folder = Path(shutil.copytree(native_bundle, tmp_path / "copy"))
    other = make_bundle(tmp_path / "other", "llada", seed=1, program_format="native", n_layers=2)
    shutil.copyfile(other / "weights.safetensors", folder / "weights.safetensors")
    with pytest.raises(ChecksumMismatch, match="its header"):
        answer(folder)
    with pytest.raises(ChecksumMismatch, match="its header"):
        Bundle.open(folder).open_weights()


# --- files that are missing, empty, planted or elsewhere --------------------------------------------------


def test_a_tokenizer_file_that_is_missing_or_emptied_is_an_error(native_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(native_bundle, tmp_path / "copy"))
    config = folder / "tokenizer" / "tokenizer_config.json"
    config.write_text('{"chat_template": "{{ messages[0].content }}"}')
    sealing.relist(folder, "tokenizer/tokenizer_config.json")
    assert set(Bundle.open(folder).tokenizer().chat_templates) == {"default"}
    for spoil, said in ((lambda: config.write_bytes(b""), "has 0 of"), (config.unlink, "is missing")):
        spoil()
        with pytest.raises(BundleError, match=rf"tokenizer_config.json: {said}"):
            Generator(folder)


def test_files_that_the_manifest_does_not_list_have_no_effect(native_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(native_bundle, tmp_path / "copy"))
    expected, templates = answer(folder), Bundle.open(folder).tokenizer().chat_templates
    (folder / "tokenizer" / "additional_chat_templates").mkdir()
    for name in ("chat_template.jinja", "additional_chat_templates/x.jinja"):
        (folder / "tokenizer" / name).write_text('{"eos_token": "planted"}')
        (folder / Path(name).name).write_text('{"eos_token": "planted"}')
    assert Bundle.open(folder).tokenizer().chat_templates == templates
    assert answer(folder) == expected
    found = json.loads(edgekit("verify", folder, "--json").stdout)
    assert found["ok"] and "tokenizer/chat_template.jinja" in found["surplus"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
@pytest.mark.parametrize("make", ["fifo", "device", "outside"])
def test_what_is_no_file_of_the_bundle_is_refused_by_every_command(
    native_bundle: Path, tmp_path: Path, make: str
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    names = ["edgekit.json", "weights.safetensors", "tokenizer/tokenizer.json", "quantization.json"]
    for name in names:
        folder = Path(shutil.copytree(native_bundle, tmp_path / name.replace("/", "-")))
        (folder / name).unlink()
        if make == "fifo":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to("/dev/zero" if make == "device" else outside)
        verified = edgekit("verify", folder)
        assert verified.exit_code in (1, 2) and name in verified.output
        inspected = edgekit("inspect", folder, "--tensors")
        ran = edgekit("run", folder, "-p", "a", "--max-new-tokens", "4")
        for result in (inspected, ran):
            if name in ("tokenizer/tokenizer.json", "quantization.json") and result.exit_code == 0:
                continue  # it does not read the one or the other
            assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
            assert name in result.stderr and "secret" not in result.output


def test_a_listed_file_that_lies_elsewhere_is_not_read(native_bundle: Path, tmp_path: Path) -> None:
    """Not even where its digest is known."""
    folder = Path(shutil.copytree(native_bundle, tmp_path / "copy"))
    (folder / "quantization.json").rename(tmp_path / "outside.json")
    (folder / "quantization.json").symlink_to("../outside.json")
    with pytest.raises(BundleError, match="is a link that leaves the bundle"):
        BundleFolder(folder).read("quantization.json")


def test_verify_compares_sha256_too(native_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(native_bundle, tmp_path / "copy"))
    sealing.edit(folder, lambda t: t["files"]["quantization.json"].update(sha256="0" * 64))
    sealing.edit(folder, lambda t: t["weights"].update(sha256="0" * 64))
    found = json.loads(edgekit("verify", folder, "--json").stdout)
    damaged = {item["name"]: item["damage"] for item in found["items"] if item["damage"]}
    assert damaged.keys() == {"quantization.json", "weights.safetensors"}
    assert all(f"{'0' * 64} was written" in text for text in damaged.values())


# --- manifests that are sealed anew -----------------------------------------------------------------------

WRONG: tuple[Any, ...] = (None, True, -1, 0, 2**31, 2**70, 1.5, 1e300, "x" * 10_000, [], [1], {}, {"a": 1})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a manifest, but of lists of equal things the first two."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value[:2]):
            yield from places(item, (*path, i))


def replaced(table: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(table)
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return changed


@pytest.mark.parametrize("kind", ["native", "onnx"])
def test_wrong_values_in_a_sealed_manifest_end_in_one_line(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Whatever stands in the place of whatever: readers take the bundle or say what is wrong with it."""
    made: Path = request.getfixturevalue("native_bundle" if kind == "native" else "onnx_bundle")
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    table = json.loads((folder / "edgekit.json").read_text())
    rng = random.Random(5)
    cases = [(path, value) for path in places(table) for value in (..., *WRONG) if path != ("sha256",)]
    outcomes = {"taken": 0, "refused": 0}
    for path, value in rng.sample(cases, 600):
        sealing.write(folder, replaced(table, path, value))
        for read in (read_session, read_inspect):
            try:
                read(folder)
                outcomes["taken"] += 1
            except EdgekitError as error:
                (line,) = str(error).splitlines()
                assert len(line) < 1000, (path, line)
                outcomes["refused"] += 1
            except Exception as error:
                raise AssertionError(f"{read.__name__}: {path} = {value!r:.50}: {error!r}") from error
    assert min(outcomes.values()) > 100, outcomes


def read_session(folder: Path) -> None:
    bundle = Bundle.open(folder)
    bundle.tokenizer()
    if bundle.manifest.programs["format"] not in ("native", "onnx"):
        return
    with open_session(folder) as session:
        session.denoise(np.arange(4), HeadRequest())


def read_inspect(folder: Path) -> None:
    result = edgekit("inspect", folder, "--tensors", "--runs")
    if isinstance(result.exception, SystemExit) and result.exit_code == 2:
        raise EdgekitError(result.stderr.strip())
    assert result.exit_code == 0, (result.output, result.exception)


def test_a_report_with_wrong_values_ends_in_one_line(native_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(native_bundle, tmp_path / "copy"))
    path = folder / "quantization.json"
    rows = json.loads(path.read_text())
    cases: list[bytes] = [
        b"",
        b"{}",
        b"[1]",
        b"[" * 5000,
        b"[" + b"[]," * (1 << 20) + b"[]]",
        b'[{"a": NaN}]',
    ]
    for key in rows[0]:
        for value in (*WRONG, ...):
            changed = copy.deepcopy(rows)
            if value is ...:
                del changed[0][key]
            else:
                changed[0][key] = value
            cases.append(json.dumps(changed).encode())
    for content in cases:
        path.write_bytes(content)
        sealing.relist(folder, "quantization.json")
        result = edgekit("inspect", folder, "--tensors")
        if result.exit_code != 0:
            assert result.exit_code == 2 and "quantization.json: " in result.stderr, (content[:80], result)
            assert len(result.stderr.splitlines()) == 1 and len(result.stderr) < 1000
