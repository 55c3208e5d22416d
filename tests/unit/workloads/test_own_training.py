"""Tests of own_training: what the user's function may return, and the messages for everything else."""

import itertools

import pytest
import torch

from rigdyno.contracts import CannotRun, WorkerPlace
from rigdyno.updates.plain import Plain
from rigdyno.workloads.own_training import OwnTraining

HERE = WorkerPlace(device="cpu")
HEAD = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def parts(batch_size=8):
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    data = TensorDataset(torch.randn(50, 6), torch.randint(3, (50,)))
    return model, torch.nn.functional.cross_entropy, optimizer, data
"""
GIVEN = {
    "a data set": "return parts()",
    "a loader": "*rest, data = parts()\n    return *rest, DataLoader(data, batch_size=4)",
    "tensors": "*rest, data = parts()\n    return *rest, data.tensors",
}


def built(tmp_path, body, parameters="batch_size=8", batch_size=8):
    file = tmp_path / "train.py"
    file.write_text(f"{HEAD}\ndef training({parameters}):\n    {body}\n")
    return OwnTraining(file=str(file), batch_size=batch_size).build(HERE)


@pytest.mark.parametrize("body", GIVEN.values(), ids=GIVEN)
def test_a_data_set_is_accepted_in_any_form(tmp_path, body):
    training = built(tmp_path, body, batch_size=16)
    assert (training.samples.count, training.samples.batch_size) == (50, 16)
    assert training.settled == {"parameters": 21, "samples": 50}
    assert [len(targets) for _, targets in itertools.islice(training.batches, 4)] == [16, 16, 16, 2]
    inputs, targets = training.samples.pick([])
    assert (inputs.shape, targets.shape) == ((0, 6), (0,))
    step = Plain().prepare(training, HERE, None)
    assert float(step(*next(training.batches))) > 0


def test_the_function_may_take_no_batch_size(tmp_path):
    training = built(tmp_path, "return parts()", parameters="", batch_size=20)
    assert training.samples.batch_size == 20


def test_batches_without_a_data_set_have_no_samples(tmp_path):
    body = "*rest, data = parts()\n    return *rest, [(data.tensors[0][:5], data.tensors[1][:5])]"
    training = built(tmp_path, body)
    assert training.samples is None
    assert [len(targets) for _, targets in itertools.islice(training.batches, 3)] == [5, 5, 5]


def test_an_optimizer_is_kept_or_remade_for_other_parameters(tmp_path):
    training = built(tmp_path, "return parts()")
    own = training.optimizer(training.model.parameters())
    assert own is training.optimizer(training.model.parameters())
    other = training.optimizer([torch.nn.Parameter(torch.ones(2))])
    assert other is not own
    assert (type(other), other.defaults["lr"], other.defaults["momentum"]) == (torch.optim.SGD, 0.25, 0.5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", "returned a value of type NoneType"),
        ("return parts()[:3]", r"returned \(Linear, function, SGD\)"),
        ("return 1, 2, 3, 4", r"returned \(int, int, int, int\)"),
        ("model, loss, *rest = parts()\n    return model, 0.5, *rest", "the loss isn't a function"),
        ("model, loss, _, data = parts()\n    return model, loss, 'sgd', data", "the third value isn't an optimizer"),
        ("*rest, data = parts()\n    return *rest, 5", "the batches can't be iterated"),
        ("*rest, data = parts()\n    return *rest, iter([])", "the batches came to an end"),
    ],
)
def test_a_wrong_return_value_is_refused_in_one_line(tmp_path, body, words):
    with pytest.raises(CannotRun, match=words) as error:
        built(tmp_path, body)
    assert "\n" not in str(error.value)


def test_a_batch_larger_than_the_data_set_is_refused(tmp_path):
    with pytest.raises(CannotRun, match="batch_size 51 is more than the 50 samples"):
        built(tmp_path, "return parts()", batch_size=51)


def test_an_error_in_the_users_function_is_passed_on(tmp_path):
    with pytest.raises(TypeError, match="unsupported operand"):
        built(tmp_path, "return 1 + 'a'")


def test_own_training_without_a_file_is_refused():
    assert "needs a file" in OwnTraining().refuses(None, "cpu")
    assert "no file" in OwnTraining(file="nowhere.py").refuses(None, "cpu")
