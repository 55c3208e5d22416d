"""TensorFlow's collectives: every rank has the whole model and its own batches.

This is a custom loop around tf.distribute.MultiWorkerMirroredStrategy, because `fit` of Keras 3 fails under it.
Variables are mirrored and start with rank 0's values. Gradients are summed once all are computed, so no communication
is hidden behind computing. TensorFlow listens on every interface of a node without authentication: use it only on
trusted networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rigdyno.arrangements.common import loops
from rigdyno.contracts import (
    Arrangement,
    CannotRun,
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


@dataclass(frozen=True, kw_only=True)
class Multiworker(Arrangement):
    """Several ranks that average their gradients (TensorFlow MultiWorkerMirroredStrategy)."""

    launcher: ClassVar[str] = "tf_config"
    world: ClassVar[World] = "ranks"
    frameworks: ClassVar[tuple[str, ...]] = ("tensorflow",)
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("tensorflow", "tensorflow"),)

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        if not workload.trains:
            return "the arrangement 'multiworker' is for training, and this workload trains nothing"
        if update.private:
            return "the arrangement 'multiworker' is for updates that aren't private; try --update plain"
        if spec.launcher == "process" or spec.world_size < 2:
            return "the arrangement 'multiworker' is for two ranks or more; try --arrangement single"
        return None

    def run(self, job: TrainingJob) -> Quality:
        ranks = join(job.place)
        job.afterwards(ranks.leave)
        with ranks.strategy.scope():
            built = job.workload.build(job.place)
            if not isinstance(built, Training):
                raise CannotRun("this workload trains no model that could be distributed")
            sent = sum(each.shape.num_elements() * each.dtype.size for each in built.model.trainable_variables)
            settled = {**built.settled, "gradient_bytes": sent}
            training = replace(built, mark=job.start_phases(built), settled=settled)
            train_step = job.update.prepare(training, job.place, ranks)
        return loops.train(training, train_step, job.start_meter(training, ranks))


class WorkerRanks:
    """The collective of all ranks."""

    def __init__(self, strategy: Any) -> None:
        import tensorflow as tf

        self.strategy = strategy
        self._summed: Callable[[list[Any]], list[Any]] = tf.function(self._sum_in_graph)
        self._largest: Callable[[Any], Any] = tf.function(self._largest_in_graph)

    def sum(self, tensors: list[Any]) -> None:
        tensors[:] = self._summed(list(tensors))

    def agree(self, number: int) -> int:
        import tensorflow as tf

        return int(self._largest(tf.constant([number], tf.int64)))

    def leave(self) -> None:
        """Leave together: a rank that leaves while others still communicate with it makes them abort."""
        self.agree(0)

    def _sum_in_graph(self, tensors: list[Any]) -> list[Any]:
        import tensorflow as tf

        def sum_on_replica(*own: Any) -> Any:
            # Copy the tensors: those from outside have no device here, and the collective needs it.
            copies = [tf.identity(tensor) for tensor in own]
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, copies)

        return list(self.strategy.run(sum_on_replica, args=tuple(tensors)))

    def _largest_in_graph(self, number: Any) -> Any:
        """Gather the numbers of all ranks and take the largest: there is no reduction to the maximum."""
        import tensorflow as tf

        def max_on_replica(own: Any) -> Any:
            return tf.reduce_max(tf.distribute.get_replica_context().all_gather(tf.identity(own), axis=0))

        return self.strategy.run(max_on_replica, args=(number,))


def join(place: WorkerPlace) -> WorkerRanks:
    """Join the ranks; the launcher has set addresses and rank in TF_CONFIG."""
    import tensorflow as tf

    number = card_of(place.device)
    visible = tf.config.list_physical_devices("GPU")
    if visible:  # a rank has one device: else it would take all devices of its node
        tf.config.set_visible_devices([] if number is None else [visible[number]], "GPU")
    return WorkerRanks(tf.distribute.MultiWorkerMirroredStrategy())
