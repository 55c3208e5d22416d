"""Old records are upgraded on reading, one version at a time; the files themselves are never rewritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rigdyno.errors import DamagedRun, NewerStore
from rigdyno.schema.participant import laid_out
from rigdyno.schema.record import SCHEMA_VERSION

Raw = dict[str, Any]
Upgrade = Callable[[Raw], Raw]

# What options were in version 0.1.0, the only one that wrote schema 1: it stored those that somebody had chosen.
DEFAULTS_OF_SCHEMA_1: Mapping[str, Raw] = {
    "allreduce": {"largest": 256000000},
    "host_device_copy": {"buffer": "256MB"},
    "launch_latency": {"launches": 1000},
    "matmul_peak": {"dtype": "float32", "size": 0},
    "memory_bandwidth": {"working_set": "auto"},
    "mnist_cnn": {"batch_size": 64, "learning_rate": 0.01, "momentum": 0.5, "data": ""},
    "resnet50": {
        "batch_size": 32,
        "image_size": 224,
        "classes": 1000,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-05,
        "precision": "fp32",
        "channels_last": False,
        "compiled": False,
        "weights": "",
    },
    "tensor_add": {"size": 12288, "variant": "corrected"},
}


def upgraded(raw: Any, where: str, upgrades: Mapping[int, Upgrade] | None = None, current: int = SCHEMA_VERSION) -> Raw:
    """The record in today's form."""
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedRun(f"{where} has no schema_version")
    if version > current:
        raise NewerStore(
            f"{where} was written by a newer Rigdyno (schema {version}, this one reads {current}); upgrade it"
        )
    for step in range(version, current):
        try:
            raw = {**(upgrades or UPGRADES)[step](raw), "schema_version": step + 1}
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise DamagedRun(f"{where} doesn't hold what schema {step} should ({error!r})") from error
    return raw  # type: ignore[no-any-return]


def with_participants(raw: Raw) -> Raw:
    """From 1 to 2: participants, options as they were, exit codes by participant; how nodes met is no configuration."""
    if "plan" in raw:
        return {**raw, "plan": _plan(raw["plan"])}
    return _record(raw)


def _plan(plan: Raw) -> Raw:
    specs = [cell["spec"] for cell in plan.get("cells", ())]
    reach = next(
        ({name: spec[name] for name in _REACH if name in spec} for spec in specs if spec.get("nodes", 1) > 1), {}
    )
    cells = [
        {
            **cell,
            "spec": _spec(cell["spec"]),
            "participants": _participants(cell["spec"], cell.get("arm"), every_node=True),
        }
        for cell in plan.get("cells", ())
    ]
    return {**plan, "cells": cells, "reach": reach}


def _record(record: Raw) -> Raw:
    spec = record["spec"]
    codes = record.get("exit_codes", ())
    exit_codes = {"rank0" if spec.get("world_size", 1) == 1 else f"exit{n}": code for n, code in enumerate(codes)}
    sampler = record.get("sampler_exit_code")
    return {
        **record,
        "spec": _spec(spec),
        "participants": _participants(spec, record.get("arm")),
        "exit_codes": exit_codes if sampler is None else {**exit_codes, "node0": sampler},
    }


_REACH = ("rendezvous", "hosts")
MOST_RANKS = 100_000  # a file that says more is damaged


def _spec(spec: Raw) -> Raw:
    kept = {name: value for name, value in spec.items() if name not in _REACH}
    by_hand = spec.get("nodes", 1) > 1 and spec.get("launcher") == "torchrun"
    defaults = DEFAULTS_OF_SCHEMA_1.get(spec["workload"], {})
    return {**kept, "defaults": defaults, **({"launcher": "by_hand"} if by_hand else {})}


def _participants(spec: Raw, arm: str | None, *, every_node: bool = False) -> list[Raw]:
    """Only the first node was sampled, and of a duel the telemetry lay with arm A; what is still to run is sampled on
    every node."""
    ranks, nodes = spec.get("world_size", 1), spec.get("nodes", 1)
    if not 1 <= nodes <= ranks <= MOST_RANKS:
        raise ValueError(f"{ranks} ranks on {nodes} nodes")
    everybody = laid_out(ranks, nodes, spec.get("device", "cpu"))
    nodes_sampled = 0 if arm == "b" else nodes if every_node else 1
    stayed = [each for each in everybody if each.rank is not None or each.node < nodes_sampled]
    plain: list[Raw] = msgspec.to_builtins(stayed)
    return plain


UPGRADES: dict[int, Upgrade] = {1: with_participants}
