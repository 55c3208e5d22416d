"""The Gaussian noise that makes a sum of clipped gradients private.

There are four sources; `noise_source` chooses one:

            torch alone                    with Numba, on a CPU
    seeded  TorchNoise: torch's normal_    ChaChaNoise: ChaCha8, threaded, several times faster
    secure  SystemNoise: os.urandom        SecureChaChaNoise: ChaCha20 with a key from os.urandom

Seeded noise repeats with its seed, in a copy and in a forked child. An attacker who guesses the seed can remove it.
Secure noise never repeats. It also closes the hole that Mironov found (CCS 2012): the last digits of a noisy sum reveal
which noise values are possible. The remedy is that of Holohan and Braghin (arXiv 2107.10138): each value is the sum of
n normals, in double precision, rounded once; undoing it takes 2^(53 (n - 1)) trials. That is feasible for n = 2, but
not for n = 4. So n is 4, which takes four times the bits and about twelve times the arithmetic. The four normals come
from four different Box-Muller pairs: the sum of one pair is only another value of the same pair.

Tails: torch's single-precision normals end at 5.8 sigma, those of SystemNoise at 8.6, those of ChaCha at 9.3.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.kernels import should_use_kernels
from rigdyno.engines.dp.seeds import Key, SeedScope, derive_key, seeded_generator

DRAWS = 4  # normals per value of secure noise

SCALE_OF_DRAWS = 1 / math.sqrt(DRAWS)

CHUNK = 1 << 20  # values at a time, so that noise needs no second buffer of the gradient's size

_call_counter_lock = threading.Lock()


class Noise(Protocol):
    """A source of Gaussian noise."""

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        """Compute buffer = (buffer + std * z) * factor in place, with fresh standard normals z."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a resumed run continues."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def noise_source(
    device: torch.device,
    *,
    generator: torch.Generator | None = None,
    secure: bool = False,
    kernels: bool | None = None,
    scope: SeedScope | None = None,
) -> Noise:
    """Choose a source of noise for a device.

    generator: draws the seed, once, in this call; None uses torch's global generator.
    kernels: True for Numba's kernels, False for torch alone, None for kernels where they can be used.
    scope: seeded noise differs from scope to scope.
    """
    if secure and generator is not None:
        raise BadSetting("noise from a generator repeats and secure noise must not: leave out one of the two")
    use_kernels = should_use_kernels(kernels, device)
    if secure:
        return SecureChaChaNoise() if use_kernels else SystemNoise()
    key = _draw_key(generator)
    make = ChaChaNoise if use_kernels else partial(TorchNoise, device)
    return make(key) if scope is None else ScopedNoise(scope, lambda name: make(derive_key(key, "noise", name)))


def _draw_key(generator: torch.Generator | None) -> Key:
    """Draw a key from the generator.

    Both kinds of seeded noise take the same number of draws, so that later draws don't depend on the kind.
    """
    device = "cpu" if generator is None else generator.device
    drawn = torch.randint(0, 1 << 32, (8,), dtype=torch.int64, generator=generator, device=device)
    return np.asarray(drawn.cpu().numpy(), np.uint32)


class ScopedNoise:
    """Seeded noise that differs in each scope: a run that continues from a ledger never repeats noise."""

    def __init__(self, scope: SeedScope, make: Callable[[str], Noise]) -> None:
        self._scope, self._make = scope, make
        self._name, self._noise = scope.current_name(), make(scope.current_name())

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        if self._name != self._scope.current_name():
            self._name, self._noise = self._scope.current_name(), self._make(self._scope.current_name())
        self._noise.release_(buffer, std, factor)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "turns"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the ledger knows if anything was released before."""


class TorchNoise:
    """Seeded noise for any device.

    Its state is the generator's. It reveals all future noise, and past noise can be computed from it. A resumed run
    repeats the noise that was released after the checkpoint.
    """

    def __init__(self, device: torch.device, key: Key) -> None:
        self._generator = seeded_generator(key, device)

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        for chunk in torch.split(_check_buffer(buffer, std, factor), CHUNK):
            noise = torch.empty_like(chunk).normal_(generator=self._generator)
            chunk.add_(noise, alpha=std).mul_(factor)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "torch", "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _refuse_other_kind(state, "torch")
        self._generator.set_state(state["generator"])


class SystemNoise:
    """Secure noise from the operating system, for any device. It takes 32 random bytes per value, and most of the time
    of a step."""

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        for chunk in torch.split(_check_buffer(buffer, std, factor), CHUNK):
            noise = sum(_system_normals(len(chunk)) for _ in range(DRAWS))
            exact = chunk.to("cpu", torch.float64) + noise * (std * SCALE_OF_DRAWS)
            chunk.copy_(exact * factor)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "secure"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the noise is always fresh."""


