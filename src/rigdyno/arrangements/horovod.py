"""Horovod over Gloo: every rank has the whole model and its own batches; Horovod averages the gradients.

`horovodrun --gloo` or `--mpi` chooses the transport, so each has its own arrangement; `horovod_mpi` is this one over
MPI. Each rank checks that Horovod really uses that transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

from rigdyno.arrangements.common import loops
from rigdyno.contracts import (
    Arrangement,
    CannotRun,
    Mark,
    Requirement,
    Training,
    TrainingJob,
    Update,
    WorkerPlace,
    Workload,
    World,
    card_of,
)
from rigdyno.schema.record import Quality
from rigdyno.schema.spec import RunSpec

COMMAND = "make horovod"  # in Rigdyno's source tree; builds Horovod for the installed frameworks


class HorovodRanks(Protocol):
    """The `Collective` of all ranks, which also distributes a training."""

    horovod: Any  # Horovod's module for this framework
    averages: ClassVar[bool]  # whether gradients are averaged over all ranks before the update sees them

    def sum(self, tensors: list[Any]) -> None: ...

    def agree(self, number: int) -> int: ...

    def distribute(self, training: Training, mark: Mark) -> Training: ...

    def leave(self) -> None: ...


def join(framework: str, place: WorkerPlace, transport: str) -> HorovodRanks:
    """Join the ranks; the launcher has set address and rank in the environment."""
    ranks = RANKS[framework](place)
    _require_transport(ranks.horovod, place, transport)
    return ranks


def _require_transport(horovod: Any, place: WorkerPlace, transport: str) -> None:
    """Check what Horovod joined: without a launcher each process is a world of one rank, and Horovod replaces a missing
    transport by another."""
    actual = (horovod.rank(), horovod.size(), "mpi" if horovod.mpi_enabled() else "gloo")
    if actual != (place.rank, place.world_size, transport):
        wanted = f"rank {place.rank} of {place.world_size} over {transport}"
        raise RuntimeError(f"Horovod joined as rank {actual[0]} of {actual[1]} over {actual[2]}, not as {wanted}")


class TorchRanks:
    """Ranks of PyTorch: gradients are sent during the backward pass, and awaited before the optimizer's step."""

    averages: ClassVar[bool] = True

    def __init__(self, place: WorkerPlace) -> None:
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
        """Leave together: a rank that leaves while others still communicate with it makes them abort."""
        self.agree(0)
        self.horovod.shutdown()

    def distribute(self, training: Training, mark: Mark) -> Training:
        if training.scaler is not None:
            raise CannotRun("Horovod sums gradients before a loss scaler could check them; try fp32")
        model = training.model
        self.horovod.broadcast_parameters(model.state_dict(), root_rank=0)
        sent = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)

        def make_optimizer(parameters: Sequence[Any]) -> Any:
            return self._distribute_optimizer(training.optimizer(parameters), model, mark)

        settled = {**training.settled, "gradient_bytes": sent}
        return replace(training, optimizer=make_optimizer, mark=mark, settled=settled)

    def _distribute_optimizer(self, optimizer: Any, model: Any, mark: Mark) -> Any:
        """Return an optimizer whose step first waits for the gradients of all ranks, marked as a separate phase."""
        distributed = self.horovod.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        self.horovod.broadcast_optimizer_state(distributed, root_rank=0)
        step, zero_grad = distributed.step, distributed.zero_grad

        def marked_step(*arguments: Any) -> Any:
            distributed.synchronize()
            mark("communication")
            with distributed.skip_synchronize():
                return step(*arguments)

        distributed.step = marked_step
        distributed.zero_grad = lambda set_to_none=True: zero_grad()  # takes no argument, and sets gradients to None
        return distributed


class TensorflowRanks:
    """Ranks of TensorFlow: gradients are summed tensor by tensor once all are computed, as in Horovod's gradient tape.
    So waiting can be told from computing, as in the arrangement `multiworker`."""

    averages: ClassVar[bool] = False

    def __init__(self, place: WorkerPlace) -> None:
        import horovod.tensorflow as horovod
        import tensorflow as tf

        self.horovod: Any = horovod
        number, visible = card_of(place.device), tf.config.list_physical_devices("GPU")
        if visible:  # a rank has one device: else it would take all devices of its node
            tf.config.set_visible_devices([] if number is None else [visible[number]], "GPU")
        self.horovod.init()
        self._summed: Callable[[list[Any]], list[Any]] = tf.function(self._sum_in_graph)

    def sum(self, tensors: list[Any]) -> None:
        tensors[:] = self._summed(list(tensors))

    def agree(self, number: int) -> int:
        import tensorflow as tf

        numbers = self.horovod.allgather(tf.constant([number], tf.int64), name="rigdyno.agree")
        return int(tf.reduce_max(numbers))

    def leave(self) -> None:
        self.agree(0)
        self.horovod.shutdown()

    def distribute(self, training: Training, mark: Mark) -> Training:
        trained = [_unwrap(variable) for variable in training.model.trainable_variables]
        self.horovod.broadcast_variables([_unwrap(variable) for variable in training.model.variables], root_rank=0)
        sent = sum(each.shape.num_elements() * each.dtype.size for each in trained)
        return replace(training, mark=mark, settled={**training.settled, "gradient_bytes": sent})

    def _sum_in_graph(self, tensors: list[Any]) -> list[Any]:
        return [self.horovod.allreduce(tensor, op=self.horovod.Sum) for tensor in tensors]


def _unwrap(variable: Any) -> Any:
    """Return the TensorFlow variable inside a Keras 3 variable, which Horovod doesn't support."""
    import tensorflow as tf

    return variable if isinstance(variable, tf.Variable) else variable.value


RANKS: dict[str, Callable[[WorkerPlace], HorovodRanks]] = {"torch": TorchRanks, "tensorflow": TensorflowRanks}


@dataclass(frozen=True, kw_only=True)
class Horovod(Arrangement):
    """Several ranks that average their gradients (Horovod over Gloo), in PyTorch or TensorFlow"""

    launcher: ClassVar[str] = "horovodrun"
    world: ClassVar[World] = "ranks"
    frameworks: ClassVar[tuple[str, ...]] = tuple(RANKS)
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("horovod", command=COMMAND),
        Requirement("cloudpickle", "horovod"),
        Requirement("yaml", "horovod"),
    )
    transport: ClassVar[Literal["gloo", "mpi"]] = "gloo"

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        what = f"the arrangement '{spec.arrangement}' is"
        if not workload.trains:
            return f"{what} for training, and this workload trains nothing; try --arrangement {workload.arrangement}"
        if update.private:
            return f"{what} for updates that aren't private; try --update plain"
        if spec.launcher == "process" or spec.world_size < 2:
            return f"{what} for two ranks or more; try --arrangement single"
        return None

    def run(self, job: TrainingJob) -> Quality:
        ranks = join(job.workload.framework, job.place, self.transport)
        job.afterwards(ranks.leave)
        built = job.workload.build(job.place)
        if not isinstance(built, Training):
            raise CannotRun("this workload trains no model that could be distributed")
        training = ranks.distribute(built, job.start_phases(built))
        # If Horovod's optimizer averages the gradients, the update sees one rank.
        place = replace(job.place, world_size=1) if ranks.averages else job.place
        train_step = job.update.prepare(training, place, ranks)
        return loops.train(training, train_step, job.start_meter(training, ranks))
