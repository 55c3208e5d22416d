"""`rigdyno share`: draw the card of a run or a campaign as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from rigdyno import __version__, catalogue
from rigdyno.base.errors import EXIT_DONE, BadValue
from rigdyno.base.files import disk_errors
from rigdyno.commands.common.output import views_at
from rigdyno.contracts import Requirement
from rigdyno.store.campaign import is_campaign, named_or_newest_runs

NEEDS = (Requirement("vl_convert", "figures"),)

FORMS = (".png", ".svg")


@click.command("share", short_help="Draw the card of a run as a picture, to share it.")
@click.argument("run", required=False)
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False), metavar="FILE", help=".png or .svg file to write."
)
@click.option("--theme", type=click.Choice(("light", "dark")), default="light", show_default=True, help="Colours.")
def command(run: str | None, out: str, theme: str) -> int:
    """Draw the card of a run, or of a campaign with a line for each suite, as a picture of 1200 x 630; without a RUN,
    of the newest. It shows the verdicts and marks published figures.

    \b
    Examples:
      rigdyno share --out card.png
      rigdyno share runs/all.20260101-120000 --out card.svg --theme dark
    """
    path = Path(out)
    if path.suffix not in FORMS:
        raise BadValue(f"--out takes a .png or an .svg file, not '{out}'; try {path.stem or 'card'}.png")
    if path.suffix == ".png":
        catalogue.require_installed(NEEDS, "a picture as PNG")
    found = named_or_newest_runs((run,) if run else (), None)[0]
    svg = _svg(found, theme)
    with disk_errors(path):
        path.write_bytes(svg.encode() if path.suffix == ".svg" else _png(svg))
    click.echo(f"Wrote {path}.")
    return EXIT_DONE


def _svg(path: Path, theme: str) -> str:
    from rigdyno import api
    from rigdyno.features.campaign.share import card_svg

    head = api.load_campaign(path).head if is_campaign(path) else api.load(path).head
    measured = f"measured on {head.created_at[:10]} with Rigdyno {head.rigdyno_version}"
    drawn = "" if head.rigdyno_version == __version__ else f", drawn with {__version__}"
    return card_svg(views_at(path), "dark" if theme == "dark" else "light", made=measured + drawn)


def _png(svg: str) -> bytes:
    import vl_convert

    picture: bytes = vl_convert.svg_to_png(svg, scale=1.0, ppi=72)
    return picture
