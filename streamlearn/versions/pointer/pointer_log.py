"""PointerLog: the moves of the pointer in the store. Its newest record decides which version to serve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec import structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileMissing, FileTaken, MoveRefused, UsageError, VersionDefect
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import model_folder
from streamlearn.versions.store.sequence import Sequence

__all__ = ["FixedPointer", "PointerLog"]

_MOVES_MAX = 20
_REASON_CHARS_MAX, _BY_CHARS_MAX = 2_000, 200
_HELP = (
    "restore it from a copy, or repeat it from the registry's copy by `streamlearn verify --mend-pointer`: "
    'see "Versions in the store" in the documentation'
)


class FixedPointer:
    """A pointer that stays at one version, in place of the log's, for a node that is held to it."""

    is_confirmed = True

    def __init__(self, version: VersionRef) -> None:
        # Later versions are tainted, so that nothing is staged ahead.
        self._pointer = Pointer(seq=1, active=version, held=True, taints=(version.version + 1,))

    def newest(self) -> Pointer:
        """Return the pointer."""
        return self._pointer

    def begin_near(self, seq: int) -> None:
        """Do nothing: there is one move."""

    def is_record(self, path: str, seq: int) -> bool:
        """Whether a path is that of a record; there is none."""
        del path, seq
        return False


class PointerLog:
    """The pointer of a model.

    Attributes:
        is_confirmed: Whether the last `newest` read a record. If not, the log was empty, or the listing was older than
            the move seen before.

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
        """Return the newest move; before the first one, a pointer with seq 0 and no active version.

        If the store was restored from an older copy, it is that copy's newest move. An empty log changes nothing,
        because a folder that is not mounted looks the same.

        Raises:
            VersionDefect: The newest record is damaged. An older one is never returned in its place.
            StoreUnreachable: The store did not answer.
        """
        newer = self._records.newest(self._seen.seq)
        self.is_confirmed = newer is not None
        if newer is not None:
            self._seen = newer[1]
        elif self._seen.seq:
            self._seen = self._read_again()
        return self._seen

    def _read_again(self) -> Pointer:
        """Return the newest move if none is newer than the one seen, which may have been removed or replaced."""
        with suppress(FileMissing):
            pointer = self._records.read(self._seen.seq)
            self.is_confirmed = True
            return pointer
        numbers = self._records.numbers()
        # A listing that still has the number of a missing record is older than the move seen.
        if not numbers or self._seen.seq in numbers:
            return self._seen
        self.is_confirmed = True
        return self._records.read(numbers[-1])

    def begin_near(self, seq: int) -> None:
        """Start the next search at a move that should exist, so that a long log need not be listed.

        A move that is missing or damaged is ignored, because the caller's source may be wrong.
        """
        if seq > self._seen.seq:
            with suppress(FileMissing, VersionDefect):
                self._seen = self._records.read(seq)

    def read(self, seq: int) -> Pointer:
        """Return one move; raises `FileMissing`, or `VersionDefect` if it is damaged."""
        return self._records.read(seq)

    def seqs(self) -> list[int]:
        """Return the numbers of the stored moves, oldest first."""
        return self._records.numbers()

    def move(self, decide: Callable[[Pointer], Pointer], *, by: str, reason: str = "") -> Pointer:
        """Move the pointer, and return it; a decision that returns the current one writes nothing.

        `decide` is one of the decisions of `moves`, from the current pointer to the next. It is called again if
        another process moved the pointer meanwhile.

        Raises:
            MoveRefused: The decision refused the move, or others moved the pointer too often meanwhile.
        """
        for _ in range(_MOVES_MAX):
            current = self.newest()
            decided = decide(current)
            if decided is current:
                return current
            pointer = structs.replace(
                decided,
                seq=current.seq + 1,
                by=_line(by[:_BY_CHARS_MAX]),
                reason=_line(reason[:_REASON_CHARS_MAX]),
                wall_ms=max(0, self._clock.wall_ms()),
            )
            try:
                self._records.append(pointer.seq, pointer)
            except FileTaken:
                continue
            self._seen = pointer
            return pointer
        message = f"others moved the pointer {_MOVES_MAX} times during this move"
        raise MoveRefused(message, help="find out who moves it, and try again")

    def is_record(self, path: str, seq: int) -> bool:
        """Whether a path, as of a `VersionDefect`, is that of the record of one move."""
        return path == self._records.path(seq)

    def is_damaged(self, seq: int) -> bool:
        """Whether the record of a move is damaged."""
        try:
            self._records.read(seq)
        except FileMissing:
            return False
        except VersionDefect:
            return True
        return False

    def mend(self, copy: Pointer) -> Pointer:
        """Repeat the newest move, whose record is damaged, from a copy, such as the registry's; return the new move.

        The damaged record stays, and has no effect any more. Nothing is removed, and a later call with the same copy
        finishes what an interrupted one began.

        Raises:
            UsageError: The record is intact, or the copy is of another move.
            FileTaken: Another process moved the pointer meanwhile.
        """
        newest = max(self.seqs(), default=0)
        if not self.is_damaged(newest):
            again = structs.replace(copy, seq=newest)
            if self.is_damaged(newest - 1) and self.read(newest) == again:
                return again
            message = f"the record of move {newest} is intact"
            raise UsageError(message, help="it needs no repair")
        if copy.seq != newest:
            message = f"the copy is of move {copy.seq}, but the newest in the store is {newest}"
            raise UsageError(message, help="give a copy of the newest move; an older one would undo moves")
        mended = structs.replace(copy, seq=newest + 1)
        self._records.append(mended.seq, mended)
        return mended

    def forget(self, before: int) -> int:
        """Remove the records of older moves, except the newest record, and return their number."""
        old = [number for number in self._records.numbers()[:-1] if number < before]
        for number in old:
            with suppress(FileMissing):
                self._records.remove(number)
        return len(old)


def _line(text: str) -> str:
    """Make one line of a text, so that it cannot imitate several entries on a screen."""
    return "".join(character if character.isprintable() else " " for character in text)
