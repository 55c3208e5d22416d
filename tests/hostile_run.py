"""Make a run folder in which every text that isn't ours is an injection attempt."""

from __future__ import annotations

from pathlib import Path

from rigdyno.schema.record import Completed, Facts, Failed, Skipped, Total
from rigdyno.schema.spec import Cell, RunPlan, RunSpec
from rigdyno.schema.system import Accelerator, Cpu, Environment
from rigdyno.store.folder import RunFolder
from stored_runs import add_cell
from support import NOW, a_head, a_system

PAYLOADS = (
    "<script>alert(1)</script>",
    "</style><script>alert(2)</script>",
    "</title></textarea><img src=x onerror=alert(3)>",
    '"><svg onload=alert(4)>',
    "' onmouseover='alert(5)",
    "javascript:alert(6)",
    "<!--<script>",
    "&lt;b&gt;&amp;#60;",
    "<a href='https://example.org/leak'>x</a>",
    "<iframe src=//example.org></iframe><link rel=stylesheet href=//example.org/x.css>",
    "<meta http-equiv=refresh content='0;url=https://example.org/'>",
    "line\u2028separator\u2029paragraph",
    "bell\x07 escape\x1b[31m null\x00 delete\x7f",
    "\u202eright to left\u202c \u2066isolated\u2069 \u200fmark",
    "{{7*7}} ${7*7} <%= 7 %>",
    "]]><![CDATA[<script>alert(7)</script>",
    "${IFS};rm -rf / `id` $(id)",
)


def hostile_run(root: Path, *, suite: str | None = None) -> Path:
    """Make a cell for each payload, which is put into every text of the run folder."""
    cells = [_cell(number, words) for number, words in enumerate(PAYLOADS, 1)]
    everything = " ".join(PAYLOADS)
    system = a_system(
        cpu=Cpu(model=everything, logical_cores=2, usable_cores=2, simd=PAYLOADS),
        operating_system=everything, kernel=everything, virtualisation=everything, confidential=everything,
        accelerators=(Accelerator(kind="cuda", name=everything),),
    )  # fmt: skip
    environment = Environment(
        python=everything, packages=dict.fromkeys(PAYLOADS, everything), variables=dict.fromkeys(PAYLOADS, everything),
        framework=dict.fromkeys(PAYLOADS, everything), governor=everything, huge_pages=everything,
    )  # fmt: skip
    folder = RunFolder.create(root, "a 'run' <b>&", NOW)
    plan = RunPlan(name=PAYLOADS[0], suite=suite, label=everything, cells=tuple(cells), noise_missing=everything)
    folder.write_head(a_head(cells, plan=plan, system=system, environment=environment, created_at=everything))
    for number, (cell, words) in enumerate(zip(cells, PAYLOADS, strict=True)):
        facts = Facts(unit=words, notes=(words,), totals={words: Total(value=1.0, unit=words)}, settled={words: words})
        outcome = (Completed(), Failed(kind="exception", phase="measure", message=words), Skipped(reason=words))
        add_cell(folder, cell, 20.0 + number, facts=facts, outcome=outcome[number % 3], label=words, system=system,
                 environment=environment, started_at=words)  # fmt: skip
    return folder.path


def _cell(number: int, words: str) -> Cell:
    spec = RunSpec(workload=f"train.py:{words}", options={words: words, "batch": number}, device="cpu")
    name = f"{number:02d}-" + words.replace("/", "_").replace("\0", "_")
    return Cell(name=name, spec=spec)
