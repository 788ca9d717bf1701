"""TensorFlow is loaded soon: in three fifths of the time that a plain import takes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

__all__ = ["load_tensorflow", "may_leave_keras"]

_LEGACY, _LOG_LEVEL = "TF_USE_LEGACY_KERAS", "TF_CPP_MIN_LOG_LEVEL"
_QUIET = "3"


def load_tensorflow() -> None:
    """Import TensorFlow as a process's first deed; without it a plain import does the same, later.

    An import of TensorFlow ends with one of Keras, and of what Keras draws with: a quarter of its time. It lives
    without where there is none of the old Keras that it is told to take. `tf.keras` is there as ever, loaded when
    somebody asks for it. And as an import leaves nothing to be collected, nothing is looked for meanwhile.

    It says what it was built for and which GPUs are missing on stderr: unless `TF_CPP_MIN_LOG_LEVEL` asks for that, it
    is shown only where the import fails.

    Call it before this process starts others, which inherit its environment.
    """
    if "tensorflow" in sys.modules:
        return
    is_quiet = os.environ.setdefault(_LOG_LEVEL, _QUIET) == _QUIET
    collects, leaves_out = gc.isenabled(), may_leave_keras(os.environ)
    try:
        gc.disable()
        if leaves_out:
            os.environ[_LEGACY] = "1"
        with _stderr_kept() if is_quiet else nullcontext():
            import tensorflow  # noqa: F401
    finally:
        if leaves_out:
            del os.environ[_LEGACY]
        if collects:
            gc.enable()


@contextmanager
def _stderr_kept() -> Iterator[None]:
    """Keep from people what is written to stderr meanwhile, be it by native code; they see it where this fails."""
    if sys.stderr is None:  # there is nobody to keep it from
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
    """Whether nobody has said which Keras is to be taken, and the old one is not there to be taken.

    Examples:
        >>> may_leave_keras({"TF_USE_LEGACY_KERAS": "0"})
        False
    """
    return _LEGACY not in environ and find_spec("tf_keras") is None
