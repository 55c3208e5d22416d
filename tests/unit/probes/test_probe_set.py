"""Tests of probes that hang, raise, disappear or return nonsense: they are tagged, and other probes are still read."""

import math

import pytest

from driving import until
from rigdyno.contracts import Channel, Unavailable
from rigdyno.probes.common.probe_set import BLOCKED, FAILED, FINE, GONE, NONSENSE, ProbeSet
from support import ManualClock


class Scripted:
    """A probe whose values are a function of the number of the reading."""

    def __init__(self, answer, *channels):
        self.answer, self.channels, self.count, self.closed = (
            answer,
            channels or (Channel("watts", "W", "power"),),
            0,
            False,
        )

    def availability(self):
        return None

    def open(self, pids):
        return self.channels

    def read(self):
        self.count += 1
        return self.answer(self.count)

    def close(self):
        self.closed = True


POWER = Channel("w", "W", "power", device="gpu0", scope="card", extent="whole", most=1000.0)
ENERGY = Channel("j", "J", "energy", "counter", "gpu0", "", "card", "whole", most=1000.0)


@pytest.fixture
def clock():
    return ManualClock()


def readings(meters, clock, count):
    """Return the values by channel name, of several readings half a second apart."""
    found = []
    for _ in range(count):
        found.append(dict(zip([c.name for c in meters.channels], meters.read(), strict=True)))
        clock.advance(0.5)
    return found


def states(found, name="bad"):
    return [each[f"{name}_probe_state"] for each in found]


def good():
    return Scripted(lambda count: [float(count)], Channel("count", "1"))


def test_a_read_that_hangs_is_tagged_blocked_and_the_others_are_read(clock, hang):
    def hang_once(count):
        if count == 2:
            hang()
        return [5.0]

    meters = ProbeSet({"bad": Scripted(hang_once, POWER), "good": good()}, list, clock)
    found = readings(meters, clock, 4)
    assert states(found) == [FINE, BLOCKED, BLOCKED, BLOCKED]
    assert [each["count"] for each in found] == [1, 2, 3, 4]
    assert [math.isnan(each["w"]) for each in found] == [False, True, True, True]
    hang.let_go()
    until(lambda: found.extend(readings(meters, clock, 1)) or states(found)[-1] == FINE)  # the late value is dropped
    assert found[-1]["w"] == 5.0
    meters.close()


def test_closing_does_not_wait_for_a_probe_that_hangs(clock, hang):
    bad, other = Scripted(lambda _: hang(), POWER), good()
    meters = ProbeSet({"bad": bad, "good": other}, list, clock)
    readings(meters, clock, 1)
    meters.close()
    assert other.closed
    assert not bad.closed


def test_a_probe_that_hangs_while_it_opens_is_absent(clock, give_up_on, hang):
    give_up_on("bad")
    bad = Scripted(lambda _: [1.0])
    bad.open = lambda pids: hang()
    meters = ProbeSet({"bad": bad, "good": good()}, list, clock)
    assert "didn't answer within" in meters.absent["bad"]
    assert [channel.name for channel in meters.channels] == ["count", "good_probe_state"]
    meters.close()


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: 1 / 0,
        lambda _: [1.0, 2.0],  # one too many
        lambda _: ["five"],
        lambda _: None,
        lambda _: [None],
    ],
)
def test_a_probe_that_raises_or_returns_something_else_has_failed(clock, answer):
    meters = ProbeSet({"bad": Scripted(answer, POWER), "good": good()}, list, clock)
    found = readings(meters, clock, 2)
    assert states(found) == [FAILED, FAILED]
    assert all(math.isnan(each["w"]) for each in found)
    assert found[-1]["count"] == 2
    meters.close()


