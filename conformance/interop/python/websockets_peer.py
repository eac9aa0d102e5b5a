"""Python's websockets, as client against `wireloom serve` and as server for `wireloom connect`."""

import asyncio
import http
import sys

import websockets
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve


async def client(base):
    for compression in (None, "deflate"):
        async with connect(base + "/echo", compression=compression, max_size=None) as socket:
            for message in ("", "a", "häßlich 😀", "x" * 70_000, b"", bytes(range(256)) * 300, b"\x01" * 5_000_000):
                await socket.send(message)
                assert await socket.recv() == message, f"{len(message)} with {compression}"
            # A message in fragments comes back whole.
            await socket.send(["one ", "two ", "three"])
            assert await socket.recv() == "one two three"
            # Many at once.
            for number in range(1000):
                await socket.send(str(number))
            for number in range(1000):
                assert await socket.recv() == str(number)
            assert await asyncio.wait_for(await socket.ping(), 10) >= 0
            await socket.close(4321, "bye")
            assert (socket.close_code, socket.close_reason) == (4321, "bye"), socket
    async with connect(base + "/source?size=1000&count=500", max_size=None) as socket:
        assert [len(message) async for message in socket] == [1000] * 500
        assert socket.close_code == 1000
    async with connect(base + "/rooms/interop") as one, connect(base + "/rooms/interop") as two:
        # Each has joined when it receives what it sent.
        for socket, text in ((one, "first"), (two, "second")):
            await socket.send(text)
            while await socket.recv() != text:
                pass
        await one.send("hello")
        for socket in (one, two):
            while await socket.recv() != "hello":
                pass
    async with connect(base + "/sink") as socket:
        await socket.send(b"x" * 20_000_001)
        try:
            await socket.recv()
            raise AssertionError("too long a message was taken")
        except websockets.ConnectionClosedError as closed:
            assert closed.rcvd.code == 1009, closed
    try:
        async with connect(base + "/nothing"):
            raise AssertionError("there is nothing")
    except websockets.InvalidStatus as refused:
        assert refused.response.status_code == 404


async def handler(socket):
    async for message in socket:
        await socket.send(message)
        if isinstance(message, str) and message.startswith("close "):
            await socket.close(int(message[6:]), "as you wish")


async def server():
    def process(connection, request):
        if request.path == "/forbidden":
            return connection.respond(http.HTTPStatus.FORBIDDEN, "no\n")

    options = {"max_size": None, "process_request": process}
    options["select_subprotocol"] = lambda _, offered: "chat" if "chat" in offered else None
    async with serve(handler, "127.0.0.1", 0, **options) as listening:
        print("on 127.0.0.1:%d" % listening.sockets[0].getsockname()[1])
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(client(sys.argv[2]) if sys.argv[1] == "client" else server())
