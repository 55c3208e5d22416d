"""One normalisation for the whole volume, compared with NumPy."""

import numpy as np
import pytest
from infer_cases import FakeVolume, export_network, read_stored
from torch import nn
from volumes_on_disk import zarr3

from rigdyno.engines.blockwise import BadRegion, BadSetting, Inference, Job
from rigdyno.engines.blockwise import normalising as normalising_module
from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.normalising import ensure_finite, find_normalisation, sample_boxes

pytestmark = pytest.mark.usefixtures("one_thread")


def values(dtype, shape=(2, 70, 65, 90)):
    """Return values of several bricks and two very different channels."""
    drawn = np.random.default_rng(0).gamma(2.0, 20.0, shape)
    drawn[1:] = drawn[1:] * 0.1 + 50
    return drawn.clip(0, 255 if dtype == "uint8" else 60_000).astype(dtype)


def by_numpy(kind, channel):
    channel = channel.astype(np.float64)
    if kind == "standard":
        return channel.mean(), channel.std()
    low, high = np.percentile(channel, (1, 99)) if kind == "percentile" else (channel.min(), channel.max())
    return low, high - low


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("kind", ["standard", "percentile", "range"])
def test_each_kind_normalises_each_channel_as_numpy_does(kind, dtype):
    drawn = values(dtype)
    found = find_normalisation(kind, FakeVolume(drawn))
    wanted = [by_numpy(kind, channel) for channel in drawn]
    if kind == "range" and dtype != "float32":
        wanted = [(0.0, float(np.iinfo(dtype).max))] * 2
    assert list(zip(found.subtract, found.divide, strict=True)) == [pytest.approx(pair, rel=1e-6) for pair in wanted]
    assert found.source == ("the whole volume" if kind != "range" or dtype == "float32" else f"the range of {dtype}")
    applied = found.apply(drawn)
    assert applied.dtype == np.float32
    for channel, (low, width) in enumerate(wanted):
        assert np.abs(applied[channel] - (drawn[channel].astype(float) - low) / width).max() < 1e-4


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 101])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_percentiles_of_few_values_are_those_of_numpy(size, dtype):
    drawn = np.random.default_rng(size).integers(0, 200, (1, 1, 1, size)).astype(dtype)
    low, high = np.percentile(drawn, (1, 99))
    if high == low:
        with pytest.raises(BadSetting, match="the same everywhere"):
            find_normalisation("percentile", FakeVolume(drawn))
    else:
        found = find_normalisation("percentile", FakeVolume(drawn))
        assert (found.subtract[0], found.divide[0]) == pytest.approx((low, high - low))


def test_small_differences_of_large_numbers_keep_their_deviation():
    """Sums of squares would lose the deviation."""
    drawn = (1e6 + np.random.default_rng(0).integers(0, 2, (1, 70, 70, 70))).astype(np.float32)
    assert find_normalisation("standard", FakeVolume(drawn)).divide[0] == pytest.approx(
        drawn.std(dtype=np.float64), rel=1e-9
    )


def test_a_bright_and_a_dark_half_are_normalised_together(tmp_path):
    """If each block were normalised by itself, both halves would look the same."""
    drawn = np.random.default_rng(0).normal(20, 4, (16, 16, 32))
    drawn[:, :, 16:] += 200
    drawn = drawn.astype(np.uint8)
    source = zarr3(tmp_path / "in.zarr", drawn, (8, 8, 8))
    first = nn.Conv3d(1, 1, 1, bias=False)
    nn.init.constant_(first.weight, 0.5)
    model = export_network(tmp_path / "same.pt2", nn.Sequential(first, nn.Tanh()))
    job = Job(source=str(source), output=str(tmp_path / "out"), model=model, block=(8, 8, 16), dtype="float16")
    done = Inference(job).run()
    wanted = np.tanh((drawn - drawn.mean()) / drawn.std() * 0.5)
    assert done.counts.done == 8
    assert np.abs(read_stored(job.output)[0] - wanted).max() < 1e-3
    assert abs(read_stored(job.output)[..., 16:].mean() - read_stored(job.output)[..., :16].mean()) > 0.1


def test_given_numbers_and_none_are_applied():
    drawn = values("uint8")
    found = find_normalisation("100,12.5", FakeVolume(drawn))
    assert (found.subtract, found.divide) == ((100.0, 100.0), (12.5, 12.5))
    assert (find_normalisation("none", FakeVolume(drawn)).apply(drawn) == drawn).all()


@pytest.mark.parametrize(
    "kind", ["standart", "1,0", "1,-2", "nan,1", "1,inf", "1,2,3", "a,b", ",", "0,1e-60", "1e60,1"]
)
def test_invalid_kinds_are_refused(kind):
    with pytest.raises(BadSetting, match="normalis"):
        find_normalisation(kind, FakeVolume(values("uint8")))


