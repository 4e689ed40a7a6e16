"""Waits for a router to be ready, then asks which models it serves: what `helm test` runs.

python -c SCRIPT http://CONTROL/readyz http://API/v1/models
"""

import json
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

_WAIT_SECONDS = 60


def answer(url: str) -> bytes:
    """Return the body, as soon as there is one."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            with urlopen(url, timeout=5) as response:
                body: bytes = response.read()
                return body
        except (URLError, TimeoutError) as error:
            if time.monotonic() > until:
                sys.exit(f"{url}: {error}")
        time.sleep(1)


ready, models = sys.argv[1:]
answer(ready)
served = [model["id"] for model in json.loads(answer(models))["data"]]
if not served:
    sys.exit("no model is served")
sys.stdout.write(f"served: {', '.join(served)}\n")
