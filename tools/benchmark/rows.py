"""One row for each report: figures of its tests with their spread, under names that others know as well."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgekit.runtime.bundle.costs import Costs

#: A report, or a test of one: docs/bench.md.
Report = Mapping[str, Any]
Test = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A number of every test; `unit` and `help` say what it is."""

    name: str
    unit: str
    of: Callable[[Test], float | None]
    help: str


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _of_sequences(name: str) -> Callable[[Test], float | None]:
    return lambda test: _mean([each[name] for each in test["sequences"]])


def _operations(test: Test, costs: Costs) -> int:
    return sum(costs.of_pass(each) for each in rows_of(test["passes"]))


def _forwards(test: Test) -> float | None:
    """Of a run that was not to come to its end, those that it ran."""
    done = all(each["done"] for each in test["sequences"])
    return _of_sequences("forwards")(test) if done else float(test["denoise_passes"])


def _joules(test: Test) -> float | None:
    known = [meter["joules"] for meter in test["energy"] if meter["joules"] is not None]
    return sum(known) if known else None


def _committed(test: Test) -> int:
    """Tokens that are final; 0 of a run that was not to come to its end."""
    return int(test["committed_tokens"]) if all(each["done"] for each in test["sequences"]) else 0


FIGURES = (
    Figure("tokens_per_second", "tok/s", lambda t: _share(_committed(t), t["seconds"]) or None,
           "committed tokens a second, from request to end"),
    Figure("seconds", "s", lambda t: t["seconds"], "from request to end"),
    Figure("first_draft_seconds", "s", _of_sequences("first_draft_seconds"), "to the first draft"),
    Figure("first_block_seconds", "s", _of_sequences("first_block_seconds"),
           "to the first committed block: TTFT of other harnesses"),
    Figure("canvas_tokens_per_second", "tok/s", lambda t: _share(t["canvas_tokens"], t["seconds"]),
           "positions of the answers that drafts were told of, a second"),
    Figure("committed_tokens", "", lambda t: _committed(t) or None, "final tokens of all answers"),
    Figure("forwards", "", lambda t: _forwards(t), "denoising passes of an answer"),
    Figure("tokens_per_forward", "", lambda t: _share(
        _committed(t), sum(each["forwards"] for each in t["sequences"])) or None,
           "committed tokens a forward"),
    Figure("prefill_ms", "ms", lambda t: _scaled(_share(t["prefill_seconds"], t["prefill_passes"])),
           "a pass that encodes text"),
    Figure("denoise_ms", "ms", lambda t: _scaled(_share(t["denoise_seconds"], t["denoise_passes"])),
           "a denoising pass up to the last norm"),
    Figure("head_ms", "ms", lambda t: _scaled(_share(t["head_seconds"], t["denoise_passes"])),
           "last norms and vocabulary heads of a denoising pass"),
    Figure("forward_ms", "ms", lambda t: _scaled(
        _share(t["denoise_seconds"] + t["head_seconds"], t["denoise_passes"])), "a denoising pass, whole"),
    Figure("bytes_per_forward", "B", lambda t: _share(
        sum(row["bytes_read"] for row in rows_of(t["passes"]) if row["kind"] != "prefill"),
        t["denoise_passes"]),
           "read from disk in a denoising pass"),
    Figure("bytes_per_token", "B", lambda t: _share(t["bytes_read"], _committed(t)),
           "read for a committed token"),
    Figure("read_bytes_per_second", "B/s", lambda t: _share(t["bytes_read"], t["io_seconds"]),
           "while reads were under way"),
    Figure("io_wait_share", "", lambda t: _share(t["io_wait_seconds"], t["pass_seconds"]),
           "of the time in passes, spent without weights"),
    Figure("peak_anonymous_bytes", "B", lambda t: t["memory"]["peak_anonymous"],
           "memory without files behind it"),
    Figure("peak_file_bytes", "B", lambda t: t["memory"]["peak_file"], "pages of files"),
    Figure("joules_per_token", "J", lambda t: _ratio(_joules(t), _committed(t)), "of all meters"),
    Figure("watts", "W", lambda t: _ratio(_joules(t), t["seconds"]), "of all meters"),
)  # fmt: skip


