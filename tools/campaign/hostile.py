"""Random edits of a bundle: what storage does to files, and what somebody may write into them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.tools.campaign.edits import Edit, Path_

#: Names that readers of Hugging Face folders would look for, whether or not a bundle has them.
PLANTED = (
    "tokenizer/chat_template.jinja", "chat_template.jinja",
    "tokenizer/additional_chat_templates/default.jinja",
    "tokenizer/special_tokens_map.json", "tokenizer/added_tokens.json", "generation_config.json",
    "tokenizer/generation_config.json", "config.json", "programs/dense.onnx", "model.safetensors.index.json",
)  # fmt: skip
TEMPLATES = (
    "{% for i in range(1000000000) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 3000000000 }}",
    "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "{{ 'x' | center(3000000000) }}",
    "{{ range(300000000) | list | length }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ '%3000000000d' % 1 }}",
    "{{ '{:3000000000}'.format(1) }}",
    "{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "{{ raise_exception('x' * 100000) }}",
    "{% include '/etc/passwd' %}",
    "{% for m in messages %}",
    "\x1b[2J{{ messages[0].content }}",
)
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 255, 65536, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 10**30, -(2**63),
    0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf"), "", "x", "0", "native", "../../../../etc/passwd",
    "/dev/zero", "x" * 100_000, "\x00", "\ud800", "\u202e", [], [None], {}, {"": {}}, [[]], [0] * 1000,
    [1e308] * 64, {"size": 0}, "layers.0", "llada", "dream", "diffusion_gemma",
)  # fmt: skip
TARGETS = ("/dev/zero", "/dev/stdin", "/etc/passwd", "../../outside", ".", "loop")


class HostileFiles:
    """Draws edits of the files of a folder, of that called `often` more than of others.

    Equal seeds and folders give equal edits.
    """

    def __init__(self, bundle: Path, seed: int, often: str | None = None) -> None:
        self._random, self._often = random.Random(seed), often
        self._files = sorted(p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file())
        self._trees: dict[str, list[Path_]] = {}
        for name in self._files:
            if name.endswith(".json"):
                tree = json.loads((bundle / name).read_text(encoding="utf-8"))
                self._trees[name] = list(_paths(tree))
        self._headers = {}
        for name in self._files:
            if name.endswith(".safetensors"):
                data = (bundle / name).read_bytes()
                length = int.from_bytes(data[:8], "little")
                self._headers[name] = list(_paths(json.loads(data[8 : 8 + length])))

    def _file(self) -> str:
        """Small files as often as large ones."""
        often = self._often is not None and self._random.random() < 0.25
        return self._often if often and self._often else self._random.choice(self._files)

    def _of_bytes(self, name: str) -> Edit:
        draw = self._random
        share = lambda: draw.random() ** draw.choice((1, 4))  # noqa: E731 (headers are at the beginning)
        action = draw.choice(("flip", "flip", "flip", "zero", "fill", "cut", "extend", "swap"))
        arguments: dict[str, Any] = {"position": share()}
        if action == "flip":
            arguments["bit"] = draw.randrange(8)
        elif action in ("zero", "fill", "extend", "swap"):
            arguments["count"] = draw.choice((1, 2, 8, 64, 4096, 16384))
        if action in ("fill", "extend"):
            arguments["value"] = draw.choice((0, 32, 48, 255))
        if action == "swap":
            arguments["other"] = share()
        return Edit(name, action, "bytes", arguments)

    def _of_kind(self, name: str) -> Edit:
        action = self._random.choice(("delete", "write", "fifo", "folder", "link"))
        arguments = {}
        if action == "write":
            arguments["text"] = self._random.choice(("", "{}", "null", "[]"))
        elif action == "link":
            arguments["target"] = self._random.choice(TARGETS)
        return Edit(name, action, "bytes", arguments)

    def _of_json(self) -> Edit:
        draw = self._random
        part, trees = ("json", self._trees)
        if self._headers and draw.random() >= 0.85:
            part, trees = "header", self._headers
        name = draw.choice(sorted(trees))
        if part == "json" and self._often is not None and draw.random() < 0.5:
            name = self._often
        path = draw.choice(trees[name])
        # Deep places outnumber the others: often go up.
        while len(path) > 1 and draw.random() < 0.4:
            path = path[:-1]
        action = draw.choice(("set",) * 5 + ("remove", "rename", "scale", "repeat", "nest", "grow"))
        arguments: dict[str, Any] = {"path": path}
        if action == "set":
            arguments["value"] = draw.choice(VALUES)
        elif action == "rename":
            arguments["name"] = draw.choice(("", "x", "__class__", "file", "size", "x" * 5000))
        elif action == "scale":
            arguments["by"] = draw.choice((-1, 0, 2, 1000, 10**9, 10**18))
        elif action == "repeat":
            arguments["count"] = draw.choice((0, 2, 1000))
        elif action == "nest":
            arguments["depth"] = draw.choice((1, 50, 900))
        elif action == "grow":
            item, count = draw.choice((([[]], 3_000_000), ("x", 20_000_000), ([0], 5_000_000)))
            arguments |= {"item": item, "count": count}
        return Edit(name, action, part, arguments)


class Hostile(HostileFiles):
    """Draws edits of one bundle, of its manifest more than of other files."""

    def __init__(self, bundle: Path, seed: int) -> None:
        super().__init__(bundle, seed, MANIFEST_NAME)

    def as_found(self) -> Edit:
        """Edits that storage, a download or a hand may make, digests left as they are."""
        pick = self._random.random()
        if pick < 0.5:
            return self._of_bytes(self._file())
        if pick < 0.6:
            return self._of_kind(self._file())
        if pick < 0.7:
            return Edit(self._random.choice(PLANTED), "plant", arguments={"text": self._planted()})
        return self._of_json()

    def sealed(self) -> Edit:
        """Edits of somebody who makes the digests anew."""
        pick = self._random.random()
        if pick < 0.15:
            return self._of_bytes(self._file())
        if pick < 0.25:
            return self._template()
        return self._of_json()

    def _planted(self) -> str:
        return self._random.choice(("{{ 'planted' }}", '{"eos_token_id": 5, "mask_token": "a"}', "{}", ""))

    def _template(self) -> Edit:
        text = self._random.choice(TEMPLATES)
        files = [name for name in self._files if name.endswith(".jinja")]
        if files and self._random.random() < 0.7:
            return Edit(self._random.choice(files), "write", arguments={"text": text})
        name = next(n for n in self._files if n.endswith("tokenizer_config.json"))
        return Edit(name, "set", "json", {"path": ["chat_template"], "value": text})


def _paths(tree: Any, above: Path_ | None = None) -> Iterator[Path_]:
    """The path of every value below the root."""
    here = above or []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield [*here, key]
        yield from _paths(value, [*here, key])
