"""One set of figures for the whole volume, held against NumPy."""

import numpy as np
import pytest
from infer_cases import Fake, exported, stored
from torch import nn
from volumes_on_disk import zarr3

from rigdyno.engines.blockwise import BadRegion, BadSetting, Inference, Job
from rigdyno.engines.blockwise import normalising as normalising_module
from rigdyno.engines.blockwise.boxes import Box, whole
from rigdyno.engines.blockwise.normalising import finite, normalisation
from rigdyno.engines.blockwise.sampling import bricks

pytestmark = pytest.mark.usefixtures("one_thread")


def values(dtype, shape=(2, 70, 65, 90)):
    """Several bricks, two very different channels."""
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
def test_each_kind_for_each_channel(kind, dtype):
    drawn = values(dtype)
    found = normalisation(kind, Fake(drawn))
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
def test_percentiles_of_few_values(size, dtype):
    drawn = np.random.default_rng(size).integers(0, 200, (1, 1, 1, size)).astype(dtype)
    low, high = np.percentile(drawn, (1, 99))
    if high == low:
        with pytest.raises(BadSetting, match="the same everywhere"):
            normalisation("percentile", Fake(drawn))
    else:
        found = normalisation("percentile", Fake(drawn))
        assert (found.subtract[0], found.divide[0]) == pytest.approx((low, high - low))


def test_large_numbers_with_little_between_them_keep_their_deviation():
    """Sums of squares would lose it."""
    drawn = (1e6 + np.random.default_rng(0).integers(0, 2, (1, 70, 70, 70))).astype(np.float32)
    assert normalisation("standard", Fake(drawn)).divide[0] == pytest.approx(drawn.std(dtype=np.float64), rel=1e-9)


def test_a_bright_and_a_dark_half_are_normalised_together(tmp_path):
    """Blocks that were normalised by themselves would all look alike."""
    drawn = np.random.default_rng(0).normal(20, 4, (16, 16, 32))
    drawn[:, :, 16:] += 200
    drawn = drawn.astype(np.uint8)
    source = zarr3(tmp_path / "in.zarr", drawn, (8, 8, 8))
    first = nn.Conv3d(1, 1, 1, bias=False)
    nn.init.constant_(first.weight, 0.5)
    model = exported(tmp_path / "same.pt2", nn.Sequential(first, nn.Tanh()))
    job = Job(source=str(source), output=str(tmp_path / "out"), model=model, block=(8, 8, 16), dtype="float16")
    done = Inference(job).run()
    wanted = np.tanh((drawn - drawn.mean()) / drawn.std() * 0.5)
    assert done.counts.done == 8
    assert np.abs(stored(job.output)[0] - wanted).max() < 1e-3
    assert abs(stored(job.output)[..., 16:].mean() - stored(job.output)[..., :16].mean()) > 0.1


def test_given_numbers_and_none():
    drawn = values("uint8")
    found = normalisation("100,12.5", Fake(drawn))
    assert (found.subtract, found.divide) == ((100.0, 100.0), (12.5, 12.5))
    assert (normalisation("none", Fake(drawn)).apply(drawn) == drawn).all()


@pytest.mark.parametrize(
    "kind", ["standart", "1,0", "1,-2", "nan,1", "1,inf", "1,2,3", "a,b", ",", "0,1e-60", "1e60,1"]
)
def test_kinds_that_make_no_sense(kind):
    with pytest.raises(BadSetting, match="normalis"):
        normalisation(kind, Fake(values("uint8")))


