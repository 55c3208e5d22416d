"""The systems of the privacy suite: what each protects, how it is run, and why some can't run yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import OF_UPDATE, RunSpec, Value

Label = Literal["none", "incomplete", "ok"]

Cost = Literal["always", "usual", "full"]

EFFICIENTNET, OWN = "efficientnet_cifar100", "own_training"

BATCH = "batch_size"

GROUPED: dict[str, Value] = {"norm": "group"}

NO_FEDERATION = "no arrangement for several parties in this version"

NO_REMOTE = "no remote trainer in this version"

NO_ENCLAVE = "no remote trainer in an enclave in this version"


@dataclass(frozen=True)
class Protection:
    """Answers to three questions, from which the published label follows."""

    seen: bool  # does the data leave its owner, so that the trainer can read it?
    private: bool  # is the result private: does the network reveal nothing about a single sample?
    trusted: bool  # must the host be trusted, because it holds the data unencrypted?

    @property
    def label(self) -> Label:
        protected = (not self.seen) + self.private + (not self.trusted)
        return "none" if protected == 0 else "ok" if protected == 3 else "incomplete"

    @property
    def words(self) -> str:
        return "; ".join(
            (
                "whoever trains can read the data" if self.seen else "whoever trains can't read the data",
                "the result is private" if self.private else "the result may tell of a single sample",
                "the host must be trusted" if self.trusted else "the host needn't be trusted",
            )
        )


PLAIN = Protection(seen=True, private=False, trusted=True)

PRIVATE = Protection(seen=True, private=True, trusted=True)

FEDERATED = Protection(seen=False, private=False, trusted=False)

FEDERATED_PRIVATE = Protection(seen=False, private=True, trusted=False)

REMOTE = Protection(seen=False, private=False, trusted=True)

REMOTE_PRIVATE = Protection(seen=False, private=True, trusted=True)

ENCLAVE = Protection(seen=False, private=False, trusted=False)

ENCLAVE_PRIVATE = Protection(seen=False, private=True, trusted=False)


@dataclass(frozen=True, kw_only=True)
class PrivacySystem:
    name: str
    protection: Protection
    published: str | None = None  # its name in the document
    update: str = "plain"
    mode: str | None = None  # mode of Opacus
    options: dict[str, Value] = field(default_factory=dict)  # options of EfficientNet-B0
    cost: Cost = "usual"  # always: also in a campaign
    awaits: str | None = None  # why it can't run in this version

    def matches(self, spec: RunSpec) -> bool:
        known = spec.resolved
        mode = self.mode is None or known.get(f"{OF_UPDATE}mode") == self.mode
        own = spec.workload != EFFICIENTNET or all(known.get(name) == value for name, value in self.options.items())
        return self.awaits is None and spec.update == self.update and mode and own


def _plain(norm: str, *, channels_last: bool = False, compiled: bool = False) -> dict[str, Value]:
    return {"norm": norm, "channels_last": channels_last, "compiled": compiled}


SYSTEMS = (
    PrivacySystem(name="PyTorch", protection=PLAIN, published="pytorch", options=_plain("batch"), cost="full"),
    PrivacySystem(
        name="PyTorch, channels last", protection=PLAIN, options=_plain("batch", channels_last=True), cost="always"
    ),
    PrivacySystem(
        name="PyTorch, compiled",
        protection=PLAIN,
        options=_plain("batch", channels_last=True, compiled=True),
        cost="full",
    ),
    PrivacySystem(name="PyTorch, GroupNorm", protection=PLAIN, options=_plain("group"), cost="full"),
    PrivacySystem(
        name="PyTorch, GroupNorm, channels last", protection=PLAIN, options=_plain("group", channels_last=True)
    ),
    PrivacySystem(name="Rigdyno's engine", protection=PRIVATE, update="dp_fast", options=GROUPED, cost="always"),
    PrivacySystem(name="expanded weights", protection=PRIVATE, update="dp_expanded", options=GROUPED),
    PrivacySystem(
        name="Opacus, hooks",
        protection=PRIVATE,
        published="pytorch+opacus",
        update="dp_opacus",
        mode="hooks",
        options=GROUPED,
    ),
    PrivacySystem(
        name="Opacus, functorch",
        protection=PRIVATE,
        update="dp_opacus",
        mode="functorch",
        options=GROUPED,
        cost="always",
    ),
    PrivacySystem(name="Opacus, ew", protection=PRIVATE, update="dp_opacus", mode="ew", options=GROUPED, cost="full"),
    PrivacySystem(
        name="Opacus, ghost", protection=PRIVATE, update="dp_opacus", mode="ghost", options=GROUPED, cost="full"
    ),
    PrivacySystem(
        name="Flower, 2 parties", protection=FEDERATED, published="pytorch+flower-2party", awaits=NO_FEDERATION
    ),
    PrivacySystem(
        name="Flower, 2 parties, DP",
        protection=FEDERATED_PRIVATE,
        published="pytorch+flower-2party+opacus",
        awaits=NO_FEDERATION,
    ),
    PrivacySystem(name="remote", protection=REMOTE, published="bastionlab", awaits=NO_REMOTE),
    PrivacySystem(name="remote, DP", protection=REMOTE_PRIVATE, published="bastionlab+dp", awaits=NO_REMOTE),
    PrivacySystem(name="remote, enclave", protection=ENCLAVE, published="bastionlab+tee", awaits=NO_ENCLAVE),
    PrivacySystem(
        name="remote, DP, enclave", protection=ENCLAVE_PRIVATE, published="bastionlab+dp+tee", awaits=NO_ENCLAVE
    ),
)


def select_systems(workload: str, *, full: bool, cheap: bool) -> list[PrivacySystem]:
    """Return the systems to measure; a user's own training has a single plain variant."""
    ready = [system for system in SYSTEMS if system.awaits is None]
    if workload == OWN:
        first = next(system for system in ready if system.update == "plain")
        ready = [first, *(system for system in ready if system.update != "plain")]
    if full:
        return ready
    kept = [system for system in ready if system.cost == "always" or (system.cost == "usual" and not cheap)]
    return kept if any(system.update == "plain" for system in kept) else [ready[0], *kept]


def system_of(measurement: Measurement) -> PrivacySystem | None:
    return next((system for system in SYSTEMS if system.matches(measurement.spec)), None)


def is_plain(system: PrivacySystem) -> bool:
    return system.update == "plain" and system.awaits is None


def missing_systems(measured: Sequence[PrivacySystem], *, own: bool) -> list[tuple[PrivacySystem, str]]:
    """Return the systems that weren't measured, each with the reason."""
    found = []
    for system in SYSTEMS:
        if system in measured or (own and system.update == "plain" and system.awaits is None):
            continue
        longer = "takes too long for the short form; --full measures it"
        found.append((system, system.awaits or (longer if system.cost == "full" else "not measured in this run")))
    return found
