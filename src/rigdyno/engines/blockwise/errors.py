"""What the blockwise engine refuses, and why.

BlockwiseError
├── BadSetting         an option, a box or a mask that makes no sense here
├── BadVolume          an input that isn't there, isn't a volume, or has a type that can't be used
│   └── BadRegion      one part of it: a chunk that can't be decoded, a NaN; the other blocks go on
├── BadNetwork         a network that can't be loaded, or doesn't give one answer for each voxel
├── BadOutput          a place that can't be written: a full disk, no rights, something else is there
├── WontResume         what lies there was begun with another model, grid or normalisation
└── TooLittleMemory    not even the smallest block fits

If a package that is needed isn't installed, rigdyno.base.errors.MissingExtra is raised, which is a ValueError too.
"""

from __future__ import annotations


class BlockwiseError(ValueError):
    """One line that says what, where, and what to try."""


class BadSetting(BlockwiseError):
    pass


class BadVolume(BlockwiseError):
    pass


class BadRegion(BadVolume):
    pass


class BadNetwork(BlockwiseError):
    pass


class BadOutput(BlockwiseError):
    pass


class WontResume(BlockwiseError):
    pass


class TooLittleMemory(BlockwiseError):
    pass
