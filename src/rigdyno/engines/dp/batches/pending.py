"""The batches that a loader has drawn and that no step has used yet. Each may be used for one step.

A backward pass is accepted only for a pending batch. The batch is identified by memory if the network's inputs are
views of the drawn tensors, which is exact down to the row. Otherwise it is identified by the content of its rows, if
they were copied unchanged, or else by its number of samples.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from rigdyno.engines.dp.batches.marks import Marks, mark_rows, mark_tensors
from rigdyno.engines.dp.errors import Unprotected

COPIES = "the network's input holds one sample in several rows, which would count several times"

TWO_IN_ONE = (
    "a row of the network's inputs holds two samples, or samples of two drawn batches, and would be clipped as one: "
    "give each row what belongs to one sample"
)

AHEAD = 2  # Lightning and Hugging Face draw one batch ahead, and a user's own prefetching may add one

REMEMBERED = 16  # used batches that are remembered, to explain the refusal when one of them is used again

COMPARED = 4  # newest of the used batches, which are compared row by row


class PendingBatch:
    """One drawn batch, with the sample rate and expected size at the time of drawing."""

    def __init__(
        self, samples: int, sample_rate: float, expected_batch: float, tensors: Iterable[Tensor], counts: bool = True
    ) -> None:
        """Remember a batch by weak references. `counts` is False if an earlier batch has paid for this one."""
        self.samples, self.sample_rate, self.expected_batch, self.counts = samples, sample_rate, expected_batch, counts
        self._tensors = [weakref.ref(tensor) for tensor in tensors if tensor.dim()]
        self._used = bytearray(samples)
        self._pieces: list[range] = []
        self._marks: list[Marks] | None = None
        self._inputs: list[Marks] = []  # marks of network inputs that were trained on for this batch

    def mark(self) -> None:
        """Compute the marks of the batch, as long as its tensors exist."""
        if self._marks is None:
            self._marks = mark_tensors(self.tensors(), self.samples)

    @property
    def marks(self) -> list[Marks]:
        return self._marks or []

    def note_inputs(self, inputs: Sequence[Marks]) -> None:
        """Remember the network inputs that were trained on for this batch."""
        self._inputs += [marks for marks in inputs if marks.are_distinctive and len(marks.by_row) == self.samples]

    def was_trained_on(self, given: Marks) -> bool:
        return given in self._inputs

    def count_shared(self, given: Marks) -> int:
        """Count the rows that are unchanged copies of samples of this batch."""
        return max((marks.count_shared(given) for marks in self.marks), default=0)

    def match_rows(self, given: Marks) -> list[int | None]:
        """Return the sample number of each row; None for rows that aren't in this batch."""
        return max(self.marks, key=lambda marks: marks.count_shared(given)).match_rows(given)

    def holds_copies(self, given: Marks) -> bool:
        """Return True if more rows of an input are equal to each other than in the batch."""
        own = [marks.most_copies for marks in self.marks if marks.width == given.width]
        return bool(own) and given.most_copies > max(own)

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the batch that still exist."""
        return [tensor for reference in self._tensors if (tensor := reference()) is not None]

    def find_rows(self, given: Tensor) -> range | None:
        """Return the samples of which a tensor is a view.

        The range is empty if the tensor shares the memory but isn't a view row by row. None: it isn't in this memory.
        """
        for reference in self._tensors:
            drawn = reference()
            if drawn is not None and _share_memory(given, drawn):
                rows = _find_view_rows(given, drawn)
                if rows is not None:
                    return rows
        return None

    def split(self, pieces: Sequence[range]) -> None:
        """Note the pieces made by `micro_batches`, which may then be identified by number of samples, in order."""
        self._pieces = list(pieces)

    @property
    def untouched(self) -> bool:
        return not any(self._used)

    def clear(self) -> None:
        self._used = bytearray(self.samples)

    def assign_rows(self, samples: int, rows: Sequence[int] | None) -> Sequence[int] | None:
        """Return the rows of a pass over `samples` samples: those it was identified by, the whole batch, or a piece.

        None if the pass can't belong to this batch.
        """
        if rows:
            return rows
        if samples == self.samples and self.untouched:
            return range(samples)
        return next((piece for piece in self._pieces if len(piece) == samples and not self.overlaps(piece)), None)

    def overlaps(self, rows: Sequence[int]) -> bool:
        return any(self._used[row] for row in rows)

    def use(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._used[row] = 1


@dataclass(frozen=True)
class Claim:
    """The batch of a forward pass and its rows, as far as memory or content identify them."""

    batch: PendingBatch | None
    rows: Sequence[int] | None = None
    marks: tuple[Marks, ...] = ()  # of the inputs that memory doesn't identify
    wrong: str | None = None  # message of the error to raise if the pass is trained on


class PendingBatches:
    """The pending batches of one loader. `ahead` more batches may be drawn before the current one is used."""

    def __init__(self, ahead: int = AHEAD) -> None:
        self.ahead = ahead
        self.on_skip: Callable[[PendingBatch], None] | None = None  # called for each batch that no step has used
        self._waiting: deque[PendingBatch] = deque()
        self._used_up: deque[PendingBatch] = deque(maxlen=REMEMBERED)
        self._current: PendingBatch | None = None
        self._marking = False
        _ALL_PENDING.add(self)

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the waiting batches that still exist."""
        return [tensor for batch in self._waiting for tensor in batch.tensors()]

    def add(self, batch: PendingBatch) -> None:
        if self._marking:
            batch.mark()
        self._waiting.append(batch)
        while len(self._waiting) > self.ahead + 1:
            self._skip(next(waiting for waiting in self._waiting if waiting is not self._current))

    def identify(self, inputs: Iterable[object], samples: int) -> Claim | None:
        """Identify the batch of a forward pass by the memory of its inputs, or else by their content."""
        tensors = [given for given in inputs if isinstance(given, Tensor) and given.dim() and len(given) == samples]
        found = [
            claim for given in tensors if (claim := self._identify_by_memory(given) or self._identify_by_content(given))
        ]
        if not found:
            return None
        return _combine_claims(found)

    def _identify_by_memory(self, given: Tensor) -> Claim | None:
        for batch in (*self._waiting, *self._used_up):
            rows = batch.find_rows(given)
            if rows is not None:
                return Claim(batch, rows if len(rows) == len(given) else None)
        return None

    def _identify_by_content(self, given: Tensor) -> Claim | None:
        """Find the batch that contains most of the rows. Waiting batches come first, as a sample may be in several."""
        marks = mark_rows(given)
        if marks is None:
            return None
        self._mark_all()
        batches = sorted(self._waiting, key=lambda batch: batch is not self._current)
        shares = [(batch.count_shared(marks), batch) for batch in (*batches, *self._recently_used())]
        most, batch = max(shares, key=lambda share: share[0], default=(0, None))
        if batch is None or not most:
            return Claim(self._find_trained_before(marks), marks=(marks,))
        places = batch.match_rows(marks)
        rows = [place for place in places if place is not None]
        return Claim(batch, rows if len(rows) == len(places) else None, (marks,))

    def _mark_all(self) -> None:
        """Compute the marks of all batches from now on: a loop that copied one input will copy the next ones too."""
        self._marking = True
        for batch in (*self._waiting, *self._recently_used()):
            batch.mark()

    def _recently_used(self) -> list[PendingBatch]:
        """Return the newest of the used batches; comparing rows with all of them would take longer."""
        return list(self._used_up)[-COMPARED:]

    def _find_trained_before(self, marks: Marks) -> PendingBatch | None:
        """Return the used batch for which exactly these rows were trained on.

        If the same samples were drawn again, return the waiting batch instead.
        """
        before = next((batch for batch in self._recently_used() if batch.was_trained_on(marks)), None)
        again = [batch for batch in self._waiting if before is not None and batch.marks == before.marks]
        return again[0] if again else before

    def accept(self, samples: int, claim: Claim | None) -> None:
        """Accept a backward pass for its batch, or raise Unprotected, before any of its gradients are summed."""
        if samples == 0:
            return
        claim = claim or Claim(None)
        batch, rows = self._find_batch(samples, claim)
        wrong = COPIES if any(map(batch.holds_copies, claim.marks)) else claim.wrong
        if wrong is not None:
            raise Unprotected(wrong)
        if self._current not in (None, batch):
            raise Unprotected(
                "two drawn batches would become one step, and a sample may be in both: call step() for each, or "
                "zero_grad() to skip the first; for a larger batch give the loader a larger batch_size and split it "
                "with micro_batches"
            )
        if batch.overlaps(rows):
            raise Unprotected(
                "a sample of this batch would go through backward twice in one step, and count twice: call backward "
                "once for each piece of a batch, or zero_grad() to try again; to call a network twice for each sample, "
                "put it into a module whose forward makes both calls"
            )
        self._skip_earlier(batch)
        batch.use(rows)
        batch.note_inputs(claim.marks)
        self._current = batch

    def _find_batch(self, samples: int, claim: Claim) -> tuple[PendingBatch, Sequence[int]]:
        candidates: Iterable[PendingBatch] = self._waiting if claim.batch is None else [claim.batch]
        if claim.batch is None and self._current is not None:
            candidates = [self._current, *(batch for batch in self._waiting if batch is not self._current)]
        for batch in candidates:
            rows = batch.assign_rows(samples, claim.rows)
            if rows is not None and batch in self._waiting:
                return batch, rows
        raise Unprotected(self._explain_refusal(samples, claim))

    def _explain_refusal(self, samples: int, claim: Claim) -> str:
        if claim.batch is not None and claim.batch in self._used_up:
            return (
                "this batch is over: it was used by a step, or later batches were drawn and used before it. Each drawn "
                "batch may be used for one step; draw the next one from the private loader, and see its `ahead`"
            )
        waiting = ", ".join(str(batch.samples) for batch in self._waiting) or "none"
        return (
            f"a backward pass over {samples} samples, but no drawn batch is waiting for it (waiting: {waiting}). Train "
            "on batches from the private loader, each once and whole; split them with micro_batches(batch, size)"
        )

    def _skip_earlier(self, batch: PendingBatch) -> None:
        while self._waiting[0] is not batch:
            self._skip(self._waiting[0])

    def _skip(self, batch: PendingBatch) -> None:
        if self.on_skip is not None:
            self.on_skip(batch)
        self._close(batch)

    def _close(self, batch: PendingBatch) -> None:
        self._waiting.remove(batch)
        self._used_up.append(batch)

    def next_batch(self) -> PendingBatch | None:
        """Return the batch of the next step: the one that went through backward, else the oldest one."""
        return self._current or (self._waiting[0] if self._waiting else None)

    def consume(self, batch: PendingBatch | None) -> None:
        if batch is not None:
            self._close(batch)
        self._current = None

    def restart_batch(self) -> None:
        """Forget which rows went through backward; their batch waits as before."""
        if self._current is not None:
            self._current.clear()
        self._current = None

    def split(self, tensors: Sequence[Tensor], samples: int, pieces: Sequence[range]) -> None:
        same = [batch for batch in self._waiting if any(batch.find_rows(tensor) for tensor in tensors)]
        for batch in same or self._waiting:
            if batch.samples == samples:
                batch.split(pieces)
                return


