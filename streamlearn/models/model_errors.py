"""Model errors: reports errors in a model's own code with its file and line, without TensorFlow's frames."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streamlearn.errors import SpecError, StreamlearnError

__all__ = ["wrap_errors"]

_LOG = logging.getLogger(__name__)
_CHARS_MAX = 1_000


@contextmanager
def wrap_errors(model: Any, what: str) -> Iterator[None]:
    """Turn any error of a model's function, such as `score`, into a SpecError that names its place in the file."""
    try:
        yield
    except StreamlearnError:
        raise
    except Exception as error:  # of any type, since it comes from the application's code
        file = inspect.getsourcefile(type(model)) or ""
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        where = f", at {file}:{lines[-1]}" if lines else ""
        message = f"{what} of {type(model).__name__} failed{where}: {type(error).__name__}: {str(error)[:_CHARS_MAX]}"
        _LOG.debug("%s", message, exc_info=error)
        help = (
            "graphs may only use TensorFlow operations, with static shapes except for the number of rows; "
            'see "Choose and write models" in the documentation, and use --set telemetry.log_level=debug for the full '
            "traceback"
        )
        raise SpecError(message, help=help) from error
