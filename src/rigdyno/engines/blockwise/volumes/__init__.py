"""Read volumes as OME-Zarr, N5 and HDF5, and write OME-Zarr.

One file for each format, and what they share. No network and no plan of blocks belongs here.
"""

from rigdyno.engines.blockwise.volumes.ome_zarr_output import OmeZarrOutput
from rigdyno.engines.blockwise.volumes.reading import open_volume, read_reflected

__all__ = ["OmeZarrOutput", "open_volume", "read_reflected"]
