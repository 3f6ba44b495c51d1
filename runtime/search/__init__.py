"""Search with verifiers: branches that share steps and every read of the weights, and the best of them."""

from __future__ import annotations

from edgekit.runtime.search.attempt import Attempt
from edgekit.runtime.search.branch import Branch
from edgekit.runtime.search.named import verifier_of
from edgekit.runtime.search.procedure import Method, Plan, Search
from edgekit.runtime.search.run import Costs, Found, search
from edgekit.runtime.search.verifier import Function, Json, Matches, Verifier, VerifierFailed

__all__ = [
    "Attempt",
    "Branch",
    "Costs",
    "Found",
    "Function",
    "Json",
    "Matches",
    "Method",
    "Plan",
    "Search",
    "Verifier",
    "VerifierFailed",
    "search",
    "verifier_of",
]
