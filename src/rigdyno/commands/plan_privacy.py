"""`rigdyno plan-privacy`: compute the noise that keeps a training within an epsilon, and its time on this machine."""

from __future__ import annotations

import math
from pathlib import Path

import click

from rigdyno import catalogue
from rigdyno.base.errors import EXIT_DONE, BadValue, RigdynoError, UsageError
from rigdyno.commands.common.output import out_option
from rigdyno.contracts import Requirement
from rigdyno.report.text import render_view
from rigdyno.schema.measured import Measurement
from rigdyno.schema.view import View
from rigdyno.store.campaign import find_run, stored_folders
from rigdyno.store.location import root_of

MOST_SAMPLES = 10**12

MOST_EPOCHS = 10**6

NEEDS = (Requirement("torch"), Requirement("dp_accounting", extra="private"))

EXAMPLES = """\b
Examples:
  rigdyno plan-privacy --samples 50000 --batch 512 --epochs 20 --epsilon 3
  rigdyno plan-privacy --samples 50000 --batch 512 --epochs 20 --noise 1.1
  rigdyno plan-privacy --samples 60000 --batch 256 --epochs 60 --epsilon 3 --run privacy.20260101-120000
"""


@click.command("plan-privacy", epilog=EXAMPLES, short_help="Compute the noise for an epsilon, and the training time.")
@click.option("--samples", type=click.IntRange(1, MOST_SAMPLES), required=True, help="Samples in the data set.")
@click.option("--batch", type=click.IntRange(1, MOST_SAMPLES), required=True, help="Mean number of samples per batch.")
@click.option("--epochs", type=click.IntRange(1, MOST_EPOCHS), required=True, help="Number of epochs.")
@click.option("--epsilon", type=float, help="Largest epsilon allowed.")
@click.option("--noise", type=float, help="Noise multiplier, instead of an epsilon.")
@click.option("--delta", type=float, help="Delta of the privacy guarantee. [default: 0.1 / samples]")
@click.option("--run", "run", metavar="RUN", help="Stored private run, for the time. [default: the newest]")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@out_option
def command(
    samples: int,
    batch: int,
    epochs: int,
    epsilon: float | None,
    noise: float | None,
    delta: float | None,
    run: str | None,
    form: str,
    as_json: bool,
    out: str | None,
) -> int:
    """Compute the least noise that keeps a training within an epsilon, or the epsilon of a given noise.

    Epsilon is shown for each epoch, by two accountants. The time on this machine is taken from a stored run."""
    if (epsilon is None) == (noise is None):
        raise UsageError("give either --epsilon or --noise")
    if batch > samples:
        raise BadValue(f"--batch {batch} is larger than the data set of {samples} samples")
    for name, value in (("epsilon", epsilon), ("noise", noise)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadValue(f"--{name} must be a number above 0, not {value:g}")
    catalogue.require_installed(NEEDS, "plan-privacy")
    view = _make_view(samples, batch, epochs, epsilon, noise, delta or 0.1 / samples, _find_timed(run, out))
    click.echo(render_view(view, "json" if as_json else form), nl=False)
    return EXIT_DONE


def _make_view(
    samples: int,
    batch: int,
    epochs: int,
    epsilon: float | None,
    noise: float | None,
    delta: float,
    timed: Measurement | str,
) -> View:
    from rigdyno.engines.dp import PrivacyError
    from rigdyno.features.privacy_plan.report import PrivacyPlan, privacy_plan_view

    try:
        plan = PrivacyPlan.make(samples, batch, epochs, delta, epsilon=epsilon, noise=noise)
    except PrivacyError as error:
        raise BadValue(" ".join(str(error).split())) from error
    return privacy_plan_view(plan, timed)


def _find_timed(run: str | None, out: str | None) -> Measurement | str:
    """Return the fastest private update of the given run or of the newest that has one; else why there is none."""
    root = root_of(out)
    if run is not None:
        found = _fastest_private_at(find_run(root, run))
        if found is None:
            raise UsageError(f"{run} has no finished private training; try a run of `rigdyno run privacy`")
        return found
    for folder in reversed(stored_folders(root)):
        try:
            found = _fastest_private_at(folder.path)
        except RigdynoError:  # skip runs that can't be read
            continue
        if found is not None:
            return found
    return f"no private training is stored in {root}; `rigdyno run privacy` measures one"


def _fastest_private_at(path: Path) -> Measurement | None:
    from rigdyno import api
    from rigdyno.schema.estimate import Estimate
    from rigdyno.store.campaign import is_campaign

    if is_campaign(path):
        return None  # the runs of its suites are examined separately
    rates = [(each, each.throughput()) for each in api.load(path).measurements if _is_private(each)]
    known = [(each, rate.value) for each, rate in rates if isinstance(rate, Estimate)]
    return max(known, key=lambda pair: pair[1])[0] if known else None


def _is_private(each: Measurement) -> bool:
    known = each.spec.update in catalogue.names("update")
    return known and bool(catalogue.load("update", each.spec.update).private)
