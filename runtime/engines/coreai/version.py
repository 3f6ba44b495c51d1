"""Which version of coreai-core edgekit builds and runs assets with: this one alone. It is a beta, and what is
used of it to build programs is not all public.
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
    """What is wrong with the installed version; nothing where there is none, which others tell."""
    found = installed()
    if found in (None, VERSION):
        return ""
    return f"coreai-core {found} is installed, edgekit knows {VERSION} alone; pip install '{REQUIREMENT}'"


def bundle_complaint(written_by: str) -> str:
    """What is wrong with packages that a version of coreai-core wrote. The runtime ends the process over
    those that it cannot parse.
    """
    if written_by == VERSION:
        return ""
    version = written_by[:40] or "an unknown version"
    return (
        f"its packages were written by coreai-core {version}, edgekit knows {VERSION} alone; "
        "export the bundle again"
    )
