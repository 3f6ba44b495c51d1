"""iPhones and iPads: Core ML, from iOS 27 on Core AI, on the GPU and, with weights of 8 bits, on the Neural
Engine; the native core on the processor.
"""

from __future__ import annotations

from edgekit.targets import Target
from edgekit.targets.tier import Tier

#: Limits with the increased-memory-limit entitlement where nothing else is said, from public reports. In
#: the order of their budgets.
TIERS = (
    Tier("4 GB iPhone", 1_600_000_000, "limit of 2.4 GB measured on iPhone 12 mini"),
    Tier("8 GB iPhone, no entitlement", 2_000_000_000, "limit of 3 GB measured on iPhone 15 Pro"),
    Tier("8 GB iPad", 2_500_000_000, "limit of 3 GB measured on iPadOS 26.4"),
    Tier("6 GB iPhone", 3_300_000_000, "limit of 4.2 GB measured on iPhone 13 Pro"),
    Tier("8 GB iPhone", 5_000_000_000, "limit of 6 GB measured on iPhone 15 Pro"),
    Tier("12 GB iPhone", 7_000_000_000, "estimated: no public measurement"),
    Tier("16 GB iPad", 11_000_000_000, "limit of 12 GB measured on iPad Pro M1"),
)

#: What an app may have in the App Store, uncompressed: App Store Connect Help, "Maximum build file sizes".
APP_BYTES = 4_000_000_000
#: What of it is left for the app itself, and for what bundles hold other than weights: programs, tokenizers.
REST_BYTES = 200_000_000

TARGET = Target(
    name="ios",
    summary="iPhones and iPads: Core ML and Core AI (GPU; Neural Engine with 8 bits), or the native core",
    formats=("coreml", "coreai", "native"),
    preset="mixed4",
    group_size=32,
    since={"coreai": 27},
    together=("coreml", "coreai"),
    together_bytes=APP_BYTES - REST_BYTES,
    describe="edgekit.targets.ios_folder:describe",
    tiers=TIERS,
    checked={
        "coreml": "programs evaluated on Linux; not run on a device",
        "coreai": "executed with coreai-core on Linux; not run on a device",
        "native": "core executed on x86-64 Linux, compiled for arm64; not run on a device",
    },
)