@pytest.mark.parametrize("kind", ["standard", "percentile", "range"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_constant_volume(kind, dtype):
    constant = Fake(np.full((1, 9, 9, 9), 7, dtype))
    if kind == "range" and dtype == "uint8":
        assert normalisation(kind, constant).divide == (255.0,)
        return
    with pytest.raises(BadSetting, match=r"channel 0 of fake\.zarr is the same everywhere; try --normalise none"):
        normalisation(kind, constant)


def test_values_that_are_not_finite_dont_count():
    drawn = values("float32")
    spoilt = drawn.copy()
    spoilt[0, ::7] = np.nan
    spoilt[1, 3, 3, 3] = np.inf
    for kind in ("standard", "percentile", "range"):
        found = normalisation(kind, Fake(spoilt))
        wanted = by_numpy(kind, spoilt[0][np.isfinite(spoilt[0])])
        assert (found.subtract[0], found.divide[0]) == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(BadSetting, match="has no finite value"):
        normalisation("standard", Fake(np.full_like(drawn, np.nan)))


class Damaged(Fake):
    """What touches [0:16, 0:16, 0:16] can't be read."""

    def read(self, box):
        if max(box.start) < 16:
            raise BadRegion(f"can't read {box}")
        return super().read(box)


def test_a_part_that_cant_be_read_is_left_out_and_not_much_more():
    drawn = values("uint8", (2, 70, 30, 30))
    found = normalisation("standard", Damaged(drawn))
    rest = np.ones(drawn.shape[1:], bool)
    rest[:16, :16, :16] = False
    for channel in range(2):
        wanted = by_numpy("standard", drawn[channel][rest])
        assert (found.subtract[channel], found.divide[channel]) == pytest.approx(wanted)
    assert found.source == f"2 places ({rest.mean():.2g} of the volume)"
    with pytest.raises(BadRegion, match="can't read"):
        normalisation("standard", Damaged(drawn[:, :9, :9, :9]))


class Endless(Fake):
    """10^13 voxels, each worked out when it is read: brighter with x."""

    def __init__(self):
        super().__init__(self._made, (10_000, 20_000, 50_000), "uint8")

    def _made(self, box: Box):
        z, y, x = np.ogrid[box.slices()]
        return ((x // 250 + (z * 7 + y * 3) % 11) % 256).astype(np.uint8)[None]


def test_a_large_volume_is_sampled_always_at_the_same_places():
    one, two = Endless(), Endless()
    found = normalisation("standard", one)
    assert normalisation("standard", two) == found
    assert one.read_boxes == two.read_boxes
    assert 200 < len(one.read_boxes) <= normalising_module.MOST_BRICKS
    assert "places" in found.source
    assert found.subtract[0] == pytest.approx(104, abs=8)  # of 0 to 200 and 0 to 10
    assert found.divide[0] == pytest.approx(200 / 12**0.5, rel=0.1)


def test_bricks_cover_what_is_small_and_never_overlap():
    boxes = list(bricks((9, 5, 4), (4, 4, 4), 100))
    seen = np.zeros((9, 5, 4), int)
    for box in boxes:
        seen[box.slices()] += 1
    assert (seen == 1).all()
    few = list(bricks((900, 500, 400), (4, 4, 4), 50))
    assert len(few) == len(set(few)) <= 50
    assert few == sorted(few)
    assert all(box.within(whole((900, 500, 400))) == box for box in few)


@pytest.mark.parametrize("place", [(0, 0, 0), (5, 6, 7), (2, 3, 1)])
@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite_is_named_where_it_lies(place, spoilt):
    from rigdyno.engines.blockwise.volumes.reflect import read_reflected

    drawn = np.zeros((2, 6, 7, 8), np.float32)
    drawn[(1, *place)] = spoilt
    volume = Fake(drawn)
    box = Box((-9, -9, -9), (15, 15, 15))
    read = read_reflected(volume, box).values
    with pytest.raises(BadRegion) as refused:
        finite(read, box, volume, None)
    assert f"fake.zarr has a value that isn't finite at {place} of channel 1" in str(refused.value)
    mended = finite(read, box, volume, -3.5)
    assert np.isfinite(mended).all()
    assert {0.0, -3.5} == set(mended.ravel().tolist())
    assert mended.dtype == np.float32


def test_integers_are_not_even_looked_at():
    drawn = np.zeros((1, 2, 2, 2), np.uint8)
    assert finite(drawn, whole((2, 2, 2)), Fake(drawn), None) is drawn


@pytest.mark.parametrize("instead", [float("nan"), float("inf"), 1e300])
def test_nothing_stands_for_not_finite_but_what_is_finite(instead):
    with pytest.raises(BadSetting, match="--nan"):
        Job(source="in", output="out", model="unet3d", nan=instead)
