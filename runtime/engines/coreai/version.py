"""The version of coreai-core that edgekit builds and runs assets with, and no other: it is a beta, and not
all that builds programs is public.
"""

from __future__ import annotations

import importlib.metadata

VERSION = "1.0.0b3"
#: The same as a requirement for pip.
REQUIREMENT = f"coreai-core=={VERSION}"


def installed() -> str | None:
    """The version of coreai-core in this environment, None without any."""
    try:
        return importlib.metadata.version("coreai-core")
    except importlib.metadata.PackageNotFoundError:
        return None


def complaint() -> str:
    """The complaint about an installed version other than `VERSION`, empty for none. Whether one is installed
    is checked elsewhere.
    """
    found = installed()
    if found in (None, VERSION):
        return ""
    return f"coreai-core {found} is installed, edgekit knows {VERSION} alone; pip install '{REQUIREMENT}'"


def bundle_complaint(written_by: str) -> str:
    """The complaint about packages that another version of coreai-core wrote, empty for none. The runtime
    ends the process over those that it cannot parse.
    """
    if written_by == VERSION:
        return ""
    version = written_by[:40] or "an unknown version"
    return (
        f"its packages were written by coreai-core {version}, edgekit knows {VERSION} alone; "
        "export the bundle again"
    )
