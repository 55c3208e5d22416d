"""Tests of the plain update against the same step written by hand."""

import copy

import torch

from rigdyno.contracts import Training, WorkerPlace
from rigdyno.updates.plain import Plain


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def training(model):
    return Training(model=model, loss=torch.nn.functional.cross_entropy, optimizer=sgd, batches=iter(()))


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(5, 6, generator=generator), torch.randint(0, 3, (5,), generator=generator)) for _ in range(count)
    ]


class Ranks:
    """Simulates the sum over ranks that all have the same gradients."""

    def __init__(self, world_size):
        self.world_size, self.calls = world_size, 0

    def sum(self, tensors):
        self.calls += 1
        for tensor in tensors:
            tensor.mul_(self.world_size)

    def agree(self, number):
        return number


def by_hand(model, data):
    optimizer, losses = sgd(model.parameters()), []
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_plain_equals_the_step_written_by_hand():
    ours, theirs, data = network(), network(), batches(7)
    step = Plain().prepare(training(ours), WorkerPlace(device="cpu"), Ranks(1))
    losses = [step(*batch) for batch in data]
    assert [loss.item() for loss in losses] == by_hand(theirs, data)
    assert not any(loss.requires_grad for loss in losses)  # or every kept loss would keep its graph
    assert same(ours, theirs)


def test_one_rank_sums_nothing():
    ranks = Ranks(1)
    step = Plain().prepare(training(network()), WorkerPlace(device="cpu"), ranks)
    step(*batches(1)[0])
    assert ranks.calls == 0


def test_ranks_average_their_gradients():
    alone, shared, data = network(), network(), batches(4)
    ranks = Ranks(4)  # a power of two: multiplying and dividing by it is exact
    step = Plain().prepare(training(shared), WorkerPlace(device="cpu", world_size=4), ranks)
    for batch in data:
        step(*batch)
    by_hand(alone, data)
    assert ranks.calls == 4
    assert same(alone, shared)


def test_frozen_parameters_do_not_change():
    model = network()
    model[0].weight.requires_grad_(False)
    before = copy.deepcopy(model[0].weight)
    step = Plain().prepare(training(model), WorkerPlace(device="cpu", world_size=2), Ranks(2))
    step(*batches(1)[0])
    assert torch.equal(model[0].weight, before)
