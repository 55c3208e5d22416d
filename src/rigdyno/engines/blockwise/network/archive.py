"""Read the operator calls of a network from a file of torch.export.save, without executing anything in it.

torch.export.load unpickles parts of the file and evaluates expressions in it. Here the graph is read as JSON, the
weights as raw bytes, and only operators that are known by name are ever run.
"""

from __future__ import annotations

import json
import struct
import zipfile
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.calls import Calls, OperatorCall, Ref, first_line, make_printable

MOST_GRAPH_BYTES = 256 * 2**20

MOST_REPEATED_BYTES = 2**26  # for tensors that repeat stored elements, like expanded ones

# Numbers from torch.export's list of types.
TYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}

EXPORT_AGAIN = "export it again with torch.export.save of torch 2.8 or later"

_NAME_KEYS = ("parameter_name", "buffer_name", "tensor_constant_name")


def read_archive(path: Path) -> Calls:
    """Read the calls of an exported network; raise BadNetwork if the file is damaged, hostile or unknown."""
    try:
        with zipfile.ZipFile(path) as file:
            return _Archive(path, file).read_calls()
    except FileNotFoundError:
        raise BadNetwork(f"there is no file {path}") from None
    except (zipfile.BadZipFile, OSError, EOFError, struct.error) as error:
        raise BadNetwork(f"{path} isn't a file of torch.export.save, or is truncated: {first_line(error)}") from None
    # RuntimeError includes the RecursionError that deeply nested JSON raises.
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, BadNetwork):
            raise
        raise BadNetwork(
            f"{path} isn't understood ({type(error).__name__}: {first_line(error)}); {EXPORT_AGAIN}"
        ) from None


