"""WorkerErrors: the errors that a runner and its workers log. The runner's own error often does not contain them."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from typing import Any

import grpc

from streamlearn import errors
from streamlearn.errors import PipelineFailed, StreamlearnError

__all__ = ["WorkerErrors", "failure_of"]

_LOG = logging.getLogger(__name__)
_TEXTS_MAX, _TEXT_CHARS_MAX = 20, 8_000
_RAISED = re.compile(r"^streamlearn\.errors\.(\w+): (.*)$", re.MULTILINE)


class WorkerErrors(logging.Handler):
    """The end of each of the first errors that this process logs within a `with`.

    Meanwhile errors of Beam's threads that lost their connection are logged at debug level only: the cause is reported
    in one place.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self._outer_hook: Any = threading.__excepthook__

    def __enter__(self) -> WorkerErrors:
        """Handle the errors of all loggers."""
        logging.getLogger().addHandler(self)
        self._outer_hook, threading.excepthook = threading.excepthook, self._on_thread_error
        return self

    def __exit__(self, *_: object) -> None:
        """Stop handling them."""
        logging.getLogger().removeHandler(self)
        threading.excepthook = self._outer_hook

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging`."""
        if len(self.texts) < _TEXTS_MAX:
            self.texts.append(self.format(record)[-_TEXT_CHARS_MAX:])

    def _on_thread_error(self, args: Any) -> None:
        if issubclass(args.exc_type, grpc.RpcError):
            _LOG.debug("thread %s lost its connection: %s", args.thread and args.thread.name, args.exc_value)
        else:
            self._outer_hook(args)


def failure_of(texts: Sequence[str]) -> StreamlearnError:
    r"""Return the first of our errors in logged texts; otherwise a `PipelineFailed` with the first text.

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
        message = re.sub(r" \[while running .*", "", raised[-1][2])
        error: StreamlearnError = kind(message, help=help[1] if help else "")
        return error
    message = f"the runner gave up: {texts[0]}"
    return PipelineFailed(message, help="--set telemetry.log_level=debug shows the logs of the runner and its workers")
