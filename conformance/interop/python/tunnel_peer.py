"""WebSockets over one HTTP/2 connection (RFC 8441) by h2 and wsproto, as client against `wireloom serve`."""

import asyncio
import ssl
import sys

import h2.config
import h2.connection
import h2.events
import h2.settings
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage


class Tunnel:
    """One stream of an HTTP/2 connection."""

    def __init__(self, session, stream):
        self.session = session
        self.stream = stream
        self.socket = Connection(ConnectionType.CLIENT)
        self.events = asyncio.Queue()
        self.headers = None

    def received(self, data):
        self.socket.receive_data(data)
        for event in self.socket.events():
            self.events.put_nowait(event)

    async def send(self, event):
        data = self.socket.send(event)
        while data:
            room = min(self.session.h2.local_flow_control_window(self.stream), self.session.h2.max_outbound_frame_size)
            if room == 0:
                self.session.window.clear()
                await self.session.window.wait()
                continue
            self.session.h2.send_data(self.stream, data[:room])
            data = data[room:]
            await self.session.flush()

    async def recv(self):
        """The next message, assembled."""
        whole = None
        while True:
            event = await asyncio.wait_for(self.events.get(), 60)
            if not isinstance(event, (TextMessage, BytesMessage)):
                return event
            whole = event.data if whole is None else whole + event.data
            if event.message_finished:
                return whole


class Session:
    """One HTTP/2 connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.tunnels = {}
        self.connect_allowed = asyncio.Event()
        self.window = asyncio.Event()

    async def flush(self):
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def run(self):
        while data := await self.reader.read(65536):
            for event in self.h2.receive_data(data):
                self.handle(event)
            self.window.set()
            await self.flush()

    def handle(self, event):
        if isinstance(event, h2.events.RemoteSettingsChanged):
            if h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL in event.changed_settings:
                self.connect_allowed.set()
            return
        tunnel = self.tunnels.get(getattr(event, "stream_id", None))
        if tunnel is None:
            return
        if isinstance(event, h2.events.ResponseReceived):
            tunnel.headers.set_result(dict(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            # The DATA that ends the stream may be empty, and wsproto takes no input once it is closed.
            if event.data:
                tunnel.received(event.data)
        elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
            tunnel.events.put_nowait(event)

    async def open(self, scheme, authority, path):
        await asyncio.wait_for(self.connect_allowed.wait(), 10)
        stream = self.h2.get_next_available_stream_id()
        tunnel = self.tunnels[stream] = Tunnel(self, stream)
        tunnel.headers = asyncio.get_running_loop().create_future()
        self.h2.send_headers(
            stream,
            [
                (":method", "CONNECT"),
                (":protocol", "websocket"),
                (":scheme", scheme),
                (":authority", authority),
                (":path", path),
                ("sec-websocket-version", "13"),
                ("user-agent", "h2 and wsproto"),
            ],
        )
        await self.flush()
        return tunnel, await asyncio.wait_for(tunnel.headers, 10)


def expect(received, expected):
    """Long values are shown by their beginnings."""
    if received != expected:
        raise AssertionError(f"{received!r:.200} (length {len(received) if hasattr(received, '__len__') else None}) instead of {expected!r:.60}")


async def echoed(tunnel):
    for length in (0, 1, 125, 126, 65_535, 65_536, 300_000):
        await tunnel.send(TextMessage("x" * length))
        expect(await tunnel.recv(), "x" * length)
        await tunnel.send(BytesMessage(b"\x00" * length))
        expect(await tunnel.recv(), b"\x00" * length)
    await tunnel.send(TextMessage("one ", message_finished=False))
    await tunnel.send(TextMessage("two", message_finished=True))
    expect(await tunnel.recv(), "one two")
    for number in range(1000):
        await tunnel.send(TextMessage(str(number)))
    for number in range(1000):
        expect(await tunnel.recv(), str(number))
    await tunnel.send(Ping(b"are you there"))
    pong = await tunnel.recv()
    assert isinstance(pong, Pong) and bytes(pong.payload) == b"are you there", pong
    await tunnel.send(CloseConnection(4321, "bye"))
    closed = await tunnel.recv()
    assert isinstance(closed, CloseConnection) and closed.code == 4321, closed
    ended = await tunnel.recv()
    assert isinstance(ended, h2.events.StreamEnded), ended


async def client(base):
    scheme, authority = base.split("://")
    host, port = authority.split(":")
    tls = None
    if scheme == "https":
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        tls.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    session = Session(reader, writer)
    await session.flush()
    running = asyncio.create_task(session.run())
    tunnels = []
    for _ in range(20):
        tunnel, headers = await session.open(scheme, authority, "/echo")
        assert headers[":status"] == "200", headers
        assert "sec-websocket-accept" not in headers, headers
        tunnels.append(tunnel)
    await asyncio.gather(*(echoed(tunnel) for tunnel in tunnels))
    _, headers = await session.open(scheme, authority, "/nothing")
    assert headers[":status"] == "404", headers
    running.cancel()
    writer.close()


if __name__ == "__main__":
    asyncio.run(client(sys.argv[1]))
