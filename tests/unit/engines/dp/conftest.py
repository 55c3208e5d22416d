import pytest


@pytest.fixture(autouse=True)
def _small_networks(one_thread):
    """Use one thread by default: small networks only lose by more. Tests that need two set them."""
