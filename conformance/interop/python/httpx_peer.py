"""httpx over HTTP/2, as client against `wireloom serve`: by prior knowledge for http, by ALPN for https."""

import asyncio
import sys

import httpx


async def client(base):
    async with httpx.AsyncClient(http1=False, http2=True, verify=False, timeout=60) as session:
        answer = await session.get(base + "/healthz")
        assert (answer.status_code, answer.http_version, answer.text) == (200, "HTTP/2", "ok\n"), answer
        assert (await session.head(base + "/healthz")).content == b""
        assert (await session.get(base + "/nothing")).status_code == 404
        assert (await session.post(base + "/healthz")).status_code == 405
        assert (await session.get(base + "/echo")).status_code in (400, 405, 426)
        for length in (0, 1, 16_384, 65_535, 65_536, 900_000):
            body = bytes(range(256)) * (length // 256) + b"x" * (length % 256)
            answer = await session.post(base + "/echo", content=body, headers={"content-type": "text/x-own"})
            assert answer.status_code == 200 and answer.content == body, (length, answer)
            assert answer.headers["content-type"] == "text/x-own"

        async def pieces():
            for number in range(100):
                yield b"%04d" % number * 100

        # Without a length.
        answer = await session.post(base + "/echo", content=pieces())
        assert len(answer.content) == 40_000, answer

        async def one(number):
            answer = await session.post(base + "/echo", content=b"%d" % number)
            assert answer.content == b"%d" % number

        await asyncio.gather(*(one(number) for number in range(500)))
        async with session.stream("POST", base + "/echo", content=b"x" * 900_000) as answer:
            # Left unread: the stream is reset, and the connection goes on.
            assert answer.status_code == 200
        assert (await session.get(base + "/healthz")).status_code == 200


if __name__ == "__main__":
    asyncio.run(client(sys.argv[1]))
