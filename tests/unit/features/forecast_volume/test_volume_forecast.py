"""Hours of volumes on any number of devices, against the arithmetic by hand."""

import msgspec
import pytest

from measured_volumes import EVERYTHING, inferred, trained
from numbers_in_views import complaints
from rigdyno.analyse.extrapolation import as_prediction
from rigdyno.base.errors import UsageError
from rigdyno.features.forecast_volume.forecast import sharing_of
from rigdyno.features.forecast_volume.report import VolumeForecast, gpus, own_hours, volume_forecast_view
from rigdyno.reference.volumes import FamousVolume, compute_written_share, load_famous_volumes

VOLUME = FamousVolume("mine", 3.6e9, "8x8x8", "stated", "", "as given")


def test_the_quickest_configuration_on_all_of_its_devices():
    sharing = sharing_of("a run", EVERYTHING)
    assert (sharing.smallest, sharing.largest, sharing.is_measured) == (1, 2, True)
    assert sharing.one.value == 60e3
    assert sharing.kept == pytest.approx(0.8)
    assert sharing.at(1).value == 60e3
    assert sharing.at(2).value == pytest.approx(96e3)
    assert sharing.at(8).value == pytest.approx(8 * 60e3 * 0.8**3)
    wide = as_prediction(inferred(60e3).throughput(), 1)
    assert sharing.at(1).interval == pytest.approx((wide.low, wide.high))
    low, high = sharing.at(8).interval
    assert low < sharing.at(8).value < high
    assert high / low > sharing.at(2).interval[1] / sharing.at(2).interval[0]


def test_devices_that_seem_to_gain_from_each_other_are_not_extrapolated():
    sharing = sharing_of("a run", [inferred(60e3), inferred(130e3, ranks=2)])
    assert sharing.kept == 1.0
    assert sharing.at(4).value == pytest.approx(240e3)


def test_one_size_alone_is_multiplied_and_said():
    sharing = sharing_of("a run", [inferred(60e3)])
    assert sharing.at(4).value == pytest.approx(240e3)
    assert "nobody has measured" in sharing.method(4)


def test_a_run_without_inference_has_no_rate():
    with pytest.raises(UsageError, match="no rate of inference"):
        sharing_of("a run", [trained(1.0)])


def test_hours_prices_and_energy_by_hand():
    sharing = sharing_of("a run", EVERYTHING)
    assert own_hours(sharing, 3.6e9, 1).value == pytest.approx(3.6e9 / 60e3 / 3600)
    view = volume_forecast_view(
        VolumeForecast(volumes=[VOLUME], own=sharing, devices=[2], price_per_hour=3.0, watts=50.0)
    )
    _, times, prices = view.tables
    hours = 3.6e9 / 96e3 / 3600
    assert times.rows[0].entries["own"].value == pytest.approx(hours)
    assert times.rows[0].entries["energy"].value == pytest.approx(2 * 50 * hours / 1000)
    assert prices.rows[0].entries["own"].value == pytest.approx(2 * 3.0 * hours)
    v100 = 3.6e9 / (2 * compute_written_share() * 200 * 3072 * 3072 / 148.4) / 3600
    assert times.rows[0].entries["nvidia-v100"].value == pytest.approx(v100)
    assert prices.rows[0].entries["nvidia-v100"].value == pytest.approx(2 * 3.0 * v100)
    assert complaints(msgspec.to_builtins(view)) == []


def test_every_famous_volume_on_this_rig_and_on_each_published_gpu():
    view = volume_forecast_view(
        VolumeForecast(volumes=load_famous_volumes(), own=sharing_of("a run", EVERYTHING), devices=[1, 64])
    )
    assert len(gpus()) == 4
    for table in view.tables[1:]:
        assert len(table.rows) == len(load_famous_volumes())
        assert all(len(row.entries) == 2 + len(gpus()) and row.origin == "forecast" for row in table.rows)
    assert any("64 devices are more than 4 times the 2 that were measured" in words for words in view.warnings)
    assert complaints(msgspec.to_builtins(view)) == []


def test_without_a_run_the_gpus_stand_alone():
    view = volume_forecast_view(VolumeForecast(volumes=[VOLUME], own=None, devices=[1]))
    assert "own" not in view.tables[1].rows[0].entries
    assert "rigdyno run volume" in view.closing[0]
