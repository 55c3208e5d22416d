"""`rigdyno plan-privacy`: the noise that keeps a training within an epsilon, and what it costs on this rig."""

from __future__ import annotations

import math
from pathlib import Path

import click

from rigdyno import catalogue
from rigdyno.commands._shared import out_option, rendered, root_of
from rigdyno.contracts import Requirement
from rigdyno.errors import EXIT_DONE, BadValue, RigdynoError, UsageError
from rigdyno.schema.measured import Measurement
from rigdyno.schema.view import View
from rigdyno.store.campaign import located, stored_folders

MOST_SAMPLES = 10**12
MOST_EPOCHS = 10**6
NEEDS = (Requirement("torch"), Requirement("dp_accounting", extra="private"))
EXAMPLES = """\b
Examples:
  rigdyno plan-privacy --samples 50000 --batch 512 --epochs 20 --epsilon 3
  rigdyno plan-privacy --samples 50000 --batch 512 --epochs 20 --noise 1.1
  rigdyno plan-privacy --samples 60000 --batch 256 --epochs 60 --epsilon 3 --run privacy.20260101-120000
"""


@click.command("plan-privacy", epilog=EXAMPLES, short_help="The noise for an epsilon, and the time it takes here.")
@click.option("--samples", type=click.IntRange(1, MOST_SAMPLES), required=True, help="Of the data set.")
@click.option("--batch", type=click.IntRange(1, MOST_SAMPLES), required=True, help="That a batch has on average.")
@click.option("--epochs", type=click.IntRange(1, MOST_EPOCHS), required=True, help="How long to train.")
@click.option("--epsilon", type=float, help="To stay within.")
@click.option("--noise", type=float, help="The noise multiplier, instead of an epsilon.")
@click.option("--delta", type=float, help="For which epsilon is given. [default: a tenth of one over the samples]")
@click.option("--run", "run", metavar="RUN", help="A stored private run that tells the time. [default: the newest]")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
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
    """The least noise that keeps so many epochs within an epsilon, or the epsilon of a given noise.

    Epsilon is given epoch by epoch, by two accountants, and the time on this rig is that of a stored run."""
    if (epsilon is None) == (noise is None):
        raise UsageError("give --epsilon, or --noise, and not both")
    if batch > samples:
        raise BadValue(f"a batch of {batch} is more than the {samples} samples")
    for name, value in (("epsilon", epsilon), ("noise", noise)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadValue(f"--{name} must be a number above 0, not {value:g}")
    catalogue.demand(NEEDS, "plan-privacy")
    view = _view(samples, batch, epochs, epsilon, noise, delta or 0.1 / samples, _timed(run, out))
    click.echo(rendered(view, "json" if as_json else form), nl=False)
    return EXIT_DONE


def _view(
    samples: int,
    batch: int,
    epochs: int,
    epsilon: float | None,
    noise: float | None,
    delta: float,
    timed: Measurement | str,
) -> View:
    from rigdyno.engines.dp import PrivacyError
    from rigdyno.report.privacy_plan import PrivacyPlan, view_of

    try:
        plan = PrivacyPlan.made(samples, batch, epochs, delta, epsilon=epsilon, noise=noise)
    except PrivacyError as error:
        raise BadValue(" ".join(str(error).split())) from error
    return view_of(plan, timed)


def _timed(run: str | None, out: str | None) -> Measurement | str:
    """The stored measurement of a private update that is quickest; or why there is none."""
    root = root_of(out)
    if run is not None:
        found = _private_at(located(root, run))
        if found is None:
            raise UsageError(f"{run} has no finished private training; try a run of `rigdyno run privacy`")
        return found
    for folder in reversed(stored_folders(root)):
        try:
            found = _private_at(folder.path)
        except RigdynoError:  # one that can't be read tells nothing
            continue
        if found is not None:
            return found
    return f"no private training is stored in {root}; `rigdyno run privacy` measures one"


def _private_at(path: Path) -> Measurement | None:
    from rigdyno import api
    from rigdyno.schema.estimate import Estimate
    from rigdyno.store.campaign import is_campaign

    if is_campaign(path):
        return None  # its suites lie beside it as runs of their own
    rates = [(each, each.throughput()) for each in api.load(path).measurements if _is_private(each)]
    known = [(each, rate.value) for each, rate in rates if isinstance(rate, Estimate)]
    return max(known, key=lambda pair: pair[1])[0] if known else None


def _is_private(each: Measurement) -> bool:
    known = each.spec.update in catalogue.names("update")
    return known and bool(catalogue.load("update", each.spec.update).private)
