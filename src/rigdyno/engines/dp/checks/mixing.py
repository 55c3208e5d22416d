"""Whether a sample's answer or gradient depends on the other samples of its batch: looked for by changing the others.

Some samples keep their places, the others are replaced, and both batches go there and back with the same random
numbers. Whatever differs for a sample that was kept has looked at the others. The first check covers every pair of
samples, in both directions; later ones come at random steps, with one division into kept and replaced samples each.
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

from rigdyno.engines.dp.checks.probing import Inputs, Probe
from rigdyno.engines.dp.clipping import Clipping
from rigdyno.engines.dp.contributions import Contribution
from rigdyno.engines.dp.errors import BadSetting, MixesSamples
from rigdyno.engines.dp.passes import Pass

CHANCE = 1 / 512  # of a check in a step; it takes about as long as four steps, so 0.8 % of the time
SAME_WITHIN = 1e-5  # of the size of an answer
ANSWERS_WITHIN = 1e-3  # of the largest value: two ways to compute them round differently
SAME_NORM_WITHIN = 1e-4  # of a squared norm

_chance = random.SystemRandom()  # a seed that a network could predict would tell it when nobody looks


class Turns:
    """When to look again: at random, once in 1 / CHANCE steps on average, and never predictable."""

    def __init__(self) -> None:
        self._left = self._draw()

    def due(self) -> bool:
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._draw()
        return True

    @staticmethod
    def _draw() -> int:
        return 1 + int(math.log(1.0 - _chance.random()) / math.log(1.0 - CHANCE))


class Watching(Pass):
    """A pass that sums nothing: it notes the norms of what the layers report."""

    def __init__(self, clipping: Clipping, samples: int) -> None:
        super().__init__(clipping, samples, None)
        self._norms = clipping.norms
        self.squared: dict[int, Tensor] = {}

    def add(self, parameter: Any, contribution: Contribution) -> None:
        found = contribution.squared_norms(self._norms)
        known = self.squared.get(id(parameter))
        self.squared[id(parameter)] = found if known is None else known + found


class Seen:
    """What one run showed: every module's answers, every parameter's norms, the buffers, the random numbers' state."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, list[Tensor]]] = []  # their fingerprints: all of them would double the memory
        self.squared: dict[int, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self.random = torch.empty(0)


class Mixing:
    """The check of one network, with one batch."""

    def __init__(self, probe: Probe, clipping: Clipping, inputs: Inputs, listened: Sequence[nn.Module]) -> None:
        """`listened`: modules whose answers have a sample each, not what is run sample by sample inside of others."""
        self._probe, self._clipping, self._inputs = probe, clipping, inputs
        self._listened = {id(module) for module in listened}
        self._seed = _chance.getrandbits(31)
        self._names = {id(parameter): name for name, parameter in probe.network.named_parameters()}

    def refuse(self, thoroughly: bool) -> None:
        """Thoroughly: so many divisions that of any two samples each is kept once while the other is replaced. Else one
        division, by chance."""
        rows = list(range(self._inputs.samples))
        whole = self._seen(rows)
        for kept in divisions(rows) if thoroughly else [_chance.sample(rows, len(rows) // 2)]:
            self._compare(whole, kept)
        if thoroughly:
            self._refuse_other_answers()

    def _refuse_other_answers(self) -> None:
        """The network's own answers, against those by which it will be trained. In eval mode: the two draw their random
        numbers in different order."""
        rows = range(self._inputs.samples)
        (own, still), (ours, _), (again, _), (half, _) = (
            self._probe.run(partial(self._answers, private, some), self._seed)
            for private, some in ((False, rows), (True, rows), (False, rows), (False, rows[: len(rows) // 2]))
        )
        if still and not all(map(_begins_with, own, half)):
            raise MixesSamples(
                "the network's answer to a sample depends on the number of samples in the batch, which is private too: "
                "leave means over the batch to the loss"
            )
        if _all_same(own, ours) or not _all_same(own, again):
            return  # what can't be repeated is named by the comparison of samples
        if still or self._inputs.unclear:
            raise BadSetting(
                "run sample by sample, the network answers otherwise than as a whole: it isn't clear which of its "
                "inputs carry samples; pass the samples first, and keep what all samples share in buffers"
            )

    def _answers(self, private: bool, rows: Sequence[int]) -> tuple[list[Tensor], bool]:
        """And whether they were found without random numbers."""
        before = torch.get_rng_state()
        for module in self._probe.network.modules():
            module.training = False
        args, kwargs = self._inputs.picked(rows)
        watching = Watching(self._clipping, self._inputs.samples)
        with torch.set_grad_enabled(private), self._clipping.watched_by(watching):
            found = self._probe.network(*args, **kwargs)
        answers = [leaf.detach() for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        return answers, torch.equal(before, torch.get_rng_state())

    def _compare(self, whole: Seen, kept: list[int]) -> None:
        staying = set(kept)
        rows = range(self._inputs.samples)
        order = [row if row in staying else (row + _chance.randrange(1, len(rows))) % len(rows) for row in rows]
        changed = self._seen(order)
        reason = self._difference(whole, changed, kept)
        if reason is None:
            return
        if self._difference(whole, self._seen(list(rows)), list(rows)) is not None:
            raise MixesSamples(
                f"{reason}; but so it does from run to run, with the same seed. Draw random numbers from torch's own "
                "generator, so that samples can be seen not to depend on each other"
            )
        if not torch.equal(whole.random, changed.random):
            raise MixesSamples(
                f"{reason}. How many random numbers are drawn depends on the data, so that one sample changes the "
                "random numbers of the next: draw the same number for each sample"
            )
        raise MixesSamples(f"{reason}; clipping one sample's gradient then bounds nothing")

    def _difference(self, one: Seen, other: Seen, kept: list[int]) -> str | None:
        rows = torch.tensor(kept)
        for (name, here), (_, there) in zip(one.answers, other.answers, strict=False):
            if here and len(here) == len(there) and not any(map(partial(_same_rows, kept=rows), here, there)):
                return f"{name or 'the network'}: what it answers to a sample depends on the other samples of the batch"
        for key in one.squared.keys() | other.squared.keys():
            if not _same_norms(one.squared.get(key), other.squared.get(key), rows):
                return f"a sample's gradient for {self._names[key]} depends on the other samples of the batch"
        for name, buffer in one.buffers.items():
            if not _same(buffer, other.buffers[name]):
                return (
                    f"the buffer {name} follows the data, and would be released without noise: leave it out, or "
                    "compute it from public data and put the module into eval mode"
                )
        return None

    def _seen(self, order: list[int]) -> Seen:
        seen, network = Seen(), self._probe.network
        watching = Watching(self._clipping, self._inputs.samples)

        def listen(name: str) -> Callable[..., None]:
            def hear(module: nn.Module, args: Any, answer: Any) -> None:
                for leaf in tree_leaves(answer):
                    if isinstance(leaf, Tensor):
                        seen.answers.append((name, _fingerprints(leaf.detach(), self._inputs.samples)))

            return hear

        def work() -> None:
            for name, module in network.named_modules():
                if id(module) in self._listened:
                    module.register_forward_hook(listen(name))
            args, kwargs = self._inputs.picked(order)
            with torch.enable_grad(), self._clipping.watched_by(watching):
                _there_and_back(network(*args, **kwargs), self._clipping.anchor, self._seed, self._inputs.samples)
            seen.squared = watching.squared
            seen.buffers = {name: buffer.detach().clone() for name, buffer in network.named_buffers()}
            seen.random = torch.get_rng_state()

        self._probe.run(work, self._seed)
        return seen


def divisions(rows: Sequence[int]) -> list[list[int]]:
    """What to keep, so that of any two rows each is kept once while the other is replaced. Every row is kept in half of
    the divisions, in a choice of its own: no choice then holds another, and by Sperner's theorem fewer won't do."""
    needed = next(number for number in itertools.count(2) if math.comb(number, number // 2) >= len(rows))
    choices = _chance.sample(list(itertools.combinations(range(needed), needed // 2)), len(rows))
    kept = [[row for row, chosen in zip(rows, choices, strict=True) if number in chosen] for number in range(needed)]
    return [division for division in kept if 0 < len(division) < len(rows)]


def _there_and_back(answer: Any, anchor: Tensor, seed: int, samples: int) -> None:
    """With random gradients of the answers, the same in each place for the same answer, as a loss would give."""
    answers = [leaf for leaf in tree_leaves(answer) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not answers:
        return
    chance = torch.Generator().manual_seed(seed)
    slopes = [torch.randn(leaf.shape, generator=chance).to(leaf) * _bend(leaf, samples) for leaf in answers]
    try:
        torch.autograd.grad(answers, [anchor], slopes, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):  # such a checkpoint can be run by backward() alone
            raise


def _bend(answer: Tensor, samples: int) -> Tensor | float:
    """Replaced samples get other gradients too. An answer without samples, such as a loss, belongs to all of them."""
    if samples not in answer.shape or answer.is_complex():
        return 1.0
    return answer.detach().nan_to_num().tanh().add(1.5)


def _all_same(these: list[Tensor], those: list[Tensor]) -> bool:
    return all(_same(one, other, ANSWERS_WITHIN) for one, other in zip(these, those, strict=True))


def _begins_with(whole: Tensor, part: Tensor) -> bool:
    """Along the axis in which they differ, if there is one."""
    axes = [axis for axis, size in enumerate(whole.shape) if part.dim() == whole.dim() and part.shape[axis] != size]
    return len(axes) != 1 or _same(whole.narrow(axes[0], 0, part.shape[axes[0]]), part, ANSWERS_WITHIN)


def _fingerprints(answer: Tensor, samples: int) -> list[Tensor]:
    """A few figures for each sample, along every axis as long as the batch: mixing leaves none of them alone."""
    values = torch.view_as_real(answer) if answer.is_complex() else answer
    values = values if values.is_floating_point() else values.float()
    axes = [axis for axis, size in enumerate(answer.shape) if size == samples]
    return [_fingerprint(_by_memory(values.movedim(axis, 0)) if values.dim() > 1 else values[:, None]) for axis in axes]


def _by_memory(values: Tensor) -> Tensor:
    """A row for each sample, in the order in which its values lie: any other would be a copy."""
    inner = sorted(range(1, values.dim()), key=lambda axis: values.stride()[axis], reverse=True)
    return values.permute(0, *inner).flatten(1)


def _fingerprint(rows: Tensor) -> Tensor:
    """(samples, 3): two random projections and the size."""
    directions = torch.rand(rows.shape[1], 2, generator=torch.Generator().manual_seed(1)).to(rows) - 0.5
    return torch.cat([rows @ directions, torch.linalg.vector_norm(rows, dim=1, keepdim=True)], dim=1)


def _same_rows(one: Tensor, other: Tensor, kept: Tensor) -> bool:
    here, there = one[kept.to(one.device)], other[kept.to(one.device)]
    allowed = SAME_WITHIN * here[:, 2:].nan_to_num(posinf=0.0) + 1e-30
    return bool((torch.eq(here, there) | (here.isnan() & there.isnan()) | ((here - there).abs() <= allowed)).all())


def _same(one: Tensor, other: Tensor, within: float = SAME_WITHIN) -> bool:
    if torch.equal(one, other):
        return True
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return False
    finite = one.abs().nan_to_num(posinf=0.0)
    largest = float(finite.max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=within * largest + 1e-30, equal_nan=True)


def _same_norms(one: Tensor | None, other: Tensor | None, kept: Tensor) -> bool:
    if one is None or other is None:
        known = other if one is None else one
        return known is None or bool((known[kept.to(known.device)] <= 1e-12 * known.max()).all())
    kept = kept.to(one.device)
    largest = float(one.nan_to_num(posinf=0.0).max())
    return torch.allclose(one[kept], other[kept], rtol=SAME_NORM_WITHIN, atol=1e-9 * largest, equal_nan=True)
