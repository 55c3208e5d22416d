import pytest


@pytest.fixture(autouse=True)
def _small_networks(one_thread):
    """They only lose by threads; what needs two asks for them."""
