"""Operations, evaluated from saved packages: against coremltools' own value inference, or against torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mil_cases import all_cases
from mil_programs import Array, Case, evaluate_cases, inferred

CASES = {f"ios{ios}-{case.name}": (case, ios) for case in all_cases() for ios in case.ios}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[Array]]]:
    """Each case's results: one package and one evaluation for each operation set."""
    folder = Path(tmp_path_factory.mktemp("ops"))
    by_ios = {ios: [case for case, i in CASES.values() if i == ios] for ios in {i for _, i in CASES.values()}}
    return {ios: evaluate_cases(cases, ios, folder) for ios, cases in by_ios.items()}


def test_every_case_has_a_name_of_its_own() -> None:
    names = [(ios, case.name) for case in all_cases() for ios in case.ios]
    assert {name for name in names if names.count(name) > 1} == set()


@pytest.mark.parametrize("name", CASES)
def test_operation_gives_the_expected_values(name: str, results: dict[int, dict[str, list[Array]]]) -> None:
    case, ios = CASES[name]
    expected = inferred(case, ios) if case.expected is None else case.expected()
    expected = [np.asarray(e) for e in (expected if isinstance(expected, (list, tuple)) else [expected])]
    found = results[ios][case.name]
    assert len(found) == len(expected)
    for array, wanted in zip(found, expected, strict=True):
        assert array.shape == (wanted.shape or (1,))
        compare(case, array, wanted)


def compare(case: Case, array: Array, wanted: Array) -> None:
    """Integers exactly. float16 to one unit of the last place: computed in float32 and rounded once. float32
    to the rounding of sums in another order.
    """
    if array.dtype.kind != "f":
        np.testing.assert_array_equal(array, wanted.reshape(array.shape))
        return
    wanted = wanted.astype(np.float64).reshape(array.shape)
    tolerance = 1e-3 if array.dtype == np.float16 else 1e-5
    absolute = 3e-6 * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(array.astype(np.float64), wanted, rtol=tolerance, atol=absolute)
