"""Examples with right and wrong answers: a prompt, one right answer, and a checker for any text.

Every task is a function from a random generator to an `Example`. `draw` adds the split: an example is held
out when the hash of its task and content falls in the first tenth, whatever phrasing the prompt uses, so
that training and held-out examples share neither a prompt nor a reworded one (for addition, neither order
of the two operands).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.names import unknown
from edgekit.tools.tiny import grammar
from edgekit.tools.tiny.lexicon import COPY_WORDS, JSON_FIELDS, NAMES, PLACES, THINGS, VARIABLES

HELD_OUT_SHARE = 0.1
SPLITS = ("train", "held-out")


class UnknownTask(EdgekitError):
    """A task or split name that does not exist."""


@dataclass(frozen=True)
class Example:
    """One task instance. `key` is the content without its phrasing: what the split is decided on."""

    task: str
    prompt: str
    answer: str
    key: str
    checker: Callable[[str], bool] = field(repr=False, compare=False)

    def check(self, text: str) -> bool:
        """Whether `text` is a right answer; white space around it does not count."""
        return self.checker(text.strip())

    @property
    def split(self) -> str:
        digest = hashlib.blake2b(f"{self.task}\n{self.key}".encode(), digest_size=8).digest()
        return "held-out" if int.from_bytes(digest, "little") < HELD_OUT_SHARE * 2**64 else "train"


def _exact(task: str, prompt: str, answer: str, key: str) -> Example:
    return Example(task, prompt, answer, key, answer.__eq__)


def _number(rng: random.Random, digits: int) -> int:
    return rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def addition(rng: random.Random, digits: tuple[int, int] | None = None) -> Example:
    """The sum of two numbers with one to three digits; `digits` fixes how many each has."""
    if digits is None:
        share = rng.random()
        digits = (2, 2) if share < 0.65 else (rng.randint(1, 2), rng.randint(1, 2)) if share < 0.8 else (3, 3)
        if share > 0.95:
            digits = (rng.randint(1, 3), rng.randint(1, 3))
    a, b = _number(rng, digits[0]), _number(rng, digits[1])
    prompt = rng.choice(("What is {} + {}?", "Add {} and {}.", "{} + {} = ?")).format(a, b)
    return _exact("addition", prompt, str(a + b), f"{min(a, b)} {max(a, b)}")


def sorting(rng: random.Random, counts: tuple[int, int] = (12, 18)) -> Example:
    """Different words in alphabetical order, capitals or not; `counts` bounds how many (both included).

    Every word is one token, and which one comes next depends on the whole list.
    """
    words = rng.sample(COPY_WORDS, rng.randint(*counts))
    text = " ".join(words)
    prompt = rng.choice(("Sort the words {}", "Order the words {}")).format(text)
    return _exact("sorting", prompt, " ".join(sorted(words, key=str.lower)), text)


def _copy_item(rng: random.Random) -> str:
    share = rng.random()
    if share < 0.7:
        return rng.choice(COPY_WORDS)
    if share < 0.95:
        return str(rng.randint(0, 99))
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 3)))


def copying(rng: random.Random) -> Example:
    """Two to ten words, numbers and, now and then, random letters, to be repeated verbatim."""
    text = " ".join(_copy_item(rng) for _ in range(rng.randint(2, 10)))
    prompt = rng.choice(("Repeat: {}", "Copy this: {}", 'Say "{}" again.')).format(text)
    return _exact("copying", prompt, text, text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("duplicate key")
    return record


def _same_record(expected: str) -> Callable[[str], bool]:
    # Compared as canonical text, since 31 == 31.0 and True == 1 in Python but not in JSON.
    def check(text: str) -> bool:
        try:
            record = json.loads(text, object_pairs_hook=_unique_keys)
        except (ValueError, RecursionError):
            return False
        return json.dumps(record, sort_keys=True) == json.dumps(json.loads(expected), sort_keys=True)

    return check


def record(rng: random.Random) -> Example:
    """A record of two to four fields to be written as JSON: strings quoted, whole numbers not."""
    keys = rng.sample(list(JSON_FIELDS), rng.randint(2, 4))
    fields: dict[str, str | int] = {}
    for key in keys:
        words = JSON_FIELDS[key]
        fields[key] = rng.randint(1, 99) if words is None else rng.choice(words)
    listed = "; ".join(f"{key}: {value}" for key, value in fields.items())
    equal = ", ".join(f"{key} = {value}" for key, value in fields.items())
    prompt = rng.choice((f"Write as JSON: {listed}", f"Turn this into JSON: {listed}", f"Make JSON: {equal}"))
    answer = json.dumps(fields)
    return Example("json", prompt, answer, listed, _same_record(answer))


def _story_matches(hero: str, thing: str, places: frozenset[str]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        parsed = grammar.parse_story(text)
        if parsed is None:
            return False
        story, place = parsed
        told = frozenset(story.places + story.walks)
        return (
            (story.hero, story.thing) == (hero, thing)
            and told == places
            and len(set(story.places)) == len(story.places)
            and place == story.final_place
        )

    return check


def story(rng: random.Random) -> Example:
    """A story about a hero, a thing and two or three places in an order of its own, ending in a question
    and reply.
    """
    hero, thing = rng.choice(NAMES), rng.choice(THINGS)
    places = rng.sample(PLACES, rng.randint(2, 3))
    path = places[:]
    rng.shuffle(path)
    walk = path.pop() if len(path) == 3 and rng.random() < 0.3 else None
    sentences = grammar.write_events(rng, hero, thing, tuple(path), walk)
    answer = " ".join([*sentences, grammar.write_question(rng, thing), grammar.write_reply(rng, path[-1])])
    where = ", ".join(f"the {p}" for p in places[:-1]) + f" and the {places[-1]}"
    phrasing = rng.choice(("Tell a story about {}, a {}, {}.", "Write a story with {}, a {}, {}."))
    key = f"{hero} {thing} {' '.join(sorted(places))}"
    return Example(
        "story",
        phrasing.format(hero, thing, where),
        answer,
        key,
        _story_matches(hero, thing, frozenset(places)),
    )


def question(rng: random.Random) -> Example:
    """A story in the prompt; only where the thing is at its end is asked for."""
    hero, thing = rng.choice(NAMES), rng.choice(THINGS)
    path = rng.sample(PLACES, rng.randint(2, 3))
    walk = rng.choice([p for p in PLACES if p not in path]) if len(path) == 2 and rng.random() < 0.4 else None
    told = " ".join(grammar.write_events(rng, hero, thing, tuple(path), walk))
    prompt = f"{told} {grammar.write_question(rng, thing)}"
    if rng.random() < 0.3:
        prompt = f"Read this: {prompt}"
    place = path[-1]
    return Example(
        "question", prompt, f"In the {place}.", told, lambda text: grammar.parse_reply(text) == place
    )


def _assigned(rng: random.Random, before: str, value: int) -> tuple[str, int]:
    """An expression of the variable before, and its value, which is a digit."""
    if 1 <= value <= 4 and rng.random() < 0.3:
        return f"{before} * 2", 2 * value
    # Small steps, so that the value before tells something by itself. Of sums modulo 10 neither the value
    # before nor what is added does, and they are learned late.
    by = rng.choice([by for by in range(-3, 4) if by and 0 <= value + by <= 9])
    return f"{before} {'+' if by > 0 else '-'} {abs(by)}", value + by


def chain(rng: random.Random, counts: tuple[int, int] = (8, 16)) -> Example:
    """Assignments, each from the one before; the answer spells out every value, a digit, in order.

    `counts` bounds how many (both included).
    """
    names = VARIABLES[: rng.randint(*counts)]
    values = [rng.randint(0, 9)]
    statements = [f"{names[0]} = {values[0]}"]
    for before, name in zip(names, names[1:], strict=False):
        expression, value = _assigned(rng, before, values[-1])
        statements.append(f"{name} = {expression}")
        values.append(value)
    program = "; ".join(statements)
    answer = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
    return _exact("chain", f"Follow: {program}", answer, program)


def short_sorting(rng: random.Random) -> Example:
    """Sorting of few words, to learn it on."""
    return sorting(rng, (3, 11))


def short_chain(rng: random.Random) -> Example:
    """A chain of few assignments, to learn it on."""
    return chain(rng, (2, 7))


TASKS: dict[str, Callable[[random.Random], Example]] = {
    "addition": addition,
    "sorting": sorting,
    "copying": copying,
    "json": record,
    "story": story,
    "question": question,
    "chain": chain,
    "short-sorting": short_sorting,
    "short-chain": short_chain,
}


def two_digit_addition(rng: random.Random) -> Example:
    """Addition of two numbers of two digits each: the addition that quality is gated on."""
    return addition(rng, (2, 2))


def three_digit_addition(rng: random.Random) -> Example:
    """Addition of two numbers of three digits each."""
    return addition(rng, (3, 3))


def four_digit_addition(rng: random.Random) -> Example:
    """Addition of two numbers of four digits each, which no other task has."""
    return addition(rng, (4, 4))


# What is reported: every task, with additions of two, three and four digits apart from addition in general.
MEASURED: dict[str, Callable[[random.Random], Example]] = {
    "addition-2": two_digit_addition,
    "addition-3": three_digit_addition,
    "addition-4": four_digit_addition,
    **{name: make for name, make in TASKS.items() if not name.startswith("short-")},
}
_MAKERS = {**MEASURED, **TASKS}


def draw(task: str, rng: random.Random, split: str = "train") -> Example:
    """One example of a task (a name in `MEASURED` or `TASKS`) that belongs to `split`.

    Raises UnknownTask for a name that is in neither table.
    """
    if task not in _MAKERS:
        raise UnknownTask(unknown("task", task, _MAKERS))
    if split not in SPLITS:
        raise UnknownTask(unknown("split", split, SPLITS))
    make = _MAKERS[task]
    while True:
        example = make(rng)
        if example.split == split:
            return example


def examples(task: str, count: int, seed: int = 0, split: str = "held-out") -> list[Example]:
    """`count` examples of one task, the same for the same arguments."""
    rng = random.Random(f"{task} {split} {seed}")
    return [draw(task, rng, split) for _ in range(count)]


def stream(weights: Mapping[str, float], seed: int = 0, split: str = "train") -> Iterator[Example]:
    """Examples without end, tasks drawn in proportion to `weights`."""
    rng = random.Random(f"{split} {seed}")
    names, shares = list(weights), list(weights.values())
    while True:
        for task in rng.choices(names, shares, k=256):
            yield draw(task, rng, split)
