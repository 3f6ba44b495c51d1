"""The table of covered operations: current, complete, and true to coremltools' signatures."""

from __future__ import annotations

from pathlib import Path

from mil_cases import all_cases
from mil_programs import TARGETS
from test_mil_compression import CASES as COMPRESSED

from edgekit.runtime.checks import mil
from edgekit.runtime.checks.mil import covered_ops, table

README = Path(mil.__file__).parent / "README.md"
#: Operations whose tests are in test_mil_models.py (states) and test_mil_compression.py (pairs of results).
ELSEWHERE = {
    "read_state", "write_state", "constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale",
}  # fmt: skip


def test_the_readme_has_the_current_table() -> None:
    assert table() in README.read_text(encoding="utf-8"), (
        "paste the output of: python -c 'from edgekit.runtime.checks.mil import table; print(table())'"
    )


def test_every_operation_is_compared_with_something() -> None:
    tested = {case.op for case in all_cases()} | {op for _, op, _ in COMPRESSED.values()} | ELSEWHERE
    assert tested == set(covered_ops())


def test_signatures_are_those_of_coremltools() -> None:
    """Arguments and first operation set, in the registry that coremltools builds programs from."""
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    for name, op in covered_ops().items():
        if name == "write_state":  # written by coremltools, but not offered by its builder
            continue
        versions = SSAOpRegistry.core_ops[name]
        assert op.since == max(min(int(target) for target in versions), 6), name
        known = {*op.required, *op.optional}
        for target, implementation in versions.items():
            inputs = implementation.input_spec.input_types
            assert set(inputs) <= known, (name, target)
            required = {key for key, kind in inputs.items() if not kind.optional}
            assert set(op.required) <= required, (name, target)
    assert {int(target) for target in TARGETS.values()} == {7, 8, 9, 10}
