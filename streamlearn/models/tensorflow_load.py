"""Loads TensorFlow in half of the time of a plain import."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from streamlearn.extras import check_tensorflow
from streamlearn.lazy import collector_off

__all__ = ["load_tensorflow", "may_leave_keras"]

_LEGACY, _LOG_LEVEL = "TF_USE_LEGACY_KERAS", "TF_CPP_MIN_LOG_LEVEL"
_QUIET = "3"


def load_tensorflow() -> None:
    """Import TensorFlow at the start of a process; without this call a later plain import does the same.

    A quarter of a plain import's time goes to Keras and its plotting libraries. TensorFlow skips them if it is told to
    use legacy Keras and that is not installed; `tf.keras` is then loaded on first use.

    TensorFlow's messages on stderr about its build and missing GPUs are shown only if the import fails, unless
    `TF_CPP_MIN_LOG_LEVEL` asks for them.

    Call it before this process starts others, which inherit its environment. Raises `UsageError` in an environment
    with both packages of TensorFlow.
    """
    if "tensorflow" in sys.modules:
        return
    check_tensorflow()
    is_quiet = os.environ.setdefault(_LOG_LEVEL, _QUIET) == _QUIET
    leaves_out = may_leave_keras(os.environ)
    try:
        if leaves_out:
            os.environ[_LEGACY] = "1"
        with collector_off(), _stderr_kept() if is_quiet else nullcontext():
            import tensorflow  # noqa: F401
    finally:
        if leaves_out:
            del os.environ[_LEGACY]


@contextmanager
def _stderr_kept() -> Iterator[None]:
    """Hold back writes to stderr, also those of native code; they are shown if the block fails."""
    if sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with os.fdopen(os.memfd_create("stderr"), "w+b") as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(stderr, kept.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def may_leave_keras(environ: Mapping[str, str]) -> bool:
    """Whether the environment does not choose a Keras, and legacy Keras is not installed.

    Examples:
        >>> may_leave_keras({"TF_USE_LEGACY_KERAS": "0"})
        False
    """
    return _LEGACY not in environ and find_spec("tf_keras") is None
