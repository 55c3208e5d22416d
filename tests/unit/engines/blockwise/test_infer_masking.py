"""Where there is something to see, in as coarse a volume as anybody likes."""

import numpy as np
import pytest
from blockwise_networks import lively
from infer_cases import Fake, exported, single_thread, stored
from volumes_on_disk import zarr3

from rigdyno.engines.blockwise import BadSetting, Inference, Job
from rigdyno.engines.blockwise.boxes import whole
from rigdyno.engines.blockwise.grid import Grid
from rigdyno.engines.blockwise.masking import mask_of
from rigdyno.engines.blockwise.network.unet import UNet3d
from rigdyno.engines.blockwise.ports import VoxelSize
from rigdyno.engines.blockwise.watching import Silent

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
    """In micrometers, as a microscope would say."""
    volume = Fake(values[None])
    volume.voxel_size = VoxelSize((0.4 * factor[0], 0.1 * factor[1], 0.1 * factor[2]), "micrometer")
    return volume


@pytest.mark.parametrize("factor", [(1, 1, 1), (2, 2, 2), (1, 3, 3), (4, 8, 8), (13, 21, 30), (3, 1, 7)])
@pytest.mark.parametrize("block", [(4, 4, 4), (5, 7, 11), (64, 64, 64), (1, 21, 1)])
def test_a_coarser_mask_stands_for_boxes(factor, block):
    values = coarse(factor)
    mask = mask_of(sized(values, factor), sized(np.zeros(SHAPE, np.uint8)))
    assert mask.factor == factor
    wanted = fine(values, factor)
    for box in Grid(SHAPE, block):
        assert (mask.inside(box) == wanted[box.slices()]).all()
    assert mask.inside(whole(SHAPE)).shape == SHAPE


@pytest.mark.parametrize(
    ("length", "own", "factor"),
    [(1000, 16, 64), (2000, 125, 16), (2001, 126, 16), (21, 3, 8), (30, 10, 3), (30, 11, None), (7, 1, 1), (7, 7, 1),
     (5000, 1, 1), (100, 15, 7), (1025, 9, 128), (1, 1, 1), (1, 2, None)],
)  # fmt: skip
def test_without_voxel_sizes_a_power_of_two_is_taken(length, own, factor):
    """Otherwise a mask of 16 for 1000 voxels would be laid 63 apart, and be off by a quarter of a voxel in the end."""
    volume, mask = Fake(np.zeros((1, length, 1, 1), np.uint8)), Fake(np.ones((1, own, 1, 1), np.uint8))
    if factor is None:
        with pytest.raises(BadSetting):
            mask_of(mask, volume)
    elif own == 1:
        assert mask_of(mask, volume).inside(whole((length, 1, 1))).all()
    else:
        assert mask_of(mask, volume).factor == (factor, 1, 1)


@pytest.mark.parametrize("shape", [(14, 21, 30), (13, 21, 31), (12, 21, 30), (13, 13, 13), (5, 15, 30)])
def test_masks_that_dont_fit(shape):
    with pytest.raises(BadSetting, match="or coarser by whole factors"):
        mask_of(sized(np.ones(shape, np.uint8)), sized(np.zeros(SHAPE, np.uint8)))


def test_a_mask_of_several_channels():
    with pytest.raises(BadSetting, match="must have one channel"):
        mask_of(Fake(np.ones((2, *SHAPE), np.uint8)), sized(np.zeros(SHAPE, np.uint8)))


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A volume, a mask four times coarser with an empty half, a network whose answer is never zero."""
    folder = tmp_path_factory.mktemp("masked")
    drawn = np.random.default_rng(0).integers(1, 250, SHAPE).astype(np.uint8)
    mask = coarse((4, 4, 4), seed=3)
    mask[:, :, 4:] = 0
    zarr3(folder / "in.zarr", drawn, (8, 8, 8))
    zarr3(folder / "mask.zarr", mask, (2, 2, 2))
    network = lively(UNet3d(features=(4, 8)))
    with single_thread():
        exported(folder / "net.pt2", network)
    return folder, fine(mask, (4, 4, 4))


def run(masked, block, out, **changes):
    folder, _ = masked
    job = Job(
        source=f"{folder}/in.zarr", output=str(out), model=f"{folder}/net.pt2", halo="exact", block=block,
        mask=f"{folder}/mask.zarr",
    )  # fmt: skip
    return Inference(Job(**{**vars(job), **changes})).run()


@pytest.mark.parametrize("block", [(4, 4, 4), (8, 10, 6), (64, 64, 64)])
def test_zero_outside_and_the_same_inside_whatever_the_blocks(block, masked, tmp_path):
    _, inside = masked
    done = run(masked, block, tmp_path / "masked")
    run(masked, (8, 8, 8), tmp_path / "all", mask=None)
    found, everything = stored(tmp_path / "masked")[0], stored(tmp_path / "all")[0]
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
    inference.run(lambda plan, resumed: (boxes.clear(), Silent())[1])
    assert len(boxes) == sum(inside[box.slices()].any() for box in Grid(SHAPE, (4, 4, 4)))
    assert all(inside[box.slices()].any() for box in boxes)
