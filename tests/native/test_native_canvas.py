"""What a screen draws of an answer while it resolves, in the core: beside plain loops over `tokenizers`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64, c_uint64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.canvas_text import STATES, Cell, Drawing, Event, random_events
from test_native_text import KINDS, of_bytes
from tokenizers import Tokenizer

import edgekit
from edgekit.flashload import _native
from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.core_structs import (
    EVENT_COMMITTED,
    EVENT_DONE,
    EVENT_DRAFT,
    CanvasCellStruct,
    CanvasPartStruct,
    EventStruct,
)
from edgekit.runtime.tokenizer.canvas_text import OPEN, SPECIAL, CanvasText, Part, State
from edgekit.runtime.tokenizer.core_text import CoreText

MAKERS: dict[str, Callable[[], Tokenizer]] = {**KINDS, "bytes": of_bytes}


def core(tokenizer: Tokenizer) -> CoreText:
    return CoreText(tokenizer.to_str().encode())


def tell(canvas: CanvasText, event: Event) -> None:
    if event.kind == "draft":
        canvas.draft(event.start, event.tokens, event.accepted)
    elif event.kind == "committed":
        canvas.commit(event.tokens)
    else:
        canvas.done()


def check(drawing: Drawing, text: CoreText, events: Sequence[Event]) -> None:
    canvas = CanvasText(text, "tokenizer", drawing.mask)
    for count, event in enumerate(events, 1):
        tell(canvas, event)
        cells = drawing.cells(events[:count])
        assert [(place, token, state.name) for place, token, state in canvas.cells()] == cells
        assert [(part.text, part.state.name) for part in canvas.parts()] == drawing.parts(cells)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_random_answers_are_drawn_as_plain_loops_draw_them(kind: str, masked: bool) -> None:
    tokenizer = MAKERS[kind]()
    drawing = Drawing(tokenizer, tokenizer.token_to_id("<s>") if masked else None)
    with core(tokenizer) as text:
        for seed in range(25):
            check(drawing, text, random_events(seed, drawing))


@pytest.fixture(scope="module")
def llama2() -> Tokenizer:
    return KINDS["llama2"]()


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4)), max_size=30),
    st.integers(0, 30),
    st.integers(0, 3),
)
def test_any_cells_are_drawn_as_plain_loops_draw_them(
    llama2: Tokenizer, behind: list[tuple[int, int]], final: int, begin: int
) -> None:
    drawing = Drawing(llama2, None)
    tokens = [(token, 4) for token in range(final)] + [(token, min(state, 3)) for token, state in behind]
    cells: list[Cell] = [(place, token, STATES[s]) for place, (token, s) in enumerate(tokens, begin)]
    given_cells = (CanvasCellStruct * len(cells))(
        *(CanvasCellStruct(place, token, STATES.index(state), 0) for place, token, state in cells)
    )
    with core(llama2) as text:
        found = text.draw(given_cells, len(cells))
    assert [(part, STATES[state]) for part, state in found] == drawing.parts(cells)


@pytest.mark.parametrize(("model", "masked"), [("tiny-llada", True), ("tiny-gemma", False)])
def test_generations_are_drawn_as_plain_loops_draw_them(
    shipped_bundle: Callable[..., Path], model: str, masked: bool
) -> None:
    bundle = shipped_bundle(model, "native")
    file = bundle / "tokenizer" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    with edgekit.load(bundle) as opened, CoreText(file.read_bytes()) as text:
        mask = opened.mask_id
        assert (mask is not None) == masked
        events, committed, drawn = [], 0, list[Part]()
        canvas = CanvasText(text, "", mask)
        for event in opened.events("Write as JSON: name: Ada; age: 31; city: Rome", max_new_tokens=40):
            if isinstance(event, edgekit.Draft):
                events.append(
                    Event("draft", event.canvas, event.step, event.start, event.ids, event.accepted)
                )
            elif isinstance(event, edgekit.Committed):
                events.append(Event("committed", start=committed, tokens=event.ids))
                committed += len(event.ids)
            else:
                continue
            tell(canvas, events[-1])
            drawn += canvas.parts()
        answer = opened.decode([token for e in events if e.kind == "committed" for token in e.tokens])
        assert len(events) > 2
        check(Drawing(tokenizer, mask), text, [*events, Event("done")])
        canvas.done()
        assert canvas.parts() == [(answer, State.COMMITTED)]
    said = "".join(part.text for part in drawn)
    assert (OPEN in said) == masked and SPECIAL in said


def test_a_token_keeps_the_space_in_front_of_it(llama2: Tokenizer) -> None:
    """Decoders of this kind take it away from the first token, and so from each that is decoded alone."""
    ids = llama2.encode("the cat is red", add_special_tokens=False).ids
    words = [id for id in ids if llama2.id_to_token(id).startswith("▁")]
    assert len(words) > 2 and not llama2.decode(words[1:2]).startswith(" ")
    with core(llama2) as text:
        canvas = CanvasText(text, "", None)
        canvas.draft(0, ids, [False] * len(ids))
        assert canvas.parts() == [("the cat is red", State.DRAFT)]
        for final in range(2, len(ids)):
            canvas = CanvasText(text, "", None)
            canvas.commit(ids[:final])
            canvas.draft(final, ids[final:], [True] * (len(ids) - final))
            first = llama2.decode(ids[:final])
            rest = "the cat is red".removeprefix(first)
            assert canvas.parts() == [(first, State.COMMITTED), (rest, State.ACCEPTED)]


@pytest.mark.parametrize("kind", ["llama", "bytes"])
def test_a_character_of_several_tokens_is_drawn_once_and_as_certain_as_the_least(kind: str) -> None:
    tokenizer = MAKERS[kind]()
    with core(tokenizer) as text:
        ids = text.encode("ꙮ", add_special=False)
        assert len(ids) > 1
        canvas = CanvasText(text, "", None)
        flags = [True] * (len(ids) - 1) + [False]
        canvas.draft(0, ids, flags)
        assert canvas.parts() == [("ꙮ", State.DRAFT)]
        # Begun by what is final: all of it waits for its end.
        before = text.encode("ab", add_special=False)
        canvas = CanvasText(text, "", None)
        canvas.commit([*before, *ids[:-1]])
        canvas.draft(len(before) + len(ids) - 1, ids[-1:], [True])
        assert canvas.parts() == [("ab", State.COMMITTED), ("ꙮ", State.ACCEPTED)]
        canvas.commit(ids[-1:])
        assert canvas.parts() == [("abꙮ", State.COMMITTED)]


def test_an_open_place_within_a_character_parts_its_tokens() -> None:
    tokenizer = of_bytes()
    with core(tokenizer) as text:
        ids, mask = text.encode("ꙮ", add_special=False), text.find("<s>")
        assert mask is not None
        canvas = CanvasText(text, "", mask)
        canvas.draft(0, [ids[0], mask, *ids[2:]], [False] * len(ids))
        replaced = "\ufffd" * (len(ids) - 2)
        assert canvas.parts() == [
            ("\ufffd", State.KEPT), (OPEN, State.OPEN), (replaced, State.KEPT),
        ]  # fmt: skip


def test_masked_families_keep_what_others_redraw() -> None:
    with core(of_bytes()) as text:
        (a,), (b,), mask = text.encode("a", False), text.encode("b", False), 260
        masked, other = CanvasText(text, "", mask), CanvasText(text, "", None)
        for canvas in (masked, other):
            canvas.draft(0, [a, b, mask, b], [True, False, False, False])
            canvas.draft(0, [a, b, mask, b], [False, True, False, False])
        found = [[cell.state for cell in canvas.cells()] for canvas in (masked, other)]
        assert found[0] == [State.KEPT, State.ACCEPTED, State.OPEN, State.KEPT]
        assert found[1] == [State.DRAFT, State.ACCEPTED, State.DRAFT, State.DRAFT]
        for canvas in (masked, other):
            canvas.commit([a, b])
        assert [c.state for c in masked.cells()][2:] == [State.OPEN, State.KEPT] and len(other.cells()) == 2


def test_a_space_stands_beside_special_tokens_alone() -> None:
    with core(of_bytes()) as text:
        (a,), space, end = text.encode("a", False), text.encode(" ", False)[0], text.find("<s>")
        assert end is not None
        canvas = CanvasText(text, "", 259)
        canvas.draft(0, [end, end, a, end, space, end, 259, end, 1 << 40], [False] * 9)
        drawn = "".join(part.text for part in canvas.parts())
        assert drawn == f"{SPECIAL}{SPECIAL} a {SPECIAL} {SPECIAL} {OPEN} {SPECIAL}{SPECIAL}"


def test_an_answer_may_begin_where_another_one_left_off() -> None:
    """A generation that was saved tells only what is new."""
    with core(of_bytes()) as text:
        (a,) = text.encode("a", False)
        canvas = CanvasText(text, "", None)
        canvas.draft(7, [a, a], [False, True])
        assert [cell.place for cell in canvas.cells()] == [7, 8]
        with pytest.raises(ValueError, match="2 ids, and 1 that say"):
            canvas.draft(7, [a, a], [False])


def event_of(kind: int, ids: Sequence[int], accepted: bytes | None = None, **members: Any) -> EventStruct:
    tokens = (c_int64 * len(ids))(*ids)
    flags = None if accepted is None else ctypes.create_string_buffer(accepted)
    event = EventStruct(
        kind=kind,
        count=members.pop("count", len(ids)),
        ids=ctypes.addressof(tokens),
        accepted=None if flags is None else ctypes.addressof(flags),
        **members,
    )
    event.kept = tokens, flags  # as long as it
    return event


def test_wrong_arguments_of_canvases_are_refused() -> None:
    draft = event_of(EVENT_DRAFT, [257, 258], b"\1\0")
    cells, count = (CanvasCellStruct * 4)(), c_int64(-5)
    to = ctypes.byref(count)
    wrong_state = (CanvasCellStruct * 1)(CanvasCellStruct(0, 1, 5, 0))
    wrong_place = (CanvasCellStruct * 2)(CanvasCellStruct(3, 1, 4, 0), CanvasCellStruct(3, 1, 4, 0))
    longer = event_of(EVENT_DONE, [])
    longer.struct_size = 72
    with core(of_bytes()) as text:
        CanvasText(text, "", None)  # declares the function
        fold, draw = text._core.ek_canvas_fold, text._core.ek_canvas_draw
        for arguments, said in (
            ((None, 1, draft, -1, cells, 4, to), "cells are null, or count is 1"),
            ((cells, -1, draft, -1, cells, 4, to), "count is -1"),
            ((cells, 0, None, -1, cells, 4, to), "event is null"),
            ((cells, 0, draft, -1, cells, 4, None), "folded_count is null"),
            ((wrong_state, 1, draft, -1, cells, 4, to), "cell 0 has the state 5"),
            ((wrong_place, 2, draft, -1, cells, 4, to), "cell 1 is at place 3; give cells in order"),
            (
                (cells, 0, event_of(EVENT_DRAFT, [1]), -1, cells, 4, to),
                "does not say which tokens were accepted",
            ),
            ((cells, 0, event_of(EVENT_COMMITTED, [1], start=-1), -1, cells, 4, to), "1 tokens at place -1"),
            (
                (cells, 0, event_of(EVENT_COMMITTED, [1], start=2**63 - 1), -1, cells, 4, to),
                "1 tokens at place",
            ),
            ((cells, 0, event_of(EVENT_COMMITTED, [1], count=-1), -1, cells, 4, to), "its count is -1"),
            ((cells, 0, longer, -1, cells, 4, to), "struct_size is 72"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                _native.check(fold(*arguments))
        assert count.value == -5
        with pytest.raises(_native.NativeCallFailed, match="has 2 cells, the buffer 1"):
            _native.check(fold(None, 0, draft, -1, cells, 1, to))
        assert count.value == 2 and cells[0].token == 0
        _native.check(fold(None, 0, draft, -1, None, 0, to))
        _native.check(fold(None, 0, event_of(77, [1]), -1, cells, 4, to))  # of a later version
        assert count.value == 0
        _native.check(fold(None, 0, draft, -1, cells, 4, to))
        _native.check(fold(cells, 2, event_of(EVENT_COMMITTED, [257]), 258, cells, 4, to))  # in their place
        assert count.value == 2 and [cells[i].state for i in range(2)] == [State.COMMITTED, State.DRAFT]

        room, size, parts = ctypes.create_string_buffer(2), c_uint64(), (CanvasPartStruct * 2)()
        at = ctypes.byref(size)
        for arguments, said in (
            ((None, cells, 2, room, 2, at, parts, 2, to), "the text is null"),
            ((text._handle, None, 2, room, 2, at, parts, 2, to), "cells are null"),
            ((text._handle, cells, 2, room, 2, None, parts, 2, to), "size is null"),
            ((text._handle, cells, 2, room, 2, at, parts, 2, None), "part_count is null"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                _native.check(draw(*arguments))
        for capacity, part_capacity, said in (
            (1, 2, "2 bytes, the buffer 1"),
            (2, 1, "2 parts, the buffer 1"),
        ):
            with pytest.raises(_native.NativeCallFailed, match=said):
                _native.check(draw(text._handle, cells, 2, room, capacity, at, parts, part_capacity, to))
            assert (size.value, count.value, room.raw, parts[0].bytes) == (2, 2, b"\0\0", 0)
        _native.check(draw(text._handle, cells, 2, None, 0, at, None, 0, to))
        _native.check(draw(text._handle, cells, 2, room, 2, at, parts, 2, to))
        assert room.raw == b"ab" and [(part.bytes, part.state) for part in parts] == [(1, 4), (1, 1)]


def test_threads_draw_with_one_text_together() -> None:
    tokenizer = KINDS["qwen"]()
    drawing = Drawing(tokenizer, None)
    events = random_events(3, drawing)
    with core(tokenizer) as text, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: check(drawing, text, events), range(16)))


def test_states_have_the_names_of_the_oracle() -> None:
    assert tuple(state.name for state in State) == STATES
