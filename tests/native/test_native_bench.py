"""What the core measures: of a session while it runs, of the machine, of this process."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_double, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import native_testing
from support.c_programs import compiler, run
from support.native_bundles import native_bundle
from support.native_generation import ON_EVENT, Options, Statistics
from support.native_sampler import INVALID_PROMPT

from edgekit.export.quantize import Scheme
from edgekit.flashload import _native
from edgekit.flashload.errors import InvalidRequest, OpenFailed
from edgekit.runtime.bench import Bench, describe_machine, probe_disk, probe_processor
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.generation import sampler_model
from edgekit.runtime.process import ProcessMemoryStruct
from edgekit.runtime.sampling import CoreSampler, Done, Draft, drive
from edgekit.runtime.session import Session, SessionOptions

PROMPT = np.arange(5, 35)


LAYERS = {"diffusion_gemma": {"num_hidden_layers": 2}, "llada": {"n_layers": 2}}


@pytest.fixture(scope="module", params=list(LAYERS))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bench")
    return Bundle.open(native_bundle(folder, request.param, Scheme("mixed4"), **LAYERS[request.param]))


@pytest.fixture
def session(bundle: Bundle) -> Iterator[Session]:
    """One that streams every weight."""
    with Session(bundle, SessionOptions(resident_bytes=0)) as opened:
        yield opened


def sampler(bundle: Bundle, seed: int = 0) -> CoreSampler:
    return CoreSampler(sampler_model(bundle), PROMPT, seed=seed, max_new_tokens=32, steps=4)


def generate(session: Session, bench: Bench | None = None, seed: int = 0) -> tuple[list[Any], Any]:
    """Events without their statistics, and the statistics."""
    own, told = sampler(session.bundle, seed), []
    for event in drive(own, session):
        if bench is not None:
            bench.tell(0, event, own)
        if not isinstance(event, Done):
            told.append((type(event).__name__, event.canvas_index, event.ids.tolist()))
    return told, own.stats


def table(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(given["columns"], row, strict=True)) for row in given["rows"]]


def test_a_report_has_what_the_generation_counted_and_passes_add_up(session: Session) -> None:
    about = {"model": 'größe "x"\n', "n": 1}
    with Bench(session, about, spans=100_000) as bench:
        for seed in range(2):
            with bench.test({"test": "dg32", "seed": seed}, prompt_tokens=len(PROMPT)):
                _, stats = generate(session, bench, seed)
        report = bench.report()
    assert report["edgekit_bench"] == 1 and report["about"] == about
    assert report["machine"] == describe_machine()
    manifest = json.loads((session.bundle.path / "edgekit.json").read_text())
    assert report["bundle"]["digest"] == manifest["sha256"]
    assert report["bundle"]["model"] == {
        "name": manifest["provenance"]["checkpoint"], "target": manifest["provenance"].get("target"),
        "family": manifest["model"]["family"],
        **{name: manifest["quantization"].get(name) for name in ("parameters", "preset", "group_size")},
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["date"])
    assert report["session"]["resident_bytes"] == 0 and report["session"]["memory_bytes"] is None
    assert report["plan"]["streamed"] == session.plan.streamed_bytes
    assert [test["label"]["seed"] for test in report["tests"]] == [0, 1]
    test = report["tests"][1]
    (own,) = test["sequences"]
    names = ("committed_tokens", "canvases", "denoising_steps", "forwards", "prefills", "projections", "rows")
    assert {name: own[name] for name in names} == {name: getattr(stats, name) for name in names}
    assert own["done"] and 0 < own["first_draft_seconds"] <= own["first_block_seconds"]
    assert own["first_block_seconds"] <= own["last_block_seconds"] <= test["seconds"]
    assert test["committed_tokens"] == stats.committed_tokens and test["canvas_tokens"] == 32
    # A prompt is encoded in several passes where it is longer than one holds.
    assert test["denoise_passes"] == stats.forwards and test["prefill_passes"] >= stats.prefills
    assert test["pass_rows"] == stats.rows

    passes = table(test["passes"])
    assert len(passes) == test["denoise_passes"] + test["prefill_passes"]
    for kind, name in (("prefill", "prefill_seconds"), ("denoise", "denoise_seconds")):
        spent = sum(each["headed"] - each["begun"] for each in passes if each["kind"] == kind)
        assert spent == pytest.approx(test[name], abs=1e-6)
    assert sum(p["ended"] - p["headed"] for p in passes) == pytest.approx(test["head_seconds"], abs=1e-6)
    assert sum(p["rows"] for p in passes) == test["pass_rows"]
    # What was read behind the last pass, ahead of one that did not come, is in the sum alone.
    assert 0 < sum(p["bytes_read"] for p in passes) <= test["bytes_read"]
    before = 0
    for each in passes:
        if each["kind"] == "prefill":  # causal: a row sees itself and what is before it
            assert each["attended"] == each["rows"] * before + each["rows"] * (each["rows"] + 1) // 2
            before += each["rows"]
        else:
            assert each["attended"] == each["rows"] * (before + each["rows"])
    ends = [end for p in passes for end in (p["begun"], p["ended"])]
    assert ends == sorted(ends) and ends[-1] <= test["seconds"]

    spans = table(test["spans"])
    units = {unit.name for unit in session.plan.units}
    assert {span["name"] for span in spans} <= units and test["spans_left_out"] == 0
    used = [span for span in spans if span["kind"] == "use" and span["name"] == "layers.0"]
    assert len(used) == len(passes), "each pass uses each layer once"
    assert {span["name"] for span in spans if span["kind"] == "read"} >= {"layers.0", "layers.1"}
    assert all(0 <= span["begun"] <= span["ended"] for span in spans if span["kind"] != "read")

    memory = test["memory"]
    assert memory["peak_resident"] <= memory["process_peak"]
    assert max(point["anonymous"] for point in table(memory["over_time"])) <= memory["peak_anonymous"]
    harness = test["executorch"]
    assert harness["generated_tokens"] == stats.committed_tokens and harness["prompt_tokens"] == len(PROMPT)
    assert harness["first_token_ms"] == pytest.approx(own["first_block_seconds"] * 1000)
    loaded = harness["model_load_end_ms"] - harness["model_load_start_ms"]
    assert loaded == pytest.approx(report["session"]["load_seconds"] * 1000)
    assert harness["inference_start_ms"] <= harness["prompt_eval_end_ms"] <= harness["first_token_ms"]


def test_who_looks_on_changes_nothing(session: Session) -> None:
    alone, _ = generate(session)
    with Bench(session, spans=10) as bench, bench.test({}):
        watched, _ = generate(session, bench)
    assert watched == alone
    after, _ = generate(session)
    assert after == alone


def test_of_many_spans_the_first_are_kept_and_the_others_counted(session: Session) -> None:
    with Bench(session, spans=7) as bench:
        with bench.test({}):
            generate(session, bench)
        (test,) = bench.report()["tests"]
    assert len(test["spans"]["rows"]) == 7 and test["spans_left_out"] > 0


def test_a_generation_that_is_cut_off_is_counted_as_far_as_it_came(session: Session) -> None:
    own, drafts = sampler(session.bundle), 0
    with Bench(session) as bench:
        with bench.test({}):
            events = drive(own, session)
            for event in events:
                bench.tell(0, event, own)
                drafts += isinstance(event, Draft)
                if drafts == 3:
                    break
            events.close()
        with pytest.raises(InvalidRequest, match="no test has begun"):
            bench.tell(0, event, own)
        (test,) = bench.report()["tests"]
    (found,) = test["sequences"]
    assert found["forwards"] == own.stats.forwards == 3 and not found["done"]
    assert found["first_draft_seconds"] < test["passes"]["rows"][-1][3], "of the first draft, not the last"


def test_misuse_is_told_and_loses_nothing(session: Session) -> None:
    bench = Bench(session)
    for label in (b"[1]", b"{", b'{"a": NaN}'):
        with pytest.raises(InvalidRequest, match="give a JSON object"):
            _native.check(session._library.ek_bench_begin(bench._handle, label, 0))
    _native.check(session._library.ek_bench_begin(bench._handle, b'{"a":\n"b"}', 0))
    _native.check(session._library.ek_bench_end(bench._handle))
    assert bench.report()["tests"][0]["label"] == {"a": "b"}
    size, text = c_uint64(), ctypes.create_string_buffer(1 << 20)
    _native.check(session._library.ek_bench_get_report(bench._handle, text, 1 << 20, ctypes.byref(size)))
    assert b"\n" not in text.raw[: size.value], "a report is one line"
    bench.close()
    bench = Bench(session)
    with bench.test({"kept": 1}):
        generate(session, bench)
    with pytest.raises(ZeroDivisionError), bench.test({"lost": 1}):
        generate(session, bench)
        raise ZeroDivisionError

    def inner() -> None:
        with bench.test({"inner": 1}):
            pass

    with bench.test({"outer": 1}), pytest.raises(InvalidRequest, match="has begun already"):
        inner()
    assert [test["label"] for test in bench.report()["tests"]] == [{"kept": 1}, {"outer": 1}]
    with pytest.raises(InvalidRequest, match="no test has begun"):
        bench.tell(0, Done(sampler(session.bundle).stats))
    bench.close()
    bench.close()
    with pytest.raises(InvalidRequest, match="closed"):
        bench.report()
    for wrong in ({"spans": -1}, {"spans": 2**40}):
        with pytest.raises(InvalidRequest, match="spans"):
            Bench(session, **wrong)  # type: ignore[arg-type]


def test_a_session_that_closes_ends_who_looks_on(bundle: Bundle) -> None:
    with Session(bundle, SessionOptions(resident_bytes=0)) as session:
        bench = Bench(session)
        test = bench.test({})
        test.__enter__()
        generate(session, bench)
    with pytest.raises(InvalidRequest, match="closed"):
        test.__exit__(None, None, None)
    with pytest.raises(InvalidRequest, match="its session"):
        bench.report()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_fork_has_no_part_in_it(session: Session) -> None:
    with Bench(session) as bench, bench.test({}):
        generate(session, bench)
        child = os.fork()
        if child == 0:
            try:
                bench.report()
            except BaseException as error:
                bench.close()
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


def test_a_meter_of_the_callers_is_read_from_begin_to_end(session: Session) -> None:
    asked: list[float] = []

    def joules() -> float:
        asked.append(100.0 + len(asked))
        return asked[-1]

    with Bench(session, joules=joules, interval_milliseconds=1) as bench:
        with bench.test({}):
            generate(session, bench)
            time.sleep(0.05)
        (test,) = bench.report()["tests"]
    (own,) = test["energy"]
    assert own["meter"] == "own", "in place of the system's"
    assert own["joules"] == asked[-1] - asked[0] > 0, "the first and the last reading"

    def broken() -> float:
        raise OSError

    with Bench(session, joules=broken) as bench:
        with bench.test({}):
            pass
        assert bench.report()["tests"][0]["energy"][-1] == {"meter": "own", "joules": None}


def test_c_callers_measure_a_generation_with_one_call(session: Session) -> None:
    bench = Bench(session)
    call = session._library.ek_bench_generate
    call.argtypes = (
        c_void_p, c_char_p, c_void_p, c_int64, POINTER(Options), ON_EVENT, c_void_p, POINTER(Statistics),
    )  # fmt: skip
    prompt = PROMPT.astype(np.int64)
    told = []

    def on_event(event: Any, _: Any) -> int:
        told.append(event.contents.kind)
        return 0

    wishes, found = Options(max_new_tokens=32, steps=4), Statistics()

    def measured(ids: np.ndarray[Any, Any], label: bytes, found: Statistics) -> int:
        callback = ON_EVENT(on_event)
        return int(
            call(
                bench._handle, label, ids.ctypes.data, len(ids), ctypes.byref(wishes), callback, None,
                ctypes.byref(found),
            )
        )  # fmt: skip

    assert measured(prompt, b'{"test": "dg32"}', found) == 0
    assert told[-1] == 2 and 0 in told and 1 in told
    assert measured(np.array([10**9]), b"{}", Statistics()) == INVALID_PROMPT
    with pytest.raises(Exception, match="token"):
        _native.check(INVALID_PROMPT)  # the message is that of ek_generate
    (test,) = bench.report()["tests"]
    assert test["sequences"][0]["forwards"] == found.forwards
    assert test["committed_tokens"] == found.committed_tokens
    bench.close()


def test_session_counters_tell_passes_by_kind(session: Session) -> None:
    before = session.counters()
    _, stats = generate(session)
    after = session.counters()
    grown = {name: after[name] - before[name] for name in before if isinstance(before[name], int | float)}
    assert grown["denoise_passes"] == stats.forwards and grown["prefill_passes"] >= stats.prefills
    assert grown["pass_rows"] == stats.rows
    parts = grown["prefill_seconds"] + grown["denoise_seconds"] + grown["head_seconds"]
    assert 0 < parts <= grown["pass_seconds"] + 1e-3


# --- the machine ---


def test_the_machine_is_described_without_names_of_people() -> None:
    found = describe_machine()
    assert found["system"] == platform.system() and found["cores"] >= 1
    assert found["architecture"] == platform.machine()
    assert tuple(found["cpu_features"]) == _native.load().cpu_features()
    said = json.dumps(found)
    assert str(Path.home()) not in said
    assert not re.search(rf"\b{re.escape(platform.node())}\b", said)


def test_probes_find_what_this_processor_does() -> None:
    found = probe_processor(1, 0.02)
    assert found.threads == 1 and found.int8_instructions and found.float_instructions
    rates = (
        found.int8_operations, found.float_operations, found.memory_bytes, found.product_operations,
        found.few_row_operations, found.attention_operations,
    )  # fmt: skip
    assert all(math.isfinite(rate) and rate > 1e6 for rate in rates)
    assert found.product_operations < 2 * found.int8_operations, "no kernel is faster than its instruction"
    assert found.attention_operations < 2 * found.float_operations
    for threads, seconds in ((-1, 0.1), (1, 0), (1, math.nan), (1, 1e9)):
        with pytest.raises(InvalidRequest):
            probe_processor(threads, seconds)


@pytest.mark.parametrize(
    ("loop", "instruction_set"),
    [
        ("ekt_multiply_adds", "avx512"), ("ekt_multiply_adds", "avx2"), ("ekt_multiply_adds", "neon"),
        ("ekt_multiply_adds", "scalar"), ("ekt_int8_products", "avx512"), ("ekt_int8_products", "avxvnni"),
        ("ekt_int8_products", "avx2"), ("ekt_int8_products", "i8mm"), ("ekt_int8_products", "dotprod"),
        ("ekt_int8_products", "scalar"),
    ],
)  # fmt: skip
def test_loops_say_how_many_operations_they_did(loop: str, instruction_set: str) -> None:
    library = native_testing.library()
    run_loop = getattr(library, loop)
    run_loop.restype = c_double
    kept = ctypes.c_float()
    once, twice = (
        run_loop(instruction_set.encode(), c_int64(rounds), ctypes.byref(kept)) for rounds in (50, 100)
    )
    assert twice == 2 * once
    assert (once > 0) == bool(library.ekt_can_use(instruction_set.encode()))


def test_a_disk_probe_reads_past_the_cache_as_often_as_there_is_time(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(9_000_001))
    found = probe_disk(file, 0.05)
    assert found.bytes >= 4 << 20 and found.seconds >= 0.05
    assert found.bytes_per_second == pytest.approx(found.bytes / found.seconds)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InvalidRequest, match="no bytes"):
        probe_disk(tmp_path / "empty", 0.05)
    with pytest.raises(OpenFailed, match="missing"):
        probe_disk(tmp_path / "missing", 0.05)
    with pytest.raises(InvalidRequest, match="seconds"):
        probe_disk(file, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="compares with /proc")
def test_memory_of_the_process_is_what_the_system_says() -> None:
    found = ProcessMemoryStruct()
    library = _native.functions({"ek_process_get_memory": (POINTER(ProcessMemoryStruct),)})
    _native.check(library.ek_process_get_memory(ctypes.byref(found)))
    assert found.anonymous + found.file == found.resident <= found.peak
    with mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE) as held:  # of nobody who had some to give back
        held[:: mmap.PAGESIZE] = b"x" * (len(held) // mmap.PAGESIZE)
        more = ProcessMemoryStruct()
        _native.check(library.ek_process_get_memory(ctypes.byref(more)))
    assert more.anonymous - found.anonymous > 30 << 20


# --- energy ---


class Meters:
    """The core's meters of a machine whose /sys lies below `root`."""

    def __init__(self, root: Path, nvml: str = "no-such-library.so") -> None:
        self._library = library = native_testing.library()
        library.ekt_meters_open.restype = c_void_p
        library.ekt_meters_open.argtypes = (c_char_p, c_char_p)
        library.ekt_meter_name.restype = c_char_p
        library.ekt_meter_name.argtypes = (c_void_p, c_int64)
        library.ekt_meter_joules.restype = c_double
        library.ekt_meter_joules.argtypes = (c_void_p, c_int64)
        library.ekt_meters_close.argtypes = (c_void_p,)
        self._handle = library.ekt_meters_open(str(root).encode(), nvml.encode())

    def names(self) -> list[str]:
        found: list[str] = []
        while (name := self._library.ekt_meter_name(self._handle, len(found))) is not None:
            found.append(name.decode())
        return found

    def joules(self, index: int = 0) -> float:
        return float(self._library.ekt_meter_joules(self._handle, index))

    def close(self) -> None:
        self._library.ekt_meters_close(self._handle)


