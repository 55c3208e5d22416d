"""Every rank has the whole model and its own batches; gradients are averaged by TensorFlow's collectives.

A loop of one's own around tf.distribute.MultiWorkerMirroredStrategy: `fit` of Keras 3 fails under it. Variables are
mirrored, and begin with the first rank's values; gradients are summed once all of them are computed, so all of that is
exposed. TensorFlow listens on every interface of a node, and knows nobody by a secret: only for networks that one
trusts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rigdyno.arrangements import _loops
from rigdyno.contracts import CannotRun, Job, Place, Requirement, Training, Update, Workload, World, card_of
from rigdyno.schema.participant import RANK
from rigdyno.schema.record import Quality
from rigdyno.schema.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Multiworker:
    """Several ranks that average their gradients (TensorFlow MultiWorkerMirroredStrategy)."""

    launcher: ClassVar[str] = "tf_config"
    world: ClassVar[World] = "ranks"
    framework: ClassVar[str] = "tensorflow"
    roles: ClassVar[tuple[str, ...]] = (RANK,)
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("tensorflow", "tensorflow"),)

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        if not workload.trains:
            return "the arrangement 'multiworker' is for training, and this workload trains nothing"
        if update.private:
            return "the arrangement 'multiworker' is for updates that aren't private; try --update plain"
        if spec.launcher == "process" or spec.world_size < 2:
            return "the arrangement 'multiworker' is for two ranks or more; try --arrangement single"
        return None

    def run(self, job: Job) -> Quality:
        ranks = join(job.place)
        job.afterwards(ranks.leave)
        with ranks.strategy.scope():
            built = job.workload.build(job.place)
            if not isinstance(built, Training):
                raise CannotRun("it trains nothing that could be shared out")
            sent = sum(each.shape.num_elements() * each.dtype.size for each in built.model.trainable_variables)
            settled = {**built.settled, "gradient_bytes": sent}
            training = replace(built, mark=job.start_phases(built), settled=settled)
            train_step = job.update.prepare(training, job.place, ranks)
        return _loops.train(training, train_step, job.start_meter(training, ranks))


class WorkerRanks:
    """All of them, this one included."""

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
        """All together: a rank that leaves while others are still talking to it makes them abort."""
        self.agree(0)

    def _sum_in_graph(self, tensors: list[Any]) -> list[Any]:
        import tensorflow as tf

        def of_replica(*own: Any) -> Any:
            # Copies: what comes from outside has no device here, and the collective goes by it.
            copies = [tf.identity(tensor) for tensor in own]
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, copies)

        return list(self.strategy.run(of_replica, args=tuple(tensors)))

    def _largest_in_graph(self, number: Any) -> Any:
        """There is no reduction to the largest: every rank gets all numbers."""
        import tensorflow as tf

        def of_replica(own: Any) -> Any:
            return tf.reduce_max(tf.distribute.get_replica_context().all_gather(tf.identity(own), axis=0))

        return self.strategy.run(of_replica, args=(number,))


def join(place: Place) -> WorkerRanks:
    """Where and as who, the launcher has said in TF_CONFIG."""
    import tensorflow as tf

    card = card_of(place.device)
    visible = tf.config.list_physical_devices("GPU")
    if visible:  # a rank has one device: else it would take all of its node's
        tf.config.set_visible_devices([] if card is None else [visible[card]], "GPU")
    return WorkerRanks(tf.distribute.MultiWorkerMirroredStrategy())