_ALL_PENDING: weakref.WeakSet[PendingBatches] = weakref.WeakSet()


def note_pieces(tensors: Sequence[Tensor], samples: int, pieces: Sequence[range]) -> None:
    """Note the pieces of a batch with the loader that it came from."""
    for pending in list(_ALL_PENDING):
        pending.split(tensors, samples, pieces)


def _combine_claims(claims: Sequence[Claim]) -> Claim:
    """Combine the claims of all inputs of a network. Each row must be the same sample in all of them."""
    identified = [claim for claim in claims if claim.batch is not None]
    rows = next((claim.rows for claim in identified if claim.rows is not None), None)
    batches_differ = any(claim.batch is not identified[0].batch for claim in identified)
    rows_differ = any(claim.rows is not None and list(claim.rows) != list(rows or ()) for claim in identified)
    marks = tuple(mark for claim in claims for mark in claim.marks)
    wrong = TWO_IN_ONE if batches_differ or rows_differ else None
    return Claim(identified[0].batch if identified else None, rows, marks, wrong)


def _share_memory(one: Tensor, other: Tensor) -> bool:
    if one.device != other.device or one.numel() == 0 or one.dtype != other.dtype:
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _find_view_rows(given: Tensor, drawn: Tensor) -> range | None:
    """Return the rows of `drawn` that `given` is a view of; an empty range if it isn't a view row by row.

    None if it begins or ends outside of the batch: then it is another tensor in the same memory.
    """
    width = drawn.stride(0) or 1
    first, inside = divmod(int(given.storage_offset()) - int(drawn.storage_offset()), width)
    step, uneven = divmod(given.stride(0), width) if len(given) > 1 else (1, 0)
    if uneven or not (_have_same_layout(given, drawn) or inside + _row_extent(given) < width):
        return range(0) if 0 <= first < len(drawn) else None
    if step == 0:
        raise Unprotected(COPIES)
    rows = range(first, first + step * len(given), step)
    return rows if rows[0] >= 0 and rows[-1] < len(drawn) else None


def _have_same_layout(given: Tensor, drawn: Tensor) -> bool:
    return given.shape[1:] == drawn.shape[1:] and given.stride()[1:] == drawn.stride()[1:]


def _row_extent(given: Tensor) -> int:
    """Return the distance in memory from the first value of a row to its last."""
    return sum((size - 1) * stride for size, stride in zip(given.shape[1:], given.stride()[1:], strict=True))
