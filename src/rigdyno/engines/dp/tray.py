"""The batches that a loader has handed out and that no step has used yet: each is good for one step.

A backward pass is accepted for a batch that waits here, and for no other. It is found by identity where the network's
inputs lie in the memory of the drawn tensors, which is exact down to the row; else by what is in its rows, where they
were copied unchanged; and else by its number of samples.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from rigdyno.engines.dp.errors import Unprotected
from rigdyno.engines.dp.marks import Marks, all_marks, marks_of

COPIES = "the network's input holds one sample in several rows, which would count several times"
TWO_IN_ONE = (
    "a row of the network's inputs holds two samples, or samples of two drawn batches, and would be clipped as one: "
    "give each row what belongs to one sample"
)
AHEAD = 2  # Lightning and Hugging Face read one batch ahead, and a user's own prefetching may add one
REMEMBERED = 16  # batches that are over, to say so when one of them comes again

LATELY = 4  # of these are compared row by row


class Slot:
    """One drawn batch, with the figures that held when it was drawn."""

    def __init__(
        self, samples: int, sample_rate: float, expected_batch: float, tensors: Iterable[Tensor], counts: bool = True
    ) -> None:
        """`counts`: whether it costs anything by itself; what an earlier batch has paid for doesn't."""
        self.samples, self.sample_rate, self.expected_batch, self.counts = samples, sample_rate, expected_batch, counts
        self._tensors = [weakref.ref(tensor) for tensor in tensors if tensor.dim()]
        self._used = bytearray(samples)
        self._pieces: list[range] = []
        self._marks: list[Marks] | None = None
        self._inputs: list[Marks] = []  # of the network's inputs that passed for this batch by their number

    def mark(self) -> None:
        """While its tensors exist."""
        if self._marks is None:
            self._marks = all_marks(self.tensors(), self.samples)

    @property
    def marks(self) -> list[Marks]:
        return self._marks or []

    def trained_on(self, inputs: Sequence[Marks]) -> None:
        self._inputs += [marks for marks in inputs if marks.telling and len(marks.of_rows) == self.samples]

    def was_trained_on(self, given: Marks) -> bool:
        return given in self._inputs

    def shares(self, given: Marks) -> int:
        """How many of the rows are samples of this batch, copied unchanged."""
        return max((marks.shared(given) for marks in self.marks), default=0)

    def places_of(self, given: Marks) -> list[int | None]:
        """Which samples the rows are."""
        return max(self.marks, key=lambda marks: marks.shared(given)).places_of(given)

    def holds_copies(self, given: Marks) -> bool:
        """Whether rows of an input are equal that aren't equal in the batch."""
        own = [marks.copies for marks in self.marks if marks.width == given.width]
        return bool(own) and given.copies > max(own)

    def tensors(self) -> list[Tensor]:
        return [tensor for reference in self._tensors if (tensor := reference()) is not None]

    def rows_of(self, given: Tensor) -> range | None:
        """Which of its samples a tensor is a view of: empty where it lies there but not row by row, None elsewhere."""
        for reference in self._tensors:
            drawn = reference()
            if drawn is not None and _same_memory(given, drawn):
                rows = _rows(given, drawn)
                if rows is not None:
                    return rows
        return None

    def split(self, pieces: Sequence[range]) -> None:
        """By `micro_batches`: then pieces are taken by their number of samples too, in their order."""
        self._pieces = list(pieces)

    @property
    def untouched(self) -> bool:
        return not any(self._used)

    def clear(self) -> None:
        self._used = bytearray(self.samples)

    def find(self, samples: int, rows: Sequence[int] | None) -> Sequence[int] | None:
        """The rows that a pass over so many samples may be, if it says so itself or if there's but one answer."""
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
    """What a forward pass saw of its batch: the slot and the rows, where memory or content tell, and the marks of
    inputs of which they don't."""

    slot: Slot | None
    rows: Sequence[int] | None = None
    marks: tuple[Marks, ...] = ()
    wrong: str | None = None  # to be said when it is trained on


