"""`rigdyno forecast-volume`: predict how long a volume takes, on this machine and on published GPUs."""

from __future__ import annotations

import click

from rigdyno import catalogue
from rigdyno.base.errors import EXIT_DONE
from rigdyno.commands.common.output import device_counts, out_option, suites_at
from rigdyno.report.text import render_view

EXAMPLES = """\b
Examples:
  rigdyno forecast-volume --price-per-hour 3
  rigdyno forecast-volume --voxels 8.1e12 --devices 1,8,64
  rigdyno forecast-volume raw.zarr
"""


@click.command("forecast-volume", epilog=EXAMPLES, short_help="Predict hours, energy and price of large volumes.")
@click.argument("names", nargs=-1, metavar="[RUN|VOLUME]...")
@click.option("--devices", "sizes", metavar="N[,N...]", help="Numbers of devices. [default: 1]")
@click.option("--voxels", type=float, multiple=True, help="Number of voxels of a volume, e.g. 8.1e12.")
@click.option("--price-per-hour", type=float, help="Price of one device per hour, in any currency.")
@click.option("--watts", type=float, help="Power of one device, for the energy.")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@out_option
def command(
    names: tuple[str, ...],
    sizes: str | None,
    voxels: tuple[float, ...],
    price_per_hour: float | None,
    watts: float | None,
    form: str,
    as_json: bool,
    out: str | None,
) -> int:
    """Estimate hours, energy and price of inference over famous volumes, over --voxels, or over a volume at a path.

    The rate is that of the newest run of `rigdyno run volume` or `rigdyno infer`, or of a RUN that is named. The
    published GPUs are shown next to it.
    """
    from rigdyno.features.forecast_volume.forecast import volume_view

    counts = device_counts(sizes) if sizes else []
    view = volume_view(names, voxels, counts, price_per_hour, watts, out, suites_at)
    click.echo(render_view(view, "json" if as_json else form), nl=False)
    return EXIT_DONE
