"""Failing: what a model's own code raises, told as itself with its file and line, and not by TensorFlow's frames."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streamlearn.errors import SpecError, StreamlearnError

__all__ = ["told_of"]

_LOG = logging.getLogger(__name__)
_CHARS_MAX = 1_000


@contextmanager
def told_of(model: Any, what: str) -> Iterator[None]:
    """Have what a model's function raises told by its place in the model's file.

    Args:
        model: The model.
        what: Its function, such as `score`.

    Raises:
        SpecError: It raised something.
    """
    try:
        yield
    except StreamlearnError:
        raise
    except Exception as error:  # of whatever kind: it is another's code
        file = inspect.getsourcefile(type(model)) or ""
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        where = f", at {file}:{lines[-1]}" if lines else ""
        message = f"{what} of {type(model).__name__} failed{where}: {type(error).__name__}: {str(error)[:_CHARS_MAX]}"
        _LOG.debug("%s", message, exc_info=error)
        help = (
            "graphs may only use TensorFlow operations, with static shapes except for the number of rows; see "
            "docs/models.md, and use --set telemetry.log_level=debug for the full traceback"
        )
        raise SpecError(message, help=help) from error
