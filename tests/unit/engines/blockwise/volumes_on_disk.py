"""Write small volumes in every format with tensorstore and h5py, for tests of the readers."""

import json
from pathlib import Path

import h5py
import numpy as np
import tensorstore

ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}


def numbers(*shape, dtype=np.uint16, seed=0):
    """Return random numbers that are never zero, the value of missing chunks."""
    drawn = np.random.default_rng(seed).integers(1, 250, shape)
    return (drawn / 7).astype(dtype) if np.dtype(dtype).kind == "f" else drawn.astype(dtype)


def czyx(values):
    """Return the values with channels first."""
    return values if values.ndim == 4 else values[np.newaxis]


def write(driver, folder, values, metadata):
    kvstore = {"driver": "file", "path": f"{Path(folder).resolve()}/"}
    store = tensorstore.open({"driver": driver, "kvstore": kvstore, "metadata": metadata, "create": True}).result()
    store.write(values).result()
    return folder


def zarr2(folder, values, chunks, *, dtype=None, attributes=None, **metadata):
    default = {"compressor": {"id": "zlib", "level": 1}, "fill_value": 0}
    document = {"shape": values.shape, "chunks": chunks, "dtype": dtype or values.dtype.str, **default, **metadata}
    write("zarr", folder, values, document)
    if attributes is not None:
        put(folder / ".zattrs", attributes)
    return folder


def zarr3(folder, values, chunks, *, inner=None, **metadata):
    codecs = [ENDIAN, {"name": "gzip", "configuration": {"level": 1}}]
    if inner:
        codecs = [{"name": "sharding_indexed", "configuration": {"chunk_shape": inner, "codecs": codecs}}]
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    document = {"shape": values.shape, "data_type": values.dtype.name, "chunk_grid": grid, "codecs": codecs}
    return write("zarr3", folder, values, {**document, **metadata})


def n5(folder, values, blocks, **attributes):
    """Write `values` in NumPy's order; N5 itself has x first."""
    document = {"dimensions": values.shape[::-1], "blockSize": blocks[::-1], "dataType": values.dtype.name}
    write("n5", folder, values.T, {**document, "compression": {"type": "gzip", "level": 1}})
    put(folder / "attributes.json", {**json.loads((folder / "attributes.json").read_text()), **attributes})
    return folder


def hdf5(file, **datasets):
    with h5py.File(file, "w") as content:
        for path, (values, chunks) in datasets.items():
            content.create_dataset(path, data=values, chunks=chunks, compression="gzip" if chunks else None)
    return file


def multiscales(axes, *scales, unit="nanometer", whole=None):
    """Return the `multiscales` of OME-NGFF 0.4 and 0.5, with one dataset for each scale."""
    types = {"t": "time", "c": "channel"}
    image = {
        "axes": [
            {"name": axis, "type": types.get(axis, "space")} | ({} if axis in types else {"unit": unit})
            for axis in axes
        ],
        "datasets": [
            {"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": scale}]}
            for level, scale in enumerate(scales)
        ],
    }
    return [image | ({"coordinateTransformations": [{"type": "scale", "scale": whole}]} if whole else {})]


def ome_zarr_04(folder, image, *levels, chunks=(8, 8, 8)):
    put(folder / ".zgroup", {"zarr_format": 2})
    put(folder / ".zattrs", {"multiscales": image})
    for level, values in enumerate(levels):
        zarr2(folder / str(level), values, (1,) * (values.ndim - len(chunks)) + chunks, dimension_separator="/")
    return folder


def ome_zarr_05(folder, image, *levels, chunks=(8, 8, 8)):
    ome = {"version": "0.5", "multiscales": image}
    put(folder / "zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}})
    for level, values in enumerate(levels):
        zarr3(folder / str(level), values, (1,) * (values.ndim - len(chunks)) + chunks)
    return folder


def put(file, document):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))


def edit(file, **changes):
    put(file, {**json.loads(file.read_text()), **changes})
