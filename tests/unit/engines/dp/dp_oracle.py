"""Epsilon by textbook formulas, independent of the library: the binomial sum, the exact Gaussian, and a small privacy
loss distribution by Fourier transforms. A run is (noise multiplier, sample rate, steps)."""

import math

import numpy as np
from scipy.integrate import trapezoid
from scipy.optimize import brentq
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr
from scipy.stats import norm

MESH = 2e-4  # distance of the grid's points
TAIL_DELTA = 1e-13  # probability outside of the grid


def rdp_epsilon(runs, delta, orders=range(2, 513)):
    """Return epsilon by Mironov, Talwar and Zhang (2019), at integer orders, converted as in Canonne, Kamath and
    Steinke (2020)."""
    return max(0.0, min(_converted(sum(t * rdp(s, q, order) for s, q, t in runs), order, delta) for order in orders))


def rdp(sigma, rate, order):
    if rate == 1:
        return order / (2 * sigma**2)
    k = np.arange(order + 1)
    binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = binomial + k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / (2 * sigma**2)
    return logsumexp(terms) / (order - 1)


def _converted(divergence, order, delta):
    return divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def gaussian_epsilon(sigma, steps, delta):
    """Return the exact epsilon for a sample rate of 1, by Balle and Wang (2018)."""
    mu = math.sqrt(steps) / sigma

    def excess(epsilon):
        lost = math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        return ndtr(mu / 2 - epsilon / mu) - lost - delta

    return 0.0 if excess(0) <= 0 else brentq(excess, 0, mu * mu / 2 + 40 * mu, xtol=1e-10)


def pld_epsilon(runs, delta):
    """Return the larger epsilon of the two directions: neither bounds the other in general."""
    return max(_one_direction(runs, delta, direction) for direction in (Removed, Added))


def _one_direction(runs, delta, direction):
    """Compute epsilon with masses at the nearest grid points. The error that this causes in their mean would add up
    over the steps, and is corrected at the end."""
    losses = _grid(runs)
    edges = np.append(losses, losses[-1] + MESH) - MESH / 2
    transform, drift = 1.0, 0.0
    for sigma, rate, steps in runs:
        masses = np.diff(direction.cdf(edges, sigma, rate))
        transform = transform * np.fft.rfft(np.fft.ifftshift(masses)) ** steps
        drift += steps * (np.sum(masses * losses) - direction.mean(sigma, rate))
    composed = np.fft.fftshift(np.fft.irfft(transform, len(losses)))
    return _epsilon_of(losses - drift, composed, delta)


def _grid(runs):
    """Return a grid wide enough that the circular convolution wraps around almost nothing."""
    reach = rdp_epsilon(runs, TAIL_DELTA, range(2, 129)) + max(3 / min(s, 1) + 1 / s**2 for s, _, _ in runs)
    half = 2 ** math.ceil(math.log2(reach / MESH))
    return MESH * np.arange(-half, half)


class Removed:
    """The privacy loss log(P/Q) under P, where P is the mixture with the sample and Q is without it."""

    @staticmethod
    def cdf(loss, sigma, rate):
        x = _output_at(loss, sigma, rate)
        return (1 - rate) * ndtr(x / sigma) + rate * ndtr((x - 1) / sigma)

    @staticmethod
    def mean(sigma, rate):
        x = _outputs(sigma)
        density = (1 - rate) * norm.pdf(x, 0, sigma) + rate * norm.pdf(x, 1, sigma)
        return trapezoid(density * _loss_at(x, sigma, rate), x)


class Added:
    """The privacy loss log(Q/P) under Q; it falls as the output rises."""

    @staticmethod
    def cdf(loss, sigma, rate):
        return ndtr(-_output_at(-loss, sigma, rate) / sigma)

    @staticmethod
    def mean(sigma, rate):
        x = _outputs(sigma)
        return -trapezoid(norm.pdf(x, 0, sigma) * _loss_at(x, sigma, rate), x)


def _outputs(sigma):
    return np.linspace(-12 * sigma, 1 + 12 * sigma, 100_001)


def _loss_at(x, sigma, rate):
    with np.errstate(divide="ignore"):  # log(0) if every sample is drawn
        return np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * x - 1) / (2 * sigma**2))


def _output_at(loss, sigma, rate):
    """Return the output with this loss; minus infinity below the smallest loss."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.log((np.expm1(loss) + rate) / rate)
    return np.where(np.isnan(share), -np.inf, sigma**2 * share + 0.5)


def _epsilon_of(losses, masses, delta):
    def excess(epsilon):
        beyond = losses > epsilon
        return float(np.sum(masses[beyond] * -np.expm1(epsilon - losses[beyond]))) - delta

    return 0.0 if excess(0.0) <= 0 else brentq(excess, 0, losses[-1], xtol=1e-7)
