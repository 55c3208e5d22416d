"""Tests of private updates against the definition: per-sample gradients in float64, clipped, summed, with noise."""

import copy
import functools
import itertools
import types
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional

from rigdyno.base.errors import BadValue
from rigdyno.contracts import CannotRun, Samples, Training, WorkerPlace
from rigdyno.updates.common.private import NO_EPSILON
from rigdyno.updates.dp_expanded import DpExpanded
from rigdyno.updates.dp_fast import DpFast
from rigdyno.updates.dp_opacus import NOT_IN_PLACE, DpOpacus, Mode
from rigdyno.workloads.resnet50 import ResNet50

dp_accounting = pytest.importorskip("dp_accounting")
opacus = pytest.importorskip("opacus")

COUNT, BATCH, CLASSES = 300, 20, 4
MAX_NORM, HARDLY_ANY = 0.05, 1e-9
HERE = WorkerPlace(device="cpu", seed=5)

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
OPACUS = {mode: functools.partial(DpOpacus, mode=mode) for mode in get_args(Mode)}
EVERY = {"dp_fast": DpFast, "dp_expanded": DpExpanded, **OPACUS}
both = pytest.mark.parametrize("kind", [DpFast, DpOpacus])
every = pytest.mark.parametrize("kind", EVERY.values(), ids=EVERY)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 100), nn.Tanh(),
        nn.Linear(100, CLASSES),
    )  # fmt: skip


def images():
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randn(COUNT, 2, 6, 6, generator=chance)
    return inputs, torch.randint(CLASSES, (COUNT,), generator=chance)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def training(model=None, *, known=True, loss=functional.cross_entropy, **fields):
    """Return a training; `known`: with the data set that its batches are made of."""
    inputs, targets = images()
    rows = itertools.cycle(range(0, COUNT, BATCH))
    return Training(
        model=model or network(),
        loss=loss,
        optimizer=sgd,
        batches=((inputs[row : row + BATCH], targets[row : row + BATCH]) for row in rows),
        samples=Samples(COUNT, BATCH, lambda chosen: (inputs[chosen], targets[chosen])) if known else None,
        **fields,
    )


def flat(model):
    return torch.cat([parameter.detach().flatten().double() for parameter in model.parameters()])


def clipped_sum(model, inputs, targets, max_norm):
    model = copy.deepcopy(model).double()
    whole = torch.zeros_like(flat(model))
    for one, target in zip(inputs.double(), targets, strict=True):
        loss = functional.cross_entropy(model(one[None]), target[None])
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        whole += gradient * min(1.0, max_norm / float(gradient.norm()))
    return whole


def moved_by(update, shared):
    """Return the change of the parameters in one step, and the batch of that step."""
    step = update.prepare(shared, HERE, None)
    batch = next(shared.batches)
    before = flat(shared.model)
    loss = step(*batch)
    assert not loss.requires_grad  # or every kept loss would keep its graph
    return before - flat(shared.model), batch


@every
@pytest.mark.parametrize("known", [True, False])
def test_a_step_is_the_sum_of_clipped_gradients_over_the_expected_batch(kind, known):
    shared = training(known=known)
    before = copy.deepcopy(shared.model)
    moved, (inputs, targets) = moved_by(kind(noise_multiplier=HARDLY_ANY, max_grad_norm=MAX_NORM), shared)
    expected = clipped_sum(before, inputs, targets, MAX_NORM) / BATCH
    assert len(targets) != BATCH or not known  # the expected batch isn't the one drawn
    assert float((moved - expected).norm()) < 1e-4 * float(expected.norm())


@every
@pytest.mark.parametrize("known", [True, False])
def test_noise_is_the_multiplier_times_the_clipping_norm_over_the_expected_batch(kind, known):
    shared = training(known=known)
    before = copy.deepcopy(shared.model)
    moved, batch = moved_by(kind(noise_multiplier=3.0, max_grad_norm=MAX_NORM), shared)
    noise = moved - clipped_sum(before, *batch, MAX_NORM) / BATCH
    assert float(noise.std()) == pytest.approx(3.0 * MAX_NORM / BATCH, rel=0.03)  # of 10,000 values
    assert abs(float(noise.mean())) < 0.05 * 3.0 * MAX_NORM / BATCH


