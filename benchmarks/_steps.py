"""Steps of different kinds for `rigdyno run benchmarks/_steps.py:NAME`, of 0.1 to 10 ms on a processor of today."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

import numpy as np


def in_cache() -> None:
    left, out = _matrices()
    np.matmul(left, left, out=out)


def python() -> None:
    sum(range(20_000))


def hashing() -> None:
    hashlib.sha256(_text()).digest()


def memory() -> None:
    values = _large()
    np.add(values, 1, out=values)


def training() -> None:
    _trainer()()


@cache
def _matrices() -> tuple[np.ndarray, np.ndarray]:
    left = np.random.default_rng(0).standard_normal((160, 160)).astype(np.float32)
    return left, np.empty_like(left)


@cache
def _text() -> bytes:
    return bytes(1_000_000)


@cache
def _large() -> np.ndarray:
    return np.ones(40_000_000, dtype=np.float32)


@cache
def _trainer() -> Callable[[], None]:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    batch = torch.randn(256, 256)

    def step() -> None:
        """Update the parameters by hand: torch's optimisers first import a compiler, which takes seconds."""
        model(batch).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None

    return step


KINDS = (in_cache, python, hashing, memory, training)
