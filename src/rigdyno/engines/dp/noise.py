"""The Gaussian noise that makes a sum of clipped gradients private.

Four sources, of which `noise_source` picks one:

            torch alone                    with Numba, on a CPU
    seeded  TorchNoise: torch's normal_    ChaChaNoise: ChaCha8, threaded, several times faster
    secure  SystemNoise: os.urandom        SecureChaChaNoise: ChaCha20 under a key of os.urandom's

Seeded noise repeats with its seed, in a copy and in a forked child, and whoever guesses the seed can take it off again.
Secure noise repeats nowhere. It also closes the hole that Mironov found (CCS 2012): the last digits of a noisy sum tell
which noise can have led to it. The remedy is Holohan and Braghin's (arXiv 2107.10138): each value is the sum of n
normals, in double precision, rounded once; undoing it takes 2^(53 (n - 1)) trials. Two leave that within reach, four
don't. So it is four, for four times the bits and a dozen times the arithmetic. They come from four pairs of Box and
Muller's: the sum of one pair is but another value of the same pair.

Tails: torch's own single-precision normals end at 5.8 sigma, the system's here at 8.6, ChaCha's at 9.3.
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
from rigdyno.engines.dp.kernels import usable
from rigdyno.engines.dp.seeds import Key, Turn, derived, seeded_generator

DRAWS = 4
SCALE_OF_DRAWS = 1 / math.sqrt(DRAWS)
CHUNK = 1 << 20  # values at a time: noise needs no second buffer of the gradient's size

_numbering = threading.Lock()


class Noise(Protocol):
    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        """In place, buffer = (buffer + std * z) * factor with fresh standard normals z."""

    def state_dict(self) -> dict[str, Any]:
        """Where a resumed run goes on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def noise_source(
    device: torch.device,
    *,
    generator: torch.Generator | None = None,
    secure: bool = False,
    kernels: bool | None = None,
    turn: Turn | None = None,
) -> Noise:
    """`generator`: draws the seed, once and now; without one torch's global generator does. `kernels`: Numba's, or
    torch alone, or (None) Numba's where they can be used. `turn`: whose own noise it is."""
    if secure and generator is not None:
        raise BadSetting("noise from a generator repeats and secure noise must not: leave out one of the two")
    able = usable(kernels, device)
    if secure:
        return SecureChaChaNoise() if able else SystemNoise()
    key = _drawn_key(generator)
    make = ChaChaNoise if able else partial(TorchNoise, device)
    return make(key) if turn is None else TurnsNoise(turn, lambda name: make(derived(key, "noise", name)))


def _drawn_key(generator: torch.Generator | None) -> Key:
    """As many draws for either kind of seeded noise, so that what else the generator is for doesn't depend on it."""
    device = "cpu" if generator is None else generator.device
    drawn = torch.randint(0, 1 << 32, (8,), dtype=torch.int64, generator=generator, device=device)
    return np.asarray(drawn.cpu().numpy(), np.uint32)


class TurnsNoise:
    """Of a seed, and other noise in each turn of training: what goes on from a ledger never repeats what it counts."""

    def __init__(self, turn: Turn, make: Callable[[str], Noise]) -> None:
        self._turn, self._make = turn, make
        self._name, self._noise = turn.name(), make(turn.name())

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        if self._name != self._turn.name():
            self._name, self._noise = self._turn.name(), self._make(self._turn.name())
        self._noise.release_(buffer, std, factor)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "turns"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to go on from: the ledger says whether anything was released before."""


class TorchNoise:
    """For any device. The state is its generator's: whoever has it knows the noise to come and can work out that of
    before. A run that is resumed repeats what was released after the checkpoint."""

    def __init__(self, device: torch.device, key: Key) -> None:
        self._generator = seeded_generator(key, device)

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        for chunk in torch.split(_checked(buffer, std, factor), CHUNK):
            noise = torch.empty_like(chunk).normal_(generator=self._generator)
            chunk.add_(noise, alpha=std).mul_(factor)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "torch", "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _refuse_other_kind(state, "torch")
        self._generator.set_state(state["generator"])


class SystemNoise:
    """From the operating system, for any device: 32 bytes a value, which take longer than all else."""

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        for chunk in torch.split(_checked(buffer, std, factor), CHUNK):
            noise = sum(_system_normals(len(chunk)) for _ in range(DRAWS))
            exact = chunk.to("cpu", torch.float64) + noise * (std * SCALE_OF_DRAWS)
            chunk.copy_(exact * factor)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "secure"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to go on from: whatever was released before, this is fresh."""


