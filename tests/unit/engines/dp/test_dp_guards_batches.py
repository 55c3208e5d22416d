"""Each drawn batch can be used for one step; other batches are refused, and skipped batches count as spent."""

from __future__ import annotations

import gc

import pytest
import torch
from dp_guarded import BOUND, CLASSES, FEATURES, Guarded, batch, network, same
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import BadSetting, GivenBatches, PrivacyEngine, Unprotected, micro_batches

SAMPLES, BATCH = 200, 20


def poisson(workers: int = 0, **options):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(1), kernels=False)
    inputs, answers = batch(SAMPLES)
    loader = DataLoader(TensorDataset(inputs, answers), batch_size=BATCH, num_workers=workers, **options)
    made = engine.make_private(
        module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    return engine, *made


def train(net, optimizer, inputs, answers) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(net(inputs), answers).backward()
    optimizer.step()


def counted(engine: PrivacyEngine) -> int:
    return sum(run.steps for run in engine.ledger.spent)


@pytest.mark.parametrize("copied", [False, True])
def test_a_drawn_batch_can_be_used_for_one_step(copied):
    engine, net, optimizer, loader = poisson()
    inputs, answers = next(iter(loader))
    inputs = inputs * 1.0 if copied else inputs
    train(net, optimizer, inputs, answers)
    for _ in range(3):
        with pytest.raises(Unprotected, match=r"one step|no drawn batch is waiting"):
            train(net, optimizer, inputs, answers)
    assert counted(engine) == 1


def test_batches_of_another_loader_are_refused():
    engine, net, optimizer, loader = poisson()
    train(net, optimizer, *next(iter(loader)))
    foreign = DataLoader(TensorDataset(*batch(SAMPLES, seed=4)), batch_size=BATCH)
    for drawn in foreign:
        with pytest.raises(Unprotected, match="no drawn batch is waiting"):
            train(net, optimizer, *drawn)
    assert counted(engine) == 1


def test_training_without_a_drawn_batch_is_refused():
    _, net, optimizer, _ = poisson()
    with pytest.raises(Unprotected, match=r"waiting: none"):
        train(net, optimizer, *batch(BATCH))


def test_two_drawn_batches_are_not_added_up():
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward()
    second = guarded.draw()
    with pytest.raises(Unprotected, match=r"two drawn batches.*zero_grad"):
        guarded.loss(second).backward()


def test_a_skipped_batch_counts_as_spent():
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward()
    guarded.optimizer.zero_grad()
    drawn = guarded.draw()
    guarded.step(drawn)
    assert guarded.steps() == 2
    assert same(guarded.released(), guarded.expected(drawn))


def test_a_batch_skipped_by_the_module_s_zero_grad_counts_as_spent():
    guarded = Guarded()
    guarded.loss(guarded.draw()).backward()
    guarded.net.zero_grad()
    drawn = guarded.draw()
    guarded.loss(drawn).backward()
    guarded.optimizer.step()
    assert guarded.steps() == 2
    assert same(guarded.released(), guarded.expected(drawn))


def test_an_unused_batch_counts_as_spent_when_a_later_one_is_used():
    guarded = Guarded()
    for _ in range(2):
        guarded.draw()
    assert guarded.steps() == 0
    guarded.step(guarded.draw())
    assert guarded.steps() == 3


def test_only_the_last_attempt_of_a_batch_is_released():
    guarded = Guarded()
    inputs, answers = drawn = guarded.draw()
    (functional.cross_entropy(guarded.net(inputs), answers) * 100).backward()
    guarded.optimizer.zero_grad()
    guarded.loss(drawn).backward()
    guarded.optimizer.step()
    assert guarded.steps() == 1
    assert same(guarded.released(), guarded.expected(drawn))


@pytest.mark.parametrize("ahead", [1, 2])
def test_trainers_may_draw_ahead(ahead):
    """Each batch is trained on when the next `ahead` are drawn already, as Lightning and Hugging Face do."""
    guarded = Guarded(batches=[batch(8 + seed, seed) for seed in range(6)])
    waiting = [guarded.draw() for _ in range(ahead)]
    for _ in range(6 - ahead):
        waiting.append(guarded.draw())
        guarded.step(waiting.pop(0))
    assert guarded.steps() == 6 - ahead


def test_drawing_too_far_ahead_is_counted_and_explained():
    guarded = Guarded(ahead=1)
    first = guarded.draw()
    for _ in range(2):
        guarded.draw()
    assert guarded.steps() == 1, "the first is over"
    with pytest.raises(Unprotected, match="ahead"):
        guarded.step(first)


def test_a_batch_older_than_a_used_one_is_refused():
    guarded = Guarded()
    first, second = guarded.draw(), guarded.draw()
    guarded.step(second)
    with pytest.raises(Unprotected, match="this batch is over"):
        guarded.step(first)
    assert guarded.steps() == 2


def test_a_step_without_backward_counts_as_an_empty_batch():
    guarded = Guarded()
    guarded.optimizer.step()
    assert guarded.steps() == 1
    guarded.draw()
    guarded.optimizer.step()
    assert guarded.steps() == 2
    guarded.step(guarded.draw())
    assert guarded.steps() == 3, "nothing is counted twice"


def test_empty_batches_are_drawn_and_used_like_any_other():
    guarded = Guarded(batches=[batch(0), batch(4, seed=1), batch(0), batch(5, seed=2)])
    for _ in range(4):
        guarded.step(guarded.draw())
    assert guarded.steps() == 4


def test_empty_batches_that_a_loop_skips_count_too():
    guarded = Guarded(batches=[batch(0), batch(4, seed=1), batch(0), batch(5, seed=2)])
    for _ in range(4):
        drawn = guarded.draw()
        if len(drawn[0]):
            guarded.step(drawn)
    assert guarded.steps() == 4


# Pieces of a batch


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x * 1.0], ids=["views", "copies"])
def test_pieces_of_micro_batches_are_accepted(change):
    guarded = Guarded()
    drawn = guarded.draw()
    for inputs, answers in micro_batches(drawn, 3):
        guarded.loss((change(inputs), answers)).backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x * 1.0], ids=["views", "copies"])