class Tray:
    """Of one loader. `ahead`: so many batches may be drawn before the one that is trained on is used."""

    def __init__(self, ahead: int = AHEAD) -> None:
        self.ahead = ahead
        self.skipped: Callable[[Slot], None] | None = None  # told of each batch that nothing was released for
        self._waiting: deque[Slot] = deque()
        self._over: deque[Slot] = deque(maxlen=REMEMBERED)
        self._pending: Slot | None = None
        self._marking = False
        _TRAYS.add(self)

    def tensors(self) -> list[Tensor]:
        """Of the batches that wait, as far as they still exist."""
        return [tensor for slot in self._waiting for tensor in slot.tensors()]

    def put(self, slot: Slot) -> None:
        if self._marking:
            slot.mark()
        self._waiting.append(slot)
        while len(self._waiting) > self.ahead + 1:
            self._skip(next(waiting for waiting in self._waiting if waiting is not self._pending))

    def look(self, inputs: Iterable[object], samples: int) -> Claim | None:
        """By identity, in a forward pass, and by content where that is lost."""
        tensors = [given for given in inputs if isinstance(given, Tensor) and given.dim() and len(given) == samples]
        found = [claim for given in tensors if (claim := self._by_memory(given) or self._by_content(given))]
        if not found:
            return None
        return _agreed(found)

    def _by_memory(self, given: Tensor) -> Claim | None:
        for slot in (*self._waiting, *self._over):
            rows = slot.rows_of(given)
            if rows is not None:
                return Claim(slot, rows if len(rows) == len(given) else None)
        return None

    def _by_content(self, given: Tensor) -> Claim | None:
        """The batch that most of the rows are in; those that wait first, as a sample may be in several."""
        marks = marks_of(given)
        if marks is None:
            return None
        self._mark_all()
        slots = sorted(self._waiting, key=lambda slot: slot is not self._pending)
        shares = [(slot.shares(marks), slot) for slot in (*slots, *self._lately())]
        most, slot = max(shares, key=lambda share: share[0], default=(0, None))
        if slot is None or not most:
            return Claim(self._trained_before(marks), marks=(marks,))
        places = slot.places_of(marks)
        rows = [place for place in places if place is not None]
        return Claim(slot, rows if len(rows) == len(places) else None, (marks,))

    def _mark_all(self) -> None:
        """From the first input on that isn't where it was drawn: a loop that copies once copies always."""
        self._marking = True
        for slot in (*self._waiting, *self._lately()):
            slot.mark()

    def _lately(self) -> list[Slot]:
        """The newest of those that are over: looking for a batch's rows in all of them would take longer."""
        return list(self._over)[-LATELY:]

    def _trained_before(self, marks: Marks) -> Slot | None:
        """The batch that is over and that just these rows, changed alike, were trained on for; unless the same samples
        were drawn again."""
        before = next((slot for slot in self._lately() if slot.was_trained_on(marks)), None)
        again = [slot for slot in self._waiting if before is not None and slot.marks == before.marks]
        return again[0] if again else before

    def accept(self, samples: int, claim: Claim | None) -> None:
        """Of a backward pass, before anything of it is summed."""
        if samples == 0:
            return
        claim = claim or Claim(None)
        slot, rows = self._found(samples, claim)
        wrong = COPIES if any(map(slot.holds_copies, claim.marks)) else claim.wrong
        if wrong is not None:
            raise Unprotected(wrong)
        if self._pending not in (None, slot):
            raise Unprotected(
                "two drawn batches would become one step, and a sample may be in both: call step() for each, or "
                "zero_grad() to skip the first; for a larger batch give the loader a larger batch_size and split it "
                "with micro_batches"
            )
        if slot.overlaps(rows):
            raise Unprotected(
                "a sample of this batch would go through backward twice in one step, and count twice: call backward "
                "once for each piece of a batch, or zero_grad() to try again; a network that is called twice for each "
                "sample goes into a module whose forward makes both calls"
            )
        self._overtake(slot)
        slot.use(rows)
        slot.trained_on(claim.marks)
        self._pending = slot

    def _found(self, samples: int, claim: Claim) -> tuple[Slot, Sequence[int]]:
        candidates: Iterable[Slot] = self._waiting if claim.slot is None else [claim.slot]
        if claim.slot is None and self._pending is not None:
            candidates = [self._pending, *(slot for slot in self._waiting if slot is not self._pending)]
        for slot in candidates:
            rows = slot.find(samples, claim.rows)
            if rows is not None and slot in self._waiting:
                return slot, rows
        raise Unprotected(self._why_not(samples, claim))

    def _why_not(self, samples: int, claim: Claim) -> str:
        if claim.slot is not None and claim.slot in self._over:
            return (
                "this batch is over: it was used by a step, or later batches were drawn and used before it. Each drawn "
                "batch is good for one step; draw the next one from the private loader, and see its `ahead`"
            )
        waiting = ", ".join(str(slot.samples) for slot in self._waiting) or "none"
        return (
            f"a backward pass over {samples} samples, and no drawn batch is waiting for it (waiting: {waiting}). Train "
            "on batches from the private loader, each once and whole; split them with micro_batches(batch, size)"
        )

    def _overtake(self, slot: Slot) -> None:
        while self._waiting[0] is not slot:
            self._skip(self._waiting[0])

    def _skip(self, slot: Slot) -> None:
        if self.skipped is not None:
            self.skipped(slot)
        self._close(slot)

    def _close(self, slot: Slot) -> None:
        self._waiting.remove(slot)
        self._over.append(slot)

    def next_up(self) -> Slot | None:
        """What a step now would be for: the batch that went through backward, else the oldest one."""
        return self._pending or (self._waiting[0] if self._waiting else None)

    def consume(self, slot: Slot | None) -> None:
        if slot is not None:
            self._close(slot)
        self._pending = None

    def try_again(self) -> None:
        """What went through backward is forgotten; its batch waits as before."""
        if self._pending is not None:
            self._pending.clear()
        self._pending = None

    def split(self, tensors: Sequence[Tensor], samples: int, pieces: Sequence[range]) -> None:
        same = [slot for slot in self._waiting if any(slot.rows_of(tensor) for tensor in tensors)]
        for slot in same or self._waiting:
            if slot.samples == samples:
                slot.split(pieces)
                return


