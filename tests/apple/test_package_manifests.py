"""The manifest's section on packages: what is missing or inconsistent is refused, in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import sealing
from support.reference_packages import random_packages

from edgekit.flashload.errors import MalformedFile, UnsupportedVersion
from edgekit.runtime.bundle import Bundle

Table = dict[str, Any]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = [(16, 0), (16, 32)]
    return random_packages(
        tmp_path_factory.mktemp("packages"), "diffusion_gemma", lengths, num_hidden_layers=3
    )[0]


def changed(bundle: Path, folder: Path, change: Callable[[Table], object]) -> Path:
    shutil.copytree(bundle, folder / "changed")
    sealing.edit(folder / "changed", change)
    return folder / "changed"


def packages(manifest: Table) -> Table:
    found: Table = manifest["programs"]["packages"]
    return found


def entry(manifest: Table, name: str = "layers.0-1") -> Table:
    found: Table = packages(manifest)[name]
    return found


def final(manifest: Table) -> Table:
    found: Table = entry(manifest, "final")["functions"]["f16"]
    return found


def port(manifest: Table, role: str, name: str = "layers.0-1", function: int = 1) -> Table:
    chosen = list(entry(manifest, name)["functions"].values())[function]
    found: Table
    (found,) = (p for p in (*chosen["inputs"], *chosen["outputs"]) if p["role"] == role)
    return found


def narrow_prefix(manifest: Table) -> None:
    for name in ("prefix_k.0", "prefix_v.0", "prefix_k.1", "prefix_v.1"):
        port(manifest, name)["shape"][2] = 3


def short_tile(manifest: Table) -> None:
    last = max((n for n in packages(manifest) if n.startswith("head")), key=lambda n: int(n[5:]))
    rows = entry(manifest, last)["rows"]
    entry(manifest, last)["rows"] = rows - 1
    for function in entry(manifest, last)["functions"].values():
        for p in (*function["inputs"], *function["outputs"]):
            p["shape"] = [size - (size == rows) for size in p["shape"]]


def other_lengths(manifest: Table) -> None:
    del entry(manifest)["functions"]["a16b0"]
    del entry(manifest, "layers.2")["functions"]["a16b32"]


DAMAGE: dict[str, tuple[Callable[[Table], object], str]] = {
    "no packages": (lambda m: m["programs"].pop("packages"), "programs: packages is missing, expected an"),
    "no precision": (lambda m: m["programs"].pop("precision"), "precision is missing"),
    "unknown activations": (lambda m: m["programs"].update(activations="int4"),
                            "activations are 'int4', expected one of float, int8"),
    "activations that are none": (lambda m: m["programs"].update(activations=None),
                                  "activations is missing, expected a text"),
    "a package that is a list": (lambda m: packages(m).update(final=[]),
                                 "package final: path is missing, expected a text"),
    "a file elsewhere": (lambda m: entry(m).update(files=["tokenizer/tokenizer.json"]),
                         "files must be files below 'packages/layers.0-1.mlpackage'"),
    "a file nobody lists": (lambda m: m["files"].pop(entry(m)["files"][0]),
                            "is not among the files of the bundle"),
    "another size": (lambda m: entry(m).update(bytes=5), r"has 5 bytes, its files \d+"),
    "no functions": (lambda m: entry(m).update(functions={}), "package layers.0-1 has no functions"),
    "mixed kinds": (lambda m: next(iter(entry(m)["functions"].values())).update(kind="final"),
                    r"has kind \['final', 'layers'\]"),
    "a kind of its own": (lambda m: final(m).update(kind="x"), r"has kind \['x'\]"),
    "no length": (lambda m: final(m).update(t=0), "is for 0 positions after 0"),
    "text as a length": (lambda m: final(m).update(t="16"),
                         "t is '16', expected a number"),
    "another shape": (lambda m: port(m, "prefix_v.1").update(shape=[1, 1, 7, 8]),
                      r"function a16b32: input prefix_v.1 has shape \[1, 1, 7, 8\], expected"),
    "a window that keeps too little": (narrow_prefix, "input prefix_k.0 has shape"),
    "an unknown role": (lambda m: port(m, "phase").update(role="mood"), "input mood is not expected"),
    "a missing input": (lambda m: port(m, "cos.sliding").update(role="phase2"), "cos.sliding is missing"),
    "a missing output": (lambda m: port(m, "k.1").update(role="K.1"), "output k.1 is missing"),
    "an unknown type": (lambda m: port(m, "x").update(dtype="float8"), "in0 is float8, expected one of"),
    "a whole number as float": (lambda m: port(m, "argmax", "head.0", 0).update(dtype="float16"),
                                "output argmax is float16"),
    "two of a role": (lambda m: port(m, "v.1").update(role="v.0"), "with role 'v.0' is there twice"),
    "a broken shape": (lambda m: port(m, "x").update(shape=[1, -1]), r"in0 has shape \[1, -1\]"),
    "a tile missing": (lambda m: packages(m).pop("head.0"), "starts at token 100, expected 0"),
    "a tile short": (short_tile, "the packages of the head hold 383 of 384 tokens"),
    "no final norm": (lambda m: packages(m).pop("final"), "there is no package final"),
    "no self-conditioning": (lambda m: packages(m).pop("self_conditioning"),
                             "there is no package self_conditioning"),
    "a package too many": (lambda m: m["model"].update(self_conditioning=False),
                           "package self_conditioning belongs to no part of the model"),
    "a layer without its package": (lambda m: packages(m).pop("layers.2"), "there is no package layers.2"),
    "layers out of order": (lambda m: m["layers"][1].update(slot=2), "layer 1 is slot 2 of package"),
    "layers that repeat": (lambda m: m["layers"][1].update(slot=0), "layer 1 is slot 0 of package"),
    "no slot": (lambda m: m["layers"][1].pop("slot"), "layer 1: slot is missing, expected a number"),
    "a slot that is text": (lambda m: m["layers"][1].update(slot="1"), "layer 1: slot is '1', expected a"),
    "no rope": (lambda m: m["model"]["ropes"].pop("sliding"), "the model has no rope 'sliding'"),
    "no lengths in common": (other_lengths, "the packages of layers have no lengths in common"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.replace(" ", "-"))
def test_a_damaged_manifest_is_refused_in_one_line(bundle: Path, tmp_path: Path, damage: str) -> None:
    change, message = DAMAGE[damage]
    copy = changed(bundle, tmp_path, change)
    with pytest.raises(MalformedFile, match=message) as error:
        Bundle.open(copy)
    assert "\n" not in str(error.value) and str(copy / "edgekit.json") in str(error.value)


def test_an_undamaged_one_is_read(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    assert opened.packages is not None and opened.packages.lengths() == [(16, 0), (16, 32)]
    assert opened.model.chunks == [(0, 1), (2,)] and opened.model.tied_head
    assert opened.model.head is not None and opened.model.head.spans()[0] == ("head.0", 0, 100)


@pytest.mark.parametrize("layout", ["coreml-1", "coreml-3"])
def test_another_layout_is_refused(bundle: Path, tmp_path: Path, layout: str) -> None:
    copy = changed(bundle, tmp_path, lambda m: m["programs"].update(layout=layout))
    with pytest.raises(UnsupportedVersion, match=f"packages of layout {layout}, this edgekit reads coreml-2"):
        Bundle.open(copy)
