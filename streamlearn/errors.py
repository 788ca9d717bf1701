"""What can go wrong, as one tree.

    StreamlearnError                exit 1
    ├── UsageError                  exit 2   the caller asked for something impossible
    │   ├── ConfigError                      a setting is unknown, of a wrong type or out of its bounds
    │   └── SpecError                        an application contradicts itself
    ├── PartlyDone                  exit 3   some of it happened, and the message says which part did not
    ├── NativeMismatch                       the compiled module is missing or of another version
    ├── ScoresMissing                        no window of first predictions was scored yet
    ├── JoinFull                             a join holds all it may: reading is to stop
    ├── MarksFull                            marks hold all they may: training is to stop
    ├── TrainingFailed                       training cannot go on: it learns no numbers any more
    ├── ServiceError                         a service did not start, or cannot be reached
    │   └── PipelineFailed                   a runner gave up a pipeline, for a reason that is not one of these
    ├── DataError                            bytes that are not what they claim to be
    │   ├── BadRecord                        truncated, garbage, or a value its schema forbids
    │   ├── UnknownSchema                    a fingerprint or id no known schema has
    │   └── Oversize                         larger than a stated limit
    ├── TableError
    │   ├── TableFull                        all rows are taken, or no memory is left
    │   ├── TableBusy                        cannot be done now, and can be later
    │   └── VersionRefused                   a version is not what the call needs it to be
    ├── TopicError
    │   ├── TopicMissing                     no such topic, or no such partition
    │   ├── TopicExists                      created twice with different settings
    │   ├── TopicUnreachable                 the broker or folder did not answer within the bound
    │   ├── TopicReplaced                    same name, another topic id: it was deleted and created again
    │   ├── PositionLost                     a position outside [earliest, end]
    │   ├── IngestOver                       a newer run of ingest has taken over
    │   └── NotDelivered                     a record the topic did not acknowledge
    ├── PsError
    │   ├── ShardUnreachable                 a shard did not answer within the bound
    │   ├── ShardRefused                     a shard is of another model, release or token
    │   ├── ShardNotReady                    a shard was not told yet at which version it is to stand
    │   ├── EpochOver                        another run or recovery has taken over
    │   ├── PushUnsure                       a push may have been learned in part: all shards are to be restored
    │   └── CutFailed                        a version could not be cut on every shard; the next one says it all
    ├── ExecutionFailed                      TensorFlow could not run a graph on some inputs
    ├── LaneLost                             a lane's process ended, and its work was not scored
    ├── NodeNotReady                         a serving node has no version to answer with, now
    ├── RegistryUnreachable                  the registry did not answer; the store's pointer stays the truth
    │   └── RegistryDefect                   it answered with what cannot be read: it is to be made anew
    └── StoreError
        ├── RunOver                          a newer run has taken over: this one may not publish or promote
        ├── MoveRefused                      the pointer may not be moved that way
        ├── StoreUnreachable                 the store did not answer, or did not allow it
        ├── StoreUnfit                       the store cannot create a file for one of two writers alone
        ├── FileMissing                      no such file in the store
        ├── FileTaken                        a file of that name is there already, and files never change
        └── VersionDefect                    a version is not what it claims to be; `defect` names what is wrong

An error says what happened with the values, and its `help` what to do about it. Assertions are for bugs only.
"""

from __future__ import annotations

from collections.abc import Sequence as _Sequence

__all__ = [
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_PARTLY",
    "EXIT_USAGE",
    "BadRecord",
    "ConfigError",
    "CutFailed",
    "DataError",
    "EpochOver",
    "ExecutionFailed",
    "FileMissing",
    "FileTaken",
    "IngestOver",
    "JoinFull",
    "LaneLost",
    "MarksFull",
    "MoveRefused",
    "NativeMismatch",
    "NodeNotReady",
    "NotDelivered",
    "Oversize",
    "PartlyDone",
    "PipelineFailed",
    "PositionLost",
    "PsError",
    "PushUnsure",
    "RegistryDefect",
    "RegistryUnreachable",
    "RunOver",
    "ScoresMissing",
    "ServiceError",
    "ShardNotReady",
    "ShardRefused",
    "ShardUnreachable",
    "SpecError",
    "StoreError",
    "StoreUnfit",
    "StoreUnreachable",
    "StreamlearnError",
    "TableBusy",
    "TableError",
    "TableFull",
    "TopicError",
    "TopicExists",
    "TopicMissing",
    "TopicReplaced",
    "TopicUnreachable",
    "TrainingFailed",
    "UnknownSchema",
    "UsageError",
    "VersionDefect",
    "VersionRefused",
]

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PARTLY = 3


class StreamlearnError(Exception):
    """The root of everything this project raises for what the world can break.

    Args:
        message: What happened, with the values.
        help: What the reader can do about it, as one or more sentences; empty when there is nothing to do.

    Attributes:
        unsure: Whether some of what was asked may have happened all the same.
    """

    exit_code = EXIT_FAILED
    unsure: bool = False

    def __init__(self, message: str, *, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help

    def __str__(self) -> str:
        return f"{self.message}\nhelp: {self.help}" if self.help else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.help), self.__dict__)


def _rebuild(kind: type[StreamlearnError], message: str, help: str) -> StreamlearnError:
    return kind(message, help=help)


