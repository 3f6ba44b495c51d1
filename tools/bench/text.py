"""Text in the core beside the library `tokenizers`, over files of tokenizers: differences, and how fast.

    python -m edgekit.tools.bench.text FOLDER... [--lines 100000] [--seed 0]

A folder has a tokenizer.json. Lines are of `mixed_text.lines`: many scripts, emoji, control characters,
words, blanks, the tokenizer's own special tokens. Of each line the ids are compared, of its ids and of random
ones the text, with and without special tokens, as a whole and piece by piece; with a byte in it that is no
UTF-8 it has to be refused. Times are of one thread, of calls from Python, for the same 1000 lines in turn
with the library's: the median ratio of both. Encoding of `tokenizers` computes offsets as well.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import click

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.tokenizer.core_text import CoreText
from edgekit.tools.bench.mixed_text import lines
from edgekit.tools.options import Count

#: Lines that are timed together.
_TOGETHER = 1000


@dataclass(frozen=True)
class Compared:
    """Of a tokenizer: lines with any difference, and the core's seconds over the library's in the median."""

    name: str
    vocabulary: int
    lines: int
    differences: int
    first: str
    load_seconds: tuple[float, float]
    encode_ratio: float
    decode_ratio: float
    megabytes_per_second: float


class _Differing:
    """Compares a line in all ways."""

    def __init__(self, own: CoreText, library: Any, seed: int) -> None:
        self._own, self._library, self._random = own, library, random.Random(seed)
        self._size = library.get_vocab_size()

    def reason(self, text: str) -> str:
        """What differs, empty where nothing does."""
        for special in (True, False):
            ids = self._own.encode(text, special)
            if ids != self._library.encode(text, add_special_tokens=special).ids:
                return f"ids of {text!r}"
        drawn = self._random
        noise = [drawn.randrange(self._size + 5) for _ in range(drawn.randint(0, 12))]
        for given in (ids, noise):
            for skip in (True, False):
                whole = self._library.decode(given, skip_special_tokens=skip)
                if self._own.decode(given, skip) != whole:
                    return f"the text of {given}"
                if self._streamed(given, skip) != whole:
                    return f"the streamed text of {given}"
        return self._broken(text.encode())

    def _streamed(self, ids: Sequence[int], skip: bool) -> str:
        cuts = sorted(self._random.randint(0, len(ids)) for _ in range(self._random.randint(0, 5)))
        with self._own.stream(skip) as stream:
            parts = [stream.push(ids[a:b]) for a, b in pairwise([0, *cuts, len(ids)])]
            return "".join([*parts, stream.finish()])

    def _broken(self, data: bytes) -> str:
        """A byte that cannot be there is found where it is."""
        at = self._random.randint(0, len(data))
        broken = data[:at] + b"\xff" + data[at:]
        try:
            self._own.encode(broken)
        except InvalidRequest as error:
            begin = len(broken[:at].decode(errors="ignore").encode())
            return "" if f"at byte {begin}" in str(error) else f"where {broken!r} is broken: {error}"
        return f"{broken!r} is taken"


def compare(folder: Path, count: int, seed: int) -> Compared:
    """Raises EdgekitError for a tokenizer that the core does not read."""
    from tokenizers import Tokenizer

    data = (folder / "tokenizer.json").read_bytes()
    began = time.perf_counter()
    own = CoreText(data)
    between = time.perf_counter()
    library = Tokenizer.from_buffer(data)
    ended = time.perf_counter()
    library.no_truncation()
    library.no_padding()
    added = [token.content for token in library.get_added_tokens_decoder().values()]
    differing, wrong = _Differing(own, library, seed), list[str]()
    encoded, decoded = list[_Pair](), list[_Pair]()
    source = lines(seed, count, added)
    while texts := list(islice(source, _TOGETHER)):
        wrong += filter(None, map(differing.reason, texts))
        ids = [own.encode(text) for text in texts]
        encoded.append(_timed(texts, own.encode, library.encode))
        decoded.append(_timed(ids, own.decode, library.decode))
    own.close()
    nbytes = sum(len(text.encode()) for text in lines(seed, count, added))
    return Compared(
        folder.name,
        library.get_vocab_size(),
        count,
        len(wrong),
        wrong[0] if wrong else "",
        (between - began, ended - between),
        statistics.median(a / b for a, b in encoded),
        statistics.median(a / b for a, b in decoded),
        nbytes / sum(a for a, _ in encoded) / 1e6,
    )


_Pair = tuple[float, float]


def _timed(given: Sequence[Any], one: Callable[[Any], object], other: Callable[[Any], object]) -> _Pair:
    """Seconds of both over the same."""
    found = []
    for function in (one, other):
        began = time.perf_counter()
        for each in given:
            function(each)
        found.append(time.perf_counter() - began)
    return found[0], found[1]


@click.command(help=__doc__.partition("\n\n")[0] if __doc__ else None)
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--lines", "count", type=Count(1), default=100_000, show_default=True)
@click.option("--seed", type=Count(0), default=0, show_default=True)
def main(folders: Sequence[Path], count: int, seed: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    heads = (
        "tokenizer",
        "tokens",
        "lines",
        "differ",
        "load, s",
        "of theirs",
        "encode, MB/s",
        "encode",
        "decode",
    )
    click.echo("| " + " | ".join(heads) + " |\n|---" + "|---:" * (len(heads) - 1) + "|")
    wrong = []
    for folder in folders:
        found = compare(folder, count, seed)
        own, library = found.load_seconds
        click.echo(
            f"| {found.name} | {found.vocabulary:,} | {found.lines:,} | {found.differences} | {own:.2f} "
            f"| {own / library:.2f} | {found.megabytes_per_second:.1f} | {found.encode_ratio:.2f} "
            f"| {found.decode_ratio:.2f} |"
        )
        wrong += [f"{found.name}: {found.first}"] if found.first else []
    if wrong:
        raise click.ClickException("; ".join(wrong))


if __name__ == "__main__":
    main()