def drawn_by(kind, steps, seed=5):
    shared = training()
    kind().prepare(shared, WorkerPlace(device="cpu", seed=seed), None)
    return [targets.tolist() for _, targets in itertools.islice(shared.batches, steps)]


def test_all_updates_draw_the_same_poisson_batches():
    ours, *theirs = (drawn_by(kind, 60) for kind in EVERY.values())
    assert all(other == ours for other in theirs)
    assert ours != drawn_by(DpFast, 60, seed=6)
    sizes = [len(batch) for batch in ours]
    assert len(set(sizes)) > 5
    assert sum(sizes) / len(sizes) == pytest.approx(BATCH, abs=3)
    assert ours[:15] != ours[15:30]  # another epoch, other batches


@every
def test_epsilon_matches_an_independent_accountant(kind):
    shared = training()
    step = kind(noise_multiplier=1.5).prepare(shared, HERE, None)
    for batch in itertools.islice(shared.batches, 40):
        step(*batch)
    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    sampled = dp_accounting.PoissonSampledDpEvent(BATCH / COUNT, dp_accounting.GaussianDpEvent(1.5))
    exact = accountant.compose(sampled, 40).get_epsilon(1e-5)
    assert exact <= shared.epsilon() <= exact + 0.02  # Opacus' may err upwards by a hundredth


def test_opacus_gives_the_renyi_bound_at_a_large_epsilon():
    shared = training()
    step = DpOpacus(noise_multiplier=0.05).prepare(shared, HERE, None)
    for batch in itertools.islice(shared.batches, 3):
        step(*batch)
    renyi = opacus.accountants.RDPAccountant()
    renyi.history = [(0.05, BATCH / COUNT, 3)]
    assert shared.epsilon() == renyi.get_epsilon(1e-5) > 100


@every
def test_without_a_data_set_batches_are_unchanged_and_there_is_no_epsilon(kind):
    shared, untouched = training(known=False, notes=("a note",)), training()
    kind().prepare(shared, HERE, None)
    for _ in range(3):
        assert torch.equal(next(shared.batches)[0], next(untouched.batches)[0])
    assert shared.epsilon is None
    assert shared.notes == ("a note", NO_EPSILON)


@every
def test_empty_batches_add_only_noise(kind):
    shared = training()
    step = kind(max_grad_norm=MAX_NORM).prepare(shared, HERE, None)
    inputs, targets = images()
    step(*next(shared.batches))
    before = flat(shared.model)
    step(inputs[:0], targets[:0])
    assert float((flat(shared.model) - before).std()) == pytest.approx(MAX_NORM / BATCH, rel=0.05)


@every
def test_a_private_step_marks_its_phases(kind):
    marks = []
    shared = training(mark=marks.append)
    step = kind().prepare(shared, HERE, None)
    step(*next(shared.batches))
    assert marks == ["forward", "backward", "optimizer"]


def with_batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, CLASSES))


def test_batch_norm_is_refused_with_what_to_try():
    refusals = {DpFast: "1 (BatchNorm2d): a sample's output depends on the whole batch", DpOpacus: "Opacus: BatchNorm"}
    for kind, words in refusals.items():
        with pytest.raises(CannotRun) as refusal:
            kind().prepare(training(with_batch_norm()), HERE, None)
        assert str(refusal.value).startswith(words)
        assert str(refusal.value).endswith("; here: --set update.group_norm=true")


@every
def test_group_norm_replaces_batch_norm_in_place(kind):
    shared = training(with_batch_norm())
    own = shared.model
    moved, _ = moved_by(kind(group_norm=True), shared)
    assert shared.model is own
    assert [type(layer) for layer in own][:2] == [nn.Conv2d, nn.GroupNorm]
    assert float(moved.norm()) > 0


class Mixing(nn.Module):
    def forward(self, inputs):
        return inputs - inputs.mean(dim=0)


def test_mixing_found_during_a_step_skips_the_cell():
    shared = training(nn.Sequential(nn.Flatten(), Mixing(), nn.Linear(72, CLASSES)))
    step = DpFast().prepare(shared, HERE, None)
    with pytest.raises(CannotRun, match="its output for a sample depends on the other samples"):
        step(*next(shared.batches))


