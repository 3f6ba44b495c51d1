"""Runs of the core's samplers over denoisers in Python, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from edgekit.runtime.sampling import (
    Committed,
    CoreSampler,
    Done,
    Draft,
    Event,
    SamplerModel,
    drive,
    generate,
    settle,
)


def section(family: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A manifest's section "sampler"."""
    return {"name": family, "config": dict(config or {})}


def settled(
    family: str, vocab_size: int, config: Mapping[str, Any] | None = None, **options: Any
) -> SimpleNamespace:
    """The options of a generation as attributes."""
    model = SamplerModel(section(family, config), vocab_size, hidden_size=4, role_head=True)
    return SimpleNamespace(**settle(model, options=options).values())


def run(family: str, denoiser: Any, prompt: Any, options: Mapping[str, Any], seed: int = 0) -> list[Event]:
    """All events of a generation."""
    return list(generate(denoiser, section(family), prompt, options=options, seed=seed))


def core_model(family: str, denoiser: Any, hidden: int = 4) -> SamplerModel:
    """The model as the core's sampler knows it, of a denoiser whose states can be saved."""
    return SamplerModel(
        section(family),
        denoiser.vocab_size,
        hidden,
        projects=hasattr(denoiser, "project"),
        role_head=getattr(denoiser, "role_head", False),
        bundle="a bundle",
        encoded=denoiser.pieces,
        uncached=denoiser.uncached,
    )


def saved_run(
    family: str, denoiser: Any, prompt: Any, options: Mapping[str, Any], seed: int, saved: int
) -> list[Event]:
    """A generation that is saved after event number `saved`, and loaded for the denoiser as it then is."""
    model, events = core_model(family, denoiser), []
    sampler = CoreSampler(model, prompt, seed=seed, options=options)
    while True:
        for event in drive(sampler, denoiser):
            events.append(event)
            if len(events) == saved:
                sampler = CoreSampler.load(model, sampler.save())
                break
        else:
            return events


def plain(event: Event) -> tuple[Any, ...]:
    """An event as a tuple."""
    if isinstance(event, Draft):
        accepted = [int(flag) for flag in event.accepted]
        return ("draft", event.canvas_index, event.step, event.start, event.ids.tolist(), accepted)
    if isinstance(event, Committed):
        return ("committed", event.canvas_index, event.ids.tolist())
    return ("done", {k: v for k, v in asdict(event.stats).items() if k != "engine"})


def committed(events: list[Event]) -> list[int]:
    """The answer."""
    return [token for event in events if isinstance(event, Committed) for token in event.ids.tolist()]


def finish(events: list[Event]) -> Done:
    """The last event."""
    done = events[-1]
    assert isinstance(done, Done)
    return done
