"""The procedures that `frontier` compares: sampler options by name, for each sampler."""

from __future__ import annotations

from typing import Any

from edgekit.tools.tiny.tasks import MEASURED

MASKED: dict[str, dict[str, Any]] = {
    "default": {},
    "half the steps": {"steps": 64},
    "a quarter of the steps": {"steps": 32},
    "threshold 0.98": {"threshold": 0.98},
    "threshold 0.95": {"threshold": 0.95},
    "threshold 0.9": {"threshold": 0.9},
    "threshold 0.7": {"threshold": 0.7},
    "threshold 0.5": {"threshold": 0.5},
    "factor 1": {"factor": 1.0},
    "entropy bound 0.02": {"entropy_bound": 0.02},
    "entropy bound 0.1": {"entropy_bound": 0.1},
    "entropy bound 0.5": {"entropy_bound": 0.5},
    "margin 0.5": {"margin": 0.5},
    "persistence 2 from 0.5": {"persistence": 2, "persistent_threshold": 0.5},
    "threshold 0.9, persistence 1 from 0.6": {
        "threshold": 0.9,
        "persistence": 1,
        "persistent_threshold": 0.6,
    },
    "threshold 0.9, early commit 0.5": {"threshold": 0.9, "early_commit": 0.5},
    "dual cache": {"cache": "dual", "block_length": 32},
    "threshold 0.98, dual cache": {"threshold": 0.98, "cache": "dual", "block_length": 32},
    "threshold 0.9, dual cache": {"threshold": 0.9, "cache": "dual", "block_length": 32},
    "delayed cache": {"cache": "delayed", "block_length": 32},
    "delayed cache, refreshed every 4": {"cache": "delayed", "cache_refresh": 4, "block_length": 32},
    "delayed cache, refreshed every 16": {"cache": "delayed", "cache_refresh": 16, "block_length": 32},
    "threshold 0.9, delayed cache": {"threshold": 0.9, "cache": "delayed", "block_length": 32},
}
#: By the sampler's name.
PROCEDURES: dict[str, dict[str, dict[str, Any]]] = {
    "llada": MASKED,
    "dream": MASKED,
    "diffusion_gemma": {
        "default": {},
        "half the steps": {"steps": 24},
        "a quarter of the steps": {"steps": 12},
        "entropy bound 0.5": {"entropy_bound": 0.5},
        "entropy bound 2": {"entropy_bound": 2.0},
        "persistence 1 to 0.5": {"persistence": 1, "persistent_entropy": 0.5},
        "verify within 0.5": {"verify_bound": 0.5},
        "verify within 2": {"verify_bound": 2.0},
        "verify within 8": {"verify_bound": 8.0},
        "verify within 32": {"verify_bound": 32.0},
        "a quarter of the steps, verify within 2": {"steps": 12, "verify_bound": 2.0},
        "entropy bound 0.5, verify within 2": {"entropy_bound": 0.5, "verify_bound": 2.0},
        "entropy bound 2, verify within 2": {"entropy_bound": 2.0, "verify_bound": 2.0},
        "entropy bound 2, verify within 8": {"entropy_bound": 2.0, "verify_bound": 8.0},
    },
    "block": {
        "one a step": {"threshold": None},
        "default": {},
        "masks alone": {"causal_start": False},
        "half the steps": {"threshold": None, "steps": 8},
        "a quarter of the steps": {"threshold": None, "steps": 4},
        "threshold 0.7": {"threshold": 0.7},
        "threshold 0.5": {"threshold": 0.5},
        "entropy bound 0.1": {"remasking": "entropy", "entropy_bound": 0.1},
        "entropy bound 0.5": {"remasking": "entropy", "entropy_bound": 0.5},
        "4 steps drafted": {"threshold": None, "draft_steps": 4},
        "default, 4 steps drafted": {"draft_steps": 4},
        "a token at a time": {"mode": "autoregressive"},
        "speculative": {"mode": "speculative"},
    },
}


#: Orders of commitment, each with a position a step and with four. Blocks from left to right
#: (semi-autoregressive) are what an order has to be better than.
ORDERS: dict[str, dict[str, Any]] = {
    name + suffix: options | more
    for suffix, more in (("", {}), (", a quarter of the steps", {"steps": 32}))
    for name, options in (
        ("confidence, blocks of 32", {"block_length": 32}),
        ("confidence, blocks of 8", {"block_length": 8}),
        ("confidence, one block", {"block_length": 128}),
        ("logic, one block", {"block_length": 128, "order": "logic"}),
        ("logic, blocks of 32", {"block_length": 32, "order": "logic"}),
    )
}
#: What is written a token or a step at a time, and by drafts that are verified, which is to be the same.
SPECULATION: dict[str, dict[str, Any]] = {
    "a token at a time": {"mode": "autoregressive"},
    **{
        f"speculative, {name}": {"mode": "speculative", "ahead": ahead}
        for name, ahead in (("drafts afterwards", 0), ("1 draft ahead", 1), ("4 drafts ahead", 4))
    },
}
DRAFTED: dict[str, dict[str, Any]] = {
    "default": {},
    **{f"{count} steps drafted": {"draft_steps": count} for count in (2, 4, 8)},
}
#: What `--compare` takes: procedures by the sampler's name, and the tasks that they are for.
COMPARED: dict[str, tuple[dict[str, dict[str, dict[str, Any]]], tuple[str, ...]]] = {
    "rules": (PROCEDURES, tuple(MEASURED)),
    "orders": ({"llada": ORDERS, "dream": ORDERS}, ("chain", "sorting")),
    "speculation": ({"block": SPECULATION, "llada": DRAFTED, "dream": DRAFTED}, tuple(MEASURED)),
}
