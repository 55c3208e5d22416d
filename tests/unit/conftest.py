"""Settings of every unit test: nothing here may depend on chance, or on how busy the machine is."""

from importlib import import_module

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

PATIENCE_SECONDS = 60.0
LIMITS = {
    "rigdyno.launchers.nodes.remote": ["ANSWER_SECONDS"],
    "rigdyno.launchers.nodes.session": ["STOP_SECONDS"],
    "rigdyno.probes.common.probe_set": ["OPEN_SECONDS", "READ_SECONDS", "CLOSE_SECONDS"],
    "rigdyno.probes.tegrastats": ["FIRST_LINE_SECONDS"],
    "rigdyno.rig.environment": ["GIT_SECONDS"],
    "rigdyno.features.doctor.diagnose": ["PATIENCE_SECONDS"],
}


@pytest.fixture(autouse=True, scope="session")
def _patient_product():
    """Raise the product's time limits that a thread or process could exceed on a busy machine.

    A test of a limit sets it again.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module, names in LIMITS.items():
            for name in names:
                patch.setattr(import_module(module), name, PATIENCE_SECONDS)
        yield
