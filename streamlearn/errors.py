"""Everything that can go wrong, as one tree.

    StreamlearnError                exit 1
    ├── UsageError                  exit 2   the request is impossible
    │   ├── ConfigError                      a setting is unknown, has a wrong type or is out of its bounds
    │   └── SpecError                        an application contradicts itself
    ├── PartlyDone                  exit 3   partial success; the message names the part that is not done
    ├── NativeMismatch                       the compiled module is missing or has another version
    ├── ScoresMissing                        no window of first predictions has been scored yet
    ├── JoinFull                             a join is at its memory limit: reading must stop
    ├── MarksFull                            the marks are at their memory limit: training must stop
    ├── TrainingFailed                       training cannot continue: losses or gradients are not finite
    ├── ServiceError                         a service did not start, or cannot be reached
    │   └── PipelineFailed                   a runner gave up a pipeline for a reason without an error of its own
    ├── DataError                            invalid bytes
    │   ├── BadRecord                        truncated, damaged, or a value that its schema forbids
    │   ├── UnknownSchema                    no known schema has this fingerprint or id
    │   └── Oversize                         larger than a stated limit
    ├── TableError
    │   ├── TableFull                        all rows are taken, or no memory is left
    │   ├── TableBusy                        not possible now; try again later
    │   └── VersionRefused                   a version is not the one that the call needs
    ├── TopicError
    │   ├── TopicMissing                     the topic or the partition does not exist
    │   ├── TopicExists                      created twice with different settings
    │   ├── TopicUnreachable                 the broker or folder did not answer within the timeout
    │   ├── TopicReplaced                    same name, another topic id: it was deleted and created again
    │   ├── PositionLost                     a position outside [earliest, end]
    │   ├── IngestOver                       a newer run of ingest has taken over
    │   └── NotDelivered                     the topic did not acknowledge a record
    ├── PsError
    │   ├── ShardUnreachable                 a shard did not answer within the timeout
    │   ├── ShardRefused                     a shard has another model, release or token
    │   ├── ShardNotReady                    a shard has not been told which version to load
    │   ├── EpochOver                        another run or recovery has taken over
    │   ├── PushUnsure                       a push may have been applied in part: all shards must be restored
    │   ├── WeightsDiffer                    workers began a step at different weights: all must restore them
    │   └── CutFailed                        a version was not cut on every shard; the next one includes its changes
    ├── WorkerLost                           a worker that held a part of a step is gone; all go back together
    ├── GroupLost                   exit 75  processes that sum gradients by a collective must all start again
    ├── ExecutionFailed                      TensorFlow could not run a graph on some inputs
    ├── LaneLost                             a lane's process ended before its work was scored
    ├── NodeNotReady                         a serving node has no version to answer with at the moment
    ├── RegistryUnreachable                  the registry did not answer; the pointer in the store stays authoritative
    │   └── RegistryDefect                   its content cannot be read; rebuild it from the store
    ├── StatesUnreachable                    the store of feature states did not answer
    │   └── StatesLost                       it has lost what was written: folding goes on from what it holds
    ├── FoldOver                             a newer process folds this partition of interactions
    └── StoreError
        ├── RunOver                          a newer run has taken over: this one may not publish or promote
        ├── MoveRefused                      this move of the pointer is not allowed
        ├── StoreUnreachable                 the store did not answer, or denied access
        ├── StoreUnfit                       the store cannot create a file exclusively
        ├── FileMissing                      the file is not in the store
        ├── FileTaken                        a file with that name exists, and files never change
        └── VersionDefect                    a version is invalid; `defect` names the reason

An error says what happened with the values, and its `help` what to do about it. Assertions are for bugs only.
"""

from __future__ import annotations

from collections.abc import Sequence as _Sequence

__all__ = [
    "EXIT_AGAIN", "EXIT_DONE", "EXIT_FAILED", "EXIT_PARTLY", "EXIT_USAGE", "BadRecord", "ConfigError", "CutFailed",
    "DataError", "EpochOver", "ExecutionFailed", "FileMissing", "FileTaken", "FoldOver", "GroupLost", "IngestOver",
    "JoinFull", "LaneLost", "MarksFull", "MoveRefused", "NativeMismatch", "NodeNotReady", "NotDelivered", "Oversize",
    "PartlyDone", "PipelineFailed", "PositionLost", "PsError", "PushUnsure", "RegistryDefect", "RegistryUnreachable",
    "RunOver", "ScoresMissing", "ServiceError", "ShardNotReady", "ShardRefused", "ShardUnreachable", "SpecError",
    "StatesLost", "StatesUnreachable", "StoreError", "StoreUnfit", "StoreUnreachable", "StreamlearnError", "TableBusy",
    "TableError", "TableFull", "TopicError", "TopicExists", "TopicMissing", "TopicReplaced", "TopicUnreachable",
    "TrainingFailed", "UnknownSchema", "UsageError", "VersionDefect", "VersionRefused", "WeightsDiffer", "WorkerLost",
]  # fmt: skip

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PARTLY = 3
EXIT_AGAIN = 75  # EX_TEMPFAIL: a supervisor starts the process again


class StreamlearnError(Exception):
    """The root of all errors that this project raises for failures of the outside world.

    `message` states the failure with its values. `help` says in sentences how to fix it; it is empty if the reader can
    do nothing. `unsure` says whether part of the request may have taken effect.
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
    """The request is impossible."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """A setting is unknown, has a wrong type or is out of its bounds."""


class SpecError(UsageError):
    """An application contradicts itself."""


class PartlyDone(StreamlearnError):
    """Partial success; the message names the part that is not done."""

    exit_code = EXIT_PARTLY


class NativeMismatch(StreamlearnError):
    """The compiled module is missing, or its version differs from the package's version."""


