"""Carries the bytes of WebSockets between HTTP/1.1 and HTTP/2 (RFC 8441), by hyper-h2, so that Autobahn, which speaks HTTP/1.1
alone, tests WebSocket over HTTP/2. Frames pass as they are, also invalid ones.

    gateway.py to-http2 HOST:PORT    WebSockets over HTTP/1.1 in, HTTP/2 with prior knowledge to HOST:PORT out
    gateway.py to-http1 HOST:PORT    the other direction

It prints the address on which it listens.
"""

import asyncio
import base64
import hashlib
import sys

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

# RFC 6455 §1.3.
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
# The fields of the handshake that both versions of HTTP have (RFC 8441 §5).
FIELDS = ("origin", "sec-websocket-version", "sec-websocket-protocol", "sec-websocket-extensions")
WINDOW = 16 << 20


class Connection:
    """One HTTP/2 connection and the WebSockets on it."""

    def __init__(self, reader, writer, is_client):
        self.reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=is_client, header_encoding="utf-8"))
        settings = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW}
        if not is_client:
            settings[h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL] = 1
        self.h2.local_settings = h2.settings.Settings(client=is_client, initial_values=settings)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(WINDOW)
        self.may_connect = asyncio.Event()
        self.may_send = asyncio.Event()
        self.received = {}
        self.heads = {}

    async def flush(self):
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def run(self, on_request=None):
        """Reads until the end of the connection. `on_request` gets the streams that the peer opens."""
        tasks = set()
        try:
            while data := await self.reader.read(1 << 16):
                for event in self.h2.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        self.received[event.stream_id] = asyncio.Queue()
                        task = asyncio.create_task(on_request(self, event.stream_id, dict(event.headers)))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                    else:
                        self.handle(event)
                self.may_send.set()
                await self.flush()
        except (ConnectionError, h2.exceptions.ProtocolError) as error:
            print(f"the HTTP/2 connection failed: {error!r}", file=sys.stderr)
        finally:
            for queue in self.received.values():
                queue.put_nowait(None)
            self.writer.close()

    def handle(self, event):
        stream = getattr(event, "stream_id", None)
        if isinstance(event, h2.events.RemoteSettingsChanged):
            if h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL in event.changed_settings:
                self.may_connect.set()
        elif isinstance(event, h2.events.ResponseReceived):
            self.heads[stream].set_result(dict(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            self.received[stream].put_nowait((event.data, event.flow_controlled_length))
        elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
            self.received[stream].put_nowait(None)

    async def send(self, stream, data):
        while data:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if room <= 0:
                self.may_send.clear()
                await self.may_send.wait()
                continue
            self.h2.send_data(stream, data[:room])
            data = data[room:]
            await self.flush()

    async def carry(self, stream, reader, writer):
        """Carries bytes between a stream and a socket until both directions have ended."""

        async def to_stream():
            try:
                while data := await reader.read(1 << 16):
                    await self.send(stream, data)
                self.h2.end_stream(stream)
            except ConnectionError:
                self.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            await self.flush()

        async def to_socket():
            while received := await self.received[stream].get():
                data, length = received
                writer.write(data)
                await writer.drain()
                self.h2.acknowledge_received_data(length, stream)
                await self.flush()
            if writer.can_write_eof():
                writer.write_eof()
            else:
                writer.close()

        try:
            # An error of either direction is the end of a case, which the suite judges.
            await asyncio.gather(to_stream(), to_socket(), return_exceptions=True)
        finally:
            self.received.pop(stream, None)
            writer.close()


async def read_head(reader):
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = {}
    for line in lines[1:]:
        if line:
            name, value = line.split(":", 1)
            name, value = name.strip().lower(), value.strip()
            fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return lines[0], fields


async def to_http2(reader, writer, target):
    """One WebSocket over HTTP/1.1, which gets an HTTP/2 connection of its own."""
    request, fields = await read_head(reader)
    connection = Connection(*await asyncio.open_connection(*target), is_client=True)
    await connection.flush()
    running = asyncio.create_task(connection.run())
    await connection.may_connect.wait()
    stream = connection.h2.get_next_available_stream_id()
    connection.received[stream] = asyncio.Queue()
    connection.heads[stream] = asyncio.get_running_loop().create_future()
    head = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http")]
    head += [(":authority", "%s:%d" % target), (":path", request.split(" ")[1])]
    connection.h2.send_headers(stream, head + [(name, fields[name]) for name in FIELDS if name in fields])
    await connection.flush()
    response = await connection.heads[stream]
    if response[":status"] != "200":
        writer.write(f"HTTP/1.1 {response[':status']} \r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()
    else:
        accept = base64.b64encode(hashlib.sha1(fields["sec-websocket-key"].encode() + GUID).digest()).decode()
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}"]
        lines += [f"{name}: {response[name]}" for name in FIELDS if name in response]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await connection.carry(stream, reader, writer)
    connection.h2.close_connection()
    await connection.flush()
    running.cancel()


async def to_http1(reader, writer, target):
    """One HTTP/2 connection, each of whose WebSockets gets a TCP connection of its own."""

    async def on_request(connection, stream, head):
        reader, writer = await asyncio.open_connection(*target)
        key = base64.b64encode(b"sixteen bytes ok").decode()
        lines = [f"GET {head[':path']} HTTP/1.1", "Host: %s:%d" % target, "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}"] + [f"{name}: {head[name]}" for name in FIELDS if name in head]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        status, fields = await read_head(reader)
        code = status.split(" ")[1]
        response = [(":status", "200" if code == "101" else code)]
        response += [(name, fields[name]) for name in FIELDS if name in fields]
        connection.h2.send_headers(stream, response, end_stream=code != "101")
        await connection.flush()
        if code == "101":
            await connection.carry(stream, reader, writer)

    connection = Connection(reader, writer, is_client=False)
    await connection.flush()
    await connection.run(on_request)


async def main(direction, address):
    host, port = address.rsplit(":", 1)
    serve = {"to-http2": to_http2, "to-http1": to_http1}[direction]
    server = await asyncio.start_server(lambda reader, writer: serve(reader, writer, (host, int(port))), "127.0.0.1", 0)
    print("listening on 127.0.0.1:%d" % server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("to-http2", "to-http1"):
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
