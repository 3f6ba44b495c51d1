"""4-bit codes to 8 bits, while a matrix is bound to a program: `scale * q` as one integer per weight.

Stored form (see the `onnx-3` layout): byte [k, j] holds column j in its low nibble and column j + ceil(N/2)
in its high one, as q + 8; group_scales [K/G, N] are 1..15. The product fits int8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Rows handled at a time: the temporaries of a block stay in the cache.
_BLOCK_BYTES = 1 << 18


def unpack_int4(
    packed: NDArray[np.uint8], group_scales: NDArray[np.uint8], out: NDArray[Any]
) -> NDArray[Any]:
    """Write `group_scales * q` into `out` [K, N] and return it: as it is into int8, plus 128 into uint8.

    packed uint8 [K, ceil(N/2)], group_scales uint8 [K/G, N].
    """
    rows, columns = out.shape
    half, group = packed.shape[1], rows // group_scales.shape[0]
    signed, scales = out.view(np.int8), group_scales.view(np.int8)
    # Whole groups per block, so that a block's scales are a plain slice.
    step = max(1, _BLOCK_BYTES // max(1, half * group)) * group
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        block, target = packed[start:stop], signed[start:stop]
        np.bitwise_and(block, 15, out=target[:, :half].view(np.uint8))
        np.right_shift(block[:, : columns - half], 4, out=target[:, half:].view(np.uint8))
        np.subtract(target, 8, out=target)
        grouped = target.reshape(-1, group, columns)
        np.multiply(grouped, scales[start // group : stop // group, None, :], out=grouped)
        if out.dtype == np.uint8:
            np.bitwise_xor(out[start:stop], 128, out=out[start:stop])
    return out