@pytest.mark.parametrize("kind", OPACUS.values(), ids=OPACUS)
def test_in_place_activations_are_turned_off_for_opacus_with_a_note(kind):
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(96, CLASSES))
    shared = training(copy.deepcopy(model))
    moved, batch = moved_by(kind(noise_multiplier=HARDLY_ANY, max_grad_norm=MAX_NORM), shared)
    expected = clipped_sum(model, *batch, MAX_NORM) / BATCH
    assert float((moved - expected).norm()) < 1e-4 * float(expected.norm())
    assert NOT_IN_PLACE in shared.notes


def test_an_unknown_mode_is_refused_with_a_suggestion():
    with pytest.raises(BadValue, match=r"update\.mode must be one of .*, not 'gohst'; did you mean 'ghost'"):
        DpOpacus(mode="gohst")


def mean_of_squares(outputs, targets):
    """A loss that takes no reduction."""
    return (outputs - functional.one_hot(targets, CLASSES)).square().sum(dim=1).mean()


def test_ghost_accepts_any_mean_over_samples_as_a_loss():
    found = []
    for kind in (DpFast, OPACUS["ghost"]):
        shared = training(loss=mean_of_squares)
        found.append(moved_by(kind(noise_multiplier=HARDLY_ANY, max_grad_norm=MAX_NORM), shared)[0])
    assert float((found[0] - found[1]).norm()) < 1e-4 * float(found[0].norm())


def depthwise():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, 8), nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 12, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, CLASSES),
    )  # fmt: skip


@every
def test_a_step_through_the_layers_of_efficientnet_matches_the_definition(kind):
    shared = training(depthwise())
    before = copy.deepcopy(shared.model)
    moved, batch = moved_by(kind(noise_multiplier=HARDLY_ANY, max_grad_norm=MAX_NORM), shared)
    expected = clipped_sum(before, *batch, MAX_NORM) / BATCH
    assert float((moved - expected).norm()) < 1e-4 * float(expected.norm())


def test_opacus_refuses_buffers_in_its_own_words():
    model = network()
    model[4].register_buffer("scale", torch.ones(1))
    with pytest.raises(CannotRun, match=r"Opacus: .*buffers"):
        DpOpacus().prepare(training(model), HERE, None)


@every
def test_a_delta_that_would_publish_a_sample_is_refused(kind):
    with pytest.raises(CannotRun, match=r"delta 0\.01 is too large for 300 samples"):
        kind(delta=0.01).prepare(training(), HERE, None)


@every
def test_scaled_losses_and_compiled_networks_are_refused(kind):
    with pytest.raises(CannotRun, match="try precision=fp32"):
        kind().prepare(training(scaler=object()), HERE, None)
    model = network()
    model.compile()
    with pytest.raises(CannotRun, match="try compiled=false"):
        kind().prepare(training(model), HERE, None)


def test_half_precision_is_refused_while_planning():
    assert "try precision=fp32" in DpFast().refuses(ResNet50(precision="bf16"))
    assert DpFast().refuses(ResNet50()) is None
    assert DpFast().refuses(types.SimpleNamespace()) is None


@both
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"noise_multiplier": 0.0}, "update.noise_multiplier must be a number above 0, not 0.0"),
        ({"max_grad_norm": float("inf")}, "update.max_grad_norm must be a number above 0, not inf"),
        ({"delta": 1.0}, "update.delta must be a number above 0 and below 1, not 1.0"),
    ],
)
def test_bad_options_are_refused(kind, option, words):
    with pytest.raises(BadValue) as refusal:
        kind(**option)
    assert str(refusal.value) == words


def test_secure_noise_and_batches_do_not_repeat():
    moved = [moved_by(DpFast(secure=True), training()) for _ in range(2)]
    assert not torch.equal(moved[0][0], moved[1][0])
    repeated = [moved_by_seed() for _ in range(2)]
    assert torch.equal(repeated[0], repeated[1])


def moved_by_seed():
    """Set torch's seed too, as a worker does."""
    shared = training()
    torch.manual_seed(7)
    return moved_by(DpFast(), shared)[0]
