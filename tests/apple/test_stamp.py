"""Packages made from templates: what is written where, and what is read back."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgekit.export.errors import ExportError
from edgekit.export.formats.packages.stamp import Frame, Region, Template


@pytest.fixture
def tensors(rng: np.random.Generator) -> dict[str, bytes]:
    return {name: rng.integers(0, 256, n, np.uint8).tobytes() for name, n in (("a", 37), ("b", 500))}


@pytest.fixture
def template() -> Template:
    """A file that holds two tensors, one that holds none, and a seal of the first."""
    data = Frame(547, ((0, b"head"), (41, b"--"), (543, b"tail")))
    regions = {"a": Region("in/data", 4, 37), "b": Region("in/data", 43, 500)}
    return Template({"in/data": data, "other": Frame.whole(b"plain")}, regions, {"in/data": "in/seal"})


def test_a_package_has_all_of_the_template_but_its_tensors(
    tmp_path: Path, template: Template, tensors: dict[str, bytes]
) -> None:
    made = template.create(tmp_path / "p")
    assert (tmp_path / "p" / "in" / "data").read_bytes() == b"head" + bytes(37) + b"--" + bytes(500) + b"tail"
    b = np.frombuffer(tensors["b"], np.uint8)
    made.write("b", b[100:].view(np.float16).reshape(2, -1), start=100)
    made.write("a", np.arange(37, dtype=np.uint8))
    made.sync()
    found = (tmp_path / "p" / "in" / "data").read_bytes()
    assert found == b"head" + bytes(range(37)) + b"--" + bytes(100) + tensors["b"][100:] + b"tail"
    assert (tmp_path / "p" / "other").read_bytes() == b"plain" and not (tmp_path / "p" / "in/seal").exists()
    assert made.read("b", 100, 7).tobytes() == tensors["b"][100:107]
    made.write("b", b)
    made.write("a", np.frombuffer(tensors["a"], np.uint8))
    found = (tmp_path / "p" / "in" / "data").read_bytes()
    assert found == b"head" + tensors["a"] + b"--" + tensors["b"] + b"tail"


def test_seals_hold_the_checksum_of_what_is_in_and_are_durable(
    tmp_path: Path, template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, synced = template.create(tmp_path / "p"), set[int]()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.add(os.fstat(fd).st_ino), fsync(fd)))
    made.write("a", np.ones(37, np.uint8))
    made.seal()
    data = (tmp_path / "p" / "in" / "data").read_bytes()
    assert (tmp_path / "p" / "in" / "seal").read_bytes() == hashlib.sha256(data).digest()
    assert {p.stat().st_ino for p in (tmp_path / "p").rglob("*")} <= synced
    assert made.damage() == ""


@pytest.mark.parametrize(
    ("file", "data", "said"),
    [
        ("in/data", None, "in/data is missing or of another size"),
        ("in/data", b"head", "in/data is missing or of another size"),
        ("other", b"plaIn", "other reads back different from what was written"),
        ("in/seal", None, "in/seal is not the checksum of in/data"),
        ("in/seal", b"", "in/seal is not the checksum of in/data"),
    ],
)
def test_damage_is_found(
    tmp_path: Path, template: Template, file: str, data: bytes | None, said: str
) -> None:
    made = template.create(tmp_path / "p")
    made.seal()
    (tmp_path / "p" / file).unlink()
    if data is not None:
        (tmp_path / "p" / file).write_bytes(data)
    assert made.damage() == said


def test_a_tensor_changed_after_the_seal_is_damage(tmp_path: Path, template: Template) -> None:
    made = template.create(tmp_path / "p")
    made.seal()
    made.write("b", np.ones(1, np.uint8), start=499)
    assert made.damage() == "in/seal is not the checksum of in/data"


def test_what_does_not_fit_is_refused(tmp_path: Path, template: Template) -> None:
    made, short = template.create(tmp_path / "p"), np.zeros(2, np.uint8)
    for name, data, start in (
        ("a", np.zeros(38, np.uint8), 0), ("a", short, 36), ("a", short, -1), ("c", short, 0)
    ):  # fmt: skip
        with pytest.raises(ExportError, match=r"do not fit tensor a|has no tensor c"):
            made.write(name, data, start)
    for name, start, nbytes in (("a", 30, 8), ("a", -1, 2), ("c", 0, 1)):
        with pytest.raises(ExportError, match=r"ends within tensor a|has no tensor c"):
            made.read(name, start, nbytes)
    os.truncate(tmp_path / "p" / "in" / "data", 100)
    with pytest.raises(ExportError, match="ends within tensor b; export again"):
        made.read("b")
    outside, nowhere, b = Region("in/data", 540, 10), Region("x", 0, 1), template.regions["b"]
    for bad in ({"a": outside}, {"a": nowhere}, {"a": b, "b": b}):
        with pytest.raises(ExportError, match="outside of|overlap in"):
            Template(template.files, bad)


def test_digests_tell_templates_apart(template: Template) -> None:
    assert replace(template, files=dict(reversed(template.files.items()))).digest() == template.digest()
    others = [
        replace(template, regions={"a": template.regions["a"]}),
        replace(template, regions={**template.regions, "a": Region("in/data", 4, 36)}),
        replace(template, seals={}),
        replace(template, files={**template.files, "other": Frame(5, ((0, b"plaIn"),))}),
        replace(template, files={**template.files, "other": Frame(6, ((0, b"plain"),))}),
        replace(template, files={**template.files, "third": Frame(0, ())}),
    ]
    digests = [template.digest(), *(other.digest() for other in others)]
    assert len(set(digests)) == len(digests)