class _Archive:
    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path, self.file = path, file
        self.size = path.stat().st_size
        self.root = PurePosixPath(file.namelist()[0]).parts[0]
        self._entries: dict[str, bytearray] = {}
        self._copied = 0

    def read_calls(self) -> Calls:
        document = self._read_json("models/model.json")
        graph, signature = document["graph_module"]["graph"], document["graph_module"]["signature"]
        inputs = [
            spec["user_input"]["arg"]["as_tensor"]["name"] for spec in signature["input_specs"] if "user_input" in spec
        ]
        if any("user_output" not in spec for spec in signature["output_specs"]):
            raise BadNetwork(f"{self.path} changes its own buffers; call .eval() on the network before exporting it")
        outputs = [spec["user_output"]["arg"]["as_tensor"]["name"] for spec in signature["output_specs"]]
        if len(inputs) != 1 or len(outputs) != 1:
            raise BadNetwork(
                f"{self.path} takes {len(inputs)} and returns {len(outputs)} tensors; it must be one and one"
            )
        return Calls(
            calls=tuple(_parse_call(node) for node in graph["nodes"] if _returns_tensors(node)),
            input=inputs[0],
            output=outputs[0],
            constants=self._read_constants(signature["input_specs"]),
            shapes={name: _parse_sizes(meta) for name, meta in graph["tensor_values"].items()},
        )

    def _read_constants(self, specs: list[dict[str, Any]]) -> dict[str, Tensor]:
        constants = {}
        weights = self._read_json("data/weights/model_weights_config.json")["config"]
        others = self._read_json("data/constants/model_constants_config.json")["config"]
        for spec in specs:
            ((kind, content),) = spec.items()
            if kind == "user_input":
                continue
            name = next((content[key] for key in _NAME_KEYS if key in content), "")
            folder, entry = ("weights", weights[name]) if name in weights else ("constants", others[name])
            constants[content["arg"]["name"]] = self._read_tensor(make_printable(name), folder, entry)
        return constants

    def _read_json(self, name: str) -> Any:
        return json.loads(self._read_entry(name, MOST_GRAPH_BYTES))

    def _read_tensor(self, name: str, folder: str, entry: dict[str, Any]) -> Tensor:
        meta = entry["tensor_meta"]
        if entry.get("use_pickle") or meta is None:
            raise BadNetwork(f"{self.path}: '{name}' is stored as a pickle, which could run code; {EXPORT_AGAIN}")
        if meta["dtype"] not in TYPES:
            raise BadNetwork(f"{self.path}: '{name}' has a type that isn't known here")
        kind, sizes = TYPES[meta["dtype"]], _parse_sizes(meta)
        strides = [int(stride["as_int"]) for stride in meta["strides"]]
        offset = int(meta["storage_offset"]["as_int"])
        content = self._read_entry(f"data/{folder}/{entry['path_name']}", self.size)
        stored = len(content) // kind.itemsize
        if not _is_inside_storage(sizes, strides, offset, stored):
            raise BadNetwork(f"{self.path}: '{name}' has the shape {sizes}, but {stored} elements are stored")
        if not prod(sizes):
            return torch.empty(sizes, dtype=kind)
        if prod(sizes) > stored:
            self._require_room(name, prod(sizes) * kind.itemsize)
        tensor = torch.frombuffer(content, dtype=kind, count=stored).as_strided(sizes, strides, offset)
        if not tensor.is_contiguous():
            self._require_room(name, prod(sizes) * kind.itemsize)
        return tensor.contiguous()

    def _require_room(self, name: str, taken: int) -> None:
        """Limit the copies to the size of the file: a few hostile bytes could claim that a tensor has terabytes."""
        self._copied += taken
        if self._copied > self.size + MOST_REPEATED_BYTES:
            raise BadNetwork(f"{self.path}: '{name}' is larger than its stored data")

    def _read_entry(self, name: str, most: int) -> bytearray:
        """Read an entry once, so that tensors that share memory take no more than the file does."""
        if name not in self._entries:
            entry = f"{self.root}/{name}"
            if entry not in self.file.NameToInfo:
                raise BadNetwork(f"{self.path} has no {make_printable(name)}; {EXPORT_AGAIN}")
            information = self.file.getinfo(entry)
            # torch never compresses, and a compressed entry could expand without limit.
            if information.compress_type != zipfile.ZIP_STORED or information.file_size > min(most, self.size):
                raise BadNetwork(f"{self.path}: {make_printable(name)} is compressed or too large")
            self._entries[name] = bytearray(self.file.read(entry))
        return self._entries[name]


def _is_inside_storage(sizes: tuple[int, ...], strides: list[int], offset: int, stored: int) -> bool:
    if len(sizes) != len(strides) or min(*sizes, *strides, offset, 0) < 0:
        return False
    if not prod(sizes):
        return True
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return last < stored


def _returns_tensors(node: dict[str, Any]) -> bool:
    """Return whether a node returns tensors; sizes and checks of them aren't needed here."""
    return any(kind in output for output in node["outputs"] for kind in ("as_tensor", "as_tensors"))


def _parse_call(node: dict[str, Any]) -> OperatorCall:
    operator = make_printable(node["target"].removeprefix("torch.ops."))
    outputs = node["outputs"]
    result = outputs[0]["as_tensor"]["name"] if len(outputs) == 1 and "as_tensor" in outputs[0] else ""
    return OperatorCall(operator, {given["name"]: _parse_argument(given["arg"]) for given in node["inputs"]}, result)


def _parse_argument(argument: dict[str, Any]) -> Any:
    ((kind, content),) = argument.items()
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return Ref(content["name"])
    if kind == "as_tensors":
        return [Ref(item["name"]) for item in content]
    return content


def _parse_sizes(meta: dict[str, Any]) -> tuple[int, ...]:
    return tuple(_parse_size(size) for size in meta["sizes"])


def _parse_size(size: dict[str, Any]) -> int:
    """Return a size; for one that may vary, the value it was traced with."""
    if "as_int" in size:
        return int(size["as_int"])
    hint = size["as_expr"].get("hint") or {}
    return int(hint.get("as_int", -1))
