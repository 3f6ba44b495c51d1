"""What a sampler asks, looked at before anybody does it: procedures are their authors' code."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from inspect import signature
from typing import Any, NoReturn, cast

import numpy as np

from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.sampling.asks import (
    Answer,
    Ask,
    Crop,
    Denoise,
    Encode,
    Forget,
    Pass,
    PassRows,
    Prefix,
    Procedure,
    Project,
    Tell,
)
from edgekit.runtime.sampling.core import CoreSampler, text_number
from edgekit.runtime.sampling.events import Event
from edgekit.runtime.sampling.ids import check_list, flat_ids, whole
from edgekit.runtime.sampling.types import Denoiser, HeadRequest, Ids


def check_procedure(given: object) -> None:
    """Raises InvalidRequest for what no driver can ask."""
    if isinstance(given, CoreSampler):
        return
    if isinstance(given, type) or not callable(getattr(given, "next", None)):
        raise InvalidRequest(
            f"the sampler is {shown(given)}; pass an object with a method next, see Procedure"
        )
    with suppress(ValueError):  # some callables of C have no signature
        try:
            signature(cast(Procedure, given).next).bind(None)
        except TypeError:
            raise InvalidRequest(
                f"{type(given).__name__}.next cannot be called with an answer; give it next(self, answer)"
            ) from None


def asked(sampler: Procedure, answer: Answer | None) -> Ask:
    """The next request. Raises what `next` raises, and InvalidRequest where it returns what is no request."""
    if type(sampler) is CoreSampler:
        return sampler.next(answer)
    try:
        ask = sampler.next(answer)
    except StopIteration as error:  # drivers are generators, which it would end
        raise InvalidRequest(
            f"{type(sampler).__name__}.next raised StopIteration; it ends by returning Tell(Done(...))"
        ) from error
    named = f"{type(ask).__name__} of {type(sampler).__name__}"
    if isinstance(ask, Denoise):
        ids = flat_ids(ask.ids, f"the ids of a {named}")
        if not ids.size:
            raise InvalidRequest(f"the ids of a {named} are empty; a pass takes at least one")
        _check_request(ask.request, named)
        return Denoise(ids, ask.request, ask.soft, _prefix(ask.prefix, named))
    if isinstance(ask, Project):
        _check_request(ask.request, named)
        _prefix(ask.prefix, named)
    elif isinstance(ask, Pass):
        check_list(ask.segments, f"the segments of a {named}")
        rows = [_rows(each, named) for each in ask.segments]
        return Pass(rows, _prefix(ask.prefix, named))
    elif isinstance(ask, Crop):
        return Crop(whole(ask.length, f"the length of a {named}"))
    elif isinstance(ask, Encode):
        return Encode(flat_ids(ask.ids, f"the ids of an {named}"), _prefix(ask.prefix, named))
    elif isinstance(ask, Tell) and isinstance(ask.event, Event):
        if ask.kept is not None:
            return Tell(ask.event, flat_ids(ask.kept, f"what is kept of a {named}"))
    elif not isinstance(ask, Forget):
        wrong_ask(sampler, ask)
    return ask


def wrong_ask(sampler: object, ask: object) -> NoReturn:
    """Raises InvalidRequest for what a procedure must not ask."""
    raise InvalidRequest(
        f"{type(sampler).__name__}.next returned {shown(ask)}; it must return one of Forget, Encode, "
        "Denoise, Project (of a model that projects), Pass, Crop, or Tell with a Draft, Committed or Done"
    )


def _rows(given: Any, named: str) -> PassRows:
    if not isinstance(given, PassRows):
        raise InvalidRequest(f"a segment of a {named} is {shown(given)}; give PassRows")
    ids = flat_ids(given.ids, f"the ids of a segment of a {named}")
    if given.request is not None:
        _check_request(given.request, named)
    if given.positions is not None:
        places = flat_ids(given.positions, f"the positions of a segment of a {named}")
        given = replace(given, positions=places)
    return replace(given, ids=ids)


def _check_request(given: Any, named: str) -> None:
    if not isinstance(given, HeadRequest):
        raise InvalidRequest(f"the request of a {named} is {shown(given)}; give a HeadRequest")


def _prefix(given: Any, named: str) -> Prefix | None:
    if given is not None and not isinstance(given, Prefix):
        raise InvalidRequest(f"the prefix of a {named} is {shown(given)}; give a Prefix, or None")
    return given


def check_prefix(ask: Denoise | Encode | Pass | Project, denoiser: Denoiser) -> None:
    """Raises InvalidRequest unless the text is encoded that the sampler takes for granted."""
    wanted = ask.prefix
    if wanted is None:
        return
    there = getattr(denoiser, "prefix", None)
    if not isinstance(there, Prefix):
        there = Prefix(denoiser.prefix_length)
    if wanted.length != there.length:
        said = f"{wanted.length} encoded tokens, and {there.length} are there"
    elif wanted.text and there.text and wanted.text != there.text:
        said = f"a text of {wanted.length} tokens, and another of that length is there"
    else:
        return
    raise InvalidRequest(
        f"the sampler goes on behind {said}: drive it over the sequence that it was driven over, which "
        "nobody else changes meanwhile, or restore the sampler, which has its text encoded again"
    )


def encoded_of(ask: Encode, denoiser: Denoiser) -> int:
    """How many ids of an Encode are encoded already: of one that is asked for again, since a signal came or
    who encoded it in pieces has stopped. Raises InvalidRequest unless the text before them is there.
    """
    there = getattr(denoiser, "prefix", None)
    if ask.prefix is not None and isinstance(there, Prefix) and there.length > ask.prefix.length:
        ids = ask.ids[: there.length - ask.prefix.length]
        whole = ask.prefix.length + len(ids) == there.length
        if whole and there.text == text_number(ask.prefix.text, ids) != 0:
            return len(ids)
    check_prefix(ask, denoiser)
    return 0


def is_repeated(sampler: Procedure, asked_of: int | None, last: int | None) -> bool:
    """Whether a Project that would look at another pass than that of its Denoise, see `Sequence.last_pass`,
    is the pass once more: of the core's samplers, whose Project is of a pass without soft embeddings. Raises
    InvalidRequest for others; None: not known.
    """
    if isinstance(sampler, CoreSampler):
        return asked_of != last
    if asked_of is not None and asked_of != last:
        raise InvalidRequest(
            "the sampler asks for more of its last pass, and another pass has run over the sequence since: "
            "give each its own sequence"
        )
    return False


def check_behind(uncached: Ids, ids: Ids) -> None:
    """Raises InvalidRequest for ids to be encoded that do not begin with what is uncached."""
    count = min(len(uncached), len(ids))
    if not np.array_equal(uncached[:count], ids[:count]):
        raise InvalidRequest(
            f"the ids to encode must begin with the {len(uncached)} tokens that are uncached, the end of the "
            "last answer: put `uncached` before them, or ask to Forget the text first"
        )
