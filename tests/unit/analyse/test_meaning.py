"""Channels are looked up by their meaning: a channel of another probe isn't the host's, even under the same name."""

import numpy as np

from rigdyno.analyse.process import CellData
from rigdyno.analyse.streams import STEAL, TEMPERATURE, TimeSpan, mean_reading
from rigdyno.schema.channel import Channel
from rigdyno.schema.samples import telemetry_header
from rigdyno.schema.spec import sampler_of
from scripted_rows import step_header, step_rows, telemetry_rows
from support import a_rank, a_record


def test_a_name_that_two_probes_have_means_the_host_s():
    """The sampler stores them so when an earlier probe has taken the name."""
    steps = step_rows(np.full(50, 0.1))
    rows = telemetry_rows(steps, temperature_c=20.0, steal_share=0.9, host_temperature_c=70.0, host_steal_share=0.01)
    sensors = {"temperature_c": "barn", "steal_share": "barn", "host_temperature_c": "host", "host_steal_share": "host"}
    channels = [Channel(name, "1", sensor=sensor) for name, sensor in sensors.items()]
    cell = CellData(a_record(), ((step_header(), steps),), ((telemetry_header(channels, sampler_of(0)), rows),))
    found, whole = cell.telemetry_of(a_rank()), TimeSpan(0, 10**12)
    assert mean_reading(found, TEMPERATURE, whole) == 70.0
    assert mean_reading(found, STEAL, whole) == 0.01
