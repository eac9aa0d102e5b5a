"""Hypercorn, as server for `wireloom connect`: HTTP/1.1 and HTTP/2, with WebSockets over both."""

import asyncio

from hypercorn.asyncio import serve
from hypercorn.config import Config


async def http(receive, send, scope):
    body = b""
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return
        body += event.get("body", b"")
        if not event.get("more_body", False):
            break
    kind = dict(scope["headers"]).get(b"content-type", b"text/plain")
    headers = [(b"content-type", kind), (b"x-version", scope["http_version"].encode())]
    await send({"type": "http.response.start", "status": 403 if scope["path"] == "/forbidden" else 200, "headers": headers})
    await send({"type": "http.response.body", "body": body or b"nothing\n"})


async def websocket(receive, send, scope):
    assert (await receive())["type"] == "websocket.connect"
    if scope["path"] == "/forbidden":
        await send({"type": "websocket.close"})
        return
    await send({"type": "websocket.accept", "subprotocol": "chat" if "chat" in scope["subprotocols"] else None})
    while True:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            return
        text, data = event.get("text"), event.get("bytes")
        await send({"type": "websocket.send", "text": text, "bytes": data})
        if text is not None and text.startswith("close "):
            await send({"type": "websocket.close", "code": int(text[6:]), "reason": "as you wish"})


async def app(scope, receive, send):
    if scope["type"] == "http":
        await http(receive, send, scope)
    elif scope["type"] == "websocket":
        await websocket(receive, send, scope)
    else:
        while True:
            event = await receive()
            await send({"type": event["type"] + ".complete"})
            if event["type"] == "lifespan.shutdown":
                return


if __name__ == "__main__":
    config = Config()
    # It says where: "Running on http://127.0.0.1:…".
    config.bind = ["127.0.0.1:0"]
    config.websocket_max_message_size = 64 << 20
    asyncio.run(serve(app, config))
