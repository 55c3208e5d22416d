"""Check that no sample's output or gradient depends on the other samples of its batch, by changing the others.

Some samples are kept and the others are replaced. Both batches go through forward and backward with the same random
numbers. If anything differs for a kept sample, it depends on the others. The first check covers every pair of samples,
in both directions. Later checks come at random steps, with one division into kept and replaced samples each.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rigdyno.engines.dp.checks.probing import Inputs, NetworkProbe
from rigdyno.engines.dp.errors import BadSetting, MixesSamples
from rigdyno.engines.dp.gradients.clipping import Clipping
from rigdyno.engines.dp.gradients.contributions import Contribution
from rigdyno.engines.dp.gradients.passes import Pass

CHANCE = 1 / 512  # probability of a check in a step; it takes about as long as four steps, so 0.8 % of the time

SAME_WITHIN = 1e-5  # tolerance relative to the size of an output

OUTPUTS_WITHIN = 1e-3  # tolerance relative to the largest value, for outputs computed in two ways

SAME_NORM_WITHIN = 1e-4  # tolerance relative to a squared norm

_random = random.SystemRandom()  # with a predictable seed, a network could know when it isn't checked


class CheckSchedule:
    """Decides when to check again: at random, every 1 / CHANCE steps on average, and unpredictably."""

    def __init__(self) -> None:
        self._left = self._draw()

    def is_due(self) -> bool:
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._draw()
        return True

    @staticmethod
    def _draw() -> int:
        return 1 + int(math.log(1.0 - _random.random()) / math.log(1.0 - CHANCE))


class NormRecorder(Pass):
    """A pass that sums nothing: it records the norms of the gradients that the layers report."""

    def __init__(self, clipping: Clipping, samples: int) -> None:
        super().__init__(clipping, samples, None)
        self._norms = clipping.norms
        self.squared: dict[int, Tensor] = {}

    def add(self, parameter: Any, contribution: Contribution) -> None:
        found = contribution.squared_norms(self._norms)
        known = self.squared.get(id(parameter))
        self.squared[id(parameter)] = found if known is None else known + found


class Observation:
    """The result of one run: every module's outputs, every parameter's norms, the buffers, and the random state."""

    def __init__(self) -> None:
        self.outputs: list[tuple[str, list[Tensor]]] = []  # fingerprints: whole outputs would double the memory
        self.squared: dict[int, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self.random = torch.empty(0)


class MixingCheck:
    """The check of one network, with one batch."""

    def __init__(self, probe: NetworkProbe, clipping: Clipping, inputs: Inputs, observed: Sequence[nn.Module]) -> None:
        """Prepare the check. `observed` are the modules whose outputs have a row for each sample.

        Modules inside others, which are run sample by sample, are not among them.
        """
        self._probe, self._clipping, self._inputs = probe, clipping, inputs
        self._observed = {id(module) for module in observed}
        self._seed = _random.getrandbits(31)
        self._names = {id(parameter): name for name, parameter in probe.network.named_parameters()}

    def check(self, thoroughly: bool) -> None:
        """Raise an error if samples mix.

        A thorough check makes enough divisions that of any two samples, each is kept once while the other is replaced.
        Otherwise one random division is made.
        """
        rows = list(range(self._inputs.samples))
        whole = self._observe(rows)
        for kept in choose_divisions(rows) if thoroughly else [_random.sample(rows, len(rows) // 2)]:
            self._compare(whole, kept)
        if thoroughly:
            self._check_outputs()

    def _check_outputs(self) -> None:
        """Compare the network's own outputs with those of the private layers.

        This is done in eval mode, because the two draw their random numbers in different order.
        """
        rows = range(self._inputs.samples)
        (own, is_deterministic), (ours, _), (again, _), (half, _) = (
            self._probe.run(partial(self._compute_outputs, private, some), self._seed)
            for private, some in ((False, rows), (True, rows), (False, rows), (False, rows[: len(rows) // 2]))
        )
        if is_deterministic and not all(map(_begins_with, own, half)):
            raise MixesSamples(
                "the network's output for a sample depends on the number of samples in the batch, which is private "
                "too: leave means over the batch to the loss"
            )
        if _all_match(own, ours) or not _all_match(own, again):
            return  # outputs that can't be repeated are reported by the comparison of samples
        if is_deterministic or self._inputs.is_ambiguous:
            raise BadSetting(
                "run sample by sample, the network has another output than as a whole: it isn't clear which of its "
                "inputs carry samples; pass the samples first, and keep what all samples share in buffers"
            )

    def _compute_outputs(self, private: bool, rows: Sequence[int]) -> tuple[list[Tensor], bool]:
        """Return the network's outputs, and whether they were computed without random numbers."""
        before = torch.get_rng_state()
        for module in self._probe.network.modules():
            module.training = False
        args, kwargs = self._inputs.select(rows)
        recorder = NormRecorder(self._clipping, self._inputs.samples)
        with torch.set_grad_enabled(private), self._clipping.redirect_to(recorder):
            found = self._probe.network(*args, **kwargs)
        outputs = [leaf.detach() for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        return outputs, torch.equal(before, torch.get_rng_state())

    def _compare(self, whole: Observation, kept: list[int]) -> None:
        staying = set(kept)
        rows = range(self._inputs.samples)
        order = [row if row in staying else (row + _random.randrange(1, len(rows))) % len(rows) for row in rows]
        changed = self._observe(order)
        reason = self._find_difference(whole, changed, kept)
        if reason is None:
            return
        if self._find_difference(whole, self._observe(list(rows)), list(rows)) is not None:
            raise MixesSamples(
                f"{reason}; but it also changes from run to run, with the same seed. Draw random numbers from torch's "
                "own generator, so that it can be checked that samples don't depend on each other"
            )
        if not torch.equal(whole.random, changed.random):
            raise MixesSamples(
                f"{reason}. How many random numbers are drawn depends on the data, so that one sample changes the "
                "random numbers of the next: draw the same number for each sample"
            )
        raise MixesSamples(f"{reason}, so clipping its gradient doesn't bound its influence")

    def _find_difference(self, one: Observation, other: Observation, kept: list[int]) -> str | None:
        rows = torch.tensor(kept)
        for (name, here), (_, there) in zip(one.outputs, other.outputs, strict=False):
            if here and len(here) == len(there) and not any(map(partial(_rows_match, kept=rows), here, there)):
                return f"{name or 'the network'}: its output for a sample depends on the other samples of the batch"
        for key in one.squared.keys() | other.squared.keys():
            if not _norms_match(one.squared.get(key), other.squared.get(key), rows):
                return f"a sample's gradient for {self._names[key]} depends on the other samples of the batch"
        for name, buffer in one.buffers.items():
            if not _tensors_match(buffer, other.buffers[name]):
                return (
                    f"the buffer {name} depends on the data, and would be released without noise: leave it out, or "
                    "compute it from public data and put the module into eval mode"
                )
        return None

    def _observe(self, order: list[int]) -> Observation:
        seen, network = Observation(), self._probe.network
        recorder = NormRecorder(self._clipping, self._inputs.samples)

        def make_hook(name: str) -> Callable[..., None]:
            def record(module: nn.Module, args: Any, output: Any) -> None:
                for leaf in tree_leaves(output):
                    if isinstance(leaf, Tensor):
                        seen.outputs.append((name, _fingerprints(leaf.detach(), self._inputs.samples)))

            return record

        def run_network() -> None:
            for name, module in network.named_modules():
                if id(module) in self._observed:
                    module.register_forward_hook(make_hook(name))
            args, kwargs = self._inputs.select(order)
            with torch.enable_grad(), self._clipping.redirect_to(recorder):
                _run_backward(network(*args, **kwargs), self._clipping.anchor, self._seed, self._inputs.samples)
            seen.squared = recorder.squared
            seen.buffers = {name: buffer.detach().clone() for name, buffer in network.named_buffers()}
            seen.random = torch.get_rng_state()

        self._probe.run(run_network, self._seed)
        return seen


def choose_divisions(rows: Sequence[int]) -> list[list[int]]:
    """Return lists of rows to keep, such that of any two rows, each is kept once while the other is replaced.

    Every row is kept in half of the divisions, a different half for each row. So no row's divisions include another's,
    and by Sperner's theorem fewer divisions aren't enough.
    """
    needed = next(number for number in itertools.count(2) if math.comb(number, number // 2) >= len(rows))
    choices = _random.sample(list(itertools.combinations(range(needed), needed // 2)), len(rows))
    kept = [[row for row, chosen in zip(rows, choices, strict=True) if number in chosen] for number in range(needed)]
    return [division for division in kept if 0 < len(division) < len(rows)]


def _run_backward(output: Any, anchor: Tensor, seed: int, samples: int) -> None:
    """Run backward with random gradients of the outputs; like those of a loss, they depend on position and output."""
    outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not outputs:
        return
    generator = torch.Generator().manual_seed(seed)
    gradients = [
        torch.randn(leaf.shape, generator=generator).to(leaf) * _gradient_scale(leaf, samples) for leaf in outputs
    ]
    try:
        torch.autograd.grad(outputs, [anchor], gradients, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):  # a reentrant checkpoint works with backward() only
            raise


def _gradient_scale(output: Tensor, samples: int) -> Tensor | float:
    """Return factors that depend on the output, so that replaced samples get other gradients too.

    An output without a sample axis, such as a loss, gets 1: it belongs to all samples.
    """
    if samples not in output.shape or output.is_complex():
        return 1.0
    return output.detach().nan_to_num().tanh().add(1.5)


def _all_match(these: list[Tensor], those: list[Tensor]) -> bool:
    return all(_tensors_match(one, other, OUTPUTS_WITHIN) for one, other in zip(these, those, strict=True))


def _begins_with(whole: Tensor, part: Tensor) -> bool:
    """Return True if `whole` begins with `part`, along the axis in which their shapes differ, if there is one."""
    axes = [axis for axis, size in enumerate(whole.shape) if part.dim() == whole.dim() and part.shape[axis] != size]
    return len(axes) != 1 or _tensors_match(whole.narrow(axes[0], 0, part.shape[axes[0]]), part, OUTPUTS_WITHIN)


def _fingerprints(output: Tensor, samples: int) -> list[Tensor]:
    """Return a few numbers for each sample, along every axis as long as the batch. Mixing changes all of them."""
    values = torch.view_as_real(output) if output.is_complex() else output
    values = values if values.is_floating_point() else values.float()
    axes = [axis for axis, size in enumerate(output.shape) if size == samples]
    return [
        _fingerprint(_flatten_in_memory_order(values.movedim(axis, 0)) if values.dim() > 1 else values[:, None])
        for axis in axes
    ]


def _flatten_in_memory_order(values: Tensor) -> Tensor:
    """Return a row for each sample, with its values in memory order: any other order would need a copy."""
    inner = sorted(range(1, values.dim()), key=lambda axis: values.stride()[axis], reverse=True)
    return values.permute(0, *inner).flatten(1)


def _fingerprint(rows: Tensor) -> Tensor:
    """Return (samples, 3): two random projections and the norm of each row."""
    directions = torch.rand(rows.shape[1], 2, generator=torch.Generator().manual_seed(1)).to(rows) - 0.5
    return torch.cat([rows @ directions, torch.linalg.vector_norm(rows, dim=1, keepdim=True)], dim=1)


def _rows_match(one: Tensor, other: Tensor, kept: Tensor) -> bool:
    here, there = one[kept.to(one.device)], other[kept.to(one.device)]
    allowed = SAME_WITHIN * here[:, 2:].nan_to_num(posinf=0.0) + 1e-30
    return bool((torch.eq(here, there) | (here.isnan() & there.isnan()) | ((here - there).abs() <= allowed)).all())


def _tensors_match(one: Tensor, other: Tensor, within: float = SAME_WITHIN) -> bool:
    if torch.equal(one, other):
        return True
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return False
    finite = one.abs().nan_to_num(posinf=0.0)
    largest = float(finite.max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=within * largest + 1e-30, equal_nan=True)


def _norms_match(one: Tensor | None, other: Tensor | None, kept: Tensor) -> bool:
    if one is None or other is None:
        known = other if one is None else one
        return known is None or bool((known[kept.to(known.device)] <= 1e-12 * known.max()).all())
    kept = kept.to(one.device)
    largest = float(one.nan_to_num(posinf=0.0).max())
    return torch.allclose(one[kept], other[kept], rtol=SAME_NORM_WITHIN, atol=1e-9 * largest, equal_nan=True)