def rapl_zone(root: Path, zone: str, name: str, microjoules: int, most: int = 1000) -> Path:
    folder = root / "sys/class/powercap" / zone
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder / "energy_uj"


def test_rapl_adds_packages_and_memory_and_knows_that_counters_begin_again(tmp_path: Path) -> None:
    first = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 900)
    core = rapl_zone(tmp_path, "intel-rapl:0:0", "core", 5)
    memory = rapl_zone(tmp_path, "intel-rapl:0:1", "dram", 10)
    rapl_zone(tmp_path, "intel-rapl:1", "psys", 10)
    rapl_zone(tmp_path, "intel-rapl-mmio:0", "package-0", 10)
    meters = Meters(tmp_path)
    assert meters.names() == ["rapl"] and meters.joules() == 0
    first.write_text("950")
    memory.write_text("30")
    core.write_text("500")
    assert meters.joules() == pytest.approx(70e-6)
    first.write_text("20")  # behind 1000 it began again: 50 and 20
    assert meters.joules() == pytest.approx(140e-6)
    first.unlink()
    assert meters.joules() < 0
    meters.close()


def rail(root: Path, monitor: str, channel: int, label: str, millivolts: int, milliamperes: int) -> None:
    folder = root / "sys/class/hwmon" / monitor
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text("ina3221\n")
    (folder / f"in{channel}_label").write_text(f"{label}\n")
    (folder / f"in{channel}_input").write_text(f"{millivolts}\n")
    (folder / f"curr{channel}_input").write_text(f"{milliamperes}\n")


