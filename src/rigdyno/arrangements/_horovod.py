"""The ranks of Horovod, as a model of PyTorch or of TensorFlow is shared out by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from rigdyno.contracts import CannotRun, Mark, Place, Training, card_of


class HorovodRanks(Protocol):
    """All of them, this one included: a `Collective`, and how a model is shared out."""

    horovod: Any  # its module for this framework
    averages: ClassVar[bool]  # whether the gradients that an update sees are those of all ranks

    def sum(self, tensors: list[Any]) -> None: ...

    def agree(self, number: int) -> int: ...

    def shared(self, training: Training, mark: Mark) -> Training: ...

    def leave(self) -> None: ...


def join(framework: str, place: Place, transport: str) -> HorovodRanks:
    """Where and as who, the launcher has said in the environment."""
    ranks = JOINED[framework](place)
    _require(ranks.horovod, place, transport)
    return ranks


def _require(horovod: Any, place: Place, transport: str) -> None:
    """Left alone, each process is a world of its own, and a missing transport is replaced by another one."""
    found = (horovod.rank(), horovod.size(), "mpi" if horovod.mpi_enabled() else "gloo")
    if found != (place.rank, place.world_size, transport):
        wanted = f"rank {place.rank} of {place.world_size} over {transport}"
        raise RuntimeError(f"Horovod joined as rank {found[0]} of {found[1]} over {found[2]}, not as {wanted}")


class TorchRanks:
    """Gradients are sent while the backward pass goes on, and waited for before the optimizer steps."""

    averages: ClassVar[bool] = True

    def __init__(self, place: Place) -> None:
        import horovod.torch as horovod
        import torch

        self.horovod: Any = horovod
        if place.device != "cpu":
            torch.accelerator.set_device_index(place.device)
        self.horovod.init()

    def sum(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            self.horovod.allreduce_(tensor, op=self.horovod.Sum)

    def agree(self, number: int) -> int:
        import torch

        return int(self.horovod.allgather(torch.tensor([number]), name="rigdyno.agree").max())

    def leave(self) -> None:
        """All together: a rank that leaves while others are still talking to it makes them abort."""
        self.agree(0)
        self.horovod.shutdown()

    def shared(self, training: Training, mark: Mark) -> Training:
        if training.scaler is not None:
            raise CannotRun("Horovod sums gradients before a scaler of the loss could look at them; try fp32")
        model = training.model
        self.horovod.broadcast_parameters(model.state_dict(), root_rank=0)
        sent = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)

        def optimizer_of(parameters: Sequence[Any]) -> Any:
            return self._distributed(training.optimizer(parameters), model, mark)

        settled = {**training.settled, "gradient_bytes": sent}
        return replace(training, optimizer=optimizer_of, mark=mark, settled=settled)

    def _distributed(self, optimizer: Any, model: Any, mark: Mark) -> Any:
        """Its step waits for the gradients of the others first: that is marked as a phase of its own."""
        made = self.horovod.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        self.horovod.broadcast_optimizer_state(made, root_rank=0)
        step, zero_grad = made.step, made.zero_grad

        def marked(*arguments: Any) -> Any:
            made.synchronize()
            mark("communication")
            with made.skip_synchronize():
                return step(*arguments)

        made.step = marked
        made.zero_grad = lambda set_to_none=True: zero_grad()  # it knows no argument, and sets them to None
        return made


class TensorflowRanks:
    """Gradients are summed once all of them are computed, tensor by tensor, as Horovod's gradient tape does it: so that
    waiting can be told from computing, as in the arrangement `multiworker`."""

    averages: ClassVar[bool] = False

    def __init__(self, place: Place) -> None:
        import horovod.tensorflow as horovod
        import tensorflow as tf

        self.horovod: Any = horovod
        card, visible = card_of(place.device), tf.config.list_physical_devices("GPU")
        if visible:  # a rank has one device: else it would take all of its node's
            tf.config.set_visible_devices([] if card is None else [visible[card]], "GPU")
        self.horovod.init()
        self._summed: Callable[[list[Any]], list[Any]] = tf.function(self._sum_in_graph)

    def sum(self, tensors: list[Any]) -> None:
        tensors[:] = self._summed(list(tensors))

    def agree(self, number: int) -> int:
        import tensorflow as tf

        everybody = self.horovod.allgather(tf.constant([number], tf.int64), name="rigdyno.agree")
        return int(tf.reduce_max(everybody))

    def leave(self) -> None:
        self.agree(0)
        self.horovod.shutdown()

    def shared(self, training: Training, mark: Mark) -> Training:
        trained = [_plain(variable) for variable in training.model.trainable_variables]
        self.horovod.broadcast_variables([_plain(variable) for variable in training.model.variables], root_rank=0)
        sent = sum(each.shape.num_elements() * each.dtype.size for each in trained)
        return replace(training, mark=mark, settled={**training.settled, "gradient_bytes": sent})

    def _sum_in_graph(self, tensors: list[Any]) -> list[Any]:
        return [self.horovod.allreduce(tensor, op=self.horovod.Sum) for tensor in tensors]


def _plain(variable: Any) -> Any:
    """TensorFlow's own: a variable of Keras 3 holds it as its value, and Horovod knows nothing of that."""
    import tensorflow as tf

    return variable if isinstance(variable, tf.Variable) else variable.value


JOINED: dict[str, Callable[[Place], HorovodRanks]] = {"torch": TorchRanks, "tensorflow": TensorflowRanks}
