"""The halo is the smallest within a tolerance, the exact one, or the given one."""

import numpy as np
import pytest
import torch
from blockwise_networks import randomise_norms
from infer_cases import FakeVolume, read_stored, single_thread
from torch import nn
from volumes_on_disk import zarr3

from rigdyno.engines.blockwise import BadNetwork, BadSetting, Inference, Job
from rigdyno.engines.blockwise.backends.torch import Eager
from rigdyno.engines.blockwise.blocks import find_smallest_halo, list_halos, require_exact_halo
from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.network.loading import make_model
from rigdyno.engines.blockwise.network.unet import UNet3d
from rigdyno.engines.blockwise.normalising import find_normalisation
from rigdyno.engines.blockwise.planning import Planner, PlanRequest
from rigdyno.engines.blockwise.volumes.reading import read_reflected

PLACES = [Box((0, 0, 0), (8, 8, 8)), Box((8, 16, 8), (16, 24, 16)), Box((24, 24, 24), (29, 27, 28))]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(1)
    return randomise_norms(UNet3d(features=(4, 4, 4), norm=False, sigmoid=False))


@pytest.fixture(scope="module")
def model(module):
    with single_thread():
        return make_model(module, 1).model


@pytest.fixture(scope="module")
def volume():
    return FakeVolume(np.random.default_rng(2).normal(0.0, 1.0, (1, 29, 27, 28)).astype(np.float32))


def choose(model, volume, tolerance, value_range=None, places=PLACES):
    read = lambda box: read_reflected(volume, box).values  # noqa: E731
    return find_smallest_halo(model, Eager(model, "cpu").predict, read, places, tolerance, value_range)


