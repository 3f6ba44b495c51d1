"""Matrices as layout `native-1` stores them, in panels of 64 rows; see `export/formats/native/layout.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

PANEL_ROWS = 64
_PARTS = ("weight", "codes", "packed", "group_scales", "scales")


@dataclass(frozen=True)
class Matrix:
    """A matrix [N, K] in its stored form: bfloat16 `weight`; 8-bit `codes` [P, Q, 64, 4], or [N, K] of a
    vocabulary table; or `packed` nibbles [P, K / 8, 64, 4] with `group_scales` [P, K / G, 64]. `scales` [N]
    are those of its rows, padded to whole panels.
    """

    rows: int
    columns: int
    weight: Tensor | None = None
    codes: Tensor | None = None
    packed: Tensor | None = None
    group_scales: Tensor | None = None
    scales: Tensor | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], name: str, shape: tuple[int, int]) -> Matrix:
        """The matrix `name` among the tensors of a run, a table for "". Raises ValueError for tensors that
        are none of these forms.
        """
        prefix = name and name + "."
        made = cls(shape[0], shape[1], *(tensors.get(prefix + part) for part in _PARTS))
        made._check()
        return made

    @property
    def is_in_panels(self) -> bool:
        """Of 4 or 8 bits, and no vocabulary table."""
        return self.packed is not None or (self.codes is not None and self.codes.ndim == 4)

    @property
    def form(self) -> tuple[tuple[int, ...] | None, ...]:
        """Its shapes: those of one form can be multiplied together."""
        parts = (getattr(self, name) for name in _PARTS)
        return (self.rows, self.columns), *(None if each is None else tuple(each.shape) for each in parts)

    def unpacked(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Codes, or codes times group scales, int8 [n, K] of rows from `start`, a multiple of PANEL_ROWS."""
        stop = self.rows if stop is None else min(stop, self.rows)
        panels = slice(start // PANEL_ROWS, -(-stop // PANEL_ROWS))
        if self.packed is not None:
            assert self.group_scales is not None, "checked"
            packed, groups = self.packed[panels], self.group_scales[panels].view(torch.int8)
            count, blocks = packed.shape[:2]
            quads = torch.empty(count, blocks, 2, PANEL_ROWS, 4, dtype=torch.int8, device=packed.device)
            torch.bitwise_and(packed, 15, out=quads[:, :, 0].view(torch.uint8))
            torch.bitwise_right_shift(packed, 4, out=quads[:, :, 1].view(torch.uint8))
            grouped = quads.sub_(8).view(count, groups.shape[1], -1, PANEL_ROWS, 4)
            grouped *= groups[:, :, None, :, None]
        else:
            assert self.codes is not None, "checked"
            if self.codes.ndim == 2:
                return (self.codes[start:stop] ^ 128).view(torch.int8)
            quads = (self.codes[panels] ^ 128).view(torch.int8)
        # Four columns move as one word.
        words = quads.view(torch.int32).view(len(quads), -1, PANEL_ROWS).transpose(1, 2)
        rows = words.reshape(-1).view(torch.int8).view(len(quads) * PANEL_ROWS, -1)
        return rows[: stop - start, : self.columns]

    def dequantized(self) -> Tensor:
        """Float32 [N, K]."""
        if self.weight is not None:
            return self.weight.float()
        assert self.scales is not None, "checked"
        return self.unpacked().float() * self.scales[: self.rows, None]

    def _check(self) -> None:
        panels, n, k = -(-self.rows // PANEL_ROWS), self.rows, self.columns
        forms: list[dict[str, tuple[int, ...]]] = [
            {"weight": (n, k)},
            {"codes": (n, k), "scales": (n,)},
            {"codes": (panels, -(-k // 4), PANEL_ROWS, 4), "scales": (panels * PANEL_ROWS,)},
        ]
        if self.group_scales is not None and self.group_scales.ndim == 3:
            groups = self.group_scales.shape[1]
            if groups and k % (8 * groups) == 0:
                forms.append(
                    {
                        "packed": (panels, k // 8, PANEL_ROWS, 4),
                        "group_scales": (panels, groups, PANEL_ROWS),
                        "scales": (panels * PANEL_ROWS,),
                    }
                )
        kinds = {"weight": torch.bfloat16, "scales": torch.float32}
        here = {name: getattr(self, name) for name in _PARTS}
        shapes = {name: tuple(each.shape) for name, each in here.items() if each is not None}
        right = all(each is None or each.dtype == kinds.get(name, torch.uint8) for name, each in here.items())
        if shapes not in forms or not right:
            raise ValueError(f"a matrix of {n} rows and {k} columns is stored as {shapes}")