@pytest.mark.parametrize("whole", [True, False])
def test_rails_of_a_board_are_power_over_time(tmp_path: Path, whole: bool) -> None:
    rail(tmp_path, "hwmon1", 1, "VDD_IN" if whole else "VDD_GPU_SOC", 5000, 2000)
    rail(tmp_path, "hwmon1", 2, "VDD_CPU_CV", 5000, 1000)
    (tmp_path / "sys/class/hwmon/hwmon2").mkdir()
    (tmp_path / "sys/class/hwmon/hwmon2/name").write_text("other\n")
    meters, watts = Meters(tmp_path), 10.0 if whole else 15.0
    outer = time.perf_counter()
    assert meters.names() == ["rails"] and meters.joules() == 0
    inner = time.perf_counter()
    time.sleep(0.02)
    least = time.perf_counter() - inner
    found = meters.joules()
    assert watts * least <= found <= watts * (time.perf_counter() - outer)
    meters.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looked for on Linux")
@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_energy_of_gpus_is_their_librarys(tmp_path: Path) -> None:
    """Three devices, of which one cannot tell."""
    source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-fake.so"
    source.write_text(
        """
        static unsigned long long spent = 1000;
        int nvmlInit_v2(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
          *device = (char *)0 + index + 1; return 0; }
        int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
          if (device == (void *)2) return 3;
          *millijoules = spent += 500; return 0; }
        """
    )
    run(compiler("cc", "gcc", "clang"), "-shared", "-fPIC", source, "-o", library)
    meters = Meters(tmp_path, str(library))
    assert meters.names() == ["nvml"]
    first = meters.joules()
    assert meters.joules() - first == pytest.approx(2.0), "500 millijoules more at each of four calls"
    meters.close()
    assert Meters(tmp_path).names() == []


def test_a_bench_runs_beside_python_that_computes(bundle: Bundle) -> None:
    """The meter's callback takes the interpreter's lock from another thread: no deadlock at the end."""
    code = (
        "import sys\n"
        "from edgekit.runtime.bench import Bench\n"
        "from edgekit.runtime.session import Session\n"
        "import numpy as np\n"
        "from edgekit.runtime.sampling import HeadRequest\n"
        "with Session(sys.argv[1]) as s, Bench(s, joules=lambda: 1.0, interval_milliseconds=1) as b:\n"
        "    for i in range(20):\n"
        "        with b.test({'i': i}):\n"
        "            s.denoise(np.arange(5, 13), HeadRequest()); sum(range(200000))\n"
        "    print(len(b.report()['tests']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bundle.path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "20", done.stderr
