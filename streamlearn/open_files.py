"""The limit of open files of a process, raised to what its connections need."""

from __future__ import annotations

import logging
import resource

__all__ = ["allow_connections"]

_LOG = logging.getLogger(__name__)
# Open files other than connections: files of versions, libraries, connections to other services.
_OTHER_FILES = 1_024


def allow_connections(connections_max: int) -> None:
    """Raise the soft limit of open files (`ulimit -n`) for this number of connections, at most to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        _LOG.warning(
            "the limit of %d open files is too low for %d connections: raise `ulimit -Hn`", hard, connections_max
        )
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
