"""The arithmetic of the native core's denoising loops against Python's, bit for bit."""

from __future__ import annotations

import ctypes

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from native_sampler import pointer
from native_testing import library

from edgekit.runtime.sampling import portable, schedule

SPECIAL = [0.0, -0.0, -1.0, -86.99999, -87.0, -87.00001, -1e30, -np.inf, 88.0, 1e-30, -1e-30]


def test_exponentials_and_logarithms_have_the_bits_of_python(rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-90, 0, 40000), rng.normal(0, 1, 5000), SPECIAL]).astype(np.float32)
    y = np.empty_like(x)
    library().ekt_portable_exp(pointer(x), ctypes.c_int64(x.size), pointer(y))
    assert y.tobytes() == portable.exp(x).tobytes()
    wide = np.concatenate([rng.uniform(0, 1, 20000), np.exp(rng.uniform(-300, 300, 20000)), [1.0, 2.0**-54]])
    logs = np.empty_like(wide)
    library().ekt_portable_log(pointer(wide), ctypes.c_int64(wide.size), pointer(logs))
    assert logs.tobytes() == portable.log(wide).tobytes()


ENTROPIES = st.lists(
    st.one_of(st.sampled_from([0.0, 0.05, 0.1, 1.0]), st.floats(0, 12, width=32)), min_size=1, max_size=40
)


@given(ENTROPIES, st.sampled_from([1e-6, 0.05, 0.1, 1.0, 7.3]), st.integers(1, 50))
@settings(max_examples=200)
def test_the_arithmetic_of_a_step_has_the_bits_of_python(
    values: list[float], bound: float, many: int
) -> None:
    core = library()
    x = np.array(values, dtype=np.float32)
    size = ctypes.c_int64(x.size)
    core.ekt_portable_total.restype = ctypes.c_double
    assert core.ekt_portable_total(pointer(x), size) == float(portable.total(x))
    accepted = np.empty(x.size, dtype=np.uint8)
    core.ekt_accept_by_entropy(pointer(x), size, ctypes.c_double(bound), pointer(accepted))
    assert accepted.tolist() == schedule.accept_by_entropy(x, bound).tolist()
    core.ekt_count_by_factor.restype = ctypes.c_int64
    core.ekt_count_above_threshold.restype = ctypes.c_int64
    share = x / np.float32(12)
    assert core.ekt_count_by_factor(pointer(share), size, ctypes.c_double(bound)) == schedule.count_by_factor(
        share, bound
    )
    assert core.ekt_count_above_threshold(
        pointer(x), size, ctypes.c_double(bound)
    ) == schedule.count_above_threshold(x, bound)
    best = schedule.most_confident(x, many)
    found = np.full(x.size, -1)
    core.ekt_most_confident(pointer(x), size, ctypes.c_int64(many), pointer(found))
    assert found[: best.size].tolist() == best.tolist() and (found[best.size :] == -1).all()


@given(st.integers(1, 300), st.floats(1e-6, 0.999), st.floats(0, 2), st.floats(0.01, 2))
@settings(max_examples=80)
def test_temperatures_and_times_have_the_bits_of_python(
    steps: int, eps: float, low: float, width: float
) -> None:
    core = library()
    times, shares = np.empty(steps + 1, np.float32), np.empty(steps, np.float32)
    core.ekt_timesteps(ctypes.c_int64(steps), ctypes.c_double(eps), pointer(times), pointer(shares))
    expected = schedule.timesteps(steps, eps)
    assert times.tobytes() == expected.tobytes()
    assert shares.tolist() == [float(schedule.transfer_probability(expected, i)) for i in range(steps)]
    core.ekt_linear_temperature.restype = ctypes.c_float
    for remaining in {1, (steps + 1) // 2, steps}:
        found = core.ekt_linear_temperature(
            ctypes.c_int64(remaining),
            ctypes.c_int64(steps),
            ctypes.c_double(low),
            ctypes.c_double(low + width),
        )
        assert found == schedule.linear_temperature(remaining, steps, low, low + width)
