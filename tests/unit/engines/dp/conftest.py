import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks only lose by threads; what needs two asks for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
