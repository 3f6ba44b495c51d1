"""Matrix products over weights as layout `native-1` stores them, in panels of 64 rows; see
`export/formats/native/layout.py`.

Where activations may be rounded, a row is rounded to int8 by its largest value, the product with codes (or
codes times group scales) is exact in int32, and float scales of row and column follow. The codes of a matrix
are unpacked for each product: the plain way, which every device has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL_ROWS = 64
#: `torch._int_mm` on GPUs takes no fewer rows.
_LEAST_ROWS = 32
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

    def unpacked(self) -> Tensor:
        """Codes, or codes times group scales, int8 [N, K]."""
        if self.packed is not None:
            assert self.group_scales is not None, "checked"
            signed = self.packed.view(torch.int8)
            quads = torch.stack((signed & 15, (signed >> 4) & 15), 2) - 8  # [P, K / 8, 2, 64, 4]
            grouped = quads.flatten(1, 2).unflatten(1, (self.group_scales.shape[1], -1))
            out = (grouped * self.group_scales.view(torch.int8)[:, :, None, :, None]).flatten(1, 2)
        else:
            assert self.codes is not None, "checked"
            out = (self.codes ^ 128).view(torch.int8)
            if out.ndim == 2:
                return out
        return out.transpose(1, 2).reshape(-1, out.shape[1] * out.shape[3])[: self.rows, : self.columns]

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


def linear(x: Tensor, matrix: Matrix, rounds: bool) -> Tensor:
    """x [..., K] times the transpose of a matrix [N, K], float32 [..., N]; `rounds`: activations may be
    rounded to int8.
    """
    if not rounds or matrix.weight is not None:
        return F.linear(x, matrix.dequantized())
    assert matrix.scales is not None, "checked"
    flat = x.flatten(0, -2)
    rounded, scale = rounded_rows(flat)
    y = integer_product(rounded, matrix.unpacked()).float() * (scale * matrix.scales[: matrix.rows])
    return y.view(*x.shape[:-1], matrix.rows)


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The integers int8 [R, K] nearest to x * (127 / max|x|) of each row, of two equally near ones the even,
    and max|x| / 127 [R, 1]. Rows of zeros stay zeros.
    """
    top = x.abs().amax(-1, keepdim=True)
    step = torch.where(top > 0, 127 / top, 0)
    return (x * step).round().to(torch.int8), top / 127


def integer_product(x: Tensor, codes: Tensor) -> Tensor:
    """int32 [R, N] of int8 [R, K] and int8 [N, K]."""
    if x.is_cuda:  # its product takes sizes in eights, and no few rows
        rows, columns = len(x), len(codes)
        x = F.pad(x, (0, -x.shape[1] % 8, 0, max(0, _LEAST_ROWS - rows)))
        codes = F.pad(codes, (0, -codes.shape[1] % 8, 0, -columns % 8))
        return torch._int_mm(x, codes.T)[:rows, :columns]
    return torch._int_mm(x, codes.T)