def predict_by_hand(model, module, volume, halo):
    """Predict blocks with this halo by the original network, nothing trimmed."""
    answers = []
    for place in PLACES:
        size = tuple(-(-length // step) * step for length, step in zip(place.shape, model.step, strict=True))
        stop = tuple(start + length for start, length in zip(place.start, size, strict=True))
        block = read_reflected(volume, Box(place.start, stop).grown(halo)).values
        with torch.no_grad():
            answer = module(torch.from_numpy(block)[None])[0].numpy()
        z, y, x = (slice(own, own + length) for own, length in zip(halo, place.shape, strict=True))
        answers.append(answer[:, z, y, x])
    return answers


@pytest.fixture(scope="module")
def errors(model, module, volume):
    """Return the largest and the mean error of every halo, as shares of the range of the exact outputs."""
    with single_thread():
        answers = {halo: predict_by_hand(model, module, volume, halo) for halo in list_halos(model)}
    truths = answers[require_exact_halo(model)]
    width = max(truth.max() for truth in truths) - min(truth.min() for truth in truths)
    found = {}
    for halo, own in answers.items():
        differences = [np.abs(answer - truth) for answer, truth in zip(own, truths, strict=True)]
        found[halo] = max(d.max() for d in differences) / width, np.mean([d.mean() for d in differences]) / width
    return found


def test_halos_go_from_zero_to_exact_in_steps(model):
    found = list(list_halos(model))
    assert found[0] == (0, 0, 0)
    assert found[-1] == require_exact_halo(model) == model.exact_halo
    assert found == [(step, step, step) for step in range(0, 25, 4)]


@pytest.mark.parametrize("tolerance", [0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4])
def test_the_smallest_halo_is_that_of_brute_force(tolerance, errors, model, volume):
    wanted = next(halo for halo, (largest, _) in errors.items() if largest <= tolerance)
    found = choose(model, volume, tolerance)
    assert found.halo == wanted
    assert found.exact == require_exact_halo(model)
    assert found.places == len(PLACES)
    if wanted == require_exact_halo(model):
        assert (found.largest_error, found.mean_error) == (0.0, 0.0)
    else:
        assert (found.largest_error, found.mean_error) == pytest.approx(errors[wanted], abs=1e-5)


def test_the_tested_tolerances_give_different_halos(errors):
    assert len({next(halo for halo, (most, _) in errors.items() if most <= own) for own in (0.3, 0.03, 1e-3, 1e-4)}) > 2


def test_a_tiny_tolerance_gives_the_exact_halo(model, volume):
    assert choose(model, volume, 1e-12).halo == require_exact_halo(model)


def test_the_tolerance_is_relative_to_a_known_range(model, volume):
    """The error of a nearly constant probability is relative to 0..1, not to its own range."""
    assert sum(choose(model, volume, 0.01, 1e6).halo) == 0
    assert choose(model, volume, 0.01, 1e-6).halo == require_exact_halo(model)


def test_a_constant_output_gives_the_exact_halo(volume):
    silent = UNet3d(features=(4, 4), norm=False, sigmoid=False)
    nn.init.zeros_(silent.last.weight)
    model = make_model(silent, 1).model
    assert choose(model, volume, 0.5).halo == require_exact_halo(model)


def test_a_network_that_returns_nan_is_refused(volume):
    broken = UNet3d(features=(4, 4), norm=False)
    nn.init.constant_(broken.last.weight, float("nan"))
    with pytest.raises(BadNetwork, match="isn't finite; check its weights"):
        choose(make_model(broken, 1).model, volume, 0.01)


def test_a_halo_that_gives_nan_is_not_chosen(model, volume):
    """NaN compares as false with everything."""

    def predict(block, size, halo):
        answer = np.random.default_rng(0).normal(size=(1, *size)).astype(np.float32)
        return answer if halo == require_exact_halo(model) else np.full_like(answer, np.nan)

    found = find_smallest_halo(model, predict, lambda box: read_reflected(volume, box).values, PLACES, 0.5, 1.0)
    assert found.halo == require_exact_halo(model)


def make_planner(model, volume, halo, tmp_path, **options):
    figures = find_normalisation("none", volume)
    read = lambda box: figures.apply(read_reflected(volume, box).values)  # noqa: E731
    return Planner(volume, model, PlanRequest(halo=halo, **options), figures, read, tmp_path / "out")


def test_exact_and_given_halos_are_used(model, volume, tmp_path):
    plan = make_planner(model, volume, "exact", tmp_path).plan().plan
    assert plan.halo == plan.exact_halo == require_exact_halo(model)
    assert plan.halo_error == 0.0
    for text, halo in (("8", (8, 8, 8)), ("0,4,12", (0, 4, 12)), ("40,4,4", (40, 4, 4))):
        plan = make_planner(model, volume, text, tmp_path).plan().plan
        assert (plan.halo, plan.halo_error, plan.halo_places) == (halo, None, 0)


@pytest.mark.parametrize("text", ["half", "4,4", "1", "4,4,4,4", "-4", "4,6,4", "4.0", "", "nan"])
def test_invalid_halos_are_refused(text, model, volume, tmp_path):
    with pytest.raises(BadSetting, match="--halo"):
        make_planner(model, volume, text, tmp_path).plan()


def test_a_network_without_padding_needs_its_margin(volume, tmp_path):
    model = make_model(nn.Sequential(nn.Conv3d(1, 2, 5), nn.Conv3d(2, 1, (1, 3, 3))), 1).model
    assert require_exact_halo(model) == model.least_halo == (2, 3, 3)
    assert make_planner(model, volume, "auto", tmp_path).plan().plan.halo == (2, 3, 3)
    with pytest.raises(BadSetting, match="at least 2x3x3"):
        make_planner(model, volume, "2", tmp_path).plan()


@pytest.mark.parametrize("norm", [nn.InstanceNorm3d(4, affine=True), nn.GroupNorm(2, 4)])
def test_norms_over_a_block_run_with_a_warning(norm, tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\ndef build():\n    torch.manual_seed(0)\n"
        f"    return nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.{norm!r}, nn.Conv3d(4, 1, 1), nn.Sigmoid())\n"
    )
    values = np.random.default_rng(0).integers(0, 255, (20, 12, 12)).astype(np.uint8)
    source = zarr3(tmp_path / "in.zarr", values, (8, 8, 8))
    job = Job(source=str(source), output=str(tmp_path / "out"), model=f"{tmp_path}/net.py:build", block=(8, 8, 8))
    done = Inference(job).run()
    assert done.counts.done == 12
    assert "the answer depends on how the volume is cut: it has InstanceNorm or GroupNorm" in done.plan.remarks[0]
    assert read_stored(job.output).std() > 0


class SeesAll(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x - x.mean(dim=(2, 3, 4), keepdim=True))


def test_a_network_that_sees_the_whole_block_needs_a_given_halo(volume, tmp_path):
    model = make_model(SeesAll(), 1).model
    for text in ("auto", "exact"):
        with pytest.raises(BadNetwork, match=r"no exact halo: .*; give one with --halo Z,Y,X"):
            make_planner(model, volume, text, tmp_path).plan()
    plan = make_planner(model, volume, "32", tmp_path).plan().plan
    assert plan.exact_halo is None
    assert any("depends on how the volume is cut" in remark for remark in plan.remarks)
