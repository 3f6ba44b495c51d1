"""Write the character tables of the core's tokenizer: `runtime/native/src/text/unicode_tables.inc`.

    pip install unicodedata2==16.0.0
    python -m edgekit.tools.unicode_tables > runtime/native/src/text/unicode_tables.inc

Models have learned the tokens that the `tokenizers` library gives, so the tables are those of the Unicode
versions in it: 16 in its regular expressions, 9 where it composes characters. Characters that are younger
than that compose with nothing there; which ones these are is asked of the library.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence

import click

#: In the order of the enumeration `Category` of unicode.h.
CATEGORIES = (
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
    "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn",
)  # fmt: skip
#: A mark of the lowest class but 0: any other mark in front of it changes places with it.
_LOWEST_MARK = "\u0334"
_HANGUL = range(0xAC00, 0xD7A4)
_VERSION = "16.0.0"
_WIDTH = 118


def _ranges(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First index and value of each run of equal values."""
    for index, value in enumerate(values):
        if index == 0 or value != values[index - 1]:
            yield index, value


def _array(kind: str, name: str, items: Iterable[str]) -> Iterator[str]:
    yield f"constexpr {kind} {name}[] = {{"
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > _WIDTH:
            yield line
            line = "   "
        line += f" {item},"
    yield line
    yield "};"


def tables() -> Iterator[str]:
    """The lines of the file. Raises ClickException for another version of the data."""
    from tokenizers import normalizers

    data = importlib.import_module("unicodedata2")  # for this alone, and in no extra
    if data.unidata_version != _VERSION:
        raise click.ClickException(
            f"unicodedata2 has Unicode {data.unidata_version}, and {_VERSION} is needed"
        )
    decompose = normalizers.NFD().normalize_str
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    yield "// Written by tools/unicode_tables.py: categories of Unicode 16, compositions of Unicode 9."
    yield ""
    yield "// The first character of each range, and above its 21 bits the category."
    categories = [CATEGORIES.index(data.category(character)) for character in characters]
    yield from _array(
        "std::uint32_t", "kCategories", (hex(first | kind << 21) for first, kind in _ranges(categories))
    )

    def known(character: str) -> bool:
        """Whether the library knows this character's class or parts."""
        if 0xD800 <= ord(character) < 0xE000:
            return False
        if data.normalize("NFD", character) != character:
            return decompose(character) == data.normalize("NFD", character)
        sorted_ = f"a{_LOWEST_MARK}{character}"
        return data.combining(character) <= 1 or decompose(f"a{character}{_LOWEST_MARK}") == sorted_

    classes = [data.combining(each) if known(each) else 0 for each in characters]
    yield ""
    yield "// The first character of each range, and above its 21 bits the combining class."
    yield from _array(
        "std::uint32_t", "kClasses", (hex(first | kind << 21) for first, kind in _ranges(classes))
    )
    parts = {
        code: [int(part, 16) for part in data.decomposition(character).split()]
        for code, character in enumerate(characters)
        if data.decomposition(character)
        and not data.decomposition(character).startswith("<")
        and code not in _HANGUL
        and known(character)
    }
    yield ""
    yield "// Each character that has canonical parts, with these; the second is 0 where there is one."
    yield from _array(
        "Parts",
        "kParts",
        (f"{{{hex(code)}, {hex(both[0])}, {hex(([*both, 0])[1])}}}" for code, both in parts.items()),
    )
    composed = [
        (*both, code)
        for code, both in parts.items()
        if len(both) == 2 and data.normalize("NFC", chr(both[0]) + chr(both[1])) == chr(code)
    ]
    yield ""
    yield "// Two characters, in order, and the one that they compose."
    yield from _array(
        "Parts",
        "kCompositions",
        (f"{{{hex(first)}, {hex(second)}, {hex(code)}}}" for first, second, code in sorted(composed)),
    )


@click.command()
def main() -> None:
    """Print the tables."""
    for line in tables():
        click.echo(line)


if __name__ == "__main__":
    main()
