"""Just enough of DNS to ask a server for records and to read its answer (RFC 1035)."""

import random
import socket
import struct

TYPES = {"A": 1, "PTR": 12, "TXT": 16, "AAAA": 28, "SRV": 33}
CODES = {0: "NOERROR", 2: "SERVFAIL", 3: "NXDOMAIN", 5: "REFUSED"}


def encoded(name):
    labels = [label.encode() for label in name.rstrip(".").split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def name_at(message, at):
    """The name that begins there, and where what follows it begins. A label may point at an earlier one."""
    labels, after = [], None
    while message[at]:
        if message[at] >= 0xC0:
            after = after or at + 2
            at = struct.unpack_from("!H", message, at)[0] & 0x3FFF
        else:
            labels.append(message[at + 1:at + 1 + message[at]].decode())
            at += 1 + message[at]
    return ".".join(labels) + ".", after or at + 1


def data(message, kind, at, size):
    """The data of a record as text."""
    if kind == TYPES["A"]:
        return socket.inet_ntop(socket.AF_INET, message[at:at + size])
    if kind == TYPES["AAAA"]:
        return socket.inet_ntop(socket.AF_INET6, message[at:at + size])
    if kind == TYPES["SRV"]:
        priority, weight, port = struct.unpack_from("!HHH", message, at)
        return f"{priority} {weight} {port} {name_at(message, at + 6)[0]}"
    if kind == TYPES["PTR"]:
        return name_at(message, at)[0]
    if kind == TYPES["TXT"]:
        return message[at + 1:at + 1 + message[at]].decode()
    return message[at:at + size].hex()


def ask(port, name, kind, seconds):
    """The code of the answer, and the sorted data of its records of this kind; a `TimeoutError` if there is none in time."""
    number = random.randrange(1 << 16)
    question = encoded(name) + struct.pack("!HH", TYPES[kind], 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.settimeout(seconds)
        server.connect(("127.0.0.1", port))
        server.send(struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + question)
        message = server.recv(65535)
    same, flags, _, answers, _, _ = struct.unpack_from("!HHHHHH", message)
    assert same == number, "the answer to another question"
    at, found = 12 + len(question), []
    for _ in range(answers):
        _, at = name_at(message, at)
        of, _, _, size = struct.unpack_from("!HHIH", message, at)
        at += 10
        if of == TYPES[kind]:
            found.append(data(message, of, at, size))
        at += size
    return CODES.get(flags & 15, str(flags & 15)), sorted(found)
