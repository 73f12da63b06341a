# SPDX-License-Identifier: GPL-2.0 OR MIT
"""TCP over IPv6 with hop-by-hop options of 256 bytes in each packet of the client:

    long_headers.py serve PORT              says what it received, one line of JSON, and ends
    long_headers.py send ADDRESS PORT BYTES
"""

import hashlib
import json
import os
import socket
import sys

# An option that nobody knows, of a type that tells hosts to skip it (RFC 8200, section 4.2), in the longest header that it fits.
OPTIONS = bytes([0, 31, 0x1e, 252]) + bytes(252)


def serve(port):
    with socket.create_server(("::", port), family=socket.AF_INET6) as server:
        server.settimeout(60)
        print("ready", file=sys.stderr, flush=True)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(20)
            digest, count = hashlib.sha256(), 0
            while data := connection.recv(1 << 16):
                digest.update(data)
                count += len(data)
            connection.sendall(json.dumps({"bytes": count, "sha256": digest.hexdigest()}).encode())


def send(address, port, size):
    with socket.socket(socket.AF_INET6) as connection:
        connection.settimeout(20)
        connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_HOPOPTS, OPTIONS)
        connection.connect((address, port))
        data = os.urandom(size)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while more := connection.recv(4096):
            answer += more
    found = json.loads(answer)
    assert found == {"bytes": size, "sha256": hashlib.sha256(data).hexdigest()}, found
    print(json.dumps(found))


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
