"""Many generations at once with the product's own sampling loops, on the reference model.

Every prompt runs its sampler in a thread of its own; a pass waits until all threads that are still generating
have asked for one, and then runs as one batch. The loops see a plain `Denoiser` and know nothing of each
other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from edgekit.export.reference import MASKED, ReferenceModel
from edgekit.runtime.sampling import Denoiser, HeadOutput, HeadRequest, Ids

Result = TypeVar("Result")
Prefix = list[tuple[Tensor, Tensor]]


class _Row:
    """One thread's denoiser: its prefix, and the pass that it is waiting for."""

    def __init__(self, batch: Lockstep) -> None:
        self._batch = batch
        self.prefix: Prefix | None = None
        self._pieces: list[Ids] = []
        self.uncached: Ids = np.empty(0, np.int64)
        self.request: tuple[Ids, HeadRequest, Any] | None = None
        self.output: HeadOutput | BaseException | None = None

    @property
    def vocab_size(self) -> int:
        return self._batch.model.architecture.vocab_size

    @property
    def hidden_size(self) -> int:
        return self._batch.model.architecture.hidden_size

    @property
    def pieces(self) -> list[Ids]:
        return list(self._pieces)

    @property
    def prefix_length(self) -> int:
        return 0 if self.prefix is None else self.prefix[0][0].shape[2]

    def reset(self) -> None:
        self.prefix = None
        self._pieces.clear()

    def prefill(self, ids: Ids) -> None:
        with torch.no_grad():
            device = self._batch.model.embedding.device
            tokens = torch.from_numpy(np.asarray(ids)).to(device)[None]
            start = self.prefix_length
            positions = torch.arange(start, start + tokens.shape[1], device=device)
            self.prefix = self._batch.model.encode(tokens, self.prefix, positions)
            self._pieces.append(ids)

    def denoise(self, ids: Ids, request: HeadRequest, soft: Any = None) -> HeadOutput:
        return self._batch.submit(self, (np.asarray(ids), request, soft))


class Lockstep:
    """Runs functions of a denoiser side by side; see `run`."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model = model
        self._turn = threading.Condition()
        self._rows: list[_Row] = []

    def run(self, jobs: Sequence[Callable[[Denoiser], Result]]) -> list[Result]:
        """The results of all jobs, in order. The first error of a job is raised once all have ended."""
        self._rows = [_Row(self) for _ in jobs]
        results: list[Any] = [None] * len(jobs)

        def work(index: int, row: _Row) -> None:
            try:
                results[index] = jobs[index](row)
            except Exception as error:
                results[index] = error
            finally:
                self._leave(row)

        threads = [
            threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(list(self._rows))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def submit(self, row: _Row, request: tuple[Ids, HeadRequest, Any]) -> HeadOutput:
        """Called by a row: waits for the batch and returns this row's part."""
        with self._turn:
            row.request, row.output = request, None
            self._run_when_complete()
            self._turn.wait_for(lambda: row.output is not None)
            output = row.output
        if isinstance(output, BaseException):
            raise output
        assert output is not None
        return output

    def _leave(self, row: _Row) -> None:
        with self._turn:
            self._rows.remove(row)
            self._run_when_complete()

    def _run_when_complete(self) -> None:
        if not self._rows or any(row.request is None for row in self._rows):
            return
        rows, outputs = list(self._rows), []
        try:
            outputs = self._pass(rows)
        except Exception as error:
            outputs = [error] * len(rows)
        for row, output in zip(rows, outputs, strict=True):
            row.request, row.output = None, output
        self._turn.notify_all()

    @torch.no_grad()
    def _pass(self, rows: list[_Row]) -> list[Any]:
        model, device = self.model, self.model.embedding.device
        requests = [row.request for row in rows if row.request is not None]
        width, before = max(len(r[0]) for r in requests), max(row.prefix_length for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        positions = torch.zeros(len(rows), width, dtype=torch.int64)
        mask = torch.full((len(rows), 1, 1, before + width), MASKED)
        for i, (row, (tokens, _, _)) in enumerate(zip(rows, requests, strict=True)):
            pad = width - len(tokens)
            ids[i, pad:] = torch.from_numpy(tokens)
            positions[i, pad:] = torch.arange(row.prefix_length, row.prefix_length + len(tokens))
            mask[i, ..., before - row.prefix_length : before] = 0.0
            mask[i, ..., before + pad :] = 0.0
        soft = None
        if model.architecture.self_conditioning is not None:
            soft = torch.zeros(len(rows), width, model.architecture.hidden_size)
            for i, (tokens, _, given) in enumerate(requests):
                if given is not None:
                    soft[i, width - len(tokens) :] = torch.as_tensor(given)
            soft = soft.to(device)
        hidden = model.hidden(
            ids.to(device), self._prefix(rows, before), soft, positions.to(device), mask.to(device)
        )
        return [
            self._head(hidden[i, width - len(tokens) :], request)
            for i, (tokens, request, _) in enumerate(requests)
        ]

    def _prefix(self, rows: list[_Row], length: int) -> Prefix | None:
        """The rows' prefix KV, padded on the left."""
        if not length:
            return None
        out = []
        for layer in self.model.architecture.layers:
            shape = (len(rows), layer.kv_heads, length, layer.head_dim)
            out.append((torch.zeros(shape, device=self.model.embedding.device),) * 2)
        padded = [(k.clone(), v.clone()) for k, v in out]
        for i, row in enumerate(rows):
            for (keys, values), (k, v) in zip(padded, row.prefix or [], strict=False):
                keys[i, :, length - k.shape[2] :], values[i, :, length - v.shape[2] :] = k[0], v[0]
        return padded

    def _head(self, hidden: Tensor, request: HeadRequest) -> HeadOutput:
        if request.rows is not None:
            hidden = hidden[torch.from_numpy(np.asarray(request.rows)).to(hidden.device)]
        z = self.model.head(hidden).float() / request.temperature
        log_p = torch.log_softmax(z, -1)
        p = log_p.exp()
        top = z.argmax(-1)
        others = (z - z.amax(-1, keepdim=True)).exp().scatter(-1, top[:, None], 0.0).sum(-1)
        out = HeadOutput(
            top.cpu().numpy(),
            others.cpu().numpy(),
            -(p * log_p).sum(-1).cpu().numpy(),
            torch.logsumexp(z, -1).cpu().numpy(),
        )
        if request.gumbel is not None:
            noise = torch.from_numpy(np.asarray(request.gumbel(0, self.model.architecture.vocab_size))).to(
                z.device
            )
            sample = (z + request.gumbel_scale * noise).argmax(-1)
            out.sample, out.sample_prob = (
                sample.cpu().numpy(),
                p.gather(-1, sample[:, None])[:, 0].cpu().numpy(),
            )
        if request.soft:
            out.soft = (p @ self.model.embedding.float()).cpu().numpy()
        if request.top_k:
            best = z.topk(request.top_k, -1)
            out.top_z, out.top_ids = best.values.cpu().numpy(), best.indices.cpu().numpy()
        if request.logits:
            out.logits = z.cpu().numpy()
        return out
