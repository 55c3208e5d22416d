"""The state of a pass is in the pass: despite other forwards, checkpoints, errors and threads in between, each sample
is clipped once, by its whole gradient."""

from __future__ import annotations

import inspect
import threading

import pytest
import torch
from dp_guarded import BOUND, CLASSES, FEATURES, Guarded, batch, same, weights
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from rigdyno.engines.dp import MixesSamples, NotFinite, Unprotected, micro_batches
from rigdyno.engines.dp.checks.mixing import CheckSchedule


def test_a_retained_graph_can_run_backward_only_once():
    guarded = Guarded()
    loss = guarded.loss(guarded.draw())
    loss.backward(retain_graph=True)
    with pytest.raises(Unprotected, match="second time"):
        loss.backward()
    guarded.optimizer.step()
    assert float(guarded.released().norm()) <= BOUND * 8


def test_half_of_a_batch_twice_is_refused():
    """Half of the rows run backward twice are as many samples as were drawn, but each would count twice."""
    guarded = Guarded()
    inputs, answers = guarded.draw()
    loss = functional.cross_entropy(guarded.net(inputs[:4]), answers[:4])
    loss.backward(retain_graph=True)
    with pytest.raises(Unprotected, match="second time"):
        loss.backward()


def test_two_losses_of_one_forward_are_added_up_or_refused():
    guarded = Guarded()
    inputs, answers = guarded.draw()
    found = guarded.net(inputs)
    functional.cross_entropy(found, answers).backward(retain_graph=True)
    with pytest.raises(Unprotected, match="add up the losses"):
        found.square().mean().backward()


@pytest.mark.parametrize("samples", [3, 8])
def test_an_extra_forward_before_backward_changes_nothing(samples):
    guarded = Guarded()
    drawn = guarded.draw()
    loss = guarded.loss(drawn)
    guarded.net(batch(samples, seed=9)[0])
    loss.backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


class Blocks(nn.Module):
    """A network with checkpoints inside. `nested` puts one into another, so no layer is called in the outer one."""

    def __init__(self, reentrant: bool, nested: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(FEATURES, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)
        self.reentrant, self.nested = reentrant, nested

    def forward(self, values: Tensor) -> Tensor:
        values = values.clone().requires_grad_()
        for layer in (self.first, self.second):
            values = torch.tanh(self._again(layer, values))
        return self._again(self.head, values)

    def _again(self, layer: nn.Module, values: Tensor) -> Tensor:
        def inner(given: Tensor) -> Tensor:
            return checkpoint(layer, given, use_reentrant=self.reentrant)

        return checkpoint(inner if self.nested else layer, values, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # a warning of torch for the first layer
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_the_network_change_nothing(reentrant, nested):
    guarded = Guarded(net=Blocks(reentrant, nested))
    guarded.before.reentrant = False  # autograd.grad, which computes the definition, supports no others
    drawn = guarded.draw()
    loss = guarded.loss(drawn)
    guarded.net(batch(seed=9)[0])  # recomputed layers belong to the pass that runs backward, not to this one
    loss.backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_the_network_changes_nothing(reentrant):
    guarded = Guarded()
    inputs, answers = drawn = guarded.draw()
    found = checkpoint(guarded.net, inputs.clone().requires_grad_(), use_reentrant=reentrant)
    guarded.net(batch(seed=9)[0])
    functional.cross_entropy(found, answers).backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


def test_modules_called_one_by_one_belong_to_one_pass():
    """In separate passes, a sample would be clipped once for each module."""
    guarded = Guarded()
    inputs, answers = drawn = guarded.draw()
    hidden = torch.relu(guarded.net[0](inputs))
    guarded.net[0](batch(5, seed=9)[0])  # for a log, with other samples
    functional.cross_entropy(guarded.net[2](hidden), answers).backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


def test_modules_can_be_called_one_by_one_for_several_batches():
    guarded = Guarded()
    for _ in range(3):
        inputs, answers = guarded.draw()
        guarded.net[2](torch.relu(guarded.net[0](inputs)))  # for a log
        functional.cross_entropy(guarded.net[2](torch.relu(guarded.net[0](inputs))), answers).backward()
        guarded.optimizer.step()
        guarded.optimizer.zero_grad()
    assert guarded.steps() == 3


def test_calling_forward_directly_changes_nothing():
    guarded = Guarded()
    inputs, answers = drawn = guarded.draw()
    functional.cross_entropy(guarded.net.forward(inputs), answers).backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


def test_a_network_called_twice_for_each_sample_is_refused():
    guarded = Guarded()
    inputs, answers = guarded.draw()
    with pytest.raises(Unprotected, match="forward makes both calls"):
        functional.cross_entropy(guarded.net(inputs) - guarded.net(inputs * 2), answers).backward()


def test_outputs_of_an_earlier_batch_in_the_loss_are_refused():
    guarded = Guarded()
    inputs, _ = guarded.draw()
    kept = guarded.net(inputs)
    drawn = guarded.draw()
    with pytest.raises(Unprotected, match="this batch is over"):
        (guarded.loss(drawn) + kept.square().mean()).backward()
    with pytest.raises(Unprotected):
        guarded.optimizer.step()


def test_a_loss_of_some_outputs_releases_those_samples():
    guarded = Guarded()
    inputs, answers = guarded.draw()
    (functional.cross_entropy(guarded.net(inputs)[:3], answers[:3]) * 3 / 8).backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected((inputs[:3], answers[:3])))


def test_gradients_of_inputs_do_not_affect_the_parameters():
    """Test torch.autograd.grad and backward(inputs=...), as used for a saliency map."""
    guarded = Guarded()
    inputs, answers = guarded.draw()
    looked_at = inputs.clone().requires_grad_()
    loss = functional.cross_entropy(guarded.net(looked_at), answers)
    torch.autograd.grad(loss, looked_at, retain_graph=True)
    loss.backward(inputs=[looked_at], retain_graph=True)
    loss.backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected((inputs, answers)))