def _scaled(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None else _share(part, whole)


def rows_of(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table of a report."""
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of samples, None of which is missing."""

    samples: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.samples) if len(self.samples) > 1 else 0.0


def figures(report: Report) -> dict[str, Spread]:
    """By name; what no test has is left out."""
    found = {}
    for figure in FIGURES:
        samples = [value for test in report["tests"] if (value := figure.of(test)) is not None]
        if samples and all(map(math.isfinite, samples)):
            found[figure.name] = Spread(tuple(map(float, samples)))
    return found


#: Of a minute's passes at the beginning and at the end.
WINDOW_SECONDS = 60.0


def sustained_ratio(report: Report) -> float | None:
    """Passes of the last minute over those of the first; None where less than three minutes were measured."""
    ends, at = list[float](), 0.0
    for test in report["tests"]:
        ends += [at + row["ended"] for row in rows_of(test["passes"]) if row["kind"] != "prefill"]
        at += test["seconds"]
    if at < 3 * WINDOW_SECONDS or not ends:
        return None
    first = sum(end <= WINDOW_SECONDS for end in ends)
    return _share(sum(end > at - WINDOW_SECONDS for end in ends), first)


#: Of a bundle's digest: a report names no folder.
DIGITS = 8


def told(report: Report) -> dict[str, Any]:
    """The member "about", with what it lacks in the report of an application."""
    about, first = report["about"], report["tests"][0]
    model = (
        {
            "name": report["bundle"]["digest"][:12],
            "family": None,
            "parameters": None,
            "preset": None,
        }
        | report["bundle"].get("model", {})
        | about.get("model", {})
    )
    case = {
        "sequences": len(first["sequences"]),
        "prompt": None,
        "new_tokens": max((each["committed_tokens"] for each in first["sequences"]), default=0),
        "forwards": 0,
        "settings": {},
    } | about.get("case", {})
    engine = {"engine": report["bundle"]["format"]} | about.get("engine", {})
    return {
        **about,
        "model": model,
        "case": case,
        "engine": engine,
        "date": about.get("date", report.get("date", "")),
    }


def test_name(report: Report) -> str:
    """In llama-bench's manner: dg128 is the generation of up to 128 tokens, fw16 its first 16 forwards;
    behind @ how many tokens the prompts have.
    """
    case = told(report)["case"]
    name = f"fw{case['forwards']}" if case["forwards"] else f"dg{case['new_tokens']}"
    prompt = report["tests"][0]["prompt_tokens"] // max(1, case["sequences"])
    return f"{name} @ p{prompt}"


def row(report: Report) -> dict[str, Any]:
    """What was measured, its figures (`x`, `x_stddev`, `x_samples`), and llama-bench's own keys."""
    about, session, machine = told(report), report["session"], report["machine"]
    model, case = about["model"], about["case"]
    found: dict[str, Any] = {
        "model": model["name"],
        "family": model["family"],
        "preset": model["preset"],
        "bundle": report["bundle"]["digest"][:DIGITS],
        "weights_bytes": report["bundle"]["weights_bytes"],
        "parameters": model["parameters"],
        "engine": about["engine"]["engine"],
        "provider": about["engine"].get("provider"),
        "device": machine["device"],
        "processor": machine["processor"],
        "threads": session["threads"],
        "memory_bytes": session["memory_bytes"],
        "resident_bytes": session["resident_bytes"],
        "pinned_bytes": report["plan"]["pinned"],
        "streamed_bytes": report["plan"]["streamed"],
        "sequences": case["sequences"],
        "settings": case["settings"],
        "prompt": case["prompt"],
        "prompt_tokens": report["tests"][0]["prompt_tokens"],
        "new_tokens": case["new_tokens"],
        "test": test_name(report),
        "runs": len(report["tests"]),
        "load_seconds": session["load_seconds"],
        "sustained_ratio": sustained_ratio(report),
    }
    if about.get("costs"):
        costs = Costs(**about["costs"])
        rates = [_share(_operations(test, costs), test["pass_seconds"]) for test in report["tests"]]
        found["operations_per_second"] = _mean(rates)
    limits = about.get("limits") or {}
    found |= {f"limit_{name}": value for name, value in limits.items()}
    for name, spread in figures(report).items():
        found |= _spread_of(name, spread)
    found |= _starts(about.get("starts"))
    disk, read = limits.get("disk_bytes_per_second"), found.get("read_bytes_per_second")
    found["share_of_disk"] = None if disk is None or read is None else _share(read, disk)
    peak, reached = limits.get("int8_operations_per_second"), found.get("operations_per_second")
    found["share_of_int8"] = None if peak is None or reached is None else _share(reached, peak)
    return found | _llama_bench(report, found)


def _spread_of(name: str, spread: Spread) -> dict[str, Any]:
    return {
        name: spread.mean,
        f"{name}_stddev": spread.deviation,
        f"{name}_samples": list(spread.samples),
    }


def _starts(starts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of cold and of warm starts, as far as they are known."""
    found: dict[str, Any] = {}
    for kind in ("cold", "warm") if starts else ():
        for name in ("open_seconds", "first_draft_seconds"):
            if samples := tuple(start[name] for start in starts[kind]) if starts else ():
                found |= _spread_of(f"{kind}_{name}", Spread(samples))
    return found


def _llama_bench(report: Report, row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that compare-llama-bench.py asks for; what has no meaning here is neutral."""
    rate, machine = row.get("tokens_per_second_samples", []), report["machine"]
    seconds = [round(1e9 * each) for each in row["seconds_samples"]]
    return {
        "build_commit": report["edgekit"],
        "build_number": 0,
        "cpu_info": machine["processor"],
        "gpu_info": str(told(report)["engine"].get("device") or ""),
        "backends": row["engine"],
        "model_filename": row["model"],
        "model_type": f"{row['family']} {row['preset']}",
        "model_size": row["weights_bytes"],
        "model_n_params": row["parameters"],
        "n_batch": 0,
        "n_ubatch": 0,
        "n_threads": row["threads"],
        "cpu_mask": "0x0",
        "cpu_strict": False,
        "poll": 0,
        "type_k": "f32",
        "type_v": "f32",
        "n_gpu_layers": 0,
        "n_cpu_moe": 0,
        "split_mode": "none",
        "main_gpu": 0,
        "no_kv_offload": False,
        "flash_attn": False,
        "tensor_split": "0.00",
        "tensor_buft_overrides": "none",
        "load_mode": "direct",
        "embeddings": False,
        "fit_target": 0,
        "fit_min_ctx": 0,
        "n_prompt": 0,
        "n_gen": row["new_tokens"],
        "n_depth": row["prompt_tokens"],
        "test_time": told(report)["date"],
        "avg_ns": round(statistics.fmean(seconds)),
        "stddev_ns": round(statistics.stdev(seconds)) if len(seconds) > 1 else 0,
        "avg_ts": row.get("tokens_per_second", 0.0),
        "stddev_ts": row.get("tokens_per_second_stddev", 0.0),
        "samples_ns": seconds,
        "samples_ts": rate,
    }
