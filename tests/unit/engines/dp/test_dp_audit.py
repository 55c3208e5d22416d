"""Audit a textbook DP-SGD: it is not refuted when it is correct, and refuted for each planted fault.

The claims come from independent formulas (dp_oracle).
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from dp_oracle import gaussian_epsilon, pld_epsilon
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from rigdyno.engines.dp.audit import audit
from rigdyno.engines.dp.audit.betting import most_showable
from rigdyno.engines.dp.audit.runs import AuditTask, Traces, record_releases
from rigdyno.engines.dp.audit.verdict import CURVE_DELTAS, ClaimPoint, parse_claim
from rigdyno.engines.dp.errors import BadSetting

TASK = AuditTask(canaries=16)
DELTA = 1e-3
MICRO_BATCHES = 16  # of one sample each
LAST_LAYER = slice(-2 * TASK.canaries, None)


@functools.cache
def claim_of(sigma, rate, steps, delta):
    return gaussian_epsilon(sigma, steps, delta) if rate == 1 else pld_epsilon([(sigma, rate, steps)], delta)


@dataclass(frozen=True)
class Textbook:
    """DP-SGD as in Abadi et al. (2016), optionally with one of the faults."""

    sigma: float = 1.0
    rate: float = 1.0
    steps: int = 1
    bound: float = 1.0
    learning_rate: float = 0.1
    fault: str = ""

    def claim(self, delta):
        return claim_of(self.sigma, self.rate, self.steps, delta)

    def __call__(self, model, dataset, seed):
        random = torch.Generator().manual_seed(seed)
        inputs, labels = dataset.tensors
        taking = 1.0 if self.fault == "wrong rate" else self.rate
        for _ in range(self.steps):
            taken = torch.rand(len(inputs), generator=random) < taking
            gradients = per_sample_gradients(model, inputs[taken], labels[taken])
            self.update(model, self.private_mean(gradients, random))

    def private_mean(self, gradients, random):
        expected = self.rate * TASK.samples
        noise = self.sigma * self.bound * torch.randn(gradients.shape[1], generator=random)
        if self.fault == "no noise":
            noise = 0 * noise
        if self.fault == "micro-batches":
            small = torch.randn(MICRO_BATCHES, gradients.shape[1], generator=random)
            noise = (self.sigma * self.bound / MICRO_BATCHES * small).sum(0)
        if self.fault == "last layer without noise":
            noise[LAST_LAYER] = 0
        if self.fault == "mean first":
            mean = gradients.sum(0, keepdim=True) / expected
            return clipped(mean, self.bound).sum(0) + noise / expected
        return (clipped(gradients, self.bound).sum(0) + noise) / expected

    def update(self, model, gradient):
        parameters = list(model.parameters())
        parts = (self.learning_rate * gradient).split([parameter.numel() for parameter in parameters])
        with torch.no_grad():
            for parameter, part in zip(parameters, parts, strict=True):
                parameter -= part.view_as(parameter)


def clipped(gradients, bound):
    norms = gradients.norm(dim=1, keepdim=True)
    return gradients * (bound / norms.clamp_min(1e-12)).clamp_max(1)


@torch.no_grad()
def per_sample_gradients(model, inputs, labels):
    """Return the gradients in closed form: one row for each sample, in the order of the parameters."""
    first, _, second = model
    hidden = first(inputs).relu()
    at_output = second(hidden).softmax(1) - one_hot(labels, second.out_features)
    at_hidden = (at_output @ second.weight) * (hidden > 0)
    parts = at_hidden.unsqueeze(2) * inputs.unsqueeze(1), at_output.unsqueeze(2) * hidden.unsqueeze(1)
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def audited(engine, claimed=2.0, delta=DELTA, runs=300, task=TASK, **settings):
    found = audit(engine, claimed=claimed, delta=delta, task=task, runs=runs, **settings)
    print(f"{engine}\n{found}")
    return found


class TestEngines:
    def test_textbook_gradients_are_those_of_autograd(self):
        model, (inputs, labels) = TASK.model(), TASK.canary_batch()
        one_by_one = [
            torch.autograd.grad(cross_entropy(model(x[None]), y[None]), list(model.parameters()))
            for x, y in zip(inputs, labels, strict=True)
        ]
        expected = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in one_by_one])
        torch.testing.assert_close(per_sample_gradients(model, inputs, labels), expected)

    @pytest.mark.parametrize("layers", [1, 2])
    def test_canaries_are_orthogonal_and_long_and_the_others_contribute_nothing(self, layers):
        task = AuditTask(canaries=5, layers=layers)
        model, (inputs, labels) = task.model(), task.canary_batch()
        for included, expected in ((torch.eye(5, dtype=torch.bool)[2], 1), (torch.zeros(5, dtype=torch.bool), 0)):
            rows = task.dataset(included).tensors[0]
            assert int((rows != 0).sum()) == expected
        gradients = torch.stack([_gradient(model, x, y) for x, y in zip(inputs, labels, strict=True)])
        between = gradients @ gradients.T
        assert torch.equal(between, torch.diag(between.diagonal()))
        assert bool((gradients.norm(dim=1) > 100).all())
        assert not _gradient(model, torch.zeros(5), labels[0]).any()

    @pytest.mark.parametrize(
        "engine",
        [Textbook(sigma=0.7), Textbook(sigma=1.0, rate=0.5, steps=2), Textbook(sigma=0.6, rate=0.25, steps=2)],
    )
    def test_a_correct_engine_is_not_refuted(self, engine):
        """A correct engine is refuted with a probability of at most 5 %; the seeds are fixed."""
        found = audited(engine, engine.claim, runs=150)
        assert found.holds
        assert found.lower_bound <= engine.claim(DELTA)
        assert "not refuted" in str(found)

    @pytest.mark.parametrize(
        "engine",
        [
            Textbook(fault="no noise"),
            Textbook(fault="mean first"),
            Textbook(fault="micro-batches"),
            Textbook(fault="wrong rate", rate=0.25, steps=2),
            Textbook(fault="last layer without noise"),
        ],
        ids=lambda engine: engine.fault,
    )
    def test_planted_faults_are_refuted(self, engine):
        found = audited(engine, engine.claim)
        assert found.refuted(0.999)
        assert found.runs < 300
        assert "is WRONG: refuted with 99.9 % confidence by betting on" in str(found)

    def test_a_claim_of_a_single_number_is_refuted(self):
        engine = Textbook(sigma=2.0, fault="no noise")
        found = audited(engine, engine.claim(DELTA))
        assert not found.holds
        assert found.lower_bound >= found.claimed

    def test_one_run_refutes_a_wrong_claim_and_not_a_right_one(self):
        task = AuditTask(canaries=400, layers=1)

        def engine(sigma):
            return functools.partial(noisy_sum, sigma=sigma)

        right = audited(engine(2.0), claim_of(2.0, 1, 1, 1e-6), 1e-6, runs=1, task=task)
        wrong = audited(engine(0.2), claim_of(2.0, 1, 1, 1e-6), 1e-6, runs=1, task=task)
        assert right.holds
        assert (right.runs, right.canaries) == (1, 400)
        assert wrong.refuted(0.999)
        assert wrong.claimed < wrong.lower_bound <= wrong.most_showable
        assert "guessing the 400 canaries of one run" in str(wrong)


def noisy_sum(model, dataset, seed, sigma):
    """Make one step of the Gaussian mechanism on a single layer, along the canaries' own directions."""
    random = torch.Generator().manual_seed(seed)
    present = (dataset.tensors[0].diagonal() != 0) * math.sqrt(0.5)
    with torch.no_grad():
        model[0].weight -= torch.stack((present, -present)) + sigma * torch.randn(2, len(present), generator=random)


