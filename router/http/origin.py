"""Where a replica listens: scheme, host and port of its URL."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Origin:
    """A place to connect to; `authority` is what its Host header says."""

    host: str
    port: int
    tls: bool
    authority: bytes

    @classmethod
    def of(cls, url: str) -> Origin:
        """Read a URL; ValueError if it has no host."""
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"no host in {url!r}")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.netloc.encode("idna"))