@pytest.mark.parametrize("kind", ["standard", "percentile", "range"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_constant_volume_is_refused(kind, dtype):
    constant = FakeVolume(np.full((1, 9, 9, 9), 7, dtype))
    if kind == "range" and dtype == "uint8":
        assert find_normalisation(kind, constant).divide == (255.0,)
        return
    with pytest.raises(BadSetting, match=r"channel 0 of fake\.zarr is the same everywhere; try --normalise none"):
        find_normalisation(kind, constant)


def test_values_that_are_not_finite_dont_count():
    drawn = values("float32")
    spoilt = drawn.copy()
    spoilt[0, ::7] = np.nan
    spoilt[1, 3, 3, 3] = np.inf
    for kind in ("standard", "percentile", "range"):
        found = find_normalisation(kind, FakeVolume(spoilt))
        wanted = by_numpy(kind, spoilt[0][np.isfinite(spoilt[0])])
        assert (found.subtract[0], found.divide[0]) == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(BadSetting, match="has no finite value"):
        find_normalisation("standard", FakeVolume(np.full_like(drawn, np.nan)))


class Damaged(FakeVolume):
    """A volume in which boxes that touch [0:16, 0:16, 0:16] can't be read."""

    def read(self, box):
        if max(box.start) < 16:
            raise BadRegion(f"can't read {box}")
        return super().read(box)


def test_only_the_unreadable_part_is_left_out():
    drawn = values("uint8", (2, 70, 30, 30))
    found = find_normalisation("standard", Damaged(drawn))
    rest = np.ones(drawn.shape[1:], bool)
    rest[:16, :16, :16] = False
    for channel in range(2):
        wanted = by_numpy("standard", drawn[channel][rest])
        assert (found.subtract[channel], found.divide[channel]) == pytest.approx(wanted)
    assert found.source == f"2 places ({rest.mean():.2g} of the volume)"
    with pytest.raises(BadRegion, match="can't read"):
        find_normalisation("standard", Damaged(drawn[:, :9, :9, :9]))


class Endless(FakeVolume):
    """A volume of 10^13 voxels, brighter with x, computed when it is read."""

    def __init__(self):
        super().__init__(self._compute, (10_000, 20_000, 50_000), "uint8")

    def _compute(self, box: Box):
        z, y, x = np.ogrid[box.slices()]
        return ((x // 250 + (z * 7 + y * 3) % 11) % 256).astype(np.uint8)[None]


def test_a_large_volume_is_sampled_always_at_the_same_places():
    one, two = Endless(), Endless()
    found = find_normalisation("standard", one)
    assert find_normalisation("standard", two) == found
    assert one.read_boxes == two.read_boxes
    assert 200 < len(one.read_boxes) <= normalising_module.MOST_BRICKS
    assert "places" in found.source
    assert found.subtract[0] == pytest.approx(104, abs=8)  # mean of 0 to 200 and 0 to 10
    assert found.divide[0] == pytest.approx(200 / 12**0.5, rel=0.1)


def test_bricks_cover_a_small_volume_and_never_overlap():
    boxes = list(sample_boxes((9, 5, 4), (4, 4, 4), 100))
    seen = np.zeros((9, 5, 4), int)
    for box in boxes:
        seen[box.slices()] += 1
    assert (seen == 1).all()
    few = list(sample_boxes((900, 500, 400), (4, 4, 4), 50))
    assert len(few) == len(set(few)) <= 50
    assert few == sorted(few)
    assert all(box.within(whole_box((900, 500, 400))) == box for box in few)


@pytest.mark.parametrize("place", [(0, 0, 0), (5, 6, 7), (2, 3, 1)])
@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf])
def test_the_place_of_the_first_nonfinite_value_is_named(place, spoilt):
    from rigdyno.engines.blockwise.volumes.reading import read_reflected

    drawn = np.zeros((2, 6, 7, 8), np.float32)
    drawn[(1, *place)] = spoilt
    volume = FakeVolume(drawn)
    box = Box((-9, -9, -9), (15, 15, 15))
    read = read_reflected(volume, box).values
    with pytest.raises(BadRegion) as refused:
        ensure_finite(read, box, volume, None)
    assert f"fake.zarr has a value that isn't finite at {place} of channel 1" in str(refused.value)
    mended = ensure_finite(read, box, volume, -3.5)
    assert np.isfinite(mended).all()
    assert {0.0, -3.5} == set(mended.ravel().tolist())
    assert mended.dtype == np.float32


def test_integers_are_returned_unchanged():
    drawn = np.zeros((1, 2, 2, 2), np.uint8)
    assert ensure_finite(drawn, whole_box((2, 2, 2)), FakeVolume(drawn), None) is drawn


@pytest.mark.parametrize("instead", [float("nan"), float("inf"), 1e300])
def test_the_replacement_for_nan_must_be_finite(instead):
    with pytest.raises(BadSetting, match="--nan"):
        Job(source="in", output="out", model="unet3d", nan=instead)
