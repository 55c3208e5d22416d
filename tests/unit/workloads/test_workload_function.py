"""Tests of a user's own step: importing it, passing arguments, counting items, and every error on the way."""

import sys

import numpy as np
import pytest

from rigdyno.base.errors import BadValue
from rigdyno.contracts import WorkerPlace
from rigdyno.workloads.common.user_function import Function


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write a user's file, and undo what importing it changes in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(text, name="train_of_test.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def built(file, function="step", **options):
    return Function(file=file, function=function, **options).build(WorkerPlace(device="cpu"))


def result_of(file, **options):
    return built(file, **options).kinds["step"]()


def test_a_function_that_returns_nothing_counts_steps(script):
    steps = built(script("def step():\n    pass\n"))
    assert list(steps.kinds) == ["step"]
    assert steps.kinds["step"]() is None
    assert steps.unit == "step"


def test_a_function_that_returns_a_number_counts_items(script):
    steps = built(script("def step(batch=4, *, scale=1):\n    return batch * scale\n"), unit="image")
    assert steps.unit == "image"
    assert steps.kinds["step"]() == 4
    file = script("def step(batch=4, *, scale=1):\n    return batch * scale\n")
    assert result_of(file, arguments={"batch": 8, "scale": 0.5}) == 4.0


def test_state_persists_between_steps(script):
    step = built(script("n = 0\ndef step():\n    global n\n    n += 1\n    return n\n")).kinds["step"]
    assert [step(), step(), step()] == [1, 2, 3]


def test_the_file_may_import_its_neighbours(script):
    script("ITEMS = 7\n", name="neighbour_of_test.py")
    assert result_of(script("from neighbour_of_test import ITEMS\ndef step():\n    return ITEMS\n")) == 7


def test_main_guarded_code_does_not_run(script):
    file = script("if __name__ == '__main__':\n    raise RuntimeError\ndef step():\n    return 1\n")
    assert result_of(file) == 1


def test_a_file_named_like_a_loaded_module_does_not_replace_it(script):
    known = sys.modules["json"] if "json" in sys.modules else __import__("json")
    assert result_of(script("def step():\n    return 2\n", name="json.py")) == 2
    assert sys.modules["json"] is known


def test_classes_of_the_file_can_find_their_module(script):
    file = script(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Batch:\n    n: int = 3\ndef step():\n    return Batch().n\n"
    )
    assert result_of(file) == 3


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(BadValue, match=r"no file '.*train.py'"):
        Function(file=str(tmp_path / "train.py"), function="step")


def test_a_missing_function_is_refused_with_a_suggestion(script):
    with pytest.raises(BadValue, match=r"no function named 'stp' in .*; did you mean 'step'\?"):
        built(script("from math import sqrt\ndef step(): pass\n"), "stp")
    with pytest.raises(BadValue, match=r"no function named 'train' in .*; there is step$"):
        built(script("from math import sqrt\ndef step(): pass\n"), "train")


def test_a_value_instead_of_a_function_is_refused(script):
    with pytest.raises(BadValue, match=r"'step' in .* isn't a function but a value of type int"):
        built(script("step = 5\n"))


def test_a_file_without_py_suffix_is_refused(script):
    with pytest.raises(BadValue, match=r"isn't a Python file"):
        built(script("def step(): pass\n", name="train.txt"))


def test_a_file_that_ends_the_program_is_refused(script):
    with pytest.raises(BadValue, match="ends the program when imported"):
        built(script("import sys\nsys.exit(0)\n"))


def test_a_missing_argument_is_refused(script):
    with pytest.raises(BadValue, match=r"needs an argument 'batch'; try --set batch=\.\.\."):
        built(script("def step(batch): pass\n"))
    with pytest.raises(BadValue, match="it can't be given by name"):
        built(script("def step(batch, /): pass\n"))


def test_an_unknown_argument_is_refused(script):
    with pytest.raises(BadValue, match=r"takes no argument 'bach'; did you mean 'batch'\?"):
        built(script("def step(batch=1): pass\n"), arguments={"bach": 2})
    assert result_of(script("def step(**rest):\n    return rest['n']\n"), arguments={"n": 5}) == 5


@pytest.mark.parametrize(("value", "items"), [(1, 1.0), (64, 64.0), (32.0, 32.0), (np.int64(3), 3.0)])
def test_whole_numbers_count_as_items(script, value, items):
    file = script("VALUE = None\ndef step():\n    return VALUE\n")
    steps = built(file)
    sys.modules["train_of_test"].VALUE = value
    assert steps.kinds["step"]() == items


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        ("True", "True"),
        ("-1", "-1"),
        ("0", "0"),
        ("0.123", r"0\.123"),
        ("2.5", r"2\.5"),
        ("__import__('numpy').float32(2.3)", ".*"),
        ("__import__('torch').tensor(2.3)", "a value of type Tensor"),
        ("__import__('torch').tensor(2.0)", "a value of type Tensor"),
        ("float('nan')", "nan"),
        ("float('inf')", "inf"),
        ("'64'", "'64'"),
        ("[1, 2]", "a value of type list"),
        ("1j", "a value of type complex"),
    ],
)
def test_other_return_values_are_refused(script, returned, named):
    with pytest.raises(BadValue, match=rf"step in .* returned {named}; a step returns how many items it processed"):
        result_of(script(f"def step():\n    return {returned}\n"))


def test_a_loss_is_refused_at_the_first_fraction(script):
    steps = built(script("LOSSES = iter([2.0, 1.0, 0.7])\ndef step():\n    return next(LOSSES)\n"))
    step = steps.kinds["step"]
    assert (step(), step()) == (2.0, 1.0)
    with pytest.raises(BadValue, match="never a loss"):
        step()


@pytest.mark.parametrize("returned", ["[None, 8]", "[8, None]"])
def test_counting_only_some_steps_is_refused(script, returned):
    step = built(script(f"COUNTS = iter({returned})\ndef step():\n    return next(COUNTS)\n")).kinds["step"]
    step()
    with pytest.raises(BadValue, match="at one step and nothing at another"):
        step()


@pytest.mark.parametrize(("returned", "counts"), [("1", True), ("8", True), ("None", False)])
def test_counts_is_known_after_the_first_step(script, returned, counts):
    steps = built(script(f"def step():\n    return {returned}\n"))
    steps.kinds["step"]()
    assert steps.counts() is counts


def test_a_unit_must_be_named(script):
    with pytest.raises(BadValue, match="unit must name what is counted"):
        Function(file=script(""), function="step", unit=" ")


def test_an_error_inside_the_function_is_passed_on(script):
    with pytest.raises(ZeroDivisionError):
        result_of(script("def step():\n    return 1 / 0\n"))
