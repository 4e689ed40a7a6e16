"""Reload: takes up changed options while the router runs, and refuses bad ones while the old go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from router.config import RouterConfig
from router.observe.metrics import RouterMetrics
from router.policies import PolicyError
from router.settings import SettingsError

log = logging.getLogger("kvring.reload")


class Reloader:
    """Loads anew when asked, or when the file's content has changed: a mounted ConfigMap changes by links."""

    def __init__(
        self,
        load: Callable[[], RouterConfig],
        take: Callable[[RouterConfig], None],
        file: Path | None,
        current: Callable[[], RouterConfig],
        metrics: RouterMetrics,
        asked: asyncio.Event,
    ) -> None:
        """`take` makes options current, or raises SettingsError, PolicyError, OSError or ValueError.

        While it runs, `asked` lets it load anew, changed or not.
        """
        self._load = load
        self._take = take
        self._file = file
        self._current = current
        self._metrics = metrics
        self._asked = asked
        self._content = self._read()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            asked = await self._wait()
            content = self._read()
            # A file that cannot be read just now is being replaced, or will be missed when it matters.
            if asked or (content is not None and content != self._content):
                self._content = content
                self.reload()

    def reload(self) -> bool:
        """Load the options and make them current; say whether they are."""
        try:
            self._take(self._load())
        except (SettingsError, PolicyError, OSError, ValueError) as error:
            self._metrics.reloaded(False)
            log.error("the changed options are refused, the old go on: %s", str(error).replace("\n", "; "))
            return False
        except Exception:
            # Whatever it was: who changes the options again must find somebody who looks.
            self._metrics.reloaded(False)
            log.exception("the changed options are refused, the old go on")
            return False
        self._metrics.reloaded(True)
        log.info("the options have been loaded anew")
        return True

    async def _wait(self) -> bool:
        """Return when it is time to look; say whether somebody asked."""
        seconds = self._current().reload_seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds if self._file and seconds else None):
                await self._asked.wait()
                self._asked.clear()
                return True
        return False

    def _read(self) -> bytes | None:
        if self._file is None:
            return None
        try:
            return blake2b(self._file.read_bytes(), digest_size=16).digest()
        except OSError:
            return None
