"""Words of the task language.

The lists are short because every word is one token of a 512-token vocabulary. Lists that can stand in the
same place of a sentence share no word, so that a checker can tell a place from a thing.
"""

from __future__ import annotations

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Leo", "Mia",
    "Nora", "Otto", "Pia",
)  # fmt: skip
CITIES = (
    "Rome",
    "Oslo",
    "Paris",
    "Lima",
    "Cairo",
    "Delhi",
    "Quito",
    "Bern",
    "Tokyo",
    "Accra",
    "Perth",
    "Seoul",
)
THINGS = ("key", "ball", "book", "lamp", "cup", "map", "hat", "coin", "kite", "drum", "ring", "rope")
PLACES = (
    "garden", "kitchen", "attic", "park", "barn", "school", "library", "cellar", "forest", "market",
    "harbor", "tower",
)  # fmt: skip
COLORS = ("red", "blue", "green", "gold", "black", "white", "pink", "gray")
PETS = ("cat", "dog", "fish", "bird", "frog", "horse", "mouse", "snail")
FOODS = ("rice", "soup", "bread", "apple", "cake", "corn", "plum", "nuts")

# Variables of assignment chains, in this order; none looks like a digit.
VARIABLES = tuple("abcdefghkmnpqrst")

COPY_WORDS = NAMES + COLORS + PETS + FOODS

# A field of a record is a key and its string values; None stands for a whole number.
JSON_FIELDS: dict[str, tuple[str, ...] | None] = {
    "name": NAMES,
    "city": CITIES,
    "color": COLORS,
    "pet": PETS,
    "food": FOODS,
    "age": None,
    "size": None,
    "score": None,
    "room": None,
}
