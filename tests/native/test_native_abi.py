"""The C ABI against its header: layouts of structs, callers built with another header, arguments."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.c_programs import HEADER, compiler, run
from support.native_bundles import native_bundle
from support.native_generation import ON_EVENT, Options, Statistics
from support.native_generation import function as generation_function
from support.native_sampler import INVALID_ARGUMENT
from support.reference_packages import random_packages
from support.session_functions import SESSION_FUNCTIONS, session_functions

from edgekit.export.quantize import Scheme
from edgekit.flashload import errors
from edgekit.flashload import structs as flash_structs
from edgekit.runtime import core_structs, process
from edgekit.runtime.bench import structs as bench_structs
from edgekit.runtime.core_structs import HeadOutputStruct, HeadRequestStruct, PassSegmentStruct
from edgekit.runtime.sampling import HeadRequest, PhiloxNoise, core_abi
from edgekit.runtime.session import Session, SessionOptions, structs
from edgekit.runtime.session import session as core_session

STRUCTS: dict[str, type[Any]] = {
    "ek_session_options": structs.OptionsStruct,
    "ek_session_info": structs.InfoStruct,
    "ek_head_request": HeadRequestStruct,
    "ek_head_output": HeadOutputStruct,
    "ek_session_statistics": structs.StatisticsStruct,
    "ek_sequence_info": structs.SequenceInfoStruct,
    "ek_seen_rows": core_structs.SeenRowsStruct,
    "ek_pass_segment": core_structs.PassSegmentStruct,
    "ek_generation_statistics": Statistics,
    "ek_event": core_structs.EventStruct,
    "ek_canvas_cell": core_structs.CanvasCellStruct,
    "ek_canvas_part": core_structs.CanvasPartStruct,
    "ek_generate_options": Options,
    "ek_choose_options": flash_structs.ChooseOptionsStruct,
    "ek_flash_info": flash_structs.FlashInfoStruct,
    "ek_flash_run": flash_structs.RunStruct,
    "ek_flash_part": flash_structs.PartStruct,
    "ek_flash_tensor": flash_structs.TensorStruct,
    "ek_sampler_model": core_abi.Model,
    "ek_sampler_lengths": core_abi.LengthsStruct,
    "ek_ask": core_abi.AskStruct,
    "ek_weights": core_structs.WeightsStruct,
    "ek_keys": core_structs.KeysStruct,
    "ek_attention": core_structs.AttentionStruct,
    "ek_segment": core_structs.SegmentStruct,
    "ek_layers_call": core_structs.LayersCallStruct,
    "ek_tile_call": core_structs.TileCallStruct,
    "ek_copy": core_structs.CopyStruct,
    "ek_engine_bytes": core_structs.EngineBytesStruct,
    "ek_engine": core_structs.EngineStruct,
    "ek_package_array": core_structs.PackageArrayStruct,
    "ek_executor": core_structs.ExecutorStruct,
    "ek_memory_plan": core_structs.MemoryPlanStruct,
    "ek_unit_plan": core_structs.UnitPlanStruct,
    "ek_bench_options": bench_structs.BenchOptionsStruct,
    "ek_processor_probe": bench_structs.ProcessorProbeStruct,
    "ek_disk_probe": bench_structs.DiskProbeStruct,
    "ek_process_memory": process.ProcessMemoryStruct,
}
#: Sizes of the first release. A struct only ever grows: who was built with that header says these.
FIRST_SIZES = {
    "ek_session_options": 40,
    "ek_session_info": 104,
    "ek_head_request": 64,
    "ek_head_output": 96,
    "ek_session_statistics": 80,
    "ek_sequence_info": 48,
    "ek_seen_rows": 24,
    "ek_pass_segment": 88,
    "ek_generation_statistics": 56,
    "ek_event": 64,
    "ek_canvas_cell": 24,
    "ek_canvas_part": 16,
    "ek_generate_options": 40,
    "ek_choose_options": 40,
    "ek_flash_info": 56,
    "ek_flash_run": 48,
    "ek_flash_part": 40,
    "ek_flash_tensor": 48,
    "ek_sampler_model": 96,
    "ek_sampler_lengths": 32,
    "ek_ask": 152,
    "ek_weights": 40,
    "ek_keys": 32,
    "ek_attention": 128,
    "ek_segment": 32,
    "ek_layers_call": 88,
    "ek_tile_call": 160,
    "ek_copy": 56,
    "ek_engine_bytes": 40,
    "ek_engine": 96,
    "ek_package_array": 48,
    "ek_executor": 48,
    "ek_memory_plan": 104,
    "ek_unit_plan": 32,
    "ek_bench_options": 40,
    "ek_processor_probe": 48,
    "ek_disk_probe": 32,
    "ek_process_memory": 40,
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One that streams every weight and has computed."""
    folder = tmp_path_factory.mktemp("session")
    bundle = native_bundle(folder, "diffusion_gemma", Scheme("mixed4"), num_hidden_layers=2)
    with Session(bundle, SessionOptions(resident_bytes=0)) as opened:
        opened.prefill(np.arange(30))
        opened.denoise(np.arange(8), HeadRequest())
        opened.idle()
        yield opened


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_structs_are_laid_out_as_a_c_compiler_reads_the_header(tmp_path: Path) -> None:
    prints = []
    for name, mirror in STRUCTS.items():
        prints.append(f"{name} of_{name};")
        prints.append(f'printf("{name} %zu\\n", sizeof({name}));')
        prints += [
            f'printf("{name}.{member} %zu %zu\\n", offsetof({name}, {member}), sizeof of_{name}.{member});'
            for member, *_ in mirror._fields_
        ]
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stdio.h>\n#include "edgekit.h"\nint main(void) {\n'
        + "\n".join(prints)
        + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "layout"
    run(compiler("cc", "gcc", "clang"), "-std=c99", "-I", HEADER.parent, source, "-o", program)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    expected = []
    for name, mirror in STRUCTS.items():
        expected.append(f"{name} {ctypes.sizeof(mirror)}")
        for member, *_ in mirror._fields_:
            place = getattr(mirror, member)
            expected.append(f"{name}.{member} {place.offset} {place.size}")
        assert ctypes.sizeof(mirror) >= FIRST_SIZES[name], "a caller of the first release has more"
    assert found == expected


