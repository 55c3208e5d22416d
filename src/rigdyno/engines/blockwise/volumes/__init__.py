"""What is read and what is written: OME-Zarr, N5 and HDF5 in, OME-Zarr out."""

from rigdyno.engines.blockwise.volumes.ome_zarr_output import OmeZarrOutput
from rigdyno.engines.blockwise.volumes.opening import open_volume
from rigdyno.engines.blockwise.volumes.reflect import read_reflected

__all__ = ["OmeZarrOutput", "open_volume", "read_reflected"]