def test_autograd_grad_returns_no_parameter_gradients():
    guarded = Guarded()
    loss = guarded.loss(guarded.draw())
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(loss, list(guarded.net.parameters()))
    assert torch.autograd.grad(guarded.loss(guarded.draw()), guarded.net[0].weight, allow_unused=True) == (None,)


def test_backward_for_some_parameters_releases_nothing():
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward(inputs=[guarded.net[0].weight])
    guarded.optimizer.step()
    assert same(guarded.released(), torch.zeros(()).expand(len(guarded.start)))


def test_a_second_derivative_is_refused():
    guarded = Guarded()
    inputs, _ = guarded.draw()
    looked_at = inputs.clone().requires_grad_()
    with pytest.raises(Unprotected, match="second derivatives"):
        torch.autograd.grad(guarded.net(looked_at).sum(), looked_at, create_graph=True)
    guarded.optimizer.step()
    assert same(guarded.released(), torch.zeros(()).expand(len(guarded.start)))


def test_an_error_during_backward_stops_the_step():
    guarded = Guarded()
    drawn = guarded.draw()
    hidden = guarded.net[0](drawn[0])

    def fail(gradient: Tensor) -> None:
        raise KeyError("a hook of the user's")

    hidden.register_hook(fail)
    with pytest.raises(KeyError):
        functional.cross_entropy(guarded.net[2](torch.relu(hidden)), drawn[1]).backward()
    with pytest.raises(Unprotected, match="ended in an error"):
        guarded.optimizer.step()
    guarded.step(drawn)  # zero_grad, and the same batch again
    assert same(guarded.released(), guarded.expected(drawn))


def test_an_error_in_backward_invalidates_earlier_pieces():
    guarded = Guarded()
    inputs, answers = guarded.draw()
    functional.cross_entropy(guarded.net(inputs[:4]), answers[:4]).backward()
    with pytest.raises(NotFinite):
        functional.cross_entropy(guarded.net(inputs[4:]) * float("nan"), answers[4:]).backward()
    with pytest.raises(Unprotected, match="ended in an error"):
        guarded.optimizer.step()


