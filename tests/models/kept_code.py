"""What XLA compiled for this process of tests is kept for the next run, by computation: it compiles what changed."""

from __future__ import annotations

import atexit

import pytest
import tensorflow as tf

from streamlearn.cache import cache_folder
from streamlearn.serving.graphs.compile_cache import CompileCache, kind_of_machine

__all__ = ["keep_code"]

_BYTES_MAX = 256 << 20


def keep_code() -> None:
    """Open the cache; processes that a test starts compile for themselves."""
    cache = CompileCache(cache_folder() / "compiled-tests" / kind_of_machine("cpu"), _BYTES_MAX)
    cache.sweep()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_XLA_FLAGS", f"--tf_xla_persistent_cache_directory={cache.folder}")
        # XLA reads its flags when it first compiles.
        tf.function(lambda one: one + 1, jit_compile=True)(tf.zeros([1]))
    atexit.register(cache.seal)
