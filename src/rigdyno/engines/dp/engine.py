"""Private training in three lines: the same network, optimizer and loop, with clipping, noise and Poisson batches.

    engine = PrivacyEngine()
    network, optimizer, loader = engine.make_private(
        module=network, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0)

The training loop stays as it is; `engine.get_epsilon(delta=1e-5)` tells what it cost.
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

from rigdyno.engines.dp import checkpoint
from rigdyno.engines.dp.accounting import Accountant, Epsilon, check_accountant, check_delta, noise_multiplier_for
from rigdyno.engines.dp.bounds import Bound, Reduction, bound_of, check_positive
from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.examine import refuse
from rigdyno.engines.dp.ledger import Ledger
from rigdyno.engines.dp.noise import noise_source
from rigdyno.engines.dp.ranks import Ranks
from rigdyno.engines.dp.sampling import GivenBatches, PoissonLoader, private_loader
from rigdyno.engines.dp.seeds import Turn
from rigdyno.engines.dp.shuffled import ADJACENCY, ShuffledLoader, shuffled_loader
from rigdyno.engines.dp.training import Batches, PrivateTraining
from rigdyno.engines.dp.tray import AHEAD

ClippingKind = Literal["flat", "per_layer", "adaptive"]
Norm = float | Mapping[str, float]


class PrivacyEngine:
    """Holds what is spent; one engine trains one network."""

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
        """`secure`: noise and sampling from the system's cryptographic source, and nothing repeats. `ledger`: a file
        that counts over several runs. `kernels`: Numba's, none of them, or (None) as this machine allows. `expanded`:
        gradients of each sample by expanded weights, the plain way, to compare with; without kernels."""
        check_accountant(accountant)
        if expanded and kernels:
            raise BadSetting("expanded weights are torch's own operations: leave out kernels or expanded")
        self.secure, self.accountant, self.expanded = secure, accountant, expanded
        self.kernels = False if expanded else kernels
        self._adjacency: str | None = None
        self._generator = generator
        # One rank adds the noise and keeps the file; the others count along.
        self.ledger = Ledger() if ledger is None or not Ranks.here().first else Ledger.open(ledger)
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
        """The objects given, changed in place; only the loader is a new one, that samples by Poisson. Without
        `poisson_sampling` it shuffles, and every epoch costs as much as one step on all samples. `clipping` per layer
        takes one norm for all together, or one for each parameter by its name; adaptive clipping begins at the norm
        (`clipping_options`: share, rate, count_std). `noise_generator`: in the place of the engine's, for noise.
        `batch_first`: the samples are along the first axis of the network's inputs; if not, along the second. `ahead`:
        how many batches a trainer may draw before it uses the one it is at."""
        bound = bound_of(max_grad_norm, clipping, loss_reduction, clipping_options or {})
        self._refuse(module, optimizer, noise_multiplier, loss_reduction)
        turn = Turn(self.ledger)
        loader = self._loader(data_loader, poisson_sampling, ahead, turn)
        self._samples = len(data_loader.dataset)  # type: ignore[arg-type]
        self._wire(module, optimizer, loader, noise_multiplier, bound, noise_generator, turn, batch_first)
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
        """Where the data set behind the batches isn't at hand: the step is the same, and epsilon is a bound far above
        that of Poisson batches, since nothing is known about how these were drawn."""
        bound = bound_of(max_grad_norm, clipping, loss_reduction, clipping_options or {})
        self._refuse(module, optimizer, noise_multiplier, loss_reduction)
        turn = Turn(self.ledger)
        self._wire(module, optimizer, batches, noise_multiplier, bound, noise_generator, turn, batch_first)
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
        """With the least noise that keeps so many epochs within the target, on top of what the ledger has already.
        `options`: as for make_private."""
        self.ledger.reopen()
        probe = self._loader(data_loader, poisson_sampling)
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

    def _refuse(self, module: nn.Module, optimizer: Optimizer, noise_multiplier: float, reduction: str) -> None:
        check_positive("noise_multiplier", noise_multiplier)
        if reduction not in ("mean", "sum"):
            raise BadSetting(f"loss_reduction is {reduction!r}; it must be 'mean' or 'sum'")
        if self._training is not None:
            raise BadSetting("this engine already trains a network; make another engine for another network")
        refuse(module)
        _refuse_optimizer(module, optimizer)
        self.ledger.reopen()

    def _loader(
        self, loader: DataLoader[Any], poisson: bool, ahead: int = AHEAD, turn: Turn | None = None
    ) -> PoissonLoader | ShuffledLoader:
        ranks = Ranks.here()
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
            turn=turn,
        )

    def _wire(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        batches: Batches,
        noise_multiplier: float,
        bound: Bound,
        noise_generator: torch.Generator | None,
        turn: Turn,
        batch_first: bool,
    ) -> None:
        Ranks.here().start_alike(module)
        device = next(parameter.device for parameter in module.parameters() if parameter.requires_grad)
        source = noise_generator if noise_generator is not None else self._generator
        noise = noise_source(device, generator=source, secure=self.secure, kernels=self.kernels, turn=turn)
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
        """Of the next step, and may be set between steps: each is counted with the noise that it had."""
        return self._trains().noise_multiplier

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        self._trains().noise_multiplier = value

    @property
    def max_grad_norm(self) -> float:
        """Of the next step: where clipping is adaptive, it moves; else it may be set between steps."""
        return self._trains().max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, value: float) -> None:
        self._trains().max_grad_norm = value

    def _trains(self) -> PrivateTraining:
        if self._training is None:
            raise BadSetting("this engine trains no network: call make_private first")
        return self._training

    def save_checkpoint(
        self, path: Path | str, *, module: nn.Module, optimizer: Optimizer | None = None, extra: Any = None
    ) -> None:
        """Network, optimizer and ledger in one file; `extra` are plain figures of your own, such as the epoch."""
        checkpoint.save(Path(path), module, optimizer, self.ledger, extra or {})

    def load_checkpoint(self, path: Path | str, *, module: nn.Module, optimizer: Optimizer | None = None) -> Any:
        """Before or after make_private. Gives `extra` back. What was spent after the checkpoint stays counted."""
        return checkpoint.load(Path(path), module, optimizer, self.ledger)

    def get_epsilon(self, delta: float) -> float:
        return self.epsilon(delta).epsilon

    def epsilon(self, delta: float) -> Epsilon:
        """With the conservative figure beside it."""
        if self._samples is not None:
            check_delta(delta, self._samples)
        found = self.ledger.epsilon(delta, self.accountant)
        return found if self._adjacency is None else replace(found, adjacency=self._adjacency)

    def release(self) -> None:
        """Gives network and optimizer back as they were, with what they have learnt. Others may use the ledger's file
        then; the next make_private of this engine goes on with it."""
        if self._training is not None:
            self._training.undo()
            self._training = None
        self.ledger.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise BadSetting(
            "an engine can't be copied or pickled: two would spend what one counts; keep engine.ledger.state_dict() in "
            "a checkpoint, or give the engine a ledger file"
        )


def _refuse_optimizer(network: nn.Module, optimizer: Optimizer) -> None:
    """Every trained parameter gets noise, and nothing else is trained."""
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
