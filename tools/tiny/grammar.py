"""The story grammar: writing stories with free choices, and parsing them back to verify their ending.

A story is an opening that puts a thing in a place, one or two moves of the thing, possibly a sentence that
does not move it, and a question about where the thing is with its answer:

    Ada had a key in the garden. Then Ada took it to the attic. Ada was glad. Where is the key? In the attic.

The parser accepts exactly the sentences the writer can produce, in an order in which they make sense, and
follows the thing from place to place. A story is right when its own answer agrees with the place at which
the thing ended.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from edgekit.tools.tiny.lexicon import COLORS, NAMES, PLACES, THINGS

# Two tokens per word (the word, then a space or a mark): 35 words stay within 70 tokens.
MAX_WORDS = 35

OPENINGS = (
    "{hero} had a {thing} in the {place}.",
    "{hero} found a {thing} in the {place}.",
    "One day {hero} saw a {thing} in the {place}.",
)
MOVES = (
    "{hero} took it to the {place}.",
    "Then {hero} carried the {thing} to the {place}.",
    "Soon {hero} hid it in the {place}.",
)
# Sentences after which the thing is where it was. WALK names a place all the same, so that the last place
# named is not always the answer.
ASIDES = ("It was {color}.", "{hero} was {mood}.")
WALK = "{hero} went to the {place} without it."
MOODS = ("glad", "tired", "happy")
QUESTIONS = ("Where is the {thing}?", "Where is the {thing} now?")
REPLIES = ("In the {place}.", "It is in the {place}.")


@dataclass(frozen=True)
class Story:
    """The facts of a story: who, what, where from and to, and where people walked without it."""

    hero: str
    thing: str
    places: tuple[str, ...]  # starting place, then the target of every move
    walks: tuple[str, ...]

    @property
    def final_place(self) -> str:
        return self.places[-1]


def write_events(
    rng: random.Random, hero: str, thing: str, places: tuple[str, ...], walk: str | None
) -> list[str]:
    """Sentences that lead the thing through `places` in order; with `walk`, one sentence visits it without
    the thing.
    """
    names = {"hero": hero, "thing": thing}
    sentences = [rng.choice(OPENINGS).format(place=places[0], **names)]
    sentences += [rng.choice(MOVES).format(place=place, **names) for place in places[1:]]
    if walk is not None:
        sentences.insert(rng.randint(1, len(sentences)), WALK.format(place=walk, **names))
    elif rng.random() < 0.5:
        aside = rng.choice(ASIDES).format(hero=hero, color=rng.choice(COLORS), mood=rng.choice(MOODS))
        if sum(len(s.split()) for s in sentences) + len(aside.split()) <= MAX_WORDS - 10:
            sentences.insert(rng.randint(1, len(sentences)), aside)
    return sentences


def write_question(rng: random.Random, thing: str) -> str:
    return rng.choice(QUESTIONS).format(thing=thing)


def write_reply(rng: random.Random, place: str) -> str:
    return rng.choice(REPLIES).format(place=place)


def _pattern(template: str) -> re.Pattern[str]:
    choices = {
        "hero": NAMES, "thing": THINGS, "place": PLACES, "color": COLORS, "mood": MOODS,
    }  # fmt: skip
    text = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    for field, words in choices.items():
        text = text.replace("{" + field + "}", f"(?P<{field}>{'|'.join(words)})")
    return re.compile(text)


_OPENINGS = [_pattern(t) for t in OPENINGS]
_MOVES = [_pattern(t) for t in MOVES]
_ASIDES = [_pattern(t) for t in ASIDES]
_WALK = [_pattern(WALK)]
_QUESTIONS = [_pattern(t) for t in QUESTIONS]
_REPLIES = [_pattern(t) for t in REPLIES]


def _match(patterns: list[re.Pattern[str]], sentence: str) -> dict[str, str] | None:
    for pattern in patterns:
        found = pattern.fullmatch(sentence)
        if found:
            return found.groupdict()
    return None


def split_sentences(text: str) -> list[str]:
    """Sentences of a text in which exactly one space follows every `.` and `?` but the last."""
    return re.split(r"(?<=[.?]) ", text)


def parse_reply(text: str) -> str | None:
    """The place named by a reply such as "In the attic.", or None when it is not one."""
    found = _match(_REPLIES, text)
    return found["place"] if found else None


def parse_events(sentences: list[str]) -> Story | None:
    """Read an opening and the sentences after it; None when a sentence is not of the grammar or contradicts
    another.
    """
    opening = _match(_OPENINGS, sentences[0]) if sentences else None
    if opening is None:
        return None
    hero, thing = opening["hero"], opening["thing"]
    places, walks = [opening["place"]], []
    for sentence in sentences[1:]:
        move, walk, aside = _match(_MOVES, sentence), _match(_WALK, sentence), _match(_ASIDES, sentence)
        found = move or walk or aside
        if found is None or found.get("hero", hero) != hero or found.get("thing", thing) != thing:
            return None
        if move:
            places.append(move["place"])
        elif walk:
            walks.append(walk["place"])
    return Story(hero, thing, tuple(places), tuple(walks))


def parse_story(text: str) -> tuple[Story, str] | None:
    """Read a whole story with its question and reply: (what it says, the place its reply names), or None."""
    sentences = split_sentences(text)
    if len(sentences) < 4:
        return None
    *events, question, reply = sentences
    story = parse_events(events)
    asked = _match(_QUESTIONS, question)
    place = parse_reply(reply)
    if story is None or asked is None or place is None or asked["thing"] != story.thing:
        return None
    return story, place