class ChaChaNoise:
    """For the CPU, by Numba. A key makes other noise for every call, by its number. The state is that number alone, as
    the key would give all noise away. Resumed with the same seed, a run goes on with the noise that it would have had,
    and so repeats what was released after the checkpoint: that is what a seed is for. Of another seed all is fresh."""

    def __init__(self, key: Key) -> None:
        self._key, self._calls = key, 0

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        from rigdyno.engines.dp.kernels.noise import release_double, release_single

        values = _checked(buffer, std, factor).numpy()
        if values.dtype == np.float32:
            release_single(values, self._key, self._next_call(), float(std), float(factor))
        else:
            release_double(values, self._key, self._next_call(), float(std), float(factor), 1)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "chacha20", "calls": self._calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Never backwards: a number that was used under this key stays used."""
        _refuse_other_kind(state, "chacha20")
        self._calls = max(self._calls, int(state["calls"]))

    def _next_call(self) -> int:
        with _numbering:
            self._calls += 1
            return self._calls


class SecureChaChaNoise(ChaChaNoise):
    """Under a key that the system drew and that leaves this process by no way."""

    def __init__(self) -> None:
        super().__init__(_system_key())
        self._process = os.getpid()

    def release_(self, buffer: Tensor, std: float, factor: float) -> None:
        from rigdyno.engines.dp.kernels.noise import release_double

        values = _checked(buffer, std, factor).numpy()
        release_double(values, self._own_key(), self._next_call(), std * SCALE_OF_DRAWS, float(factor), DRAWS)

    def _own_key(self) -> Key:
        if self._process != os.getpid():  # a forked child would repeat its parent's noise
            self._key, self._process = _system_key(), os.getpid()
        return self._key

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "secure"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to go on from: the key is a new one."""

    def __reduce__(self) -> tuple[type[SecureChaChaNoise], tuple[()]]:
        """A copy draws a key of its own, and so does who reads a pickle."""
        return SecureChaChaNoise, ()


def _system_key() -> Key:
    return np.array(np.frombuffer(os.urandom(32), np.uint32))


def _system_normals(count: int) -> Tensor:
    """Box and Muller, of 53 bits each: the least uniform is 2^-53, so there's no log of zero."""
    pairs = (count + 1) // 2
    words = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs)
    uniforms = ((words >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
    radii, angles = np.sqrt(-2 * np.log(uniforms[0])), 2 * np.pi * uniforms[1]
    return torch.from_numpy(np.concatenate([radii * np.cos(angles), radii * np.sin(angles)])[:count])


def _checked(buffer: Tensor, std: float, factor: float) -> Tensor:
    if buffer.dtype not in (torch.float32, torch.float64):
        raise BadSetting(f"noise is added in single or double precision, and this buffer is of {buffer.dtype}")
    if buffer.dim() != 1 or not buffer.is_contiguous():
        raise BadSetting("noise is added to flat, contiguous buffers: one value after another, without gaps")
    if not (math.isfinite(std) and std >= 0 and math.isfinite(factor)):
        raise BadSetting(f"std must be finite and not negative, the factor finite: {std!r}, {factor!r}")
    return buffer.detach()


def _refuse_other_kind(state: Mapping[str, Any], kind: str) -> None:
    """Going on with another kind and then back again would repeat the first one's noise."""
    if state.get("kind") != kind:
        raise BadSetting(f"the checkpoint's noise is {state.get('kind')!r}, this is {kind!r}: ask for the same again")
