"""Addresses as gateways write them."""

from __future__ import annotations

import pytest

from router.picker.addresses import literal_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.5:8000", "10.0.0.5:8000"),
        ("http://10.0.0.5", "10.0.0.5:80"),
        ("https://10.0.0.5", "10.0.0.5:443"),
        ("http://[2001:db8:0:0::1]:8000", "[2001:db8::1]:8000"),
        ("http://replica-1:8000", None),
        ("http://replica-1.replicas.models.svc:8000", None),
    ],
)
def test_addresses_of_urls(url: str, address: str | None) -> None:
    assert literal_address(url) == address
