"""The segments of a call of the core, as arrays of an engine's space."""

from __future__ import annotations

from typing import Any

from edgekit.runtime.core_structs import AttentionStruct, LayersCallStruct, SegmentStruct
from edgekit.runtime.engines.space import Space


def segments_of(space: Space, call: LayersCallStruct) -> list[SegmentArrays]:
    """To be asked while the call lasts."""
    x = space.rows(call.x, (1, call.rows, call.hidden_size))
    return [SegmentArrays(space, call, segment, x) for segment in call.segments[: call.segment_count]]


class LayerArrays:
    """What a layer is given for a segment, and where its keys and values go: `k` and `v` of `shape`
    [1, KV, T, D], None where nobody wants them.
    """

    def __init__(self, space: Space, call: LayersCallStruct, segment: SegmentStruct, layer: AttentionStruct):
        count, tables = segment.count, (segment.count, layer.frequencies)
        self.shape = (1, layer.kv_heads, count, layer.head_dim)
        self._space, self._none = space, (1, layer.kv_heads, 0, layer.head_dim)
        pieces = layer.pieces[: layer.piece_count]
        space.note(segment.causal, len(pieces), layer.k is None, layer.mask is None)
        self._seen = (count, layer.kept + count)
        self._kept = {
            f"prefix_{name}": [
                space.heads(getattr(each, name), layer.kv_heads, each.stride, (each.count, layer.head_dim))
                for each in pieces
            ]
            for name in ("k", "v")
        }
        self._fixed: dict[str, Any] = {
            "cos": space.table(layer.cos, tables, call.inputs),
            "sin": space.table(layer.sin, tables, call.inputs),
        }
        if layer.query_scale is not None:
            self._fixed["query_scale"] = space.table(layer.query_scale, (count, 1), call.inputs)
        if layer.adapter is not None:
            self._fixed["adapter"] = space.table(layer.adapter, (count, 1), call.inputs)
        if layer.mask is not None:
            self._fixed["mask"] = space.table(layer.mask, self._seen, call.inputs)
        self._fixed["phase"] = space.phase(bool(segment.causal))
        own = layer.kv_heads, layer.own_stride, (count, layer.head_dim)
        self.k = None if layer.k is None else space.heads(layer.k, *own)
        self.v = None if layer.v is None else space.heads(layer.v, *own)

    def inputs(self) -> dict[str, Any]:
        """What it is given, with keys and values [1, KV, P, D] of all pieces: some may be rows that earlier
        segments have just computed.
        """
        kept = {
            name: pieces[0] if len(pieces) == 1 else self._space.joined(pieces, self._none)
            for name, pieces in self._kept.items()
        }
        made = {name: self._space.only_read(each) for name, each in kept.items()} | self._fixed
        if "mask" not in made:
            made["mask"] = self._space.nothing_hidden(self._seen)
        return made


class SegmentArrays:
    """A segment of a call: its rows `x` [1, T, H], which are given and replaced, and its layers."""

    def __init__(self, space: Space, call: LayersCallStruct, segment: SegmentStruct, x: Any) -> None:
        self.count = segment.count
        self.x = x[:, segment.first_row : segment.first_row + segment.count]
        self._given = space.only_read(self.x)
        self.layers = [
            LayerArrays(space, call, segment, layer) for layer in segment.layers[: call.layer_count]
        ]

    def inputs(self) -> list[dict[str, Any]]:
        """Those of each layer, when they are computed."""
        made = [layer.inputs() for layer in self.layers]
        made[0]["x"] = self._given
        return made
