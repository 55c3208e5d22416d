"""Energy over a window: synthetic curves with a known integral, counters, gaps, nonsense, totals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.analyse.energy import measure_coverage, meters_of, totals_of
from rigdyno.analyse.streams import TimeSpan
from rigdyno.schema.channel import Channel
from rigdyno.schema.samples import telemetry_fields

NS = 1_000_000_000
POWER = Channel("w", "W", "power", device="board", rail="VDD_IN", scope="board", extent="whole", sensor="ina3221")
ENERGY = Channel("j", "J", "energy", "counter", "package0", "", "package", "whole", 0.001, "rapl", most=5000.0)


def rows_of(at_seconds, **channels):
    found = np.zeros(len(at_seconds), dtype=np.dtype(list(telemetry_fields(list(channels)))))
    found["at_ns"] = np.round(np.asarray(at_seconds) * NS).astype(np.int64)
    for name, values in channels.items():
        found[name] = values
    return found


def span(begin, end):
    return TimeSpan(round(begin * NS), round(end * NS))


def wave(at, mean, swing, hertz, phase):
    return mean + swing * np.sin(2 * math.pi * hertz * at + phase)


def wave_joules(begin, end, mean, swing, hertz, phase):
    """The integral in closed form."""
    turn = 2 * math.pi * hertz
    return mean * (end - begin) - swing / turn * (math.cos(turn * end + phase) - math.cos(turn * begin + phase))


class TestIntegral:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        slow=st.floats(0.01, 0.25),  # of the sampling rate
        swing=st.floats(0.0, 0.9),
        phase=st.floats(0.0, 6.28),
        begin=st.floats(2.0, 6.0),
        seconds=st.floats(20.0, 60.0),
        seed=st.integers(0, 999),
    )
    def test_a_curve_slower_than_a_quarter_of_the_sampling_rate_is_within_a_hundredth_under_jitter(
        self, slow, swing, phase, begin, seconds, seed
    ):
        hertz, mean = slow * 2.0, 40.0
        jitter = np.random.default_rng(seed).uniform(-0.1, 0.1, 140)
        at = np.arange(140) * 0.5 + jitter
        rows = rows_of(at, w=wave(at, mean, swing * mean, hertz, phase))
        found = measure_coverage(POWER, rows, span(begin, begin + seconds))
        true = wave_joules(begin, begin + seconds, mean, swing * mean, hertz, phase)
        assert found.joules == pytest.approx(true, rel=0.01)
        assert found.seconds == pytest.approx(seconds)

    def test_by_hand(self):
        """10 W rising to 20 W at 2 s and staying: between 1 s and 3 s that is 17.5 + 20 J."""
        rows = rows_of([0.0, 2.0, 4.0], w=[10.0, 20.0, 20.0])
        found = measure_coverage(POWER, rows, span(1.0, 3.0))
        assert found.joules == pytest.approx((15 + 20) / 2 + 20)
        assert found.peak_watts == 20.0

    def test_a_gap_is_not_bridged_and_lowers_the_coverage(self):
        at = np.arange(41) * 0.5
        watts = np.full(41, 30.0)
        watts[10:20] = np.nan  # from 4.5 s to 10 s nothing was read
        (meter,) = meters_of([POWER], rows_of(at, w=watts), span(0, 20))
        assert meter.coverage == pytest.approx(14.5 / 20)
        assert meter.joules == pytest.approx(30 * 14.5)
        assert meter.watts == pytest.approx(30.0)

    def test_two_readings_that_are_missing_are_bridged(self):
        watts = np.full(41, 30.0)
        watts[[7, 8, 20]] = np.nan
        (meter,) = meters_of([POWER], rows_of(np.arange(41) * 0.5, w=watts), span(0, 20))
        assert meter.coverage == pytest.approx(1.0)

    def test_what_lies_outside_of_the_readings_is_not_covered(self):
        (meter,) = meters_of([POWER], rows_of(np.arange(11) * 0.5, w=np.full(11, 8.0)), span(-5, 5))
        assert meter.coverage == pytest.approx(0.5)

    @pytest.mark.parametrize("bad", [-5.0, math.inf, 1e9])
    def test_nonsense_is_no_energy(self, bad):
        watts = np.full(41, 30.0)
        watts[20] = bad
        (meter,) = meters_of([POWER], rows_of(np.arange(41) * 0.5, w=watts), span(0, 20))
        assert meter.joules == pytest.approx(600.0)
        assert meter.peak_watts == 30.0

    def test_a_slow_sensor_is_covered_by_its_own_pace(self):
        """A plug that prints every five seconds, read twice a second."""
        watts = np.full(81, np.nan)
        watts[::10] = 50.0
        (meter,) = meters_of([POWER], rows_of(np.arange(81) * 0.5, w=watts), span(5, 35))
        assert meter.coverage == pytest.approx(1.0)
        assert meter.interval_seconds == pytest.approx(5.0)
        assert meter.updates == 7


class TestCounter:
    def test_differences_with_interpolation_at_the_ends(self):
        """100 W to 2 s, then 50 W: between 1.25 s and 3.25 s that is 75 + 62.5 J."""
        rows = rows_of([0, 1, 2, 3, 4], j=[0.0, 100.0, 200.0, 250.0, 300.0])
        found = measure_coverage(ENERGY, rows, span(1.25, 3.25))
        assert found.joules == pytest.approx(75 + 62.5)
        assert found.peak_watts == pytest.approx(100.0)

    def test_what_it_counted_while_nobody_looked_counts(self):
        at = [0, 1, 2, 3, 13, 14, 15]
        found = measure_coverage(ENERGY, rows_of(at, j=[each * 70.0 for each in at]), span(0.5, 14.5))
        assert found.joules == pytest.approx(14 * 70)
        assert found.seconds == pytest.approx(14)

    def test_but_not_where_the_window_ends_in_the_gap(self):
        at = [0, 1, 2, 3, 13, 14, 15]
        found = measure_coverage(ENERGY, rows_of(at, j=[each * 70.0 for each in at]), span(0.0, 8.0))
        assert found.seconds == pytest.approx(3)

    def test_a_fall_or_a_leap_is_left_out(self):
        joules = np.arange(21) * 25.0
        joules[10:] -= 200.0
        joules[15:] += 1e7
        found = measure_coverage(ENERGY, rows_of(np.arange(21) * 0.5, j=joules), span(0, 10))
        assert found.joules == pytest.approx(18 * 25)
        assert found.seconds == pytest.approx(9.0)

    def test_one_that_never_moves_counts_nothing_and_that_is_a_measurement(self):
        found = measure_coverage(ENERGY, rows_of(np.arange(5), j=np.zeros(5)), span(1, 3))
        assert (found.joules, found.seconds) == (0.0, 2.0)


def test_clocks_an_hour_apart_cover_nothing():
    rows = rows_of(3600 + np.arange(41) * 0.5, w=np.full(41, 30.0))
    assert meters_of([POWER], rows, span(0, 20)) == []


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    at=st.lists(st.floats(-50, 50), max_size=30),
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=30, max_size=30),
    channel=st.sampled_from([POWER, ENERGY]),
)
def test_no_rows_break_it_and_it_never_covers_more_than_the_window(at, values, channel):
    rows = rows_of(at, **{channel.name: values[: len(at)]})
    found = measure_coverage(channel, rows, span(0, 10))
    assert found is None or (0 < found.seconds <= 10 + 1e-6 and 0 <= found.joules <= 1e6 * 10)


class TestTotals:
    AT = np.arange(41) * 0.5

    def totals(self, *channels, **watts):
        rows = rows_of(self.AT, **{name: np.full(41, value) for name, value in watts.items()})
        return totals_of(meters_of(channels, rows, span(0, 20)))

    @staticmethod
    def gauge(name, scope, extent, device="", rail=""):
        return Channel(name, "W", "power", device=device, rail=rail or name, scope=scope, extent=extent, sensor="s")

    def test_an_input_is_the_whole_and_its_rails_are_in_no_sum(self):
        found = self.totals(
            self.gauge("VDD_IN", "board", "whole"), self.gauge("VDD_SOC", "board", "part"), VDD_IN=8.0, VDD_SOC=2.0
        )
        assert found.keys() == {"board"}
        assert found["board"].watts == pytest.approx(8.0)
        assert found["board"].source == "VDD_IN (s)"

    def test_rails_without_an_input_are_called_their_sum(self):
        found = self.totals(self.gauge("GPU", "board", "rail"), self.gauge("SOC", "board", "rail"), GPU=3.0, SOC=2.0)
        assert found["rails"].watts == pytest.approx(5.0)
        assert found["rails"].source == "sum of rails GPU + SOC (s)"

    def test_two_meters_at_the_wall_measure_the_same(self):
        found = self.totals(
            self.gauge("plug", "wall", "whole"), self.gauge("psu", "wall", "whole"), plug=90.0, psu=88.0
        )
        assert found["wall"].watts == pytest.approx(90.0)

    def test_cards_packages_and_memory_add_up(self):
        found = self.totals(
            self.gauge("gpu0", "card", "whole", "gpu0"),
            self.gauge("package0", "package", "whole", "package0"),
            self.gauge("dram", "package", "whole", "package0"),
            self.gauge("core", "package", "part", "package0"),
            gpu0=200.0,
            package0=60.0,
            dram=10.0,
            core=50.0,
        )
        assert found["chips"].watts == pytest.approx(270.0)
        assert found["chips"].peak_watts is None  # peaks of several need not be at the same time


def test_a_counter_is_preferred_and_the_integral_of_its_power_given_beside_it():
    power = Channel("w", "W", "power", device="gpu0", scope="card", extent="whole", sensor="nvml")
    energy = Channel("j", "J", "energy", "counter", "gpu0", "", "card", "whole", 0.1, "nvml")
    at = np.arange(41) * 0.5
    (meter,) = meters_of([power, energy], rows_of(at, w=np.full(41, 120.0), j=at * 100.0), span(1, 19))
    assert (meter.method, meter.watts, meter.check_watts) == ("counter", pytest.approx(100.0), pytest.approx(120.0))


def test_a_value_that_is_read_again_before_it_is_renewed_is_one_update():
    slow = Channel("w", "W", "power", device="gpu0", scope="card", extent="whole", interval_seconds=2.0)
    (meter,) = meters_of([slow], rows_of(np.arange(81) * 0.5, w=np.full(81, 9.0)), span(10, 30))
    assert meter.updates == 10
