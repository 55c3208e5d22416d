"""The auditor against a textbook DP-SGD: below the claim for the correct one, above it for each planted fault.

The claims come from formulas of their own: the exact curve of the Gaussian mechanism, and Renyi's divergence of the
subsampled one at whole orders, which is above the truth, so that a fault must exceed even that.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from rigdyno.engines.dp.audit import audit
from rigdyno.engines.dp.audit.bound import epsilon_of, epsilon_shown, most_showable, pairs_to_show
from rigdyno.engines.dp.audit.clopper_pearson import lower_rate, upper_rate
from rigdyno.engines.dp.audit.task import AuditTask
from rigdyno.engines.dp.errors import BadSetting

TASK = AuditTask(samples=64)
DELTA = 1e-3
MICRO_BATCHES = 64  # of one sample each
LAST_LAYER = slice(-18, None)  # 2 x 8 weights and 2 biases


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gaussian_epsilon(mu, delta):
    """Exact: Balle and Wang (2018), theorem 8, for a sensitivity of mu standard deviations."""
    cdf = stats.norm.cdf
    return optimize.brentq(
        lambda epsilon: cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu) - delta, 0, 100
    )


def subsampled_epsilon(sigma, rate, steps, delta):
    """Mironov, Talwar and Zhang (2019), section 3.3, converted as by Canonne, Kamath and Steinke (2020)."""

    def divergence(order):
        terms = (
            math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp((k * k - k) / (2 * sigma**2))
            for k in range(order + 1)
        )
        return math.log(sum(terms)) / (order - 1)

    return min(
        steps * divergence(order) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order in range(2, 25)
    )


@dataclass(frozen=True)
class Textbook:
    """DP-SGD as in Abadi et al. (2016), and with one of the faults."""

    sigma: float = 3.0
    rate: float = 0.5
    steps: int = 4
    bound: float = 1.0
    learning_rate: float = 0.1
    fault: str = ""

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
    """In closed form: one row for each sample, in the order of the parameters."""
    first, _, second = model
    hidden = first(inputs).relu()
    at_output = second(hidden).softmax(1) - one_hot(labels, second.out_features)
    at_hidden = (at_output @ second.weight) * (hidden > 0)
    parts = [at_hidden.unsqueeze(2) * inputs.unsqueeze(1), at_hidden, at_output.unsqueeze(2) * hidden.unsqueeze(1)]
    return torch.cat([part.flatten(1) for part in (*parts, at_output)], dim=1)


def audited(engine, claimed, delta=DELTA, runs=800, **settings):
    found = audit(engine, claimed=claimed, delta=delta, task=TASK, runs=runs, **settings)
    print(f"{engine}: bound {found.lower_bound:.3f}, claim {claimed:.3f}\n{found}")
    return found


class TestEngines:
    def test_textbook_gradients_are_those_of_autograd(self):
        model, (inputs, labels) = TASK.model(), TASK.dataset(with_canary=True).tensors
        one_by_one = [
            torch.autograd.grad(cross_entropy(model(x[None]), y[None]), list(model.parameters()))
            for x, y in zip(inputs, labels, strict=True)
        ]
        expected = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in one_by_one])
        torch.testing.assert_close(per_sample_gradients(model, inputs, labels), expected)

    @pytest.mark.parametrize("sigma", [1.0, 0.7])
    def test_correct_without_sampling_is_close_below(self, sigma):
        engine, delta = Textbook(sigma=sigma, rate=1.0, steps=1), 0.05
        truth = gaussian_epsilon(1 / sigma, delta)
        assert 0.4 * truth <= audited(engine, truth, delta, runs=2400).lower_bound <= truth

    @pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.3, 4), (2.0, 0.5, 4), (1.0, 0.1, 6)])
    def test_correct_with_sampling_stays_below(self, sigma, rate, steps):
        engine = Textbook(sigma=sigma, rate=rate, steps=steps)
        assert audited(engine, subsampled_epsilon(sigma, rate, steps, DELTA)).holds

    @pytest.mark.parametrize(
        "engine",
        [
            Textbook(fault="no noise"),
            Textbook(fault="mean first"),
            Textbook(fault="micro-batches"),
            Textbook(fault="wrong rate", sigma=1.0, rate=0.05, steps=8),
            Textbook(fault="last layer without noise"),
        ],
        ids=lambda engine: engine.fault,
    )
    def test_planted_faults_exceed_the_claim(self, engine):
        found = audited(engine, subsampled_epsilon(engine.sigma, engine.rate, engine.steps, DELTA))
        assert not found.holds
        assert found.lower_bound > 2 * found.claimed
        assert "the claim is WRONG" in str(found)


class TestClopperPearson:
    @pytest.mark.parametrize("confidence", [0.5, 0.9, 0.975, 0.9999])
    @pytest.mark.parametrize(("hits", "trials"), [(1, 1), (1, 10), (3, 7), (499, 500), (37, 1000), (9_000, 20_000)])
    def test_against_scipy(self, hits, trials, confidence):
        low = stats.beta.ppf(1 - confidence, hits, trials - hits + 1)
        assert lower_rate(hits, trials, confidence) == pytest.approx(low, rel=1e-8)
        high = stats.beta.ppf(confidence, hits + 1, trials - hits) if hits < trials else 1
        assert upper_rate(hits, trials, confidence) == pytest.approx(high, rel=1e-8)

    @pytest.mark.parametrize("trials", [1, 2, 100, 5000])
    def test_none_and_all(self, trials):
        assert (lower_rate(0, trials, 0.95), upper_rate(trials, trials, 0.95)) == (0, 1)
        assert upper_rate(0, trials, 0.95) == pytest.approx(1 - 0.05 ** (1 / trials))
        assert lower_rate(trials, trials, 0.95) == pytest.approx(0.05 ** (1 / trials))

    @pytest.mark.parametrize(("hits", "trials", "confidence"), [(-1, 5, 0.9), (6, 5, 0.9), (0, 0, 0.9), (1, 5, 1.0)])
    def test_nonsense_is_refused(self, hits, trials, confidence):
        with pytest.raises(BadSetting):
            lower_rate(hits, trials, confidence)


class TestBound:
    def test_by_hand(self):
        """90 of 100 against 5 of 100, at 97.5 % each: 0.8238 and 0.1128 (scipy.stats.beta)."""
        assert epsilon_of(90, 5, 100, 0.01, 0.95) == pytest.approx(math.log((0.8238 - 0.01) / 0.1128), abs=1e-3)
        assert epsilon_of(5, 90, 100, 0.01, 0.95) == 0
        assert epsilon_of(0, 0, 100, 0.01, 0.95) == 0

    @pytest.mark.parametrize(("mu", "delta"), [(0.5, 0.05), (1.0, 0.05), (2.0, 0.1), (3.0, 0.5)])
    def test_seldom_above_the_truth_of_two_gaussians(self, mu, delta):
        random, truth = np.random.default_rng(3), gaussian_epsilon(mu, delta)
        bounds = [bound_of(random.normal(mu, 1, 200), random.normal(0, 1, 200), delta) for _ in range(300)]
        above = np.mean(np.array(bounds) > truth)
        print(f"mu {mu}, delta {delta}: {above:.1%} above {truth:.2f}, mean {np.mean(bounds):.2f}")
        assert above <= 0.05

    @pytest.mark.parametrize("truth", [0.0, 0.5, 2.0])
    def test_seldom_above_the_truth_of_randomised_response(self, truth):
        """Here every event is as telling as the truth allows, so that only the confidence keeps the bound below."""
        random, yes = np.random.default_rng(4), 1 / (1 + math.exp(-truth))
        bounds = [bound_of(random.binomial(1, yes, 200), random.binomial(1, 1 - yes, 200)) for _ in range(300)]
        print(f"epsilon {truth}: {np.mean(np.array(bounds) > truth):.1%} above, mean {np.mean(bounds):.2f}")
        assert np.mean(np.array(bounds) > truth) <= 0.05
        assert np.mean(bounds) >= 0.6 * truth - 0.2

    def test_more_runs_show_more(self):
        for pairs in (100, 1000, 10_000, 100_000):
            assert most_showable(pairs, DELTA, 0.95) > most_showable(pairs // 2, DELTA, 0.95)

    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 9.0])
    def test_pairs_to_show_are_enough_and_hardly_more(self, epsilon):
        needed = pairs_to_show(epsilon, DELTA, 0.95)
        assert most_showable(needed, DELTA, 0.95) > epsilon > most_showable(needed - 4, DELTA, 0.95)

    def test_no_number_of_runs_shows_everything(self):
        assert pairs_to_show(1e4, 0.0, 0.95) == math.inf


def bound_of(with_canary, without, delta=0.0):
    columns = (np.asarray(values, dtype=float)[:, None] for values in (with_canary, without))
    return epsilon_shown(*columns, delta=delta, confidence=0.95).lower_bound


def shifting(model, dataset, seed):
    """As quick as an engine can be: one weight moves by what the seed says, and further with the canary."""
    with torch.no_grad():
        noise = float(torch.randn((), generator=torch.Generator().manual_seed(seed)))
        model[0].weight[-1, -1] -= len(dataset) - TASK.samples + noise


class TestAudit:
    def test_reports_what_it_did_and_what_it_could_have_shown(self):
        found = audited(shifting, 2.0, runs=401)
        assert found.holds
        assert found.runs == 400
        assert found.most_showable == pytest.approx(most_showable(200, DELTA, 0.95))
        assert "not refuted, which proves nothing" in str(found)
        assert f"never show more than {found.most_showable:.2f}" in str(found)
        assert "of 150 runs with it" in str(found)
        assert "\n" not in str(found)

    def test_the_same_seed_shows_the_same(self):
        first, again, other = (audited(shifting, 1.0, runs=200, seed=seed) for seed in (5, 5, 6))
        assert first == again != other

    def test_a_returned_model_counts(self):
        def train(model, dataset, seed):
            trained = TASK.model()
            shifting(trained, dataset, seed)
            return nn.Sequential(trained)  # wrapped, as engines do

        assert audited(train, 2.0, runs=400) == audited(shifting, 2.0, runs=400)

    def test_runs_that_end_alike_are_remarked_on(self):
        def train(model, dataset, seed):
            shifting(model, dataset, 0)

        found = audited(train, 2.0, runs=400)
        assert found.deterministic
        assert "uses the same seed" in str(found)

    def test_progress_and_the_callers_randomness(self):
        told, before = [], torch.random.get_rng_state()
        audited(shifting, 1.0, runs=100, progress=lambda done, total: told.append((done, total)))
        assert told == [(run, 100) for run in range(1, 101)]
        assert torch.equal(before, torch.random.get_rng_state())

    def test_each_run_starts_alike_with_a_seed_of_its_own(self):
        seeds, weights, sizes = [], [], []

        def train(model, dataset, seed):
            seeds.append(seed)
            sizes.append(len(dataset))
            weights.append([parameter.clone() for parameter in model.parameters()])
            shifting(model, dataset, seed)

        audited(train, 1.0, runs=100)
        assert len(set(seeds)) == 100
        assert sizes == [65, 64] * 50
        assert all(torch.equal(*pair) for pair in zip(weights[0], weights[-1], strict=True))

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"claimed": 0.0}, "positive"),
            ({"claimed": math.nan}, "positive"),
            ({"claimed": math.inf}, "positive"),
            ({"delta": -0.1}, "delta"),
            ({"delta": 1.0}, "delta"),
            ({"confidence": 1.0}, "confidence"),
            ({"runs": 10}, "too few"),
            ({"claimed": 6.0}, "1000 runs can show an epsilon of 4.62 at most, and 6 is claimed; try 3982 runs"),
            ({"claimed": 1e4}, "try inf runs"),
        ],
    )
    def test_bad_settings_are_one_line(self, settings, said):
        with pytest.raises(BadSetting, match=said) as refusal:
            audit(shifting, **{"claimed": 1.0, "delta": DELTA, **settings})
        assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize("size", ["samples", "features", "hidden", "classes", "canary_size"])
    def test_bad_sizes(self, size):
        with pytest.raises(BadSetting, match=size):
            AuditTask(**{size: 0})

    def test_an_engine_that_fails_is_the_cause(self):
        def train(model, dataset, seed):
            raise ZeroDivisionError("no batch\nat all")

        with pytest.raises(BadSetting, match=r"engine failed: ZeroDivisionError: no batch$") as refusal:
            audited(train, 1.0)
        assert isinstance(refusal.value.__cause__, ZeroDivisionError)

    def test_control_c_is_no_failure_of_the_engine(self):
        def train(model, dataset, seed):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            audited(train, 1.0)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_weights_that_are_not_finite(self, value):
        def train(model, dataset, seed):
            nn.init.constant_(model[2].bias, value)

        with pytest.raises(BadSetting, match="run 1 of the audit left weights that aren't finite"):
            audited(train, 1.0)

    def test_an_engine_that_trains_nothing(self):
        with pytest.raises(BadSetting, match="left the model as it was"):
            audited(lambda model, dataset, seed: None, 1.0)

    def test_an_engine_that_returns_another_model(self):
        with pytest.raises(BadSetting, match="has 6 weights"):
            audited(lambda model, dataset, seed: nn.Linear(2, 2), 1.0)
