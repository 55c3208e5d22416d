"""Serve this machine's meters to Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rigdyno import __version__
from rigdyno.base.errors import MissingExtra, UsageError
from rigdyno.probes.common.probe_set import FINE
from rigdyno.schema.channel import Channel, Quantity

LABELS = ("device", "rail", "scope", "sensor")

# By quantity: name and help of the metric, and the factor from a reading to its unit.
GAUGES: dict[Quantity, tuple[str, str, float]] = {
    "power": ("rigdyno_power_watts", "Power that a meter reads.", 1.0),
    "utilisation": ("rigdyno_utilization_ratio", "Share of the time in use, 0 to 1.", 1.0),
    "temperature": ("rigdyno_temperature_celsius", "Temperature.", 1.0),
    "memory": ("rigdyno_memory_used_bytes", "Memory in use.", 1.0),
    "clock": ("rigdyno_clock_hertz", "Clock.", 1e6),
}


class MeterCollector:
    """Provides the newest readings; what wasn't read is left out, never zero."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self._values: Sequence[float] = [math.nan] * len(channels)

    def update(self, values: Sequence[float]) -> None:
        self._values = list(values)  # replaced as a whole: a scrape comes in another thread

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        readings = list(zip(self._channels, self._values, strict=True))
        for quantity, (name, words, factor) in GAUGES.items():
            family = GaugeMetricFamily(name, words, labels=LABELS)
            for channel, value in readings:
                if channel.quantity == quantity and channel.kind == "gauge" and not math.isnan(value):
                    family.add_metric(_labels(channel), value * factor)
            yield family
        energy = CounterMetricFamily("rigdyno_energy_joules", "Energy that a meter has counted.", labels=LABELS)
        up = GaugeMetricFamily("rigdyno_probe_up", "Whether the probe was read without trouble.", labels=["probe"])
        for channel, value in readings:
            if channel.quantity == "energy" and channel.kind == "counter" and not math.isnan(value):
                energy.add_metric(_labels(channel), value)
            if channel.quantity == "state":
                up.add_metric([channel.sensor], float(value == FINE))
        yield from (energy, up)
        build = GaugeMetricFamily("rigdyno_build_info", "The version that measures.", labels=["version"])
        build.add_metric([__version__], 1.0)
        yield build


def _labels(channel: Channel) -> list[str]:
    return [channel.device, channel.rail, channel.scope or "", channel.sensor]


def serve(collector: MeterCollector, port: int, address: str) -> tuple[int, Callable[[], None]]:
    """Serve the readings; return the port, and the function that ends the server."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise MissingExtra(
            "--prometheus needs prometheus_client, which isn't installed: pip install 'rigdyno[prometheus]'"
        ) from None
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, _thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(
            f"can't listen on {address}, port {port}: {why}; try another --prometheus or --listen"
        ) from None

    def end() -> None:
        server.shutdown()
        server.server_close()

    return int(server.server_port), end
