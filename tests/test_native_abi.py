"""The C ABI against its header: layouts of structs, and callers built with another one."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_bundles import native_bundle
from native_generation import Event, Options, Statistics
from test_native import HEADER, compiler, run

from edgekit.export.quantize import Scheme
from edgekit.runtime import native_session
from edgekit.runtime.native_session import NativeSession
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import SessionOptions

STRUCTS: dict[str, type[Any]] = {
    "ek_session_options": native_session._Options,
    "ek_session_info": native_session._Info,
    "ek_head_request": native_session._Request,
    "ek_head_output": native_session._Output,
    "ek_session_statistics": native_session._Statistics,
    "ek_generation_statistics": Statistics,
    "ek_event": Event,
    "ek_generate_options": Options,
}
#: Sizes of the first release. A struct only ever grows: who was built with that header says these.
FIRST_SIZES = {
    "ek_session_options": 40,
    "ek_session_info": 104,
    "ek_head_request": 64,
    "ek_head_output": 88,
    "ek_session_statistics": 80,
    "ek_generation_statistics": 56,
    "ek_event": 64,
    "ek_generate_options": 40,
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeSession]:
    """One that streams every weight and has computed."""
    folder = tmp_path_factory.mktemp("session")
    bundle = native_bundle(folder, "diffusion_gemma", Scheme("mixed4"), num_hidden_layers=2)
    with NativeSession(bundle, SessionOptions(resident_bytes=0)) as opened:
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
def test_structs_are_filled_as_far_as_their_callers_know_them(session: NativeSession, what: str) -> None:
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
