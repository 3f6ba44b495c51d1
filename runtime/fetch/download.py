"""Fetching a bundle with several connections at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgekit.flashload.errors import FetchFailed, InvalidRequest, WriteFailed
from edgekit.flashload.fetch import Fetch, Progress, Request, Step, arriving_folder
from edgekit.runtime.bundle.choice import formats_here
from edgekit.runtime.fetch.transport import Transport, transport

#: Seconds between two looks at how far it is.
_LOOK_S = 0.1
#: Seconds that a connection is given to end by itself, after a failure or an interrupt.
_END_S = 0.5
#: Seconds that a source which has failed is left alone from which on that is told.
_LONG_WAIT_S = 2
_CONNECTIONS = 4
_MOST_CONNECTIONS = 64
#: Of the time that a source which has failed is given; tests give none.
WAIT_SHARE = 1.0


@dataclass(frozen=True)
class Arrived:
    """A bundle in its folder, and what it took: bytes of the bundle, given by sources, copied from the bundle
    that was there, left by an earlier fetch, and how many runs and files came damaged at first. `current`
    tells that it was there already. Of several bundles `chosen` is the path of the one that was taken, empty
    where there is one alone.
    """

    folder: Path
    nbytes: int
    fetched: int
    copied: int
    found: int
    damaged: int
    current: bool
    chosen: str = ""


def fetch(
    sources: str | Sequence[str],
    folder: str | Path,
    *,
    sha256: str | None = None,
    formats: Sequence[str] | None = None,
    system: tuple[str, str] | None = None,
    connections: int = _CONNECTIONS,
    compare: bool = False,
    progress: Callable[[Progress], object] | None = None,
    trouble: Callable[[str], object] | None = None,
) -> Arrived:
    """Bring a bundle from `sources`, addresses or folders that hold the same files, to `folder`.

    Every run and file is compared with its digest as it arrives, damaged ones come again, from another source
    where there is one. What an earlier call left is gone on with; of a bundle that is in `folder` what has
    not changed is copied, and it is replaced when the new one is whole.

    Args:
        sha256: the 64 digits that the manifest must begin with; of several bundles that of bundles.json.
        formats: of several bundles the first in one of these is taken, such as "native"; empty: the first of
            all. A bundle that is alone has to be in one of them too. By default of several the one in the
            format of the bundle in `folder`, or else the first that engines run here, and one alone in any.
        system: "ios" or "macos" and its version, which the bundle must run on.
        connections: requests at the same time.
        compare: also compare a bundle that is there with the same manifest, and mend it.
        progress: told ten times a second how far it is; what it raises ends the fetch.
        trouble: told of answers that failed, in one line, by any thread.

    Raises FetchFailed, BundleError (ChecksumMismatch, OpenFailed, WriteFailed), UnsupportedBundle, or
    InvalidRequest.
    """
    given = [sources] if isinstance(sources, str) else list(sources)
    if not 1 <= connections <= _MOST_CONNECTIONS:
        raise InvalidRequest(f"connections must be from 1 to {_MOST_CONNECTIONS}, not {connections}")
    transports = [transport(source) for source in given]
    fetching = Fetch(
        folder,
        [each.name for each in transports],
        sha256=None if sha256 is None else sha256.lower(),
        formats=formats_here(system) if formats is None else formats,
        system=system,
        compare=compare,
        only_formats=formats is not None,
        keep_format=formats is None,
    )
    download = _Download(fetching, transports, trouble or _nobody)
    try:
        download.run(connections, progress or _nobody)
        done = fetching.progress
        fetching.finish()
    finally:
        if download.ended:  # else with the last thread that uses it
            fetching.close()
    return Arrived(
        Path(folder),
        done.total,
        done.fetched,
        done.copied,
        done.found,
        done.damaged,
        done.current,
        done.chosen,
    )


def discard(folder: str | Path) -> None:
    """Give up a fetch that was interrupted or has failed: remove what it has left in FOLDER.arriving. Without
    that nothing is done. A bundle that is in `folder` stays.

    Raises OpenFailed where what has that name is not of a fetch, InvalidRequest where a fetch is at it,
    WriteFailed.
    """
    arriving = arriving_folder(folder)
    if not os.path.lexists(arriving):  # to open a fetch would make it
        return
    fetching = Fetch(folder, ["nowhere"])
    try:
        fetching.discard()
    finally:
        fetching.close()
    if os.path.lexists(arriving):
        raise WriteFailed(f"{arriving}: cannot be removed; check the rights to it and to its files")


def _nobody(told: object) -> None:
    pass


@dataclass
class _Download:
    """Threads that do what a fetch asks for until it is ready."""

    fetch: Fetch
    transports: Sequence[Transport]
    trouble: Callable[[str], object]
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopped: bool = False
    _error: BaseException | None = None
    ended: bool = False  # no thread uses the fetch any more
    _reasons: dict[int, str] = field(default_factory=dict)  # by source: why its last request failed

    def run(self, connections: int, progress: Callable[[Progress], object]) -> None:
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(connections)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_LOOK_S)
                    progress(self.fetch.progress)
            progress(self.fetch.progress)  # of one that was over at once
        finally:  # after an interrupt or a failure they end with the bytes that they are at
            self._stop(None)
            for thread in threads:
                thread.join(_END_S)
            self.ended = not any(thread.is_alive() for thread in threads)
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait(_LOOK_S)

    def _stop(self, error: BaseException | None) -> None:
        with self._changed:
            self._error = self._error or error
            self._stopped = True
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            while not self._stopped:
                step, request = self.fetch.next()
                if step == Step.READY:
                    return
                if request is not None:
                    self._send(request)
                    with self._changed:
                        self._changed.notify_all()
                elif step == Step.WAIT:
                    self._wait()
        except BaseException as error:  # in the thread that waits
            self._stop(error)

    def _send(self, request: Request) -> None:
        name = self.transports[request.source].name
        if request.wait_s:
            if request.wait_s >= _LONG_WAIT_S:
                again = f"is asked again in {request.wait_s:.0f} seconds"
                self.trouble(f"{name}: {self._reasons.get(request.source, 'has failed')}; {again}")
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, request.wait_s * WAIT_SHARE)
        if self._stopped:
            return self.fetch.give_back(request)
        missing = False
        gave, promised = 0, request.nbytes  # 0: nobody knows how many

        def head(status: int, content_range: str | None) -> None:
            nonlocal missing, promised
            missing = status in (404, 410)
            if status == 200:  # the file from its beginning, whatever was asked for
                promised = request.size
            self.fetch.answer(request, status, content_range)

        try:
            parts = self.transports[request.source].ask(request, head)
            for part in parts:
                gave += len(part)
                if not self.fetch.write(request, part):
                    return None
                if self._stopped:
                    return self.fetch.give_back(request)
            if gave < promised:
                raise FetchFailed(f"gave {gave} of {promised} bytes of {request.name}")
        except FetchFailed as error:
            if not (missing and request.nbytes == 0):  # of several bundles there is no manifest
                said = self._reasons[request.source] = str(error).removeprefix(f"{name}: ")
                self.trouble(f"{name}/{request.name}: {said}" if missing else f"{name}: {said}")
            return self.fetch.end(request, str(error))
        return self.fetch.end(request)