def test_an_error_in_forward_has_no_effect():
    guarded = Guarded()
    drawn = guarded.draw()
    with pytest.raises((MixesSamples, RuntimeError)):
        guarded.net(torch.zeros(8, FEATURES + 1))
    guarded.step(drawn)
    assert same(guarded.released(), guarded.expected(drawn))


def test_a_hook_on_the_output_s_gradient_runs_before_clipping():
    guarded = Guarded()
    inputs, answers = guarded.draw()
    found = guarded.net(inputs)
    found.register_hook(lambda gradient: gradient * 1e6)
    functional.cross_entropy(found, answers).backward()
    guarded.optimizer.step()
    assert float(guarded.released().norm()) <= BOUND * len(inputs)


def test_weights_changed_between_forward_and_backward_are_still_clipped():
    guarded = Guarded()
    loss = guarded.loss(guarded.draw())
    for parameter in guarded.net.parameters():
        parameter.data.mul_(100)
    guarded.start = weights(guarded.net)
    loss.backward()
    guarded.optimizer.step()
    assert 0 < float(guarded.released().norm()) <= BOUND * 8


def test_an_evaluation_with_gradients_changes_nothing():
    guarded = Guarded()
    drawn = guarded.draw()
    guarded.net.eval()
    guarded.net(batch(20, seed=9)[0])
    guarded.net.train()
    guarded.step(drawn)
    assert same(guarded.released(), guarded.expected(drawn))


def test_threads_have_separate_passes():
    """One thread evaluates in a loop, with gradients enabled, while the other trains."""
    guarded = Guarded()
    drawn, going = guarded.draw(), threading.Event()
    stop = threading.Event()

    def evaluate() -> None:
        while not stop.is_set():
            guarded.net(batch(5, seed=9)[0])
            going.set()

    other = threading.Thread(target=evaluate)
    other.start()
    assert going.wait(60)
    try:
        guarded.step(drawn)
    finally:
        stop.set()
        other.join(60)
    assert same(guarded.released(), guarded.expected(drawn))


def test_pieces_can_run_in_two_threads(monkeypatch):
    """The first batch is checked before; random checks are disabled, as they may run in one thread only."""
    monkeypatch.setattr(CheckSchedule, "is_due", lambda schedule: False)
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward()
    guarded.optimizer.zero_grad()
    inputs, answers = drawn = guarded.draw()
    pieces = micro_batches(drawn, 4)
    threads = [threading.Thread(target=lambda piece=piece: guarded.loss(piece).backward()) for piece in pieces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected((inputs, answers)))


class SequenceFirst(nn.Module):
    """A network whose samples are along the second axis inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)

    def forward(self, inputs, scale: float = 1.0):
        return self.second(self.first(inputs.transpose(0, 1)).tanh().transpose(0, 1)).mean(dim=1) * scale


def test_a_call_of_forward_counts_as_a_call_of_the_network():
    """The sequence is as long as the batch: layer by layer, the time steps would be clipped."""
    torch.manual_seed(0)
    drawn = torch.randn(5, 5, FEATURES) * 3, torch.randint(CLASSES, (5,))
    guarded = Guarded([drawn], net=SequenceFirst())
    inputs, answers = guarded.draw()
    functional.cross_entropy(guarded.net.forward(inputs), answers).backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))
    assert list(inspect.signature(guarded.net.forward).parameters) == ["inputs", "scale"]
    guarded.engine.release()
    assert "forward" not in vars(guarded.net)


def test_forward_of_a_network_that_mixes_samples_is_refused():
    class Mixing(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs - inputs.mean(dim=0))

    guarded = Guarded(net=Mixing(nn.Linear(FEATURES, CLASSES)))
    inputs, _ = guarded.draw()
    with pytest.raises(MixesSamples):
        guarded.net.forward(inputs)