@pytest.mark.parametrize("what", ["statistics", "info"])
def test_structs_are_filled_as_far_as_their_callers_know_them(session: Session, what: str) -> None:
    """Of every size: what lies behind it keeps its bytes, what lies within has those of the whole struct."""
    name, fill = f"ek_session_{what}", getattr(session._library, f"ek_session_get_{what}")
    whole, size = STRUCTS[name](), ctypes.sizeof(STRUCTS[name])
    assert fill(session._handle, ctypes.byref(whole)) == 0
    expected = bytes(whole)
    for given in (4, FIRST_SIZES[name], size, size + 8):
        memory = (ctypes.c_uint8 * (size + 16))(*[0xA5] * (size + 16))
        ctypes.c_uint32.from_buffer(memory).value = given
        assert fill(session._handle, ctypes.cast(memory, ctypes.POINTER(STRUCTS[name]))) == 0
        filled = min(given, size)
        assert ctypes.c_uint32.from_buffer(memory).value == given
        assert bytes(memory)[4:filled] == expected[4:filled]
        assert set(bytes(memory)[filled:]) == {0xA5}
    for given in (0, 3):
        whole.struct_size = given
        assert fill(session._handle, ctypes.byref(whole)) == 1
        message: bytes = session._library.ek_last_error()
        assert f"struct_size is {given}; set it to sizeof the struct" in message.decode()


LARGEST = 2**63 - 1


def refused(session: Session, status: int, words: str, code: int = INVALID_ARGUMENT) -> None:
    message: bytes = session._library.ek_last_error()
    assert status == code and words in message.decode(), message