def test_a_repeated_piece_is_refused(change):
    guarded = Guarded()
    pieces = micro_batches(guarded.draw(), 4)
    for inputs, answers in pieces:
        guarded.loss((change(inputs), answers)).backward()
    with pytest.raises(Unprotected, match=r"twice|no drawn batch"):
        guarded.loss((change(pieces[0][0]), pieces[0][1])).backward()


def test_pieces_with_different_rows_are_accepted():
    guarded = Guarded()
    inputs, answers = drawn = guarded.draw()
    for rows in (slice(0, 8, 2), slice(1, 8, 2)):
        guarded.loss((inputs[rows], answers[rows])).backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


def test_overlapping_pieces_are_refused():
    guarded = Guarded()
    inputs, answers = guarded.draw()
    guarded.loss((inputs[:5], answers[:5])).backward()
    with pytest.raises(Unprotected, match="twice in one step"):
        guarded.loss((inputs[4:], answers[4:])).backward()


def test_unknown_pieces_are_refused():
    """Two halves are copied and changed: the same half could come twice."""
    guarded = Guarded()
    inputs, answers = guarded.draw()
    with pytest.raises(Unprotected, match="micro_batches"):
        guarded.loss((inputs[:4] * 2.0, answers[:4])).backward()


def test_some_rows_of_a_batch_are_accepted():
    guarded = Guarded()
    inputs, answers = guarded.draw()
    guarded.step((inputs[2:5], answers[2:5]))
    assert same(guarded.released(), guarded.expected((inputs[2:5], answers[2:5])))


def test_one_row_repeated_is_refused():
    guarded = Guarded()
    inputs, answers = guarded.draw()
    with pytest.raises(Unprotected, match="one sample in several rows"):
        guarded.step((inputs[:1].expand(8, -1), answers))


