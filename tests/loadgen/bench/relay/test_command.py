"""`kvring bench relay` as a whole, over our router and, where it is installed, nginx."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from loadgen.cli import kvring

ALL = ("200 B", "16 KB", "131 KB", "event")

# A proxy to the first replica that passes small requests on.
REFUSES_LARGE_BODIES = """\
import re, socket, sys, threading
if "-v" in sys.argv: sys.exit()
text = open(sys.argv[-1]).read()
front = int(re.search(r"listen 127.0.0.1:(\\d+)", text)[1])
back = int(re.search(r"server 127.0.0.1:(\\d+)", text)[1])
def back_to(client, replica):
    while data := replica.recv(65536): client.sendall(data)
def serve(client):
    replica = socket.create_connection(("127.0.0.1", back))
    threading.Thread(target=back_to, args=(client, replica), daemon=True).start()
    while data := client.recv(65536):
        if int(re.search(rb"content-length: (\\d+)", data)[1]) > 2000:
            client.sendall(b"HTTP/1.1 413 Too Large\\r\\ncontent-length: 9\\r\\n\\r\\ntoo large")
            client.close()
            return
        replica.sendall(data)
server = socket.create_server(("127.0.0.1", front), backlog=128)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(kvring, ["bench", "relay", *arguments])


def test_a_quick_run_measures_every_cell() -> None:
    result = bench("--quick", "--only", "kvring", "--passes", "1", "--seconds", "0.3", "--json")
    assert result.exit_code == 0, result.output
    record = orjson.loads(result.stdout)
    assert set(record) == {
        *("machine", "passes", "seconds", "cells", "direct", "routers", "failures", "notices")
    }
    assert set(record["machine"]) == {"cpu", "cores", "kernel", "python"}
    assert [cell["name"] for cell in record["cells"]] == [*ALL, "c16"]
    (ours,) = record["routers"]
    assert (ours["name"], ours["failures"], record["failures"]) == ("kvring", 0, 0)
    for name in ALL:
        assert ours["costs"][name]["microseconds"] > 0
        assert ours["costs"][name]["ratio"] == 1.0
        (only,) = ours["passes"][name]
        assert only["units"] > 0
        assert only["caller_microseconds"] > 0
        assert only["replicas_microseconds"] > 0
    assert set(ours["delays"]) == {"c16"}
    assert len(record["direct"]["c16"]) == 1
    assert 0 < ours["memory_bytes"] <= ours["peak_memory_bytes"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--only", "haproxy"], 2, "haproxy: not of kvring, nginx"),
        (["--passes", "0"], 2, "--passes"),
        (["--seconds", "0"], 2, "--seconds"),
        (["--only", "vllm", "--peers-python", "/nonexistent/python"], 2, "does not tell its packages"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], code: int, message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == code
    assert message in result.output


def stands_in_for_nginx(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "nginx"
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    # Logs of what failed are kept.
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def test_a_router_that_ends_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stands_in_for_nginx(tmp_path, monkeypatch, "#!/bin/sh\necho no such luck\nexit 3\n")
    result = bench("--only", "nginx", "--passes", "1", "--seconds", "0.1")
    assert result.exit_code == 1
    assert "nginx ended with exit code 3" in result.output
    assert "no such luck" in result.output


def test_requests_that_fail_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stands_in_for_nginx(tmp_path, monkeypatch, f"#!{sys.executable}\n{REFUSES_LARGE_BODIES}")
    result = bench("--quick", "--only", "nginx", "--passes", "1", "--seconds", "0.1")
    assert result.exit_code == 1
    assert "requests failed, so the figures are worth nothing" in result.output
    assert "the first one so: answered HTTP/1.1 413 Too Large: b'too large'" in result.output
