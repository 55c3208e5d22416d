"""Tests of throttling by the worker's control group, on simulated files of both cgroup versions."""

import math

import pytest

from rigdyno.probes.common.worker import Quota

V2 = ("0::/jobs/mine\n", "sys/fs/cgroup/jobs/mine", "cpu.max", "max 100000\n", "50000 100000\n", "throttled_usec", 1000)
V1 = (
    "5:memory:/\n3:cpuset:/\n1:cpu,cpuacct:/mine\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/mine",
    "cpu.cfs_quota_us",
    "-1\n",
    "50000\n",
    "throttled_time",
    1,
)


class Groups:
    def __init__(self, root, version):
        membership, self.folder, self.quota_file, self.none, self.some, self.counter, self.unit_ns = version
        self.root = root
        self.write("proc/7/cgroup", membership)
        self.quota(self.none)
        self.throttled(0)

    def write(self, path, text):
        """Write in place: the probe keeps the file open."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def quota(self, text):
        self.write(f"{self.folder}/{self.quota_file}", text)

    def throttled(self, ns):
        self.write(f"{self.folder}/cpu.stat", f"nr_periods 9\nnr_throttled 3\n{self.counter} {ns // self.unit_ns}\n")


@pytest.fixture(params=[V1, V2], ids=["v1", "v2"])
def groups(tmp_path, request):
    return Groups(tmp_path, request.param)


def test_a_group_without_a_quota_is_not_throttled(groups):
    quota = Quota(groups.root, lambda: [7])
    assert quota.throttled_ns() == 0
    quota.close()


def test_throttled_time_counts_from_the_last_call(groups):
    groups.quota(groups.some)
    groups.throttled(5_000_000)  # what was before counts for nothing
    quota = Quota(groups.root, lambda: [7])
    groups.throttled(12_000_000)
    assert quota.throttled_ns() == 7_000_000
    assert quota.throttled_ns() == 0
    quota.close()


def test_a_quota_set_while_the_worker_runs_counts(groups):
    quota = Quota(groups.root, lambda: [7])
    groups.quota(groups.some)
    quota.refresh()
    groups.throttled(3_000_000)
    assert quota.throttled_ns() == 3_000_000
    quota.close()


def test_the_quota_of_a_parent_group_counts(tmp_path):
    groups = Groups(tmp_path, V2)
    groups.write("sys/fs/cgroup/jobs/cpu.max", "50000 100000\n")
    groups.write("sys/fs/cgroup/jobs/cpu.stat", "throttled_usec 0\n")
    quota = Quota(groups.root, lambda: [7])
    groups.write("sys/fs/cgroup/jobs/cpu.stat", "throttled_usec 8\n")
    assert quota.throttled_ns() == 8_000
    quota.close()


@pytest.mark.parametrize("membership", ["0::/of/the/host\n", "0::/../outside\n"])
def test_inside_a_container_the_mount_is_used(tmp_path, membership):
    groups = Groups(tmp_path, ("0::/", "sys/fs/cgroup", *V2[2:]))
    groups.write("proc/7/cgroup", membership)
    groups.quota(groups.some)
    quota = Quota(groups.root, lambda: [7])
    groups.throttled(4_000)
    assert quota.throttled_ns() == 4_000
    quota.close()


def test_a_worker_that_is_moved_to_another_group_is_followed(groups):
    quota = Quota(groups.root, lambda: [7])
    groups.write("proc/7/cgroup", "0::/elsewhere\n")
    groups.write("sys/fs/cgroup/elsewhere/cpu.max", "10000 100000\n")
    groups.write("sys/fs/cgroup/elsewhere/cpu.stat", "throttled_usec 0\n")
    quota.refresh()
    groups.write("sys/fs/cgroup/elsewhere/cpu.stat", "throttled_usec 6\n")
    assert quota.throttled_ns() == 6_000
    quota.close()


def test_unreadable_quotas_are_nan_and_not_zero(tmp_path):
    assert math.isnan(Quota(tmp_path, lambda: [7]).throttled_ns())
    assert math.isnan(Quota(tmp_path, list).throttled_ns())


def test_a_group_that_is_removed_counts_no_further(groups):
    groups.quota(groups.some)
    quota = Quota(groups.root, lambda: [7])
    (groups.root / groups.folder / "cpu.stat").write_text("")
    assert quota.throttled_ns() == 0
    quota.close()
