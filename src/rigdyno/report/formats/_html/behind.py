"""What stands behind the figures: how it was measured, the rig, the reasons behind verdicts, every raw file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rigdyno.report.formats._html.markup import Child, Markup, tag
from rigdyno.report.formats._html.tables import badge, plain_table
from rigdyno.schema.dossier import Dossier, Fact, Ground, ProcessFacts, RawFiles
from rigdyno.schema.estimate import Validity
from rigdyno.units import show_bytes, show_seconds


def how_it_was_measured(dossier: Dossier, noise: str | None) -> list[Markup | None]:
    """Folded: whoever doubts a figure opens it."""
    return [
        facts(dossier.measured),
        tag("p", noise) if noise else None,
        plain_table(
            "Every process",
            ("process", "what", "took", "steps", "warm-up cut", "memory", "steps fell into"),
            [_process(process) for process in dossier.processes],
            numeric=(2, 3, 4, 5),
        )
        if dossier.processes
        else None,
        more(dossier.more_processes, "processes", f"rigdyno show {shlex.quote(dossier.run)}"),
    ]


def _process(process: ProcessFacts) -> tuple[Child, ...]:
    took = show_seconds(process.seconds) if process.ended.startswith("done") else process.ended
    counted = ["" if count is None else f"{count:,}" for count in (process.steps, process.cut)]
    memory = "" if process.memory_bytes is None else show_bytes(process.memory_bytes)
    return process.cell, process.what, took, *counted, memory, process.tagged


def facts(known: Sequence[Fact]) -> Markup:
    return tag("dl", [[tag("dt", fact.name), tag("dd", fact.value)] for fact in known])


def reasons(dossier: Dossier | None, validity: Validity | None) -> list[Markup | None]:
    """With the steps that each fell on, where the run folder is at hand."""
    if dossier is not None and dossier.grounds:
        titles = ("configuration", "verdict", "reason", "what was found", "steady steps")
        rows = [_ground(ground) for ground in dossier.grounds]
        table = plain_table("Why the figures are doubted", titles, rows, numeric=(4,))
        return [table, more(dossier.more_grounds, "reasons", f"rigdyno show {shlex.quote(dossier.run)}")]
    if validity is None or not validity.reasons:
        return []
    rows = [(reason.code.replace("_", " "), reason.sentence) for reason in validity.reasons]
    return [plain_table("Why the figures are doubted", ("reason", "what was found"), rows)]


def _ground(ground: Ground) -> tuple[Child, ...]:
    fell_on = f"{ground.hit:,} of {ground.steps:,}" if ground.hit is not None else f"all {ground.steps:,} together"
    return ground.what, badge(ground.verdict), ground.code.replace("_", " "), ground.sentence, fell_on


def raw_files(files: RawFiles, place: str) -> list[Markup | None]:
    """With one hash over all of them, and the command that gives it again."""
    listing = f"cd {shlex.quote(place)} && find head.json cells -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"
    lines = [f"{file.sha256}  {file.name}" for file in files.listed]
    return [
        tag(
            "p",
            f"{files.count:,} files, {show_bytes(files.size_bytes)}. The sha256 of their list is ",
            tag("code", files.digest, class_="hash"),
            ". It comes out of:",
        ),
        tag("pre", f"({listing}) | sha256sum"),
        tag("p", "Each of them, as ", tag("code", "sha256sum --check"), " reads it:") if lines else None,
        tag("pre", "\n".join(lines), class_="hash") if lines else None,
        more(files.count - len(files.listed), "files", listing),
    ]


def more(count: int, what: str, command: str) -> Markup | None:
    return tag("p", f"And {count:,} more {what}: ", tag("code", command), class_="cut") if count > 0 else None
