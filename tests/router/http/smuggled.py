"""Requests that could be read in more ways than one, each with the only thing that may come of it.

Each is followed by a second one. A request that is refused takes its connection with it: whatever stands
behind it may be a part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

BODY = b'{"model":"m","messages":[{"role":"user","content":"Tell me of the sea."}]}'
SIZE = len(BODY)
LINE = b"POST /v1/chat/completions HTTP/1.1"
# Stands for what tells one try of a case from others.
MARK = b"-000000"
SECOND = b"%b\r\nHost: a\r\nX-Case: second%b\r\nContent-Length: %d\r\n\r\n%b" % (LINE, MARK, SIZE, BODY)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)
_TE = b"Transfer-Encoding: chunked\r\n"
_CL = b"Content-Length: %d\r\n" % SIZE


@dataclass(frozen=True, slots=True)
class Case:
    """`statuses` are of all answers on the connection; `reached` is what the replica got, by its x-case."""

    name: str
    raw: bytes
    statuses: tuple[int, ...]
    reached: tuple[str, ...] = ()


def _post(head: bytes, body: bytes, line: bytes = LINE, host: bytes = b"Host: a\r\n") -> bytes:
    return line + b"\r\n" + host + b"X-Case: first" + MARK + b"\r\n" + head + b"\r\n" + body + SECOND


def _refused(name: str, raw: bytes, status: int = 400) -> Case:
    return Case(name, raw, (status,))


def _both(name: str, raw: bytes) -> Case:
    return Case(name, raw, (200, 200), ("first", "second"))


def _length(value: bytes) -> bytes:
    return _post(b"Content-Length: " + value + b"\r\n", BODY)


def _coding(header: bytes, status: int = 400) -> Case:
    return _refused(header.decode("latin-1"), _post(header + b"\r\n", CHUNKED), status)


def _get(line: bytes, head: bytes = b"", host: bytes = b"Host: a\r\n") -> bytes:
    return line + b"\r\n" + host + head + b"\r\n" + SECOND


def _odd(name: str, body: bytes, head: bytes = _TE) -> Case:
    return _refused("chunks: " + name, _post(head, body))


_N = b"%d" % SIZE
_X = b"%x" % SIZE
_END = b"0\r\n\r\n"
_LENGTHS = [
    _both("the length", _length(_N)),
    _both("a length between blanks", _length(b" \t" + _N + b" \t")),
    _both("a length with zeros ahead", _length(b"000" + _N)),
    *(
        _refused(f"length {value!r}", _length(value))
        for value in (
            b"+" + _N,
            b"-" + _N,
            _N[:1] + b" " + _N[1:],
            _N[:1] + b"_" + _N[1:],
            b"0x" + _X,
            b"%d.0" % SIZE,
            b"9" * 30,
            b"18446744073709551617",
            _N + b", " + _N,
            _N + b",0",
            b"",
            _N + b"\x0b",
            b"\x00" + _N,
            "٥".encode(),
            b'"' + _N + b'"',
        )
    ),
    _refused("the greatest length", _length(b"9223372036854775808"), 413),
    _refused("one length twice", _post(_CL + _CL, BODY)),
    _refused("one length twice, in other letters", _post(_CL + _CL.lower(), BODY)),
    _refused("two lengths", _post(_CL + b"Content-Length: 0\r\n", BODY)),
    _refused("two lengths, none first", _post(b"Content-Length: 0\r\n" + _CL, BODY)),
    _refused("length and chunks", _post(_CL + _TE, _END)),
    _refused("chunks and length", _post(_TE + _CL, _END)),
    _refused("length and chunks told oddly", _post(_CL + b"Transfer-Encoding: xchunked\r\n", _END)),
    _refused("a blank behind the name of the length", _post(b"Content-Length : 5\r\n", BODY)),
]
_CODINGS = [
    _both("chunks", _post(_TE, CHUNKED)),
    _both("chunks in capitals", _post(b"TRANSFER-ENCODING: CHUNKED\r\n", CHUNKED)),
    _both("chunks between blanks", _post(b"Transfer-Encoding: \t chunked \r\n", CHUNKED)),
    _coding(b"Transfer-Encoding : chunked"),
    _coding(b"Transfer-Encoding\t: chunked"),
    _coding(b"Transfer-Encoding: xchunked", 501),
    _coding(b"Transfer-Encoding: chunkedx", 501),
    _coding(b"Transfer-Encoding: chunked, chunked"),
    _coding(b"Transfer-Encoding: identity", 501),
    _coding(b"Transfer-Encoding: chunked, identity"),
    _coding(b"Transfer-Encoding: identity, chunked", 501),
    _coding(b"Transfer-Encoding: gzip, chunked", 501),
    _coding(b"Transfer-Encoding: \x0bchunked"),
    _coding(b"Transfer-Encoding: \x00chunked"),
    _coding(b"Transfer-Encoding: chunked\x00"),
    _coding(b"Transfer-Encoding:"),
    _coding(b"Transfer-Encoding: ,chunked", 501),
    _coding(b"Transfer-Encoding: chunked,"),
    _coding(b'Transfer-Encoding: "chunked"', 501),
    _coding(b"Transfer-Encoding: chunked;a=b", 501),
    _coding(b"Transfer-Encoding:\r\n chunked"),
    _coding(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
    _coding(b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", 501),
    _coding(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"),
    _coding(b"X: y\nTransfer-Encoding: chunked"),
    _coding(b"X: y\rTransfer-Encoding: chunked"),
    # No length and no coding: there is no body, and what follows is no request.
    Case("an underscore", _post(b"Transfer_Encoding: chunked\r\n", CHUNKED), (400, 400)),
    _refused("chunks of HTTP/1.0", _post(_TE, CHUNKED, LINE.replace(b"1.1", b"1.0"))),
]
_CHUNKS = [
    _both("chunks: zeros ahead", _post(_TE, b"0" * 24 + CHUNKED)),
    _both("chunks: extensions", _post(_TE, _X + b';a=b;c="d;e"\r\n' + BODY + b"\r\n0;last\r\n\r\n")),
    _both("chunks: a trailer", _post(_TE, CHUNKED[:-2] + b"Authorization: x\r\nX-Case: third\r\n\r\n")),
    _odd("0x", b"0x" + CHUNKED),
    _odd("-", b"-" + CHUNKED),
    _odd("+", b"+" + CHUNKED),
    _odd("a blank ahead", b" " + CHUNKED),
    _odd("a blank behind", _X + b" \r\n" + BODY + b"\r\n" + _END),
    _odd("a tab behind", _X + b"\t\r\n" + BODY + b"\r\n" + _END),
    _odd("an underscore", b"1_0\r\n" + BODY + b"\r\n" + _END),
    _odd("no size", b"\r\n" + BODY + b"\r\n" + _END),
    _odd("a size over 64 bits", b"1" + b"0" * 16 + CHUNKED),
    _odd("a blank ahead of an extension", _X + b" ;a\r\n" + BODY + b"\r\n" + _END),
    _odd("a line end within quotes", _X + b';a="\r\n\r\n"\r\n' + BODY + b"\r\n" + _END),
    _odd("NUL within an extension", _X + b";a\x00\r\n" + BODY + b"\r\n" + _END),
    _odd("CR within an extension", _X + b";a\rb\r\n" + BODY + b"\r\n" + _END),
    _odd("LF behind an extension", _X + b";a\n" + BODY + b"\r\n" + _END),
    _odd("LF behind a size", _X + b"\n" + BODY + b"\r\n" + _END),
    _odd("CR behind a size", _X + b"\r" + BODY + b"\r\n" + _END),
    _odd("LF behind data", _X + b"\r\n" + BODY + b"\n" + _END),
    _odd("CR behind data", _X + b"\r\n" + BODY + b"\r" + _END),
    _odd("nothing behind data", _X + b"\r\n" + BODY + _END),
    _odd("more data than told", _X + b"\r\n" + BODY + b"XX" + _END),
    _odd("LF behind the last size", _X + b"\r\n" + BODY + b"\r\n0\n\r\n"),
    _odd("LF at the end", _X + b"\r\n" + BODY + b"\r\n0\r\n\n"),
    _odd("no end", _X + b"\r\n" + BODY + b"\r\n0\r\n"),
    _odd("LF everywhere", CHUNKED.replace(b"\r", b"")),
    _odd("a trailer with a length", CHUNKED[:-2] + b"Content-Length: 5\r\nHost: b\r\n\r\n"),
    _odd("a trailer with a coding", CHUNKED[:-2] + b"Transfer-Encoding: identity\r\n\r\n"),
    _odd("a trailer with a blank in its name", CHUNKED[:-2] + b"X Y: z\r\n\r\n"),
    _odd("a folded trailer", CHUNKED[:-2] + b"X: y\r\n z\r\n\r\n"),
    # It waits for the rest, until it has waited too long.
    _refused("chunks: the greatest size", _post(_TE, b"f" * 16 + b"\r\n" + BODY + b"\r\n" + _END), 408),
]
_LINES = [
    _refused("LF everywhere", _get(b"GET /x HTTP/1.1").replace(b"\r", b"")),
    _refused("LF behind the first line", b"GET /x HTTP/1.1\nHost: a\r\n\r\n" + SECOND),
    _refused("CR behind the first line", b"GET /x HTTP/1.1\rHost: a\r\n\r\n" + SECOND),
    _refused("LF behind a header", _get(b"GET /x HTTP/1.1", b"X: y\nZ: a\r\n")),
    _refused("CR within a header", _get(b"GET /x HTTP/1.1", b"X: y\rz\r\n")),
    _refused("CR CR LF behind a header", _get(b"GET /x HTTP/1.1", b"X: y\r\r\n")),
    _refused("LF at the end", b"GET /x HTTP/1.1\r\nHost: a\r\n\n" + SECOND),
    _refused("a folded header", _get(b"GET /x HTTP/1.1", b"X: y\r\n z\r\n")),
    _refused("a folded first header", _get(b"GET /x HTTP/1.1", host=b" X: y\r\nHost: a\r\n")),
    *(
        _refused(f"header {line!r}", _get(b"GET /x HTTP/1.1", line + b"\r\n"))
        for line in (
            b"X Y: a",
            b"X : a",
            b" X: a",
            b": a",
            b"XY",
            b"X\x00Y: a",
            b"X\x7f: a",
            b"X\xff: a",
            b"X(: a",
            b"X: a\x00b",
            b"X: a\x01b",
            b"X: a\x7fb",
            b"X: a\x1bb",
        )
    ),
    *(
        _refused(f"target {target!r}", _get(b"GET " + target + b" HTTP/1.1"))
        for target in (
            b"/x\x00y",
            b"/x\x01y",
            b"/x\x7fy",
            b"/x\xffy",
            b"/x y",
            b"/x\ty",
            b"/x#y",
            b"/x?y#z",
            b"x",
            b"*",
            b"http://b/x",
            b"http://u@a/x",
            b"ftp://a/x",
            b"http:///x",
        )
    ),
    _refused("a blank behind the version", _get(b"GET /x HTTP/1.1 ")),
    _refused("a blank ahead of the method", _get(b" GET /x HTTP/1.1")),
    _refused("a method in small letters", _get(b"get /x HTTP/1.1")),
    _refused("a method that is none", _get(b"BREW /x HTTP/1.1")),
    _refused("a version in small letters", _get(b"GET /x http/1.1")),
    _refused("HTTP/1.2", _get(b"GET /x HTTP/1.2")),
    _refused("HTTP/1.10", _get(b"GET /x HTTP/1.10")),
    _refused("HTTP/2.0", _get(b"GET /x HTTP/2.0"), 505),
    _refused("HTTP/0.9, told", _get(b"GET /x HTTP/0.9"), 505),
    _refused("HTTP/0.9", b"GET /x\r\n" + SECOND),
    _refused("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECOND),
    _refused("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SECOND),
    _refused("no Host", _get(b"GET /x HTTP/1.1", host=b"")),
    _refused("two Hosts", _get(b"GET /x HTTP/1.1", host=b"Host: a\r\nHost: a\r\n")),
    *(
        _refused(f"Host {host!r}", _get(b"GET /x HTTP/1.1", host=b"Host: " + host + b"\r\n"))
        for host in (b"a b", b"a/b", b"u@a", b"a?b", b"a#b", b"a\\b", b"<a>", b"\xe9")
    ),
    # Nothing is behind a path but its query: neither decoded nor tidied, it is none that is served.
    *(
        Case(f"target {target!r}", _get(b"GET " + target + b" HTTP/1.1"), (404, 200), ("second",))
        for target in (
            b"/v1%2fmodels",
            b"//evil/x",
            b"/v1/../v1/models",
            b"/x;y",
            b"http://a/x",
            b"HTTP://A/x?y",
        )
    ),
    Case("blanks around a target", _get(b"GET  /x  HTTP/1.1"), (404, 200), ("second",)),
    Case("line ends ahead", b"\r\n\r\n" + _get(b"GET /x HTTP/1.1"), (404, 200), ("second",)),
    Case("a host that says nothing", _get(b"GET /x HTTP/1.1", host=b"Host:\r\n"), (404, 200), ("second",)),
]
_UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"
_METHODS = [
    _both("an offer of h2c with a length", _post(_UPGRADE + _CL, BODY)),
    _both("an offer of h2c with chunks", _post(_UPGRADE + _TE, CHUNKED)),
    Case("an offer of another protocol", _get(b"GET /x HTTP/1.1", _UPGRADE), (404, 200), ("second",)),
    Case(
        "a second request as the body of an offer",
        b"GET /x HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (_UPGRADE, len(SECOND), SECOND),
        (404,),
    ),
    Case(
        "a second request as the body of a GET",
        b"GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(SECOND), SECOND),
        (404,),
    ),
    Case(
        "a second request as the body of a HEAD",
        b"HEAD /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(SECOND), SECOND),
        (404,),
    ),
    Case("HEAD", _get(b"HEAD /x HTTP/1.1"), (404, 200), ("second",)),
    Case("HEAD of what is posted", _get(LINE.replace(b"POST", b"HEAD")), (405, 200), ("second",)),
    Case("GET of what is posted", _get(LINE.replace(b"POST", b"GET")), (405, 200), ("second",)),
    Case("TRACE", _get(b"TRACE /x HTTP/1.1", b"X: secret\r\n"), (404, 200), ("second",)),
    _refused("CONNECT", _get(b"CONNECT a:443 HTTP/1.1"), 501),
    _refused("CONNECT with a length", _get(b"CONNECT a:443 HTTP/1.1", _CL), 501),
    _refused("CONNECT to a path", _get(LINE.replace(b"POST", b"CONNECT")), 501),
    # Whoever says that this is the last of its requests is taken at its word.
    Case("the last", _post(b"Connection: close\r\n" + _CL, BODY), (200,), ("first",)),
    Case("the only of HTTP/1.0", _post(_CL, BODY, LINE.replace(b"1.1", b"1.0")), (200,), ("first",)),
    _refused("another expectation", _post(_CL + b"Expect: 200-ok\r\n", BODY), 417),
]
CASES = [*_LENGTHS, *_CODINGS, *_CHUNKS, *_LINES, *_METHODS]