class UsageError(StreamlearnError):
    """The caller asked for something impossible."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """A setting is unknown, of a wrong type or out of its bounds."""


class SpecError(UsageError):
    """An application contradicts itself."""


class PartlyDone(StreamlearnError):
    """Some of it happened; the message says which part did not."""

    exit_code = EXIT_PARTLY


class NativeMismatch(StreamlearnError):
    """The compiled module is missing, or of another version than this package."""


class ScoresMissing(StreamlearnError):
    """No window of first predictions was scored yet, or none is where it was looked for."""


class JoinFull(StreamlearnError):
    """A join holds all it may, and took none of what was handed in."""


class MarksFull(StreamlearnError):
    """Marks hold all they may, and nothing of the step was marked."""


class ServiceError(StreamlearnError):
    """A service did not start, or cannot be reached."""


class PipelineFailed(ServiceError):
    """A runner gave up a pipeline, for a reason that is none of these errors."""


class TrainingFailed(StreamlearnError):
    """Training cannot go on: what it learns are no numbers any more."""


class DataError(StreamlearnError):
    """Bytes that are not what they claim to be."""


class BadRecord(DataError):
    """Truncated, garbage, or a value its schema forbids."""


class UnknownSchema(DataError):
    """A fingerprint or id no known schema has."""


class Oversize(DataError):
    """Larger than a stated limit."""


class TableError(StreamlearnError):
    """Something about a table of rows."""


class TableFull(TableError):
    """All rows are taken, or no memory is left."""


class TableBusy(TableError):
    """It cannot be done now, and can be later."""


class VersionRefused(TableError):
    """A version is not kept, does not follow the newest, or is in use."""


class TopicError(StreamlearnError):
    """Something about a topic."""


class TopicMissing(TopicError):
    """No such topic, or no such partition of it."""


class TopicExists(TopicError):
    """The topic is there already, with settings other than those asked for."""


class TopicUnreachable(TopicError):
    """The broker or folder did not answer within the bound."""


class TopicReplaced(TopicError):
    """Same name, another topic id: the topic was deleted and created again."""


class PositionLost(TopicError):
    """A position outside [earliest, end]."""


class IngestOver(TopicError):
    """A newer run of ingest has taken over: this one may write no more samples and no more progress."""


class NotDelivered(TopicError):
    """Records the topic did not acknowledge.

    Args:
        message: What happened, with the values.
        help: What the reader can do about it.
        failures: (partition, records, error) of what a flush could not deliver; empty for a single append.
    """

    def __init__(
        self, message: str, *, help: str = "", failures: _Sequence[tuple[int, int, BaseException]] = ()
    ) -> None:
        super().__init__(message, help=help)
        self.failures = list(failures)
        # An error of another kind says nothing of what had happened before it.
        self.unsure = any(getattr(error, "unsure", True) for _, _, error in self.failures)


class PsError(StreamlearnError):
    """Something about a parameter server."""


class ShardUnreachable(PsError):
    """A shard did not answer within the bound."""

    unsure = True


class ShardRefused(PsError):
    """A shard is of another model, other tables, another release or another token."""


class ShardNotReady(PsError):
    """A shard was not told yet at which version it is to stand."""


class EpochOver(PsError):
    """Another run or recovery has taken over; what belongs to the one before is refused."""


class PushUnsure(PsError):
    """A push may have been learned in part: nothing more is pushed before all shards are restored."""

    unsure = True


class CutFailed(PsError):
    """A version could not be cut on every shard; the next one says what it would have said."""


class StoreError(StreamlearnError):
    """Something about a store of versions."""


class StoreUnreachable(StoreError):
    """The store did not answer within the bound, or did not allow what was asked."""


class StoreUnfit(StoreError):
    """The store cannot create a file so that exactly one of two writers succeeds."""


class FileMissing(StoreError):
    """No such file in the store."""


class FileTaken(StoreError):
    """A file of that name is there already, and files of a store never change."""


class RunOver(StoreError):
    """A newer run has taken over: this one may not publish or promote any more."""


class MoveRefused(StoreError):
    """The pointer may not be moved that way; the message names what stands against it."""


class LaneLost(StreamlearnError):
    """A lane's process ended, or was ended because it did not answer; its work may be asked for again.

    Args:
        message: See `StreamlearnError`.
        help: See `StreamlearnError`.
        is_innocent: Whether what it was doing had no part in its end.
    """

    def __init__(self, message: str, *, help: str = "", is_innocent: bool = False) -> None:
        super().__init__(message, help=help)
        self.is_innocent = is_innocent


class NodeNotReady(StreamlearnError):
    """A serving node has no version to answer with: it starts, or gives its tables up to build others."""


class ExecutionFailed(StreamlearnError):
    """TensorFlow could not run a graph on some inputs; others are not touched by it."""


class RegistryUnreachable(StreamlearnError):
    """The registry did not answer within the bound; the store's own pointer goes on being the truth."""

    unsure = True


class RegistryDefect(RegistryUnreachable):
    """The registry answered with what cannot be read; made anew from the store it is right again."""

    unsure = False


class VersionDefect(StoreError):
    """A version in a store is not what it claims to be.

    Args:
        message: What was found, with the path and both values.
        help: What the reader can do about it.
        defect: The name of what is wrong, one of `streamlearn.versions.Defect`.
        path: The file or folder in the store.
    """

    def __init__(self, message: str, *, help: str = "", defect: str = "", path: str = "") -> None:
        super().__init__(message, help=help)
        self.defect = defect
        self.path = path
