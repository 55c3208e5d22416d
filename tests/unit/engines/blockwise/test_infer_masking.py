"""Masks, which may be coarser than the volume, restrict what is read and predicted."""

import numpy as np
import pytest
from blockwise_networks import randomise_norms
from infer_cases import FakeVolume, export_network, read_stored, single_thread
from volumes_on_disk import zarr3

from rigdyno.engines.blockwise import BadSetting, Inference, Job
from rigdyno.engines.blockwise.boxes import Grid, whole_box
from rigdyno.engines.blockwise.encoding import make_mask
from rigdyno.engines.blockwise.interfaces import VoxelSize
from rigdyno.engines.blockwise.network.unet import UNet3d
from rigdyno.engines.blockwise.watching import SilentWatcher

SHAPE = (13, 21, 30)

pytestmark = pytest.mark.usefixtures("one_thread")


def coarse(factor, seed=0, share=0.4):
    shape = [-(-length // own) for length, own in zip(SHAPE, factor, strict=True)]
    return (np.random.default_rng(seed).random(shape) < share).astype(np.uint8) * 200


def fine(values, factor):
    for axis, own in enumerate(factor):
        values = values.repeat(own, axis)
    return values[: SHAPE[0], : SHAPE[1], : SHAPE[2]] != 0


def sized(values, factor=(1, 1, 1)):
    """Return a volume with voxel sizes in micrometers."""
    volume = FakeVolume(values[None])
    volume.voxel_size = VoxelSize((0.4 * factor[0], 0.1 * factor[1], 0.1 * factor[2]), "micrometer")
    return volume


@pytest.mark.parametrize("factor", [(1, 1, 1), (2, 2, 2), (1, 3, 3), (4, 8, 8), (13, 21, 30), (3, 1, 7)])
@pytest.mark.parametrize("block", [(4, 4, 4), (5, 7, 11), (64, 64, 64), (1, 21, 1)])
def test_a_coarser_mask_stands_for_boxes(factor, block):
    values = coarse(factor)
    mask = make_mask(sized(values, factor), sized(np.zeros(SHAPE, np.uint8)))
    assert mask.factor == factor
    wanted = fine(values, factor)
    for box in Grid(SHAPE, block):
        assert (mask.read(box) == wanted[box.slices()]).all()
    assert mask.read(whole_box(SHAPE)).shape == SHAPE


@pytest.mark.parametrize(
    ("length", "own", "factor"),
    [(1000, 16, 64), (2000, 125, 16), (2001, 126, 16), (21, 3, 8), (30, 10, 3), (30, 11, None), (7, 1, 1), (7, 7, 1),
     (5000, 1, 1), (100, 15, 7), (1025, 9, 128), (1, 1, 1), (1, 2, None)],
)  # fmt: skip
def test_without_voxel_sizes_a_power_of_two_is_taken(length, own, factor):
    """With a factor of 63, a mask of 16 voxels for 1000 would be off by a quarter of its voxel at the end."""
    volume, mask = FakeVolume(np.zeros((1, length, 1, 1), np.uint8)), FakeVolume(np.ones((1, own, 1, 1), np.uint8))
    if factor is None:
        with pytest.raises(BadSetting):
            make_mask(mask, volume)
    elif own == 1:
        assert make_mask(mask, volume).read(whole_box((length, 1, 1))).all()
    else:
        assert make_mask(mask, volume).factor == (factor, 1, 1)


@pytest.mark.parametrize("shape", [(14, 21, 30), (13, 21, 31), (12, 21, 30), (13, 13, 13), (5, 15, 30)])
def test_masks_that_dont_fit_are_refused(shape):
    with pytest.raises(BadSetting, match="or coarser by whole factors"):
        make_mask(sized(np.ones(shape, np.uint8)), sized(np.zeros(SHAPE, np.uint8)))


def test_a_mask_of_several_channels_is_refused():
    with pytest.raises(BadSetting, match="must have one channel"):
        make_mask(FakeVolume(np.ones((2, *SHAPE), np.uint8)), sized(np.zeros(SHAPE, np.uint8)))


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Return a folder with a volume, a mask four times coarser with an empty half, and a network never zero."""
    folder = tmp_path_factory.mktemp("masked")
    drawn = np.random.default_rng(0).integers(1, 250, SHAPE).astype(np.uint8)
    mask = coarse((4, 4, 4), seed=3)
    mask[:, :, 4:] = 0
    zarr3(folder / "in.zarr", drawn, (8, 8, 8))
    zarr3(folder / "mask.zarr", mask, (2, 2, 2))
    network = randomise_norms(UNet3d(features=(4, 8)))
    with single_thread():
        export_network(folder / "net.pt2", network)
    return folder, fine(mask, (4, 4, 4))


def run(masked, block, out, **changes):
    folder, _ = masked
    job = Job(
        source=f"{folder}/in.zarr", output=str(out), model=f"{folder}/net.pt2", halo="exact", block=block,
        mask=f"{folder}/mask.zarr",
    )  # fmt: skip
    return Inference(Job(**{**vars(job), **changes})).run()


@pytest.mark.parametrize("block", [(4, 4, 4), (8, 10, 6), (64, 64, 64)])
def test_a_mask_zeroes_outside_and_changes_nothing_inside(block, masked, tmp_path):
    _, inside = masked
    done = run(masked, block, tmp_path / "masked")
    run(masked, (8, 8, 8), tmp_path / "all", mask=None)
    found, everything = read_stored(tmp_path / "masked")[0], read_stored(tmp_path / "all")[0]
    assert (found[~inside] == 0).all()
    assert (np.abs(found[inside].astype(int) - everything[inside]) <= 1).all()  # rounding may go either way
    assert (everything[inside] > 0).all()
    empty = sum(not inside[box.slices()].any() for box in Grid(SHAPE, block))
    assert done.counts.skipped == done.summary.skipped == empty
    assert done.counts.done == len(Grid(SHAPE, block)) - empty
    assert "a voxel of the mask stands for 4 x 4 x 4 of the volume" in done.plan.remarks
    assert done.summary.voxels == sum(box.voxels for box in Grid(SHAPE, block) if inside[box.slices()].any())


def test_blocks_outside_are_never_read(masked, tmp_path):
    folder, inside = masked
    job = Job(
        source=f"{folder}/in.zarr", output=str(tmp_path / "out"), model=f"{folder}/net.pt2", halo="0", block=(4, 4, 4),
        mask=f"{folder}/mask.zarr", normalise="range",
    )  # fmt: skip
    inference = Inference(job)
    inference.plan()
    real, boxes = inference.volume.read, []
    inference.volume.read = lambda box: (boxes.append(box), real(box))[1]
    inference.run(lambda plan, resumed: (boxes.clear(), SilentWatcher())[1])
    assert len(boxes) == sum(inside[box.slices()].any() for box in Grid(SHAPE, (4, 4, 4)))
    assert all(inside[box.slices()].any() for box in boxes)
