"""The rate over time: slices by hand, and which falls are called throttling."""

import numpy as np
import pytest

from rigdyno.analyse.soak import rate_over_time, soak
from rigdyno.base.errors import DamagedRun
from scripted_rows import BEGIN_NS, NS, noisy, step_rows, telemetry_rows


def rows_at_rates(*parts, slice_seconds=0.1, spread=0.02):
    """Rows of a stream that runs for (seconds, items/s) after each other, in rows of a tenth of a second."""
    seconds = np.concatenate([noisy(round(length / slice_seconds), slice_seconds, spread) for length, _ in parts])
    rates = np.concatenate([np.full(round(length / slice_seconds), rate) for length, rate in parts])
    return step_rows(seconds, items=rates * slice_seconds)


class TestRateOverTime:
    def test_by_hand(self):
        rows = step_rows([1.0, 1.0, 2.0], items=[10, 20, 20])
        found = rate_over_time(rows, slices=2)
        assert list(found.rates) == [15, 10]
        assert list(found.seconds) == [1, 3]

    def test_a_slice_that_a_long_step_skips_has_no_entry(self):
        found = rate_over_time(step_rows([1.0, 98.0, 1.0]))
        assert list(found.seconds) == [0.5, 50, 99.5]
        assert found.rates == pytest.approx([1, 1 / 98, 1])

    def test_many_steps_make_sixty_slices(self):
        found = rate_over_time(step_rows(noisy(6000)))
        assert len(found.rates) == 60
        assert np.all(np.diff(found.seconds) > 0)

    def test_empty_and_single(self):
        assert len(rate_over_time(step_rows([])).rates) == 0
        assert list(rate_over_time(step_rows([2.0])).rates) == [0.5]


class TestThrottled:
    def test_the_published_fall(self):
        found = soak(rows_at_rates((20, 300), (100, 55)), None)
        assert found.throttled
        assert found.burst == pytest.approx(300, rel=0.05)
        assert found.sustained == pytest.approx(55, rel=0.05)
        assert (len(found.rates), len(found.seconds)) == (60, 60)

    def test_a_rate_that_holds(self):
        found = soak(rows_at_rates((120, 300), spread=0.05), None)
        assert not found.throttled
        assert found.sustained / found.burst == pytest.approx(1, abs=0.05)

    def test_a_slow_warm_up_is_no_burst(self):
        found = soak(rows_at_rates((5, 20), (115, 300)), None)
        assert found.burst == pytest.approx(300, rel=0.05)
        assert not found.throttled

    def test_a_fall_that_recovers(self):
        assert not soak(rows_at_rates((40, 300), (50, 100), (30, 300)), None).throttled

    def test_one_slice_that_recovers_doesn_t_count(self):
        assert soak(rows_at_rates((40, 300), (60, 100), (2, 300), (18, 100)), None).throttled

    def test_too_short_to_have_heated_anything(self):
        assert not soak(rows_at_rates((3, 300), (5, 100)), None).throttled

    def test_a_clear_fall_is_recognised_sooner(self):
        assert soak(rows_at_rates((5, 300), (7, 150)), None).throttled

    def test_a_smaller_one_takes_longer(self):
        assert not soak(rows_at_rates((5, 300), (7, 210)), None).throttled
        assert soak(rows_at_rates((10, 300), (14, 210)), None).throttled

    def test_waiting_for_a_core_explains_it(self):
        rows = rows_at_rates((20, 300), (100, 150))
        telemetry = telemetry_rows(rows, run_queue_wait_share=lambda share: np.where(share > 0.17, 0.5, 0.01))
        assert not soak(rows, telemetry).throttled

    def test_a_little_waiting_doesn_t_explain_it(self):
        rows = rows_at_rates((20, 300), (100, 55))
        assert soak(rows, telemetry_rows(rows, run_queue_wait_share=0.05)).throttled

    def test_waiting_for_its_own_threads_doesn_t_explain_it(self):
        rows = rows_at_rates((20, 300), (100, 150))
        telemetry = telemetry_rows(rows, run_queue_wait_share=0.5, worker_cpu_share=1.97, cpu0=0.99, cpu1=0.99)
        assert soak(rows, telemetry).throttled

    @pytest.mark.parametrize("channel", ["steal_share", "worker_stopped_share", "psi_memory_some"])
    def test_waiting_of_another_kind_explains_it(self, channel):
        rows = rows_at_rates((20, 300), (100, 150))
        assert not soak(rows, telemetry_rows(rows, **{channel: 0.4})).throttled

    def test_waiting_for_the_quota_to_be_renewed_is_throttling(self):
        rows = rows_at_rates((20, 300), (100, 150))
        telemetry = telemetry_rows(rows, run_queue_wait_share=0.5, throttled_share=0.48)
        assert soak(rows, telemetry).throttled


class TestReadings:
    def test_clock_and_temperature_over_time(self):
        rows = rows_at_rates((60, 100))
        telemetry = telemetry_rows(rows, frequency_mhz=lambda share: 3000 - 1000 * share, temperature_c=70)
        found = soak(rows, telemetry)
        assert len(found.clock_mhz) == len(found.temperature_c) == 60
        assert found.clock_mhz[0] == pytest.approx(3000, abs=20)
        assert found.clock_mhz[-1] == pytest.approx(2000, abs=20)
        assert set(found.temperature_c) == {70}

    def test_what_can_t_be_read_is_empty(self):
        rows = rows_at_rates((60, 100))
        assert soak(rows, None).clock_mhz == ()
        assert soak(rows, telemetry_rows(rows, frequency_mhz=np.nan)).clock_mhz == ()

    def test_readings_that_end_early_are_not_prolonged(self):
        rows = rows_at_rates((60, 100))
        telemetry = telemetry_rows(rows, temperature_c=50)
        cut = telemetry[telemetry["at_ns"] < BEGIN_NS + 30 * NS]
        assert soak(rows, cut).temperature_c == ()

    def test_single_and_empty(self):
        assert soak(step_rows([2.0], items=4), None).burst == 2
        with pytest.raises(DamagedRun):
            soak(step_rows([]), None)
