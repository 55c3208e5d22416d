"""Every step releases the clipped and noisy sum, once and counted, and nothing else, whatever a user does to gradients,
parameters and optimizers."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from dp_guarded import BOUND, CLASSES, FEATURES, SIGMA, Guarded, batch, network, same, weights
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rigdyno.engines.dp import BadSetting, GivenBatches, Unprotected

NOTHING = torch.zeros(())


def unmoved(guarded: Guarded) -> bool:
    return same(guarded.released(), NOTHING.expand(len(guarded.start)))


# The sum is hidden until the step


def test_no_gradient_is_visible_between_backward_and_step():
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward()
    assert all(parameter.grad is None for parameter in guarded.net.parameters())


def test_the_noisy_mean_is_visible_after_a_step():
    guarded = Guarded()
    guarded.step(guarded.draw())
    seen = torch.cat([parameter.grad.flatten().double() for parameter in guarded.net.parameters()])
    assert same(seen, guarded.released())


def test_other_optimizers_and_clipping_by_hand_change_nothing():
    guarded = Guarded()
    other = torch.optim.SGD(guarded.net.parameters(), lr=1e3)
    drawn = guarded.draw()
    guarded.loss(drawn).backward()
    other.step()
    torch.nn.utils.clip_grad_norm_(guarded.net.parameters(), 1e-6)
    assert unmoved(guarded)
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


def test_another_optimizer_after_the_step_uses_the_released_gradient():
    guarded = Guarded()
    other = torch.optim.SGD(guarded.net.parameters(), lr=1.0)
    drawn = guarded.draw()
    guarded.step(drawn)
    other.step()
    assert same(guarded.released(), 2 * guarded.expected(drawn))


@pytest.mark.parametrize("keep", [lambda p: p.grad, lambda p: p.grad.data, lambda p: p.grad.flatten().numpy()])
def test_a_gradient_that_is_kept_does_not_change(keep):
    """The next sum uses another buffer: a kept gradient must not show it before it has noise."""
    guarded = Guarded()
    guarded.step(guarded.draw())
    kept = [keep(parameter) for parameter in guarded.net.parameters()]
    before = [torch.as_tensor(one).clone() for one in kept]
    guarded.loss(guarded.draw()).backward()
    assert all(torch.equal(torch.as_tensor(one), was) for one, was in zip(kept, before, strict=True))


def test_the_buffer_is_reused_if_no_gradient_is_kept():
    guarded = Guarded()
    found = set()
    for _ in range(4):
        guarded.step(guarded.draw())
        found.add(guarded.net[0].weight.grad.untyped_storage().data_ptr())
    assert len(found) == 1


def test_a_gradient_set_by_hand_is_refused():
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward()
    guarded.net[2].bias.grad = torch.ones(CLASSES)
    for _ in range(2):
        with pytest.raises(Unprotected, match=r"2\.bias"):
            guarded.optimizer.step()
    assert unmoved(guarded)


@pytest.mark.parametrize("to_none", [False, True])
def test_zero_grad_discards_a_gradient_set_by_hand(to_none):
    guarded = Guarded()
    guarded.net[2].bias.grad = torch.ones(CLASSES)
    guarded.optimizer.zero_grad(set_to_none=to_none)
    drawn = guarded.draw()
    guarded.loss(drawn).backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


@pytest.mark.parametrize("last", [False, True])
def test_a_gradient_outside_the_layers_is_refused_whatever_follows(last):
    guarded = Guarded()
    inputs, answers = guarded.draw()
    guarded.loss((inputs[:4], answers[:4])).backward()
    (1e-3 * guarded.net[0].weight.square().sum()).backward()
    if not last:
        with pytest.raises(Unprotected, match=r"0\.weight"):
            guarded.loss((inputs[4:], answers[4:])).backward()
    for _ in range(2):
        with pytest.raises(Unprotected, match=r"0\.weight.*weight_decay"):
            guarded.optimizer.step()
    assert unmoved(guarded)
    guarded.step((inputs, answers))
    assert same(guarded.released(), guarded.expected((inputs, answers)))


def test_a_penalty_s_gradient_by_autograd_grad_is_not_released():
    guarded = Guarded()
    drawn = guarded.draw()
    guarded.loss(drawn).backward()
    torch.autograd.grad(guarded.net[0].weight.square().sum(), guarded.net[0].weight)
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


# What the optimizer changes


class WithFrozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.base.requires_grad_(False)
        self.head.bias.requires_grad_(False)

    def forward(self, values):
        return self.head(torch.tanh(self.base(values)))


@pytest.mark.parametrize("which", ["base.weight", "head.bias"])
def test_a_parameter_that_begins_to_train_is_refused(which):
    guarded = Guarded(net=WithFrozen())
    guarded.net.get_parameter(which).requires_grad_(True)
    with pytest.raises(Unprotected, match=rf"{which} began to train after make_private: .*release"):
        guarded.step(guarded.draw())
    assert unmoved(guarded)


def test_an_added_parameter_group_is_refused():
    guarded = Guarded(net=WithFrozen())
    guarded.optimizer.add_param_group({"params": list(guarded.net.base.requires_grad_(True).parameters())})
    with pytest.raises(Unprotected, match=r"base\.weight began to train"):
        guarded.step(guarded.draw())
    stranger = Guarded()
    stranger.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(Unprotected, match="a parameter of the optimizer began to train"):
        stranger.step(stranger.draw())


def test_a_new_head_is_refused_even_with_a_separate_optimizer():
    guarded = Guarded()
    guarded.net[2] = nn.Linear(8, CLASSES)
    torch.optim.SGD(guarded.net[2].parameters(), lr=1.0)
    with pytest.raises(Unprotected, match="added or replaced"):
        guarded.step(guarded.draw())
    added = Guarded()
    added.net.append(nn.Linear(CLASSES, CLASSES))
    with pytest.raises(Unprotected, match="added or replaced"):
        added.step(added.draw())


def test_unfreezing_works_as_the_message_says():
    guarded = Guarded(net=WithFrozen())
    guarded.step(guarded.draw())
    guarded.engine.release()
    guarded.net.requires_grad_(True)
    guarded.before = copy.deepcopy(guarded.net)
    optimizer = torch.optim.SGD(guarded.net.parameters(), lr=1.0)
    batches = GivenBatches([batch(seed=7)], 1.0)
    guarded.engine.make_private_with_batches(
        module=guarded.net, optimizer=optimizer, batches=batches, noise_multiplier=SIGMA, max_grad_norm=BOUND
    )
    start = weights(guarded.net)
    for drawn in batches:
        functional.cross_entropy(guarded.net(drawn[0]), drawn[1]).backward()
        optimizer.step()
    assert same(start - weights(guarded.net), guarded.expected(drawn))
    assert guarded.steps() == 2


def test_parameters_can_be_frozen_later():
    guarded = Guarded()
    guarded.net[0].requires_grad_(False)
    held = guarded.net[0].weight.clone()
    guarded.step(guarded.draw())
    assert torch.equal(held, guarded.net[0].weight)
    assert guarded.net[0].weight.grad is None
    assert float(guarded.released().norm()) > 0


def test_parameters_assigned_from_a_state_dict_are_refused():
    guarded = Guarded()
    state = {name: value.clone() for name, value in guarded.net.state_dict().items()}
    guarded.net.load_state_dict(state)
    guarded.optimizer.load_state_dict(guarded.optimizer.state_dict())
    drawn = guarded.draw()
    guarded.step(drawn)
    assert same(guarded.released(), guarded.expected(drawn))
    guarded.net.load_state_dict(state, assign=True)
    with pytest.raises(Unprotected, match="added or replaced"):
        guarded.step(guarded.draw())


def test_the_precision_can_change_between_steps():
    guarded = Guarded()
    guarded.net.double()
    inputs, answers = drawn = guarded.draw()
    guarded.step((inputs.double(), answers))
    assert same(guarded.released(), guarded.expected(drawn))
    assert guarded.net[0].weight.dtype == torch.float64


# Steps


class Twice(torch.optim.SGD):
    """An optimizer whose hooks run for its own step and for the one that it calls."""

    def step(self, closure=None):
        self.calls = getattr(self, "calls", 0) + 1
        return super().step(closure)


class Breaking(torch.optim.SGD):
    breaks = True

    def step(self, closure=None):
        if self.breaks:
            raise KeyError("half-way")
        return super().step(closure)


def test_a_step_that_calls_its_parent_s_step_counts_once():
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # so that the parent class has its hooks too
    guarded = Guarded(optimizer=Twice, sigma=2.0, net=nn.Linear(200, 200))
    guarded.optimizer.step()
    assert guarded.steps() == 1
    assert float(guarded.released().std()) == pytest.approx(2.0 * BOUND, rel=0.03)
    guarded.optimizer.step()
    assert guarded.steps() == 2


def test_repeating_a_failed_step_uses_the_released_gradient():
    guarded = Guarded(optimizer=Breaking, sigma=2.0)
    drawn = guarded.draw()
    with pytest.raises(KeyError):
        guarded.step(drawn)
    assert guarded.steps() == 1
    released = [parameter.grad.clone() for parameter in guarded.net.parameters()]
    guarded.optimizer.breaks = False
    guarded.optimizer.step()
    assert guarded.steps() == 1, "what was released and counted is used, and nothing new"
    assert same(guarded.released(), torch.cat([one.flatten() for one in released]))
    start = weights(guarded.net)
    guarded.step(guarded.draw())
    assert guarded.steps() == 2
    assert float((start - weights(guarded.net)).std()) > 0.3, "with noise again"


def closure_of(guarded: Guarded, drawn):
    def closure():
        guarded.optimizer.zero_grad()
        loss = guarded.loss(drawn)
        loss.backward()
        return loss

    return closure


def test_a_gradient_outside_the_layers_is_refused_after_a_step_that_failed():
    guarded = Guarded(optimizer=Breaking)
    drawn = guarded.draw()
    with pytest.raises(KeyError):
        guarded.step(drawn)
    (guarded.net[0].weight * drawn[0][0]).sum().backward()
    guarded.optimizer.breaks = False
    with pytest.raises(Unprotected, match=r"0\.weight"):
        guarded.optimizer.step()
    assert unmoved(guarded)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_is_run_once_before_the_noise(by_name):
    guarded = Guarded(sigma=SIGMA)
    drawn = guarded.draw()
    closure = closure_of(guarded, drawn)
    answer = guarded.optimizer.step(closure=closure) if by_name else guarded.optimizer.step(closure)
    assert float(answer.detach()) > 0
    assert guarded.steps() == 1
    assert same(guarded.released(), guarded.expected(drawn))


def test_an_optimizer_that_calls_its_closure_again_is_refused():
    guarded = Guarded(optimizer=torch.optim.LBFGS)
    drawn = guarded.draw()
    closure = closure_of(guarded, drawn)
    with pytest.raises(Unprotected, match="several times per step"):
        guarded.optimizer.step(closure)
    assert guarded.steps() == 1


class Sharpness(torch.optim.SGD):
    """An optimizer that climbs first, by gradients of the first of two passes over the same batch."""

    def climb(self) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        torch.stack([grad.norm() for grad in grads]).norm()


def test_two_step_optimizers_get_no_gradient():
    guarded = Guarded(optimizer=Sharpness)
    drawn = guarded.draw()
    guarded.loss(drawn).backward()
    with pytest.raises(AttributeError):
        guarded.optimizer.climb()
    with pytest.raises(Unprotected, match="twice"):
        guarded.loss(drawn).backward()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {"centered": True}),
    ],
)
def test_all_kinds_of_steps_are_counted_once(kind, options):
    guarded = Guarded(optimizer=lambda params, lr: kind(params, lr=0.01, **options))
    for _ in range(3):
        guarded.step(guarded.draw())
    assert guarded.steps() == 3
    assert bool(torch.isfinite(weights(guarded.net)).all())


def test_step_hooks_of_the_user_see_only_what_is_released():
    guarded = Guarded()
    seen = []
    first = register_optimizer_step_pre_hook(lambda *_: seen.append(guarded.net[0].weight.grad))
    guarded.optimizer.register_step_pre_hook(lambda *_: seen.append(guarded.net[0].weight.grad.clone()))
    try:
        guarded.step(guarded.draw())
    finally:
        first.remove()
    assert seen[0] is None
    assert torch.equal(seen[1], guarded.net[0].weight.grad)


def test_nothing_is_released_if_the_ledger_can_t_count(monkeypatch):
    guarded = Guarded()
    drawn = guarded.draw()
    guarded.loss(drawn).backward()

    def full(*figures: float) -> None:
        raise BadSetting("the disk is full")

    monkeypatch.setattr(guarded.engine.ledger, "spend", full)
    with pytest.raises(BadSetting):
        guarded.optimizer.step()
    assert unmoved(guarded)
    assert all(parameter.grad is None for parameter in guarded.net.parameters())
    monkeypatch.undo()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


def test_nothing_is_released_if_the_noise_fails(monkeypatch):
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward()

    def fail(*figures: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(guarded.engine._training._noise, "release_", fail)
        with pytest.raises(KeyboardInterrupt):
            guarded.optimizer.step()
    guarded.optimizer.step()
    assert unmoved(guarded)
    assert guarded.steps() == 2


def test_release_undoes_all_changes():
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward()
    guarded.engine.release()
    assert "zero_grad" not in vars(guarded.net)
    assert "zero_grad" not in vars(guarded.optimizer)
    guarded.loss(batch()).backward()
    (guarded.net[0].weight.square().sum()).backward()
    guarded.optimizer.step()
    assert guarded.net[0].weight.grad is not None
    assert guarded.steps() == 0


def test_copies_of_network_and_optimizer_have_their_own_zero_grad():
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward()
    other = copy.deepcopy(guarded.net)
    other.zero_grad()
    copy.deepcopy(guarded.optimizer).zero_grad()
    guarded.optimizer.step()
    assert float(guarded.released().norm()) > 0, "the copies' calls didn't count here"


def test_states_of_network_and_optimizer_can_be_saved():
    guarded = Guarded()
    guarded.step(guarded.draw())
    torch.save([guarded.net.state_dict(), guarded.optimizer.state_dict()], io.BytesIO())


def test_a_plain_network_is_not_affected():
    plain = network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    functional.cross_entropy(plain(batch()[0]), batch()[1]).backward()
    optimizer.step()
    assert plain[0].weight.grad is not None
