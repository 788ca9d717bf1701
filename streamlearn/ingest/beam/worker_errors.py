"""Heard: the errors that a runner and its workers log: what a runner gives up with often says nothing of them."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from typing import Any

import grpc  # type: ignore[import-untyped]

from streamlearn import errors
from streamlearn.errors import PipelineFailed, StreamlearnError

__all__ = ["Heard", "failure_of"]

_LOG = logging.getLogger(__name__)
_TEXTS_MAX, _TEXT_CHARS_MAX = 20, 8_000
_RAISED = re.compile(r"^streamlearn\.errors\.(\w+): (.*)$", re.MULTILINE)


class Heard(logging.Handler):
    """The first errors that are logged between `listen` and `end`, which a `with` calls.

    Threads of Beam's that raise what ended their connections are not shown meanwhile: one place says that.

    Attributes:
        texts: Their texts, each cut to its end.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self._said: Any = None

    def __enter__(self) -> Heard:
        """Begin to listen."""
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        self.end()

    def listen(self) -> None:
        """Hear all loggers of this process."""
        logging.getLogger().addHandler(self)
        self._said, threading.excepthook = threading.excepthook, self._hear_thread

    def end(self) -> None:
        """Listen no more."""
        logging.getLogger().removeHandler(self)
        if self._said is not None:
            threading.excepthook, self._said = self._said, None

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging`."""
        if len(self.texts) < _TEXTS_MAX:
            self.texts.append(self.format(record)[-_TEXT_CHARS_MAX:])

    def _hear_thread(self, args: Any) -> None:
        if issubclass(args.exc_type, grpc.RpcError):
            _LOG.debug("thread %s lost its connection: %s", args.thread and args.thread.name, args.exc_value)
        else:
            (self._said or threading.__excepthook__)(args)


def failure_of(texts: Sequence[str]) -> StreamlearnError:
    r"""The error a worker raised first, from what was logged of it; the first words there are when it was none of ours.

    Examples:
        >>> text = "Traceback ...\nstreamlearn.errors.JoinFull: it is full\nhelp: more lots [while running 'Join']"
        >>> failure_of(["stage-003 failed", text])
        JoinFull('it is full')
        >>> failure_of([text]).help
        'more lots'
        >>> failure_of(["stage-003 failed", "nothing in progress"])
        PipelineFailed('the runner gave up: stage-003 failed')
    """
    for text in texts:
        raised = list(_RAISED.finditer(text))
        kind = getattr(errors, raised[-1][1], None) if raised else None
        if kind is None:
            continue
        help = re.match(r"\nhelp: (.*?)(?: \[while running .*)?(?:\n|$)", text[raised[-1].end() :])
        said = re.sub(r" \[while running .*", "", raised[-1][2])
        error: StreamlearnError = kind(said, help=help[1] if help else "")
        return error
    message = f"the runner gave up: {texts[0]}"
    return PipelineFailed(message, help="--set telemetry.log_level=debug shows the logs of the runner and its workers")
