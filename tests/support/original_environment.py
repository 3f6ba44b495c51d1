"""The environment before any fixture: for subprocesses that need the user's own settings, such as pip's. The
first import counts, which is that of `conftest`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

ORIGINAL_ENVIRONMENT: Mapping[str, str] = MappingProxyType(dict(os.environ))
