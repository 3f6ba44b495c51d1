"""A head request as the core takes it, with the arrays that its answer goes to."""

from __future__ import annotations

import numpy as np

from edgekit.flashload import errors
from edgekit.flashload.core_memory import address
from edgekit.flashload.names import shown
from edgekit.runtime.core_structs import HeadRequestStruct
from edgekit.runtime.sampling.answers import FilledOutput, answer_shapes
from edgekit.runtime.sampling.ids import flat_ids, real, truth, whole
from edgekit.runtime.sampling.noise import PhiloxGumbel
from edgekit.runtime.sampling.types import HeadRequest

#: Beyond it float32 has infinity alone.
_MOST_SCALE = float(np.finfo(np.float32).max)


class HeadArrays:
    """`request` and `output` for the core, and `answer` over the same arrays, while this object lives."""

    def __init__(self, wanted: HeadRequest, positions: int, vocab_size: int, hidden_size: int) -> None:
        """For a pass of so many positions. Raises InvalidRequest for what is no request, and for noise that
        the core does not make.
        """
        if not isinstance(wanted, HeadRequest):
            raise errors.InvalidRequest(f"the request is {shown(wanted)}; pass a HeadRequest")
        self._rows = None if wanted.rows is None else flat_ids(wanted.rows, "the list of rows")
        count = positions if self._rows is None else self._rows.size
        k = whole(wanted.top_k, "top_k")
        if k > vocab_size:
            raise errors.InvalidRequest(f"top_k is {k}; the model has {vocab_size} tokens")
        truth(wanted.logits, "logits")
        roles = truth(wanted.roles, "roles")
        soft, temperature = truth(wanted.soft, "soft"), real(wanted.temperature, "temperature")
        scale = real(wanted.gumbel_scale, "gumbel_scale")
        noise = wanted.gumbel
        if noise is None and not 0 <= scale <= _MOST_SCALE:  # with noise the core looks
            raise errors.InvalidRequest(f"gumbel_scale {scale} is not a number at least 0")
        if noise is not None and not isinstance(noise, PhiloxGumbel):
            raise errors.InvalidRequest(
                "sessions make their own noise: give a draw of PhiloxNoise, not a function"
            )
        if noise is not None and (noise.positions, noise.vocab_size) != (count, vocab_size):
            raise errors.InvalidRequest(
                f"noise for {noise.positions} positions and {noise.vocab_size} tokens was drawn for a "
                f"request of {count} and {vocab_size}"
            )
        self.request = HeadRequestStruct(
            temperature=temperature,
            rows=None if self._rows is None else address(self._rows),
            row_count=count,
            gumbel=noise is not None,
            gumbel_scale=scale,
            seed=0 if noise is None else noise.seed,
            draw=0 if noise is None else noise.draw,
            soft=soft,
            roles=roles,
            top_k=k,
        )
        self.answer = FilledOutput.empty(answer_shapes(wanted, count, vocab_size, hidden_size))
        self.output = self.answer.struct