_TRAYS: weakref.WeakSet[Tray] = weakref.WeakSet()


def note_pieces(tensors: Sequence[Tensor], samples: int, pieces: Sequence[range]) -> None:
    """For whichever loader the batch came from."""
    for tray in list(_TRAYS):
        tray.split(tensors, samples, pieces)


def _agreed(claims: Sequence[Claim]) -> Claim:
    """Of all inputs of a network: each row must be one sample in all of them."""
    slots = [claim for claim in claims if claim.slot is not None]
    rows = next((claim.rows for claim in slots if claim.rows is not None), None)
    apart = any(claim.slot is not slots[0].slot for claim in slots)
    turned = any(claim.rows is not None and list(claim.rows) != list(rows or ()) for claim in slots)
    marks = tuple(mark for claim in claims for mark in claim.marks)
    return Claim(slots[0].slot if slots else None, rows, marks, TWO_IN_ONE if apart or turned else None)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    if one.device != other.device or one.numel() == 0 or one.dtype != other.dtype:
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _rows(given: Tensor, drawn: Tensor) -> range | None:
    """None where it begins or ends outside of the batch: then it is a neighbour in the same memory."""
    width = drawn.stride(0) or 1
    first, inside = divmod(int(given.storage_offset()) - int(drawn.storage_offset()), width)
    step, uneven = divmod(given.stride(0), width) if len(given) > 1 else (1, 0)
    if uneven or not (_laid_out_alike(given, drawn) or inside + _reach(given) < width):
        return range(0) if 0 <= first < len(drawn) else None
    if step == 0:
        raise Unprotected(COPIES)
    rows = range(first, first + step * len(given), step)
    return rows if rows[0] >= 0 and rows[-1] < len(drawn) else None


def _laid_out_alike(given: Tensor, drawn: Tensor) -> bool:
    return given.shape[1:] == drawn.shape[1:] and given.stride()[1:] == drawn.stride()[1:]


def _reach(given: Tensor) -> int:
    """How far behind its first value the last value of a row lies."""
    return sum((size - 1) * stride for size, stride in zip(given.shape[1:], given.stride()[1:], strict=True))
