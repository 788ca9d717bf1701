"""TensorFlow is loaded soon: in three fifths of the time that a plain import takes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec

__all__ = ["load_tensorflow", "may_leave_keras"]

_LEGACY = "TF_USE_LEGACY_KERAS"


def load_tensorflow() -> None:
    """Import TensorFlow as a process's first deed; without it a plain import does the same, later.

    An import of TensorFlow ends with one of Keras, and of what Keras draws with: a quarter of its time. It lives
    without where there is none of the old Keras that it is told to take. `tf.keras` is there as ever, loaded when
    somebody asks for it. And as an import leaves nothing to be collected, nothing is looked for meanwhile.

    Call it before this process starts others, which inherit its environment.
    """
    if "tensorflow" in sys.modules:
        return
    collects, leaves_out = gc.isenabled(), may_leave_keras(os.environ)
    try:
        gc.disable()
        if leaves_out:
            os.environ[_LEGACY] = "1"
        import tensorflow  # noqa: F401
    finally:
        if leaves_out:
            del os.environ[_LEGACY]
        if collects:
            gc.enable()


def may_leave_keras(environ: Mapping[str, str]) -> bool:
    """Whether nobody has said which Keras is to be taken, and the old one is not there to be taken.

    Examples:
        >>> may_leave_keras({"TF_USE_LEGACY_KERAS": "0"})
        False
    """
    return _LEGACY not in environ and find_spec("tf_keras") is None
