"""Private updates in real processes: a run, a duel of two engines, and a refusal that only the built network tells."""

import struct

import numpy as np
import pytest

from driving import here, only_run, records, rigdyno
from rigdyno.engines.dp import Spent, epsilon
from rigdyno.plan import duel as plan_duel
from rigdyno.schema.record import Completed, Skipped

BATCH_SIZE, IMAGES = 16, 640
SMALL = ("--set", "data=images", "--set", f"batch_size={BATCH_SIZE}")


@pytest.fixture
def place(tmp_path):
    """A folder with a few images as MNIST has them: made-up ones of full size take longer than all else."""
    (tmp_path / "images").mkdir()
    chance = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        for name, shape, values in (("images-idx3", (IMAGES, 28, 28), 256), ("labels-idx1", (IMAGES,), 10)):
            header = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
            data = chance.integers(0, values, shape, dtype=np.uint8).tobytes()
            (tmp_path / "images" / f"{prefix}-{name}-ubyte").write_bytes(header + data)
    return tmp_path


def test_a_private_run_says_what_it_spent(place):
    options = ("--update", "dp_fast", "--set", "update.noise_multiplier=1.5", "--steps", "20")
    answer = rigdyno("run", "mnist_cnn", *SMALL, *options, cwd=place)
    assert answer.returncode == 0, answer.stderr
    (cell,) = only_run(place).cells([])
    assert cell.record.spec.options["update.noise_multiplier"] == 1.5
    quality = cell.record.outcome.quality
    assert quality.loss_finite is True
    steps = sum(int(rows["steps"].sum()) for _, rows in cell.steps())  # warm-up included
    assert quality.epsilon == epsilon([Spent(1.5, BATCH_SIZE / IMAGES, steps)], 1e-5).epsilon
    assert "update dp_fast, data=images, batch_size=16, update.noise_multiplier=1.5" in answer.stdout
    assert f"mnist_cnn: epsilon {quality.epsilon:.3g} at delta 1e-05" in answer.stdout


def test_a_duel_of_two_engines(place, monkeypatch):
    monkeypatch.setattr(plan_duel, "FEWEST_PAIRS", 1)  # it decides nothing, and takes a quarter of the time
    arms = ("--a", "update=dp_fast", "--b", "update=dp_opacus")
    answer = here("duel", "mnist_cnn", *SMALL, *arms, "--budget", "8s", cwd=place)
    assert answer.returncode == 0, answer.stderr
    assert "update=dp_fast against update=dp_opacus" in answer.stdout
    found = records(only_run(place))
    assert {record.spec.update for record in found} == {"dp_fast", "dp_opacus"}
    assert [type(record.outcome) for record in found] == [Completed] * len(found)
    spent = [record.outcome.quality.epsilon for record in found if record.pair == 1]
    assert spent[0] == pytest.approx(spent[1], abs=0.05)  # as many steps of the same sampling and noise


def test_what_mixes_samples_is_skipped_with_what_to_try(tmp_path):
    small = ("--set", "image_size=32", "--set", "batch_size=2", "--launcher", "inline", "--steps", "20")
    answer = here("run", "resnet50", "--update", "dp_fast", *small, cwd=tmp_path)
    assert answer.returncode == 3
    assert "Traceback" not in answer.stdout + answer.stderr
    (record,) = records(only_run(tmp_path))
    assert isinstance(record.outcome, Skipped)
    assert record.outcome.reason.startswith("bn1 (BatchNorm2d): a sample's output depends on the whole batch")
    assert record.outcome.reason.endswith("; here: --set update.group_norm=true")
