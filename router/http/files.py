"""File descriptors: each connection takes one, and who runs out of them can ask nobody any more."""

from __future__ import annotations

import errno
import resource

# More are of no use to one process; some systems allow a thousand times as many.
_MOST_FILES = 1 << 20
# For polls, logs, configuration and the shared state.
_SPARE_FILES = 256

# By these a connection fails where it is made: whoever was to be reached has no part in it.
_LOCAL_FAULTS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))


def raise_file_limit() -> int:
    """Let this process open as many files as it may; return how many that are.

    The usual limit of 1024 is there for programs that cannot handle more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def most_clients(in_flight: int) -> int:
    """Return how many clients may be connected, so that files are left to serve `in_flight` of them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    files -= min(_SPARE_FILES, files // 4)
    # No more are served than are connected: half of the files are always enough for the replicas' side.
    return max(files // 2, files - in_flight)


def is_local(error: OSError) -> bool:
    """Say whether a connection failed for want of something on this side."""
    return error.errno in _LOCAL_FAULTS
