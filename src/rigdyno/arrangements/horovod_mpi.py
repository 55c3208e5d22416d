"""The arrangement `horovod` over MPI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rigdyno.arrangements.horovod import Horovod


@dataclass(frozen=True, kw_only=True)
class HorovodMpi(Horovod):
    """Several ranks that average their gradients (Horovod over MPI), in PyTorch or TensorFlow"""

    transport: ClassVar[Literal["gloo", "mpi"]] = "mpi"