def test_rows_of_two_samples_are_refused():
    """Rows that contain two samples each would be clipped as one."""
    net = torch.nn.Sequential(torch.nn.Linear(2 * FEATURES, CLASSES))
    guarded = Guarded(net=net)
    inputs, answers = guarded.draw()
    with pytest.raises(Unprotected, match="no drawn batch"):
        guarded.step((inputs.view(4, 2 * FEATURES), answers[:4]))


def test_batches_may_be_views_of_one_tensor():
    """Neighbours in memory are distinguished by their rows."""
    inputs, answers = batch(24)
    guarded = Guarded(batches=[(inputs[first : first + 8], answers[first : first + 8]) for first in (0, 8, 16)])
    first, second = guarded.draw(), guarded.draw()
    guarded.step(first)
    assert same(guarded.released(), guarded.expected(first))
    guarded.step(second)
    with pytest.raises(Unprotected, match="this batch is over"):
        guarded.step(second)
    assert guarded.steps() == 2


def test_the_same_tensors_drawn_again_are_a_new_batch():
    drawn = batch()
    guarded = Guarded(batches=[drawn] * 3)
    for _ in range(3):
        guarded.step(guarded.draw())
    assert guarded.steps() == 3


def test_inputs_that_are_not_from_the_batch_are_accepted_too():
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, CLASSES)

        def forward(self, scale, values):
            return self.layer(values) * scale

    guarded = Guarded(net=Two())
    inputs, answers = guarded.draw()
    functional.cross_entropy(guarded.net(torch.ones(8, 1), values=inputs), answers).backward()
    guarded.optimizer.step()
    assert guarded.steps() == 1


def test_reused_memory_is_not_taken_for_a_batch():
    """A drawn tensor that no longer exists doesn't identify what is in its memory now."""
    guarded = Guarded(batches=iter([batch(8, seed) for seed in range(3)]))
    drawn = guarded.draw()
    guarded.step(drawn)
    del drawn
    gc.collect()
    guarded.step(guarded.draw())
    assert guarded.steps() == 2


# Loaders


def test_a_loader_s_rate_and_expected_batch_are_read_only():
    _, _, _, loader = poisson()
    for owner in (loader, loader.batch_sampler, GivenBatches([], 1.0)):
        with pytest.raises(AttributeError):
            owner.sample_rate = 1e-6
    for owner in (loader, GivenBatches([], 1.0)):
        with pytest.raises(AttributeError):
            owner.expected_batch = 1e6


@pytest.mark.parametrize("workers", [0, 1])
def test_only_batches_handed_out_are_counted(workers):
    engine, net, optimizer, loader = poisson(workers, **({"persistent_workers": True} if workers else {}))
    for _ in range(2):
        for number, (inputs, answers) in enumerate(loader):
            train(net, optimizer, inputs, answers)
            if number == 3:
                break
    assert counted(engine) == 8, "what workers drew ahead was never handed out"


def test_two_iterators_can_be_used_at_once():
    engine, net, optimizer, loader = poisson()
    for one, other in zip(loader, loader, strict=True):
        train(net, optimizer, *one)
        train(net, optimizer, *other)
    assert counted(engine) == 2 * len(loader)


def test_a_private_loader_is_not_made_private_again():
    engine, net, optimizer, loader = poisson()
    engine.release()
    with pytest.raises(BadSetting, match="ordinary loader"):
        engine.make_private(
            module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
        )


def test_skipped_batches_are_counted_at_their_sample_rate():
    engine, net, optimizer, loader = poisson()
    *_, last = list(loader)
    train(net, optimizer, *last)
    assert [(run.noise_multiplier, run.sample_rate, run.steps) for run in engine.ledger.spent] == [(1.0, 0.1, 10)]


def test_no_step_is_longer_than_its_batch_allows():
    guarded = Guarded()
    drawn = guarded.draw()
    guarded.step(drawn)
    assert float(guarded.released().norm()) <= BOUND * len(drawn[0])
