"""Certificates: TLS towards gateways, which many ask for; renewed files are taken up without a restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

log = logging.getLogger("kvring.picker")


class Certificates:
    """A certificate and its key, read anew for a handshake once their files have changed."""

    def __init__(self, certificate_file: Path, key_file: Path) -> None:
        """Read them; OSError where that fails, or where the two do not belong together."""
        self._certificate_file = certificate_file
        self._key_file = key_file
        self._pair = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a port is opened with."""
        # None says that the one in use goes on; the types do not know that.
        return grpc.dynamic_ssl_server_credentials(_configuration(self._pair), self._renewed)  # type: ignore[arg-type]

    def _read(self) -> tuple[bytes, bytes]:
        # gRPC itself would say nothing, and refuse every handshake.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate_file, self._key_file)
        return self._key_file.read_bytes(), self._certificate_file.read_bytes()

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return another pair, None where there is none; called in a thread of gRPC's."""
        try:
            pair = self._read()
        except OSError as error:
            # They are being replaced, or will be missed when it matters.
            log.warning("the certificate cannot be read, the old one goes on: %s", error)
            return None
        if pair == self._pair:
            return None
        self._pair = pair
        log.info("another certificate is used from now on")
        return _configuration(pair)


def _configuration(pair: tuple[bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([pair])
