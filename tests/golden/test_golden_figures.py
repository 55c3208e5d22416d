"""Compare the specification of each kind of figure literally: marks, axes and data. No pixels."""

import json

import msgspec
import pytest
from golden_files import check_golden, declare

from figures_of_every_kind import EVERY
from rigdyno import catalogue
from rigdyno.report.drawing.draw import make_specification
from rigdyno.schema.figure import Figure

declare(f"figures/{key}.json" for key in EVERY)


def essentials(spec):
    """Return the marks with their encodings and the number of rows that each draws, panel by panel."""
    if "vconcat" in spec:
        return [essentials(panel) for panel in spec["vconcat"]]
    if "layer" in spec:
        return [part for layer in spec["layer"] for part in essentials(layer)]
    mark = spec["mark"] if isinstance(spec["mark"], dict) else {"type": spec["mark"]}
    encoded = {channel: shown(value) for channel, value in sorted(spec["encoding"].items())}
    return [{"mark": mark["type"], "rows": len(json.loads(spec["data"]["values"])), **encoded}]


def shown(channel):
    """Return the field, and the parts of its scale and axis that change the meaning."""
    if "condition" in channel:
        return {"condition": channel["condition"], **shown({k: v for k, v in channel.items() if k != "condition"})}
    found = {key: channel[key] for key in ("field", "datum", "value") if key in channel}
    scale, axis = channel.get("scale") or {}, channel.get("axis") or {}
    found |= {key: scale[key] for key in ("type", "zero", "domain", "range") if key in scale}
    found |= {"title": axis["title"]} if axis.get("title") else {}
    return found["field"] if list(found) == ["field"] else found


@pytest.mark.parametrize("key", EVERY)
def test_specification_of_each_kind_is_unchanged(key):
    figure = EVERY[key]
    spec = make_specification(figure)
    document = {"title": spec["title"], "chart": essentials(spec)}
    check_golden(f"figures/{key}.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def test_every_kind_has_an_example():
    assert {figure.kind for figure in EVERY.values()} == set(catalogue.names("figure"))


@pytest.mark.parametrize("key", EVERY)
def test_a_figure_is_read_back_from_json(key):
    assert msgspec.json.decode(msgspec.json.encode(EVERY[key]), type=Figure) == EVERY[key]