@pytest.mark.parametrize("count", [-1, -LARGEST - 1, LARGEST, 2**22 + 1])
def test_counts_beyond_any_model_are_refused_before_an_array_is_looked_at(
    session: Session, count: int
) -> None:
    library, handle, one = session_functions(), session._handle, np.zeros(1, np.int64)
    before = session.prefix_length
    refused(
        session, library.ek_session_prefill(handle, one.ctypes.data, count), f"{count} token ids; give 0.."
    )
    refused(
        session,
        library.ek_session_denoise(handle, one.ctypes.data, count, None, None, None),
        f"a canvas of {count} positions",
    )
    refused(
        session,
        library.ek_sequence_keep(handle, None, one.ctypes.data, count),
        f"{count} token ids; give 0..",
    )
    seen = PassSegmentStruct(ids=one.ctypes.data, count=1, keep_at=-1, seen_count=count)
    refused(
        session, library.ek_session_pass(handle, ctypes.byref(seen), 1), f"seen_count is {count}, but seen"
    )
    request = HeadRequestStruct(temperature=1.0, rows=one.ctypes.data, row_count=count)
    asked = (handle, one.ctypes.data, 1, None, ctypes.byref(request), None)
    refused(session, library.ek_session_denoise(*asked), f"row_count is {count}; it must be 0..")
    assert session.prefix_length == before


def test_nothing_may_be_encoded(session: Session) -> None:
    before = session.prefix_length
    assert session_functions().ek_session_prefill(session._handle, None, 0) == 0
    assert session.prefix_length == before
    refused(
        session, session_functions().ek_session_prefill(session._handle, None, 1), "no token ids are given"
    )


def test_reserved_members_are_zero(session: Session) -> None:
    ids = np.zeros(2, np.int64)
    request, output = HeadRequestStruct(temperature=1.0), HeadOutputStruct()
    call = (session._handle, ids.ctypes.data, 2, None, ctypes.byref(request), ctypes.byref(output))
    assert session_functions().ek_session_denoise(*call) == 0
    output.reserved = 3
    words = "ek_head_output.reserved is 3; set it to 0"
    refused(session, session_functions().ek_session_denoise(*call), words)
    project = (session._handle, ctypes.byref(request), ctypes.byref(output))
    refused(session, session_functions().ek_session_project(*project), words)


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf")])
def test_noise_has_a_scale(session: Session, scale: float) -> None:
    gumbel = PhiloxNoise(0).gumbel(8, session.vocab_size)
    with pytest.raises(errors.InvalidRequest, match="gumbel_scale .* is not a number at least 0"):
        session.denoise(np.arange(8), HeadRequest(gumbel=gumbel, gumbel_scale=scale))
    none = session.denoise(np.arange(8), HeadRequest(gumbel=gumbel, gumbel_scale=0.0))
    np.testing.assert_array_equal(none.sample, none.argmax)


def test_arguments_of_the_choice_among_bundles(session: Session, tmp_path: Path) -> None:
    library, size, kind = session._library, ctypes.c_uint64(), ctypes.c_int32()
    choose, look, formats = library.ek_bundle_choose, library.ek_folder_look, library.ek_session_formats
    folder, options = str(tmp_path).encode(), flash_structs.ChooseOptionsStruct
    asked = ctypes.byref(options()), None, ctypes.c_uint64(0), ctypes.byref(size)
    refused(session, choose(None, *asked), "the folder is null")
    refused(session, choose(folder, *asked[:3], None), "no place for the size of the path")
    for wrong, words in (
        (options(reserved=1), "reserved must be 0, it is 1"),
        (options(format_count=1), "there are no formats where 1 were said"),
        (options(format_count=-1), "there are no formats where -1 were said"),
        (options(formats=flash_structs.texts(["native"])), "there are no formats to choose by"),
    ):
        refused(session, choose(folder, ctypes.byref(wrong), *asked[1:]), words)
    refused(session, choose(folder, *asked), "has no edgekit.json", code=4)
    refused(session, choose(folder + b"/nope", *asked), "nope: cannot open", code=4)
    (tmp_path / "file").touch()
    refused(session, choose(folder + b"/file", *asked), "file: is a file", code=4)
    (tmp_path / "edgekit.json").write_text("{}")
    assert choose(folder, *asked) == 0 and size.value == len(folder)
    room = ctypes.create_string_buffer(b"x" * len(folder))
    short = ctypes.c_uint64(len(folder) - 1), ctypes.byref(size)
    refused(session, choose(folder, None, room, *short), "the path has", code=2)
    assert choose(folder, None, room, ctypes.c_uint64(len(folder)), ctypes.byref(size)) == 0
    assert room.value == folder
    refused(session, look(folder, None), "no place for the kind of the folder")
    assert look(folder, ctypes.byref(kind)) == 0 and kind.value == 1
    count, names = ctypes.c_int32(), (ctypes.c_char_p * 4)()
    assert formats(names, 4, ctypes.byref(count)) == 0
    # Others as well where the process has loaded their libraries.
    assert 1 <= count.value <= 4 and names[0] == b"native"
    for wrong in ((None, 1, ctypes.byref(count)), (names, -1, ctypes.byref(count)), (names, 4, None)):
        refused(session, formats(*wrong), "no place for the formats or their number")
    check = library.ek_bundle_list_check
    refused(session, check(None, ctypes.c_uint64(0), b"x"), "the text is null")
    refused(session, check(b"{}", ctypes.c_uint64(2), None), "the name of the text is null")
    refused(session, check(b"{}", ctypes.c_uint64(2), b"x"), "x: is not edgekit's", code=9)


