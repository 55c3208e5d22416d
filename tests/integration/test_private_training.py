"""Test private updates in real processes: a run, a duel of two engines, and a network that is rejected when built."""

import struct

import numpy as np
import pytest

from driving import here, only_run, records, rigdyno
from rigdyno.engines.dp import Spent, epsilon
from rigdyno.features.duel import plan as plan_duel
from rigdyno.schema.record import Completed, Skipped

BATCH_SIZE, IMAGES = 16, 640
SMALL = ("--set", "data=images", "--set", f"batch_size={BATCH_SIZE}")


@pytest.fixture
def data_folder(tmp_path):
    """Return a folder with a few images in the format of MNIST: synthetic data of full size takes too long."""
    (tmp_path / "images").mkdir()
    chance = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        for name, shape, values in (("images-idx3", (IMAGES, 28, 28), 256), ("labels-idx1", (IMAGES,), 10)):
            header = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
            data = chance.integers(0, values, shape, dtype=np.uint8).tobytes()
            (tmp_path / "images" / f"{prefix}-{name}-ubyte").write_bytes(header + data)
    return tmp_path


def test_a_private_run_reports_its_epsilon(data_folder):
    options = ("--update", "dp_fast", "--set", "update.noise_multiplier=1.5", "--steps", "20")
    answer = rigdyno("run", "mnist_cnn", *SMALL, *options, cwd=data_folder)
    assert answer.returncode == 0, answer.stderr
    (cell,) = only_run(data_folder).cells([])
    assert cell.record.spec.options["update.noise_multiplier"] == 1.5
    quality = cell.record.outcome.quality
    assert quality.loss_finite is True
    steps = sum(int(rows["steps"].sum()) for _, rows in cell.steps())  # warm-up included
    assert quality.epsilon == epsilon([Spent(1.5, BATCH_SIZE / IMAGES, steps)], 1e-5).epsilon
    assert "update dp_fast, data=images, batch_size=16, update.noise_multiplier=1.5" in answer.stdout
    assert f"mnist_cnn: epsilon {quality.epsilon:.3g} at delta 1e-05" in answer.stdout


def test_two_private_engines_duel(data_folder, monkeypatch):
    monkeypatch.setattr(plan_duel, "FEWEST_PAIRS", 1)  # decides nothing, but takes a quarter of the time
    arms = ("--a", "update=dp_fast", "--b", "update=dp_opacus")
    answer = here("duel", "mnist_cnn", *SMALL, *arms, "--budget", "8s", cwd=data_folder)
    assert answer.returncode == 0, answer.stderr
    assert "update=dp_fast against update=dp_opacus" in answer.stdout
    found = records(only_run(data_folder))
    assert {record.spec.update for record in found} == {"dp_fast", "dp_opacus"}
    assert [type(record.outcome) for record in found] == [Completed] * len(found)
    spent = [record.outcome.quality.epsilon for record in found if record.pair == 1]
    assert spent[0] == pytest.approx(spent[1], abs=0.05)  # similar steps, with the same sampling rate and noise


def test_a_network_that_mixes_samples_is_skipped_with_advice(tmp_path):
    small = ("--set", "image_size=32", "--set", "batch_size=2", "--launcher", "inline", "--steps", "20")
    answer = here("run", "resnet50", "--update", "dp_fast", *small, cwd=tmp_path)
    assert answer.returncode == 3
    assert "Traceback" not in answer.stdout + answer.stderr
    (record,) = records(only_run(tmp_path))
    assert isinstance(record.outcome, Skipped)
    assert record.outcome.reason.startswith("bn1 (BatchNorm2d): a sample's output depends on the whole batch")
    assert record.outcome.reason.endswith("; here: --set update.group_norm=true")