class ScoresMissing(StreamlearnError):
    """No window of first predictions has been scored yet, or the folder of scores is wrong."""


class JoinFull(StreamlearnError):
    """A join is at its memory limit and accepted none of the input."""


class MarksFull(StreamlearnError):
    """The marks are at their memory limit, and nothing of the step was marked."""


class ServiceError(StreamlearnError):
    """A service did not start, or cannot be reached."""


class PipelineFailed(ServiceError):
    """A runner gave up a pipeline for a reason that has no error of its own here."""


class TrainingFailed(StreamlearnError):
    """Training cannot continue: its losses or gradients are not finite."""


class DataError(StreamlearnError):
    """Invalid bytes."""


class BadRecord(DataError):
    """Truncated, damaged, or a value that its schema forbids."""


class UnknownSchema(DataError):
    """No known schema has this fingerprint or id."""


class Oversize(DataError):
    """Larger than a stated limit."""


class TableError(StreamlearnError):
    """An error of a table of rows."""


class TableFull(TableError):
    """All rows are taken, or no memory is left."""


class TableBusy(TableError):
    """Not possible now; try again later."""


class VersionRefused(TableError):
    """A version is not retained, does not follow the newest one, or is in use."""


class TopicError(StreamlearnError):
    """An error of a topic."""


class TopicMissing(TopicError):
    """The topic or the partition does not exist."""


class TopicExists(TopicError):
    """The topic exists with settings other than the requested ones."""


class TopicUnreachable(TopicError):
    """The broker or folder did not answer within the timeout."""


class TopicReplaced(TopicError):
    """Same name, another topic id: the topic was deleted and created again."""


class PositionLost(TopicError):
    """A position outside [earliest, end]."""


class IngestOver(TopicError):
    """A newer run of ingest has taken over: this one may not write samples or progress any more."""


class NotDelivered(TopicError):
    """The topic did not acknowledge records.

    `failures` holds (partition, records, error) for what a flush could not deliver; it is empty for a single append.
    """

    def __init__(
        self, message: str, *, help: str = "", failures: _Sequence[tuple[int, int, BaseException]] = ()
    ) -> None:
        super().__init__(message, help=help)
        self.failures = list(failures)
        # Other errors do not say whether records were written before them, so they count as unsure.
        self.unsure = any(getattr(error, "unsure", True) for _, _, error in self.failures)


class PsError(StreamlearnError):
    """An error of the parameter server."""


class ShardUnreachable(PsError):
    """A shard did not answer within the timeout."""

    unsure = True


class ShardRefused(PsError):
    """A shard has another model, other tables, another release or another token."""


class ShardNotReady(PsError):
    """A shard has not been told which version to load."""


class EpochOver(PsError):
    """Another run or recovery has taken over; requests of the earlier one are refused."""


class PushUnsure(PsError):
    """A push may have been applied in part. All shards must be restored before the next push."""

    unsure = True


class WeightsDiffer(PsError):
    """Two slices of one step began at different weights. All workers must restore them before the next step."""


class CutFailed(PsError):
    """A version could not be cut on every shard; the next one includes its changes."""


class WorkerLost(StreamlearnError):
    """A worker that held a slice of a step is gone; training continues from the newest version."""


class GroupLost(StreamlearnError):
    """Processes that sum gradients by a collective can do so no more; all end, and are started again."""

    exit_code = EXIT_AGAIN


class StoreError(StreamlearnError):
    """An error of a store of versions."""


class StoreUnreachable(StoreError):
    """The store did not answer within the timeout, or denied access."""


class StoreUnfit(StoreError):
    """The store cannot create a file so that exactly one of two writers succeeds."""


class FileMissing(StoreError):
    """The file is not in the store."""


class FileTaken(StoreError):
    """A file with that name exists, and files of a store never change."""


class RunOver(StoreError):
    """A newer run has taken over: this one may not publish or promote any more."""


class MoveRefused(StoreError):
    """This move of the pointer is not allowed; the message gives the reason."""


class LaneLost(StreamlearnError):
    """A lane's process ended, or was killed because it did not answer; its work may be requested again.

    `is_innocent` says that the work in progress did not cause the end.
    """

    def __init__(self, message: str, *, help: str = "", is_innocent: bool = False) -> None:
        super().__init__(message, help=help)
        self.is_innocent = is_innocent


class NodeNotReady(StreamlearnError):
    """A serving node has no version to answer with: it is starting, or it dropped its tables to load others."""


class ExecutionFailed(StreamlearnError):
    """TensorFlow could not run a graph on some inputs; other inputs are not affected."""


class RegistryUnreachable(StreamlearnError):
    """The registry did not answer within the timeout; the pointer in the store stays authoritative."""

    unsure = True


class RegistryDefect(RegistryUnreachable):
    """The registry's content cannot be read; rebuilding it from the store repairs it."""

    unsure = False


class StatesUnreachable(StreamlearnError):
    """The store of feature states did not answer within the timeout, or holds something else."""


class StatesLost(StatesUnreachable):
    """The store of feature states has lost what was written: folding goes on from what it holds."""


class FoldOver(StreamlearnError):
    """A newer process has taken over the folding of a partition: this one may not write its states any more."""


class VersionDefect(StoreError):
    """A version in a store is invalid.

    `defect` is one of `streamlearn.versions.Defect`; `path` is the file or folder in the store.
    """

    def __init__(self, message: str, *, help: str = "", defect: str = "", path: str = "") -> None:
        super().__init__(message, help=help)
        self.defect = defect
        self.path = path