def test_no_function_takes_a_null_session(session: Session) -> None:
    library = session_functions()
    for name, arguments in {**core_session._SIGNATURES, **SESSION_FUNCTIONS}.items():
        if name not in ("ek_session_open_engine", "ek_session_open_packages", "ek_plan_session"):
            values = [0 if kind is ctypes.c_int64 else None for kind in arguments]
            refused(session, getattr(library, name)(*values), "the session is null")
    generate = generation_function(session)
    refused(session, generate(None, None, 0, None, ON_EVENT(0), None, None), "the session is null")


def test_executors_that_lack_something_and_bundles_without_packages_are_refused(session: Session) -> None:
    opens, handle, name = session._library.ek_session_open_packages, ctypes.c_void_p(), b"mine"
    folder, place = str(session.bundle.path).encode(), ctypes.byref(handle)
    options = core_session._core_options(SessionOptions())
    types = core_structs.EXECUTOR_FUNCTION_TYPES

    def table(**functions: Any) -> Any:
        return core_structs.ExecutorStruct(name=name, **functions)

    def never(*given: object) -> None:
        raise AssertionError("it must not be called")

    whole = {each: types[each](never) for each in ("open", "call", "close")}
    refused(session, opens(folder, ctypes.byref(options), ctypes.byref(table(**whole)), None), "no place")
    refused(session, opens(folder, ctypes.byref(options), None, place), "the executor is null")
    wrong = table(**whole)
    wrong.reserved = 1
    refused(session, opens(folder, ctypes.byref(options), ctypes.byref(wrong), place), "reserved is 1")
    given = opens(folder, ctypes.byref(options), ctypes.byref(table(**whole)), place)
    refused(session, given, 'format native have no packages for the executor "mine"', code=11)
    assert handle.value is None


@pytest.mark.parametrize("missing", ["open", "call", "close"])
def test_executors_need_all_of_their_functions(tmp_path: Path, session: Session, missing: str) -> None:
    bundle, _ = random_packages(tmp_path, "llada", [(16, 0)], n_layers=1)
    types = core_structs.EXECUTOR_FUNCTION_TYPES
    whole = {each: types[each](lambda *_: None) for each in ("open", "call", "close") if each != missing}
    table, handle = core_structs.ExecutorStruct(name=b"mine", **whole), ctypes.c_void_p()
    options = core_session._core_options(SessionOptions())
    arguments = str(bundle).encode(), ctypes.byref(options), ctypes.byref(table), ctypes.byref(handle)
    given = session._library.ek_session_open_packages(*arguments)
    refused(session, given, "the table of mine has no function open, call or close")
    table.name = None
    given = session._library.ek_session_open_packages(*arguments)
    refused(session, given, "the table of an unnamed executor has no function open")
    given = session._library.ek_session_open_engine(*arguments[:2], None, arguments[3])
    refused(session, given, "open a bundle of the format native, or give what runs them", code=11)
    assert handle.value is None


def test_a_message_is_that_of_the_last_failure_on_its_thread(session: Session) -> None:
    """What other calls return, on this thread or another one, leaves it as it is."""
    library, found = session_functions(), []

    def elsewhere() -> None:
        found.append(library.ek_last_error())
        library.ek_session_reset(None)
        found.append(library.ek_last_error())

    refused(session, library.ek_session_prefill(session._handle, None, 1), "no token ids are given")
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found[0] == b"" and b"session is null" in found[1]
    assert library.ek_session_get_info(session._handle, ctypes.byref(structs.InfoStruct())) == 0
    refused(session, INVALID_ARGUMENT, "no token ids are given")