class ChaChaNoise:
    """Seeded noise for the CPU, by Numba.

    One key gives different noise for each call, by the number of the call. The state is that number alone, because the
    key would reveal all noise. A run that is resumed with the same seed continues with the noise that it would have
    had, and so repeats the noise released after the checkpoint, as a seed is meant to. Another seed gives fresh noise.
    """

    def __init__(self, key: Key) -> None:
        self._key, self._calls = key, 0

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        from rigdyno.engines.dp.kernels.noise import release_double, release_single

        values = _check_buffer(buffer, std, factor).numpy()
        if values.dtype == np.float32:
            release_single(values, self._key, self._next_call(), float(std), float(factor))
        else:
            release_double(values, self._key, self._next_call(), float(std), float(factor), 1)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "chacha20", "calls": self._calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the number of calls in the state; never lower it, as numbers used with this key stay used."""
        _refuse_other_kind(state, "chacha20")
        self._calls = max(self._calls, int(state["calls"]))

    def _next_call(self) -> int:
        with _call_counter_lock:
            self._calls += 1
            return self._calls


class SecureChaChaNoise(ChaChaNoise):
    """Secure noise for the CPU. Its key is drawn by the operating system and never leaves this process."""

    def __init__(self) -> None:
        super().__init__(_system_key())
        self._process = os.getpid()

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        from rigdyno.engines.dp.kernels.noise import release_double

        values = _check_buffer(buffer, std, factor).numpy()
        release_double(values, self._process_key(), self._next_call(), std * SCALE_OF_DRAWS, float(factor), DRAWS)

    def _process_key(self) -> Key:
        if self._process != os.getpid():  # a forked child would repeat its parent's noise
            self._key, self._process = _system_key(), os.getpid()
        return self._key

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "secure"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the key is always a new one."""

    def __reduce__(self) -> tuple[type[SecureChaChaNoise], tuple[()]]:
        """Draw a new key in a copy, and when a pickle is loaded."""
        return SecureChaChaNoise, ()


def _system_key() -> Key:
    return np.array(np.frombuffer(os.urandom(32), np.uint32))


def _system_normals(count: int) -> Tensor:
    """Return normals by Box and Muller, from uniforms of 53 bits. The smallest uniform is 2^-53: log(0) can't occur."""
    pairs = (count + 1) // 2
    words = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs)
    uniforms = ((words >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
    radii, angles = np.sqrt(-2 * np.log(uniforms[0])), 2 * np.pi * uniforms[1]
    return torch.from_numpy(np.concatenate([radii * np.cos(angles), radii * np.sin(angles)])[:count])


def _check_buffer(buffer: Tensor, std: float, factor: float) -> Tensor:
    if buffer.dtype not in (torch.float32, torch.float64):
        raise BadSetting(f"noise is added in single or double precision, but this buffer is {buffer.dtype}")
    if buffer.dim() != 1 or not buffer.is_contiguous():
        raise BadSetting("noise is added to flat, contiguous buffers only")
    if not (math.isfinite(std) and std >= 0 and math.isfinite(factor)):
        raise BadSetting(f"std must be finite and not negative, the factor finite: {std!r}, {factor!r}")
    return buffer.detach()


def _refuse_other_kind(state: Mapping[str, Any], kind: str) -> None:
    """Raise BadSetting if the state belongs to another kind of noise.

    Switching to another kind and back again would repeat the noise of the first.
    """
    if state.get("kind") != kind:
        raise BadSetting(f"the checkpoint's noise is {state.get('kind')!r}, this is {kind!r}: use the same kind again")