@pytest.mark.parametrize("watts", [-1.0, 1001.0, math.inf, -math.inf, 1e300])
def test_implausible_power_is_nonsense(clock, watts):
    meters = ProbeSet({"bad": Scripted(lambda count: [watts if count == 2 else 80.0], POWER)}, list, clock)
    found = readings(meters, clock, 3)
    assert states(found) == [FINE, NONSENSE, FINE]
    assert math.isnan(found[1]["w"])
    assert found[2]["w"] == 80.0
    meters.close()


def test_a_missing_value_is_not_nonsense(clock):
    meters = ProbeSet({"bad": Scripted(lambda _: [math.nan], POWER)}, list, clock)
    assert states(readings(meters, clock, 2)) == [FINE, FINE]
    meters.close()


@pytest.mark.parametrize("jump", [-50.0, 1e6])
def test_a_counter_that_falls_or_jumps_is_nonsense_once(clock, jump):
    joules = [100.0, 140.0, 140.0 + jump if jump > 0 else 90.0]
    joules += [joules[-1] + 40.0]
    meters = ProbeSet({"bad": Scripted(lambda count: [joules[count - 1]], ENERGY)}, list, clock)
    found = readings(meters, clock, 4)
    assert states(found) == [FINE, FINE, NONSENSE, FINE]
    meters.close()


def test_a_probe_that_disappears_is_gone_after_a_while(clock):
    meters = ProbeSet({"bad": Scripted(lambda count: [5.0 if count < 3 else math.nan], POWER)}, list, clock)
    found = readings(meters, clock, 20)
    assert states(found)[:5] == [FINE] * 5
    assert states(found)[-1] == GONE
    meters.close()


def test_a_slow_sensor_is_not_gone_between_two_values(clock):
    slow = Channel("w", "W", "power", scope="wall", interval_seconds=10.0)
    meters = ProbeSet({"bad": Scripted(lambda count: [5.0 if count % 20 == 1 else math.nan], slow)}, list, clock)
    assert set(states(readings(meters, clock, 60))) == {FINE}
    meters.close()


def test_an_absent_probe_has_a_reason_and_a_fix(clock):
    absent, broken = good(), good()
    absent.availability = lambda: Unavailable("not here", "go there")
    broken.availability = lambda: {}["missing"]
    meters = ProbeSet({"absent": absent, "broken": broken}, list, clock)
    assert meters.absent["absent"] == "not here; go there"
    assert meters.absent["broken"].startswith("it failed")
    assert meters.read() == []


def test_two_probes_with_channels_of_one_name_keep_both(clock):
    meters = ProbeSet({"one": good(), "two": good()}, list, clock)
    names = [channel.name for channel in meters.channels]
    assert names == ["count", "one_probe_state", "two_count", "two_probe_state"]
    assert [channel.sensor for channel in meters.channels] == ["one", "one", "two", "two"]
    meters.close()


def test_the_reason_of_an_absent_probe_hides_the_home_folder(clock, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    probe = good()
    probe.availability = lambda: Unavailable("nothing configured", f"write {tmp_path}/ada/.config/x")
    assert ProbeSet({"p": probe}, list, clock).absent == {"p": "nothing configured; write ~/.config/x"}


def test_a_third_probe_is_read_while_two_hang(clock, hang):
    def hang_from(first):
        return Scripted(lambda count: [5.0] if count < first else hang() or [5.0], Channel(f"w{first}", "W"))

    meters = ProbeSet({"one": hang_from(2), "good": good(), "two": hang_from(3)}, list, clock)
    found = readings(meters, clock, 4)
    assert states(found, "one") == [FINE, BLOCKED, BLOCKED, BLOCKED]
    assert states(found, "two") == [FINE, FINE, BLOCKED, BLOCKED]
    assert [each["count"] for each in found] == [1, 2, 3, 4]
    hang.let_go()
    until(
        lambda: found.extend(readings(meters, clock, 1)) or states(found, "one")[-1] == states(found, "two")[-1] == FINE
    )
    assert [each["count"] for each in found] == list(range(1, len(found) + 1))
    meters.close()
