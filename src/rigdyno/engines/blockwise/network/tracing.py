"""Trace the operator calls of a live module with torch.export, for a block of a fixed shape."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import fx, nn

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.calls import Calls, OperatorCall, Ref, first_line
from rigdyno.engines.blockwise.network.maps import WrongShape


def trace_module(module: nn.Module, channels: int, shape: Zyx) -> Calls:
    example = torch.zeros(1, channels, *shape)
    try:
        # torch prints pages about a network that it can't trace.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), _silence_logs():
            warnings.simplefilter("ignore")
            program = torch.export.export(module.eval(), (example,))
    except Exception as error:
        raise WrongShape(f"the network can't be traced on a block of {shape}: {first_line(error)}") from error
    signature = program.graph_signature
    owners = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    stored = {**program.state_dict, **program.constants}
    nodes = list(program.graph.nodes)
    inputs = [node.name for node in nodes if node.op == "placeholder" and node.name not in owners]
    outputs = [str(name) for name in signature.user_outputs]
    if len(inputs) != 1 or len(outputs) != 1:
        raise BadNetwork(f"the network takes {len(inputs)} and returns {len(outputs)} tensors; it must be one and one")
    return Calls(
        calls=tuple(_make_call(node) for node in nodes if node.op == "call_function" and _returns_tensors(node)),
        input=inputs[0],
        output=outputs[0],
        constants={name: stored[owner].detach() for name, owner in owners.items()},
        shapes={node.name: tuple(node.meta["val"].shape) for node in nodes if _is_tensor(node)},
    )


@contextmanager
def _silence_logs() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _make_call(node: fx.Node) -> OperatorCall:
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # a Python operator, such as indexing a tuple
        return OperatorCall(
            str(node.target), {str(n): _convert_argument(value) for n, value in enumerate(node.args)}, node.name
        )
    names = [argument.name for argument in schema.arguments]
    arguments = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return OperatorCall(
        str(node.target), {name: _convert_argument(value) for name, value in arguments.items()}, node.name
    )


def _convert_argument(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return Ref(value.name)
    if isinstance(value, (list, tuple)):
        return [_convert_argument(item) for item in value]
    return value


def _returns_tensors(node: fx.Node) -> bool:
    """Return whether a node returns tensors; sizes and checks of them aren't needed here."""
    return any(isinstance(value, torch.Tensor) for value in torch.utils._pytree.tree_leaves(node.meta.get("val")))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
