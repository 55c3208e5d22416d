"""Floats are rounded and clipped to the stored type, and clipped values are counted."""

import numpy as np
import pytest

from rigdyno.engines.blockwise import BadSetting
from rigdyno.engines.blockwise.encoding import Encoding


def floats(*numbers):
    return np.array(numbers, np.float32).reshape(1, 1, 1, -1)


def test_uint8_rounds_to_the_nearest_and_counts_clipped_values():
    encoding = Encoding("uint8", -1.0, 1.0)
    found = encoding.encode(floats(-1, 1, 0.0, -1.001, 1.003, -1.1, 7, np.inf, -np.inf))
    assert found.dtype == np.uint8
    assert found.ravel().tolist() == [0, 255, 128, 0, 255, 0, 255, 255, 0]
    assert encoding.clipped == 4
    assert encoding.not_numbers == 0
    encoding.encode(floats(2.0))
    assert encoding.clipped == 5


def test_uint8_represents_all_256_values():
    numbers = np.arange(256, dtype=np.float32) / 255 * 10 - 3
    encoding = Encoding("uint8", -3.0, 7.0)
    assert (encoding.encode(numbers.reshape(1, 1, 1, -1)).ravel() == np.arange(256)).all()
    assert encoding.clipped == 0


def test_float16_clips_large_values_and_keeps_nan():
    encoding = Encoding("float16")
    found = encoding.encode(floats(0.1, -7.25, 65504, 65520, -1e9, np.inf, np.nan))
    assert found.dtype == np.float16
    assert found.ravel()[:6].tolist() == [float(np.float16(0.1)), -7.25, 65504, 65504, -65504, 65504]
    assert np.isnan(found.ravel()[6])
    assert (encoding.clipped, encoding.not_numbers) == (3, 1)


def test_nan_is_zero_in_uint8_and_is_counted():
    encoding = Encoding("uint8")
    with np.errstate(all="raise"):
        found = encoding.encode(floats(np.nan, 0.5, np.nan))
    assert found.ravel().tolist() == [0, 128, 0]
    assert (encoding.clipped, encoding.not_numbers) == (0, 2)


def test_encoding_does_not_change_its_input():
    given = floats(0.25, 3.0, np.nan)
    for dtype in ("uint8", "float16"):
        Encoding(dtype).encode(given)
    assert given.ravel()[:2].tolist() == [0.25, 3.0]


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("uint16", 0, 1), ("uint8", 1, 1), ("uint8", 2, 1),
     ("uint8", 0, np.nan), ("uint8", -np.inf, 1), ("uint8", 0, np.inf)],
)  # fmt: skip
def test_invalid_settings_are_refused(dtype, low, high):
    with pytest.raises(BadSetting):
        Encoding(dtype, low, high)
