"""What the torch engine asks of CUDA, with a runtime that only notes it: there is no GPU here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from edgekit.runtime.engines.torch import cuda


class Runtime:
    """`torch.cuda`, with `limit` bytes that may be locked in all, and none at odd addresses."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.locked: dict[int, int] = {}
        self.current = "default"
        self.streams, self.limit = 0, limit
        runtime = self

        class Stream:
            def __init__(self, place: Any) -> None:
                runtime.streams += 1
                self.name = f"stream {runtime.streams}"

            def wait_event(self, event: Any) -> None:
                runtime.said.append((self.name, "follows", event.name))

        class Event:
            def record(self, stream: Any) -> None:
                self.name = f"event of {stream.name}"

            def synchronize(self) -> None:
                runtime.said.append(("waits for", self.name))

        class CUDAGraph:
            def capture_begin(self, **how: Any) -> None:
                runtime.said.append(("capture", how["pool"]))

            def capture_end(self) -> None:
                runtime.said.append(("captured",))

            def replay(self) -> None:
                runtime.said.append(("replay",))

        self.Stream, self.Event, self.CUDAGraph = Stream, Event, CUDAGraph

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.current, before = stream.name, self.current
        try:
            yield
        finally:
            self.current = before

    def cudart(self) -> Runtime:
        return self

    def cudaHostRegister(self, place: int, nbytes: int, flags: int) -> int:
        if place % 2 or sum(self.locked.values()) + nbytes > self.limit:
            return 2
        self.locked[place] = nbytes
        return 0

    def cudaHostUnregister(self, place: int) -> int:
        del self.locked[place]
        return 0

    def graph_pool_handle(self) -> str:
        return "pool"

    def mem_get_info(self, place: Any) -> tuple[int, int]:
        return 700, 1000

    def memory_reserved(self, place: Any) -> int:
        return 200

    def memory_allocated(self, place: Any) -> int:
        return 150

    def synchronize(self, place: Any) -> None:
        self.said.append(("waits for all",))


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(cuda.torch, "cuda", made)
    return made


def device(integrated: bool = False) -> cuda.CudaDevice:
    return cuda.CudaDevice(torch.device("cpu"), integrated)


def test_streams_keep_their_order_and_wait_for_each_other(runtime: Runtime) -> None:
    own, ran = device(), []
    own.copies.run(lambda: ran.append(runtime.current))
    own.compute.follow(own.copies.record())
    own.compute.run(lambda: ran.append(runtime.current))
    own.compute.record().wait()
    assert ran == ["stream 2", "stream 1"] and runtime.current == "default"
    assert runtime.said == [("stream 1", "follows", "event of stream 2"), ("waits for", "event of stream 1")]


def test_lent_memory_is_locked_until_it_is_taken_back(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CUDA refuses leaves no error behind, and is not unlocked."""
    asked: list[str] = []
    monkeypatch.setattr(cuda, "_runtime_function", lambda name: lambda *given: asked.append(name) or 0)
    own = device()
    own.lend(4096, 100)
    assert runtime.locked == {4096: 100} and not asked
    own.lend(4097, 100)
    own.lend(8192, 1 << 30)
    assert runtime.locked == {4096: 100} and asked == ["cudaGetLastError"] * 2
    for place, nbytes in ((4097, 100), (8192, 1 << 30), (4096, 100)):
        own.take_back(place, nbytes)
    assert runtime.locked == {}
    assert own.in_place(4096, 10) is None
    # Where torch's libraries do not offer the function, nothing is asked.
    monkeypatch.setattr(cuda, "_runtime_function", lambda name: None)
    own.lend(4097, 100)


def test_a_gpu_with_the_processors_memory_uses_weights_where_they_lie(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pointer(out: Any, place: Any, flags: int) -> int:
        out._obj.value = place.value + 1_000_000
        return 0

    monkeypatch.setattr(cuda, "_runtime_function", lambda name: pointer)
    monkeypatch.setattr(cuda.torch, "as_tensor", lambda memory, device: memory.__cuda_array_interface__)
    own = device(integrated=True)
    own.lend(4096, 4096)
    found: Any = own.in_place(5000, 64)
    assert found["data"] == (1_005_000, False) and found["shape"] == (64,) and found["typestr"] == "|u1"
    assert own.in_place(4096 + 4090, 64) is None and own.in_place(100, 64) is None
    own.take_back(4096, 4096)
    assert own.in_place(5000, 64) is None
    # Without a place on the device, and where GPU and processor have memories of their own, it is copied.
    monkeypatch.setattr(cuda, "_runtime_function", lambda name: None)
    own.lend(4096, 4096)
    assert own.in_place(5000, 64) is None
    separate = device()
    separate.lend(8192, 4096)
    assert separate.in_place(8192, 64) is None


def test_memory_that_is_not_there_is_told(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    own = device()
    assert own.free_bytes() == 750  # what the allocator keeps is free as well
    assert own.allocate(64).shape == (64,)

    def none(*given: Any, **how: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(cuda.torch, "empty", none)
    with pytest.raises(MemoryError):
        own.allocate(64)


def test_work_is_captured_or_goes_on_as_it_is(runtime: Runtime) -> None:
    own, ran = device(), list[int]()

    def work() -> list[int]:
        ran.append(1)
        return ran

    replay = own.capture(work)
    assert replay is not None and ran == [1]
    assert replay() is ran and ran == [1]
    assert runtime.said == [("capture", "pool"), ("captured",), ("replay",)]

    def wrong() -> None:
        raise RuntimeError("this cannot be captured")

    assert own.capture(wrong) is None
    assert runtime.said[3:] == [("capture", "pool"), ("captured",), ("waits for all",)]


def test_functions_of_the_runtime_are_found_or_not() -> None:
    assert cuda._runtime_function("edgekit_has_no_such_function") is None
    if os.name != "nt":
        assert cuda._runtime_function("malloc") is not None
