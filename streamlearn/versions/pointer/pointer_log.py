"""PointerLog: the moves of the pointer in the store, which are the truth about what should be served."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec import structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileMissing, FileTaken, MoveRefused, UsageError, VersionDefect
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import model_folder
from streamlearn.versions.store.sequence import Sequence

__all__ = ["PointerLog"]

_MOVES_MAX = 20
_REASON_CHARS_MAX, _BY_CHARS_MAX = 2_000, 200
_HELP = (
    "restore it from a copy, or replace it with the registry's copy by `streamlearn verify --mend-pointer`: "
    'see docs/operating/versions.md, "A damaged move"'
)


class PointerLog:
    """The pointer of a model.

    Args:
        store: Where its versions are.
        model: Which model.
        clock: When a move is made.

    Attributes:
        is_confirmed: Whether the last `newest` found a record that says so. If not, the log showed no move at all, or a
            listing that is older than what was seen.

    Examples:
        >>> from streamlearn.versions import PointerLog, open_store
        >>> PointerLog(open_store("memory://pointer-example"), "ctr").newest().seq
        0
    """

    def __init__(self, store: Store, model: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = Sequence(store, model_folder(model, "pointer"), Pointer, help=_HELP)
        self._clock = clock
        self._seen = Pointer()
        self.is_confirmed = False

    def newest(self) -> Pointer:
        """Where the pointer stands; before the first move nothing is active, with seq 0.

        Where the store was put back from an older copy, it is that copy's newest move. A log without any move says
        nothing: a folder that is not mounted looks the same.

        Raises:
            VersionDefect: The newest record is damaged. An older one is never taken for it.
            StoreUnreachable: The store did not answer.
        """
        found = self._records.newest(self._seen.seq)
        self.is_confirmed = found is not None
        if found is not None:
            self._seen = found[1]
        elif self._seen.seq:
            self._seen = self._seen_again()
        return self._seen

    def _seen_again(self) -> Pointer:
        """The newest move where none is newer than the one seen, which may be gone or another one by now."""
        with suppress(FileMissing):
            again = self._records.read(self._seen.seq)
            self.is_confirmed = True
            return again
        numbers = self._records.numbers()
        # A listing that has the number, though the record is gone, is older than what was seen.
        if not numbers or self._seen.seq in numbers:
            return self._seen
        self.is_confirmed = True
        return self._records.read(numbers[-1])

    def begin_near(self, seq: int) -> None:
        """Look for the newest move from one on that should be there, so that a long log need not be listed.

        Others may be wrong about it: a move that is not there, or is damaged, is nothing to begin at.
        """
        if seq > self._seen.seq:
            with suppress(FileMissing, VersionDefect):
                self._seen = self._records.read(seq)

    def read(self, seq: int) -> Pointer:
        """One move.

        Raises:
            FileMissing: It was forgotten, or there is none of that number.
            VersionDefect: It is damaged.
        """
        return self._records.read(seq)

    def seqs(self) -> list[int]:
        """The moves there are, oldest first."""
        return self._records.numbers()

    def move(self, decide: Callable[[Pointer], Pointer], *, by: str, reason: str = "") -> Pointer:
        """Move the pointer; a decision that was overtaken is made again from where the pointer is then.

        Args:
            decide: One of the decisions of `pointer`, from where it stands to where it is to stand.
            by: Who moves it.
            reason: Why.

        Raises:
            MoveRefused: Not that way; or others moved it again and again meanwhile.
        """
        for _ in range(_MOVES_MAX):
            now = self.newest()
            to = structs.replace(
                decide(now),
                seq=now.seq + 1,
                by=_line(by[:_BY_CHARS_MAX]),
                reason=_line(reason[:_REASON_CHARS_MAX]),
                wall_ms=max(0, self._clock.wall_ms()),
            )
            try:
                self._records.append(to.seq, to)
            except FileTaken:
                continue
            self._seen = to
            return to
        message = f"others moved the pointer {_MOVES_MAX} times during this move"
        raise MoveRefused(message, help="find out who moves it, and try again")

    def mend(self, copy: Pointer) -> None:
        """Put a copy of the newest move, such as the registry's, in the place of its damaged record.

        Nobody may move the pointer meanwhile: who does is told that it was taken, or takes the place first.

        Raises:
            UsageError: The record is not damaged, or the copy is of another move.
            FileTaken: Somebody moved the pointer meanwhile.
        """
        newest = max(self.seqs(), default=0)
        if copy.seq != newest:
            message = f"the copy is of move {copy.seq}, but the newest in the store is {newest}"
            raise UsageError(message, help="give a copy of the newest move; an older one would undo moves")
        try:
            self._records.read(newest)
        except VersionDefect:
            self._records.remove(newest)
            self._records.append(newest, copy)
            return
        message = f"the record of move {newest} is intact"
        raise UsageError(message, help="it needs no repair")

    def forget(self, before: int) -> int:
        """Remove old records; the newest one stays. Gives how many."""
        old = [number for number in self._records.numbers()[:-1] if number < before]
        for number in old:
            try:
                self._records.remove(number)
            except FileMissing:
                continue
        return len(old)


def _line(text: str) -> str:
    """The text as one line: what is shown to people must not look like more than one said it."""
    return "".join(one if one.isprintable() else " " for one in text)
