"""PrivacyEngine: make an existing training loop private, with clipping, noise and Poisson batches.

    engine = PrivacyEngine()
    network, optimizer, loader = engine.make_private(
        module=network, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0)

The training loop stays as it is; `engine.get_epsilon(delta=1e-5)` returns the privacy spent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from rigdyno.engines.dp import ledger as checkpoint
from rigdyno.engines.dp.accounting import Accountant, Epsilon, check_accountant, check_delta, noise_multiplier_for
from rigdyno.engines.dp.batches.pending import AHEAD
from rigdyno.engines.dp.batches.sampling import GivenBatches, PoissonLoader, private_loader
from rigdyno.engines.dp.batches.shuffled import ADJACENCY, ShuffledLoader, shuffled_loader
from rigdyno.engines.dp.checks.validate import check_network
from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.gradients.norm_bounds import ClippingNorm, Reduction, check_positive, make_bound
from rigdyno.engines.dp.ledger import Ledger
from rigdyno.engines.dp.noise import noise_source
from rigdyno.engines.dp.seeds import RankGroup, SeedScope
from rigdyno.engines.dp.training import Batches, PrivateTraining

ClippingKind = Literal["flat", "per_layer", "adaptive"]

Norm = float | Mapping[str, float]


class PrivacyEngine:
    """Trains one network privately, and counts the privacy spent."""

    def __init__(
        self,
        *,
        secure: bool = False,
        ledger: Path | str | None = None,
        generator: torch.Generator | None = None,
        kernels: bool | None = None,
        accountant: Accountant = "pld",
        expanded: bool = False,
    ) -> None:
        """Create an engine that doesn't train a network yet.

        secure: draw noise and batches from the system's cryptographic source, so that nothing repeats.
        ledger: a file that counts over several runs.
        kernels: True for Numba's kernels, False for torch alone, None for kernels where they can be used.
        expanded: compute per-sample gradients by expanded weights, without kernels, to compare with.
        """
        check_accountant(accountant)
        if expanded and kernels:
            raise BadSetting("expanded weights use torch's operations only: leave out kernels or expanded")
        self.secure, self.accountant, self.expanded = secure, accountant, expanded
        self.kernels = False if expanded else kernels
        self._adjacency: str | None = None
        self._generator = generator
        # One rank adds the noise and writes the file; the others count in memory.
        self.ledger = Ledger() if ledger is None or not RankGroup.current().is_first else Ledger.open(ledger)
        self._training: PrivateTraining | None = None
        self._samples: int | None = None

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: Norm,
        loss_reduction: Reduction = "mean",
        poisson_sampling: bool = True,
        clipping: ClippingKind = "flat",
        clipping_options: Mapping[str, float] | None = None,
        noise_generator: torch.Generator | None = None,
        batch_first: bool = True,
        ahead: int = AHEAD,
    ) -> tuple[nn.Module, Optimizer, PoissonLoader | ShuffledLoader]:
        """Make network and optimizer private in place. Return them with a new loader that draws by Poisson sampling.

        max_grad_norm: the clipping norm. With clipping="per_layer": one norm for all parameters together, or one for
            each parameter by its name. With clipping="adaptive": the initial norm.
        poisson_sampling: if False, the loader shuffles, and every epoch costs as much as one step on all samples.
        clipping_options: share, rate and count_std of adaptive clipping.
        noise_generator: used for the noise instead of the engine's generator.
        batch_first: True if the samples are along the first axis of the network's inputs, False if along the second.
        ahead: how many further batches a trainer may draw before it uses the current one.
        """
        bound = make_bound(max_grad_norm, clipping, loss_reduction, clipping_options or {})
        self._check(module, optimizer, noise_multiplier, loss_reduction)
        scope = SeedScope(self.ledger)
        loader = self._make_loader(data_loader, poisson_sampling, ahead, scope)
        self._samples = len(data_loader.dataset)  # type: ignore[arg-type]
        self._wire(module, optimizer, loader, noise_multiplier, bound, noise_generator, scope, batch_first)
        return module, optimizer, loader

    def make_private_with_batches(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        batches: GivenBatches,
        noise_multiplier: float,
        max_grad_norm: Norm,
        loss_reduction: Reduction = "mean",
        clipping: ClippingKind = "flat",
        clipping_options: Mapping[str, float] | None = None,
        noise_generator: torch.Generator | None = None,
        batch_first: bool = True,
    ) -> tuple[nn.Module, Optimizer, GivenBatches]:
        """Make network and optimizer private in place, for batches whose dataset isn't available.

        The steps are the same. Epsilon is an upper bound far above that of Poisson batches, since it isn't known how
        these batches were drawn.
        """
        bound = make_bound(max_grad_norm, clipping, loss_reduction, clipping_options or {})
        self._check(module, optimizer, noise_multiplier, loss_reduction)
        scope = SeedScope(self.ledger)
        self._wire(module, optimizer, batches, noise_multiplier, bound, noise_generator, scope, batch_first)
        return module, optimizer, batches

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: Norm,
        poisson_sampling: bool = True,
        **options: Any,
    ) -> tuple[nn.Module, Optimizer, PoissonLoader | ShuffledLoader]:
        """Call make_private with the least noise that keeps `epochs` epochs within the target epsilon.

        What the ledger has counted before is included. `options` are those of make_private.
        """
        self.ledger.reopen()
        probe = self._make_loader(data_loader, poisson_sampling)
        check_delta(target_delta, len(probe.dataset))  # type: ignore[arg-type]
        steps = epochs * len(probe) if poisson_sampling else epochs
        already = self.ledger.spent
        noise_multiplier = noise_multiplier_for(
            target_epsilon, target_delta, probe.sample_rate, steps, already, self.accountant
        )
        return self.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=data_loader,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            poisson_sampling=poisson_sampling,
            **options,
        )

    def _check(self, module: nn.Module, optimizer: Optimizer, noise_multiplier: float, reduction: str) -> None:
        check_positive("noise_multiplier", noise_multiplier)
        if reduction not in ("mean", "sum"):
            raise BadSetting(f"loss_reduction is {reduction!r}; it must be 'mean' or 'sum'")
        if self._training is not None:
            raise BadSetting("this engine already trains a network; make another engine for another network")
        check_network(module)
        _check_optimizer(module, optimizer)
        self.ledger.reopen()

    def _make_loader(
        self, loader: DataLoader[Any], poisson: bool, ahead: int = AHEAD, scope: SeedScope | None = None
    ) -> PoissonLoader | ShuffledLoader:
        ranks = RankGroup.current()
        if not poisson:
            self._adjacency = ADJACENCY
            return shuffled_loader(loader, self._generator, ranks.count, ahead)
        return private_loader(
            loader,
            generator=self._generator,
            secure=self.secure,
            rank=ranks.rank,
            ranks=ranks.count,
            ahead=ahead,
            turn=scope,
        )

    def _wire(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        batches: Batches,
        noise_multiplier: float,
        bound: ClippingNorm,
        noise_generator: torch.Generator | None,
        scope: SeedScope,
        batch_first: bool,
    ) -> None:
        RankGroup.current().broadcast_parameters(module)
        device = next(parameter.device for parameter in module.parameters() if parameter.requires_grad)
        source = noise_generator if noise_generator is not None else self._generator
        noise = noise_source(device, generator=source, secure=self.secure, kernels=self.kernels, scope=scope)
        self._training = PrivateTraining(
            module,
            optimizer,
            batches,
            self.ledger,
            noise,
            noise_multiplier,
            bound,
            self.kernels,
            batch_first,
            self.expanded,
        )

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of the next step. It may be set between steps; each step is counted with its own noise."""
        return self._require_training().noise_multiplier

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        self._require_training().noise_multiplier = value

    @property
    def max_grad_norm(self) -> float:
        """Clipping norm of the next step. Adaptive clipping changes it; flat clipping lets it be set between steps."""
        return self._require_training().max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, value: float) -> None:
        self._require_training().max_grad_norm = value

    def _require_training(self) -> PrivateTraining:
        if self._training is None:
            raise BadSetting("this engine trains no network: call make_private first")
        return self._training

    def save_checkpoint(
        self, path: Path | str, *, module: nn.Module, optimizer: Optimizer | None = None, extra: Any = None
    ) -> None:
        """Save network, optimizer and ledger in one file. `extra` is plain data of your own, such as the epoch."""
        checkpoint.save(Path(path), module, optimizer, self.ledger, extra or {})

    def load_checkpoint(self, path: Path | str, *, module: nn.Module, optimizer: Optimizer | None = None) -> Any:
        """Load a checkpoint, before or after make_private, and return its `extra`.

        Privacy that was spent after the checkpoint stays counted.
        """
        return checkpoint.load(Path(path), module, optimizer, self.ledger)

    def get_epsilon(self, delta: float) -> float:
        return self.epsilon(delta).epsilon

    def epsilon(self, delta: float) -> Epsilon:
        """Return the epsilon spent so far, together with the more conservative figure by Rényi divergence."""
        if self._samples is not None:
            check_delta(delta, self._samples)
        found = self.ledger.epsilon(delta, self.accountant)
        return found if self._adjacency is None else replace(found, adjacency=self._adjacency)

    def release(self) -> None:
        """Make network and optimizer ordinary again, with their trained parameters, and close the ledger's file.

        The next make_private of this engine opens the file again.
        """
        if self._training is not None:
            self._training.undo()
            self._training = None
        self.ledger.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise BadSetting(
            "an engine can't be copied or pickled: two engines would spend what one counts; keep "
            "engine.ledger.state_dict() in a checkpoint, or give the engine a ledger file"
        )


def _check_optimizer(network: nn.Module, optimizer: Optimizer) -> None:
    """Raise BadSetting unless the optimizer holds every trained parameter of the network, and no others."""
    trained = {id(parameter): name for name, parameter in network.named_parameters() if parameter.requires_grad}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [name for key, name in trained.items() if key not in held]
    if missing:
        raise BadSetting(
            f"the optimizer doesn't hold {missing[0]}; give it all trained parameters, or freeze the others"
        )
    stray = held - {id(parameter) for parameter in network.parameters()}
    if stray:
        raise BadSetting(
            "the optimizer holds parameters that aren't the network's: they would be trained without noise"
        )
