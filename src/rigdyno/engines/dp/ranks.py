"""Several ranks train one network: each clips its own samples, the first adds the noise, then all sums become one."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1

    @classmethod
    def here(cls) -> Ranks:
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum_(self, values: Tensor) -> None:
        if self.count > 1:
            dist.all_reduce(values)

    def agreed(self, name: str) -> str:
        """The first rank's."""
        names = [name]
        if self.count > 1:
            dist.broadcast_object_list(names, src=0)
        return names[0]

    def start_alike(self, network: nn.Module) -> None:
        """From the first rank's parameters, buffers included."""
        if self.count > 1:
            for value in network.state_dict().values():
                dist.broadcast(value, src=0)
