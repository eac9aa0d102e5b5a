"""Both ends of HTTP/2 (prior knowledge): each rule is broken on a connection of its own. http2_violations.py PORT"""
import socket, struct, sys, threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
PRIORITY_UPDATE = 0x10
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def setting(identifier, value):
    return struct.pack(">HI", identifier, value)


# Of the static table: :method GET, :scheme http, :path /; and :authority a
GET = b"\x82\x86\x84\x01\x01a"
POST = b"\x83\x86\x84\x01\x01a"
OK = b"\x88"
EMPTY = frame(SETTINGS, 0, 0)


def request(stream=1, fields=GET, flags=END_STREAM):
    return frame(HEADERS, END_HEADERS | flags, stream, fields)


def client(frames, settings=EMPTY):
    return PREFACE + settings + frames, EMPTY


def server(frames, settings=EMPTY):
    return PREFACE + EMPTY + request(), settings + frames


CASES = [
    # The connection and its frames.
    client(request(), settings=b""),
    server(frame(PING, 0, 0, bytes(8)), settings=b""),
    client(frame(DATA, 0, 0, b"x")),
    client(frame(SETTINGS, 0, 1)),
    client(frame(SETTINGS, 0, 0, bytes(5))),
    client(frame(SETTINGS, ACK, 0, setting(1, 0))),
    client(frame(PING, 0, 0, bytes(7))),
    client(frame(GOAWAY, 0, 0, bytes(4))),
    client(frame(WINDOW_UPDATE, 0, 0, bytes(3))),
    client(request(flags=0) + frame(RST_STREAM, 0, 1, bytes(3))),
    client(request(flags=0) + frame(DATA, PADDED, 1, b"\x05abc")),
    client(request(flags=0) + frame(DATA, 0, 1, bytes(16385))),
    # The order of frames.
    client(frame(CONTINUATION, END_HEADERS, 1, GET)),
    client(frame(HEADERS, END_STREAM, 1, GET) + frame(PING, 0, 0, bytes(8))),
    client(frame(RST_STREAM, 0, 1, bytes(4))),
    client(request(stream=2)),
    client(request(stream=3) + request(stream=1)),
    client(request() + frame(DATA, 0, 1, b"late")),
    client(frame(PUSH_PROMISE, END_HEADERS, 1, struct.pack(">I", 2) + GET)),
    client(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)) + frame(GOAWAY, 0, 0, struct.pack(">II", 3, 0))),
    server(frame(PRIORITY_UPDATE, 0, 0, struct.pack(">I", 1) + b"u=1")),
    server(frame(DATA, 0, 1, b"no head")),
    # SETTINGS and windows.
    client(frame(SETTINGS, 0, 0, setting(2, 2))),
    server(b"", settings=frame(SETTINGS, 0, 0, setting(2, 1))),
    client(frame(SETTINGS, 0, 0, setting(4, 1 << 31))),
    client(frame(SETTINGS, 0, 0, setting(5, 16383))),
    client(frame(WINDOW_UPDATE, 0, 0, bytes(4))),
    client(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1))),
    client(request(fields=POST, flags=0) + frame(DATA, 0, 1, bytes(16384)) * 4),
    # Field blocks and fields.
    client(request(fields=GET + b"\x80")),
    client(request(fields=GET + b"\x00\x05ab")),
    client(request(fields=GET + literal(b"Upper", b"x"))),
    client(request(fields=GET + literal(b"connection", b"close"))),
    client(request(fields=GET + literal(b"te", b"gzip"))),
    client(request(fields=b"\x82\x86\x01\x01a")),
    client(request(fields=b"\x82\x86\x01\x01a" + literal(b"x", b"y") + b"\x84")),
    client(request(fields=GET + b"\x82")),
    client(request(fields=GET + OK)),
    client(request(fields=POST + literal(b"content-length", b"5"), flags=0) + frame(DATA, END_STREAM, 1, b"four")),
]
port = int(sys.argv[1])
listener = socket.create_server(("127.0.0.1", port))


def serve():
    for _, answer in CASES:
        accepted, _ = listener.accept()
        accepted.settimeout(0.1)
        try:
            while accepted.recv(65536):
                pass
        except OSError:
            pass
        accepted.sendall(answer)
        accepted.close()


thread = threading.Thread(target=serve)
thread.start()
for question, _ in CASES:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(question)
    try:
        while connection.recv(65536):
            pass
    except OSError:
        pass
    connection.close()
thread.join()