def _gradient(model, x, y):
    parts = torch.autograd.grad(cross_entropy(model(x[None]), y[None]), list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


class TestWatch:
    def test_every_step_of_any_optimizer_is_recorded(self):
        model, other = TASK.model(), nn.Linear(2, 2)
        with record_releases(model) as snapshots:
            for network in (model, other, model):
                optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
                for parameter in network.parameters():
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        assert len(snapshots) == 2
        assert torch.equal(snapshots[0] - snapshots[1], torch.ones_like(snapshots[0]))

    def test_traces_are_steps_along_a_canarys_gradient(self):
        traces, model = Traces(TASK), TASK.model()
        start = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        direction = nn.functional.normalize(per_sample_gradients(model, *TASK.canary_batch()), dim=1)[3]
        torch.nn.utils.vector_to_parameters(start - 0.5 * direction, model.parameters())
        found = traces.score(model, [start - 0.3 * direction, start])
        expected = np.zeros((2, TASK.canaries))
        expected[:, 3] = 0.5, 0.3
        np.testing.assert_allclose(found[[2, 5]], expected, atol=1e-5)
        assert traces.names[2] == "a canary's trace in all parameters"
        np.testing.assert_allclose(found[0, 3] ** 2 + found[1, 3] ** 2, 0.25, atol=1e-5)


class TestClaim:
    def test_a_number_is_one_point(self):
        assert parse_claim(3, 1e-5) == [ClaimPoint(3.0, 1e-5)]

    def test_a_curve_is_evaluated_at_several_deltas(self):
        points = parse_claim(lambda delta: max(0.0, 0.3 - delta), 1e-5)
        assert points[0].delta == 1e-5
        assert [point.delta for point in points[1:]] == [
            0.01,
            0.05,
            0.2,
            0.4,
        ]  # the point at 0.6 follows from that at 0.4
        assert len(CURVE_DELTAS) == 5

    @pytest.mark.parametrize("claimed", [-1.0, math.nan, math.inf, True, "2", lambda delta: None])
    def test_an_invalid_epsilon_is_refused(self, claimed):
        with pytest.raises(BadSetting, match="a claimed epsilon is a finite number, not negative; at delta"):
            parse_claim(claimed, DELTA)


def shifting(model, dataset, seed):
    """Stand for a fast engine: the canaries' own weights move by an amount from the seed, and more if they are in."""
    present = (dataset.tensors[0].diagonal() != 0).float()
    with torch.no_grad():
        noise = torch.randn(len(present), generator=torch.Generator().manual_seed(seed))
        model[0].weight.diagonal().sub_(present + noise)


class TestAudit:
    def test_the_result_reports_the_runs_and_the_largest_showable_epsilon(self):
        found = audited(shifting, 3.0)
        assert found.holds
        assert (found.runs, found.canaries) == (300, 16)
        assert found.most_showable == pytest.approx(most_showable(300, DELTA, 0.95))
        assert "not refuted by betting on 300 runs of 16 canaries" in str(found)
        assert f"at most {found.most_showable:.2f} could be shown" in str(found)
        assert "\n" not in str(found)

    def test_equal_seeds_give_equal_results(self):
        first, again, other = (audited(shifting, 1.0, runs=100, seed=seed) for seed in (5, 5, 6))
        assert first == again != other

    def test_a_returned_model_is_audited(self):
        def train(model, dataset, seed):
            trained = TASK.model()
            shifting(trained, dataset, seed)
            return nn.Sequential(trained)  # wrapped, as engines do

        assert audited(train, runs=100) == audited(shifting, runs=100)

    def test_identical_runs_are_reported(self):
        def train(model, dataset, seed):
            shifting(model, dataset, 0)

        found = audited(train, runs=100)
        assert found.deterministic
        assert "uses the same seed" in str(found)

    def test_progress_is_reported_and_the_random_state_is_restored(self):
        reported, before = [], torch.random.get_rng_state()
        audited(shifting, 1.0, runs=50, progress=lambda *seen: reported.append(seen))
        assert [seen[:2] for seen in reported] == [(run, 50) for run in range(1, 51)]
        values = [seen[2] for seen in reported]
        assert values == sorted(values, reverse=True)
        assert torch.equal(before, torch.random.get_rng_state())

    def test_progress_may_stop_the_audit(self):
        whole = audited(shifting, 0.0, 0.1)
        stopped = audited(shifting, 0.0, 0.1, progress=lambda done, total, p_value: p_value <= 0.05)
        assert 0.001 < stopped.p_value <= 0.05
        assert stopped.runs < whole.runs < 300
        assert "refuted with 95 % confidence" in str(stopped)

    def test_an_audit_stopped_early_shows_nothing(self):
        found = audited(shifting, progress=lambda done, total, p_value: done == 3)
        assert (found.runs, found.p_value, found.lower_bound, found.most_showable) == (3, 1, 0, 0)
        assert "No event was worth a bet." in str(found)

    def test_runs_have_the_same_start_and_different_seeds_and_coins(self):
        seeds, weights, present = [], [], []

        def train(model, dataset, seed):
            seeds.append(seed)
            present.append(dataset.tensors[0].diagonal() != 0)
            weights.append([parameter.clone() for parameter in model.parameters()])
            shifting(model, dataset, seed)

        audited(train, 1.0, runs=50)
        assert len(set(seeds)) == 50
        assert all(len(each) == TASK.samples for each in present)
        assert 0.4 < torch.stack(present).float().mean() < 0.6
        assert len({tuple(each.tolist()) for each in present}) == 50
        assert all(torch.equal(*pair) for pair in zip(weights[0], weights[-1], strict=True))

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"claimed": math.nan}, "not negative"),
            ({"delta": -0.1}, "delta"),
            ({"delta": 1.0}, "delta"),
            ({"confidence": 1.0}, "confidence"),
            ({"runs": 10}, "too few"),
            ({"runs": True}, "too few"),
            ({"claimed": 6.0}, "1000 runs can show an epsilon of 5.*and 6 is claimed at delta 0.001; try 25.. runs"),
            ({"claimed": 1e4}, "try inf runs"),
            ({"runs": 1, "task": AuditTask(canaries=1)}, "one run of 1 canaries"),
            ({"runs": 1, "claimed": 9.0}, "2000 canaries can show an epsilon of 1.29 at most, and 9 is claimed"),
        ],
    )
    def test_invalid_settings_are_reported_in_one_line(self, settings, said):
        with pytest.raises(BadSetting, match=said) as refusal:
            audit(shifting, **{"claimed": 1.0, "delta": DELTA, **settings})
        assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize("size", ["canaries", "layers", "canary_size"])
    def test_invalid_sizes_are_refused(self, size):
        with pytest.raises(BadSetting, match=size):
            AuditTask(**{size: 0})

    def test_the_error_of_a_failed_engine_is_the_cause(self):
        def train(model, dataset, seed):
            raise ZeroDivisionError("no batch\nat all")

        with pytest.raises(BadSetting, match=r"engine failed: ZeroDivisionError: no batch$") as refusal:
            audited(train, 1.0)
        assert isinstance(refusal.value.__cause__, ZeroDivisionError)

    def test_control_c_is_not_reported_as_a_failure(self):
        def train(model, dataset, seed):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            audited(train, 1.0)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_weights_that_are_not_finite_are_refused(self, value):
        def train(model, dataset, seed):
            nn.init.constant_(model[2].weight, value)

        with pytest.raises(BadSetting, match="run 1 of the audit left weights that aren't finite"):
            audited(train, 1.0)

    def test_an_engine_that_trains_nothing_is_refused(self):
        with pytest.raises(BadSetting, match="left the model as it was"):
            audited(lambda model, dataset, seed: None, 1.0)

    def test_an_engine_that_returns_another_model_is_refused(self):
        with pytest.raises(BadSetting, match="has 6 weights"):
            audited(lambda model, dataset, seed: nn.Linear(2, 2), 1.0)
