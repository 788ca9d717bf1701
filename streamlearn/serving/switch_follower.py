"""SwitchFollower: tells a node when another application answers its callers, and when it does itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from streamlearn.errors import NodeNotReady, StreamlearnError
from streamlearn.versions import Store
from streamlearn.versions.pointer.switch_log import Switch, SwitchLog

__all__ = ["UNKNOWN", "SwitchFollower"]

_LOG = logging.getLogger(__name__)
# How often the log is read: while two applications stand ready, and otherwise.
_BESIDE_S, _ALONE_S = 0.2, 3.0
UNKNOWN = "which application answers is not known yet"
"""The reason to stand aside before the first read: a node does not answer before it knows that it may."""


class SwitchFollower:
    """Reads the switches of a served name in a thread, and calls `act` with the reason to stand aside at each change.

    An empty reason says that the application answers. The caller stands aside until the first call.
    """

    def __init__(self, store: Store, served_name: str, model: str, act: Callable[[str], None]) -> None:
        self._log, self._model, self._act = SwitchLog(store, served_name), model, act
        self._newest: Switch | None = None
        self._why, self._trouble = UNKNOWN, ""
        self._ended, self._is_known = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="switch-follower", daemon=True)
        self._thread.start()

    def wait_known(self, timeout_s: float) -> None:
        """Wait until the log was read, or raise `NodeNotReady` with the reason."""
        if not self._is_known.wait(timeout_s):
            message = f"{UNKNOWN}{self._trouble}"
            raise NodeNotReady(message, help="see why the store cannot be read")

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while True:
            try:
                self._look()
            except StreamlearnError as error:  # the last known switch stays valid
                self._trouble = f": {error.message}"
                _LOG.debug("the switches cannot be read: %s", error.message)
            except Exception:
                _LOG.exception("following the switches failed")
            if self._ended.wait(_BESIDE_S if self._newest is None or self._newest.other else _ALONE_S):
                return

    def _look(self) -> None:
        newest = self._log.newest(self._newest)
        why = newest.why_aside(self._model)
        is_first, self._newest = self._newest is None, newest
        is_changed, self._why = why != self._why, why
        if is_changed:
            self._act(why)
        self._is_known.set()
        if is_changed and (why or not is_first):
            _LOG.info("%s", why or f"this application answers (switch {newest.seq})", extra={"by": newest.by})
