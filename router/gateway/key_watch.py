"""Takes up changed API keys while the router runs; a bad file is refused, and the old keys go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from router.gateway.serving import Serving

log = logging.getLogger("kvring.keys")

# Where the options are not looked at by themselves, keys are all the same: a revoked one has to go.
_USUAL_SECONDS = 5.0


async def watch_keys(serving: Callable[[], Serving]) -> None:
    """Look at the file of keys again and again, until cancelled."""
    said = ""
    while True:
        await asyncio.sleep(serving().config.reload_seconds or _USUAL_SECONDS)
        try:
            if await asyncio.to_thread(serving().keyring.refresh):
                log.info("the API keys have been loaded anew: %d", len(serving().keyring))
            said = ""
        except (OSError, ValueError) as error:
            if str(error) != said:
                said = str(error)
                log.error("the changed API keys are refused, the old go on: %s", said)
