"""Python's aiohttp, as client against `wireloom serve` and as server for `wireloom connect`."""

import asyncio
import sys

import aiohttp
from aiohttp import web


async def client(bases):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        for base in bases:
            await talk(session, base)


async def talk(session, base):
    async with session.get(base + "/healthz", ssl=False) as answer:
        assert await answer.text() == "ok\n"
    body = bytes(range(256)) * 3_000

    async def pieces():
        for begin in range(0, len(body), 50_000):
            yield body[begin : begin + 50_000]

    for data in (body, pieces()):
        async with session.post(base + "/echo", data=data, ssl=False) as answer:
            assert await answer.read() == body
    for compress in (0, 15):
        async with session.ws_connect(base + "/echo", compress=compress, max_msg_size=0, ssl=False) as socket:
            assert bool(socket.compress) == bool(compress)
            for message in ("", "a", "häßlich 😀", "x" * 70_000):
                await socket.send_str(message)
                assert await socket.receive_str() == message, len(message)
            for message in (b"", bytes(range(256)) * 300, b"\x01" * 5_000_000):
                await socket.send_bytes(message)
                assert await socket.receive_bytes() == message, len(message)
            for number in range(1000):
                await socket.send_str(str(number))
            for number in range(1000):
                assert await socket.receive_str() == str(number)
            await socket.close(code=4321, message=b"bye")
            assert socket.close_code == 4321, socket.close_code
    try:
        await session.ws_connect(base + "/nothing", ssl=False)
        raise AssertionError("there is nothing")
    except aiohttp.WSServerHandshakeError as refused:
        assert refused.status == 404


async def handler(request):
    if request.path == "/forbidden":
        return web.Response(status=403)
    socket = web.WebSocketResponse(protocols=("chat",), max_msg_size=0)
    await socket.prepare(request)
    async for message in socket:
        if message.type == aiohttp.WSMsgType.BINARY:
            await socket.send_bytes(message.data)
        elif message.type == aiohttp.WSMsgType.TEXT:
            await socket.send_str(message.data)
            if message.data.startswith("close "):
                await socket.close(code=int(message.data[6:]), message=b"as you wish")
    return socket


async def server():
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print("on 127.0.0.1:%d" % runner.addresses[0][1])
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(client(sys.argv[2:]) if sys.argv[1] == "client" else server())
