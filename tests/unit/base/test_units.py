"""Durations, sizes and numbers, as they are read and as they are shown."""

import pytest

from rigdyno.base import units
from rigdyno.base.errors import BadValue, UnknownName, suggestion


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), (90, 90), (0.5, 0.5), ("90s", 90), ("1.5m", 90), ("2 min", 120), ("1h30m", 5400), ("1H 30M", 5400),
     ("250ms", 0.25), ("1d", 86400)],
)  # fmt: skip
def test_durations_are_read(text, seconds):
    assert units.seconds_from(text) == seconds


@pytest.mark.parametrize("text", ["", "five", "5 parsecs", "1h banana", "nan", "inf", "1e999", "--5s"])
def test_what_is_no_duration_gets_an_example(text):
    with pytest.raises(BadValue, match="is not a duration; try 30s, 5m or 1h30m"):
        units.seconds_from(text)


@pytest.mark.parametrize("text", ["0", "-3", "0s", 0])
def test_a_duration_is_longer_than_zero(text):
    with pytest.raises(BadValue, match="longer than zero"):
        units.seconds_from(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("512 MiB", 512 * 2**20), ("1.5kB", 1500), ("7b", 7), ("1TiB", 2**40)],
)
def test_sizes_are_read(text, size):
    assert units.bytes_from(text) == size


@pytest.mark.parametrize("text", ["", "8", "8 G", "-1GB", "GB", "8GBs"])
def test_what_is_no_size_gets_an_example(text):
    with pytest.raises(BadValue, match="is not a size; try 8GB or 512MiB"):
        units.bytes_from(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (200, "3 min 20 s"),
     (3599.7, "1 h"), (3659, "1 h"), (7500, "2 h 5 min")],
)  # fmt: skip
def test_seconds_are_shown_in_readable_units(seconds, shown):
    assert units.show_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.001, "0.00100"), (0.0004, "4.00e-04"), (0.1234, "0.123"), (1.005, "1.00"), (9.996, "10.0"),
     (99.96, "100"), (999.4, "999"), (999.6, "1,000"), (123456, "123,456"), (-31.25, "-31.2"), (float("inf"), "inf")],
)  # fmt: skip
def test_numbers_are_shown_with_three_digits(value, shown):
    assert units.show_number(value) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(999, "999 B"), (1000, "1.00 kB"), (999_900_000, "1.00 GB"), (1_810_000_000, "1.81 GB")]
)
def test_bytes_are_shown_in_readable_units(size, shown):
    assert units.show_bytes(size) == shown


def test_binary_bytes_percent_and_rates_are_shown():
    assert units.show_binary_bytes(32 * 1024) == "32 KiB"
    assert units.show_binary_bytes(3 * 2**19) == "1.5 MiB"
    assert units.show_binary_bytes(100) == "100 B"
    assert units.show_percent(0.8634) == "86 %"
    assert units.show_percent(0.0995) == "10 %"
    assert units.show_percent(0.0512) == "5.1 %"
    assert units.rate_unit("iteration") == "it/s"
    assert units.rate_unit("image") == "image/s"


def test_a_near_name_is_suggested_and_otherwise_all_are_named():
    assert suggestion("resnet5", ["resnet50", "unet"]) == "did you mean 'resnet50'?"
    assert suggestion("xyz", ["b", "a"]) == "there is a, b"
    assert suggestion("xyz", []) == "there is none"
    assert str(UnknownName("suite", "devise", ["device"])) == "no suite named 'devise'; did you mean 'device'?"
