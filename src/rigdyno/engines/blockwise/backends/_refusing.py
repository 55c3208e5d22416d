"""What torch has to say about a network it can't run goes on for pages: its first line is enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.errors import BadNetwork, BlockwiseError, TooLittleMemory
from rigdyno.engines.blockwise.network.calls import first_line

NO_MEMORY = "can't allocate memory"  # torch's allocator for CPUs raises a plain RuntimeError


@contextmanager
def one_line(name: str, size: Zyx, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except BlockwiseError:
        raise
    except kinds as error:
        block = "x".join(map(str, size))
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or NO_MEMORY in str(error):
            raise TooLittleMemory(
                f"blocks of {block} take more memory than there is; allow less with --memory"
            ) from error
        raise BadNetwork(f"{name} can't run the network on blocks of {block}: {first_line(error)}") from error
