"""The sections of a manifest that every reader uses, checked once: types and ranges, so that none of them has
to. What programs say is their engines' own.
"""

from __future__ import annotations

from typing import Any

from edgekit.flashload.errors import MalformedFile, quoted
from edgekit.flashload.manifest import Manifest
from edgekit.runtime.bundle.sections import Wrong, absent, each, finite, is_finite, number, value

#: Widths of arrays and heads, and of tokens and positions; those of the core.
_MOST_WIDTH, _MOST_HEADS = 1 << 20, 1 << 16
_MOST_BYTES = 2**63 - 1


def check(manifest: Manifest, where: str, *, packaged: bool) -> None:
    """Check the sections model, layers, programs, sampler, quantization and provenance; messages begin with
    `where`. `packaged`: the weights of layers and head lie in packages.

    Raises MalformedFile.
    """
    try:
        value(manifest.programs, "format", str)
        value(manifest.programs, "layout", str)
        if not absent(manifest.programs, "entries"):
            value(manifest.programs, "entries", dict)
        _check_model(manifest.model, packaged)
        _check_layers(manifest, packaged)
        value(manifest.sampler, "name", str, "sampler")
        value(manifest.sampler, "config", dict, "sampler")
        _check_quantization(manifest.quantization)
        _check_provenance(manifest.provenance)
    except Wrong as error:
        raise MalformedFile(f"{where}: {error}; export the bundle again") from None


def _check_model(model: dict[str, Any], packaged: bool) -> None:
    at = "model"
    value(model, "family", str, at)
    number(model, "hidden_size", at, 1, _MOST_WIDTH)
    rows = number(model, "vocab_size", at, 1)
    finite(model, "embedding_scale", at)
    for key in ("shift_logits", "causal_prefix", "self_conditioning"):
        value(model, key, bool, at)
    for key in ("canvas_length", "max_positions", "prefix_block"):
        if not absent(model, key):
            number(model, key, at, 1)
    if (model.get("prefix_block") or 1) != 1 and not model["causal_prefix"]:
        raise Wrong(f"{at}: prefix_block is {model['prefix_block']} without causal_prefix")
    for name in value(model, "ropes", dict, at):
        frequencies = value(model["ropes"], name, list, f"{at}, ropes")
        if not 0 < len(frequencies) <= _MOST_HEADS or not all(map(is_finite, frequencies)):
            raise Wrong(f"{at}: rope {quoted(name)} is not a list of finite numbers")
    _check_query_scales(model, at)
    if not absent(model, "adapters"):
        for own in each(model, "adapters", dict, at):
            check_adapter(own, f"{at}, adapter")
    if not absent(model, "role_head"):
        _check_role_head(value(model, "role_head", dict, at), f"{at}, role_head")
    tables = value(model, "tables", dict, at)
    for name in ("embedding", "head") if "head" in tables else ("embedding",):
        table = value(tables, name, dict, f"{at}, tables")
        # Packages of a head say themselves which tokens they hold.
        _check_table(table, name, rows, packaged and name == "head" and "runs" not in table)
    if not absent(model, "config"):
        value(model, "config", dict, at)


def _check_query_scales(model: dict[str, Any], at: str) -> None:
    if absent(model, "query_scales"):
        return
    for name, own in value(model, "query_scales", dict, at).items():
        if name not in model["ropes"] or not isinstance(own, dict):
            raise Wrong(f"{at}: query scale {quoted(name)} is not one of a rope")
        if finite(own, "beta", f"{at}, query scale {quoted(name)}") <= 0:
            raise Wrong(f"{at}: query scale {quoted(name)} has beta {own['beta']}, not a number above 0")
        number(own, "positions", f"{at}, query scale {quoted(name)}", 1)


def check_adapter(own: dict[str, Any], at: str) -> None:
    """Check what a manifest says of a low-rank adapter. Raises Wrong."""
    value(own, "name", str, at)
    for key in ("rank", "matrices", "bytes"):
        number(own, key, at, 1)
    each(own, "targets", str, at)


def _check_role_head(own: dict[str, Any], at: str) -> None:
    value(own, "file", str, at)
    number(own, "width", at, 1, _MOST_WIDTH)
    each(own, "roles", str, at)


def _check_table(table: dict[str, Any], name: str, rows: int, bits_alone: bool) -> None:
    at = f"model, table {name}"
    number(table, "bits", at, 1, 32)
    if bits_alone:
        return
    starts = each(table, "starts", int, at)
    found = number(table, "rows", at)
    follow = starts[:1] == [0] and all(a < b for a, b in zip(starts, [*starts[1:], found], strict=True))
    if not follow or len(each(table, "runs", str, at)) != len(starts):
        raise Wrong(f"{at}: its tiles do not follow each other")
    if found != rows:
        raise Wrong(f"{at} has {found} rows for {rows} tokens")


def _check_layers(manifest: Manifest, packaged: bool) -> None:
    if not manifest.layers:
        raise Wrong("layers: there are none")
    for i, layer in enumerate(manifest.layers):
        at = f"layer {i}"
        for key in ("package",) if packaged else ("program", "run"):
            value(layer, key, str, at)
        if packaged:
            number(layer, "slot", at, 0, len(manifest.layers))
        mixture = packaged and not absent(layer, "mixture")
        for key in ("program", "run") if mixture else ():
            if not value(value(layer, "mixture", dict, at), key, str, f"{at}, mixture"):
                raise Wrong(f"{at}, mixture: {key} is empty")
        if not packaged or mixture or not absent(layer, "experts"):
            each(layer, "experts", str, at)
        for key in ("kv_heads", "head_dim"):
            number(layer, key, at, 1, _MOST_HEADS)
        if not absent(layer, "window"):
            number(layer, "window", at, 1)
        if value(layer, "rope", str, at) not in manifest.model["ropes"]:
            raise Wrong(f"{at}: the model has no rope {quoted(layer['rope'])}")


def _check_quantization(section: dict[str, Any]) -> None:
    at = "quantization"
    value(section, "preset", str, at)
    for key in ("parameters", "bytes"):
        number(section, key, at, 0, _MOST_BYTES)
    finite(section, "bits_per_weight", at)
    if not absent(section, "group_size"):
        number(section, "group_size", at, 1)
    if not absent(section, "notes"):
        each(section, "notes", str, at)
    for i, role in enumerate(each(section, "roles", dict, at)):
        own = f"{at}, role {i}"
        value(role, "role", str, own)
        number(role, "bits", own, 1, 32)
        for key in ("tensors", "parameters", "bytes"):
            number(role, key, own, 0, _MOST_BYTES)
        for key in ("mean_error", "max_error"):
            finite(role, key, own)
    if not absent(section, "overrides"):
        for i, override in enumerate(each(section, "overrides", dict, at)):
            value(override, "pattern", str, f"{at}, override {i}")
            number(override, "bits", f"{at}, override {i}", 1, 32)


def _check_provenance(section: dict[str, Any]) -> None:
    at = "provenance"
    for key in (
        "checkpoint", "target", "tag", "repository", "revision", "license", "license_name", "license_link"
    ):  # fmt: skip
        if not absent(section, key):
            value(section, key, str, at)
    if not absent(section, "notes"):
        each(section, "notes", str, at)
    if not absent(section, "versions"):
        versions = value(section, "versions", dict, at)
        for name in versions:
            value(versions, name, str, f"{at}, versions")
