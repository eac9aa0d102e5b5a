"""PyPI `centrifuge-python` and `cent`, unmodified, against the hub whose URL (ws://HOST:PORT) is in WIRELOOM_HUB."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import time
import unittest

from cent import Client as ServerClient
from cent import PublishRequest, HistoryRequest, PresenceStatsRequest, BroadcastRequest
from centrifuge import (
    Client,
    ClientEventHandler,
    ClientState,
    ReplyError,
    SubscriptionEventHandler,
    SubscriptionState,
)

BASE = os.environ["WIRELOOM_HUB"]
URL = BASE + "/connection/websocket"
API = BASE.replace("ws", "http", 1) + "/api"
serial = 0


def fresh(namespace):
    global serial
    serial += 1
    return f"{namespace}:py{os.getpid()}-{serial}"


def token(**claims):
    """A token of the user 42 that expires within 2 s."""
    claims = {"sub": "42", "exp": int(time.time()) + 2, **claims}
    part = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=")
    text = b".".join(part(json.dumps(value).encode()) for value in ({"alg": "HS256", "typ": "JWT"}, claims))
    return (text + b"." + part(hmac.digest(b"secret", text, hashlib.sha256))).decode()


class Events(SubscriptionEventHandler):
    def __init__(self):
        self.publications = asyncio.Queue()
        self.subscribed = asyncio.Queue()

    async def on_publication(self, ctx):
        await self.publications.put(ctx.pub)

    async def on_subscribed(self, ctx):
        await self.subscribed.put(ctx)


def within(awaitable):
    return asyncio.wait_for(awaitable, 10)


class Sdk(unittest.IsolatedAsyncioTestCase):
    async def connected(self, **options):
        client = Client(URL, events=ClientEventHandler(), min_reconnect_delay=0.05, max_reconnect_delay=0.2, **options)
        self.addAsyncCleanup(client.disconnect)
        await client.connect()
        await within(client.ready())
        return client

    async def subscribed(self, client, channel):
        events = Events()
        subscription = client.new_subscription(channel, events=events)
        await subscription.subscribe()
        await within(subscription.ready())
        await within(events.subscribed.get())
        return subscription, events

    async def exchange(self, use_protobuf):
        pack = (lambda value: json.dumps(value).encode()) if use_protobuf else (lambda value: value)
        unpack = json.loads if use_protobuf else (lambda data: data)
        channel = fresh("chat")
        one = await self.connected(use_protobuf=use_protobuf)
        two = await self.connected(use_protobuf=use_protobuf)
        first, _ = await self.subscribed(one, channel)
        _, events = await self.subscribed(two, channel)
        await within(first.publish(pack({"text": "grüße"})))
        publication = await within(events.publications.get())
        self.assertEqual((unpack(publication.data), publication.offset), ({"text": "grüße"}, 1))
        self.assertEqual(len((await within(first.presence())).clients), 2)
        self.assertEqual((await within(first.presence_stats())).num_clients, 2)
        history = await within(first.history(limit=10))
        self.assertEqual([unpack(one.data) for one in history.publications], [{"text": "grüße"}])

    async def test_json(self):
        await self.exchange(use_protobuf=False)

    async def test_protobuf(self):
        await self.exchange(use_protobuf=True)

    async def test_recovers_what_was_missed(self):
        channel = fresh("chat")
        client = await self.connected()
        _, events = await self.subscribed(client, channel)
        server = ServerClient(API, "key")
        await client._conn.close()
        for n in range(20):
            await asyncio.to_thread(server.publish, PublishRequest(channel=channel, data=n))
        context = await within(events.subscribed.get())
        self.assertTrue(context.was_recovering and context.recovered)
        received = [(await within(events.publications.get())).data for _ in range(20)]
        self.assertEqual(received, list(range(20)))


    async def test_renews_tokens(self):
        asked = {"connection": 0, "channel": 0}
        channel = fresh("private")

        async def connection_token():
            asked["connection"] += 1
            return token()

        async def channel_token(_channel):
            asked["channel"] += 1
            return token(channel=channel)

        client = await self.connected(get_token=connection_token)
        events = Events()
        subscription = client.new_subscription(channel, events=events, get_token=channel_token)
        await subscription.subscribe()
        await within(events.subscribed.get())
        with self.assertRaises(ReplyError) as refused:
            await within(client.rpc("none", {}))
        self.assertEqual(refused.exception.code, 104)
        await asyncio.sleep(5)
        self.assertGreaterEqual(min(asked.values()), 2, asked)
        self.assertEqual(client.state, ClientState.CONNECTED)
        self.assertEqual(subscription.state, SubscriptionState.SUBSCRIBED)
        # Neither the connection nor the subscription was interrupted.
        self.assertTrue(events.subscribed.empty())


class Api(unittest.TestCase):
    def test_cent(self):
        channel = fresh("chat")
        client = ServerClient(API, "key")
        self.assertEqual(client.publish(PublishRequest(channel=channel, data={"n": 1})).offset, 1)
        client.broadcast(BroadcastRequest(channels=[channel], data={"n": 2}))
        history = client.history(HistoryRequest(channel=channel, limit=-1))
        self.assertEqual([one.data for one in history.publications], [{"n": 1}, {"n": 2}])
        self.assertEqual(client.presence_stats(PresenceStatsRequest(channel=channel)).num_clients, 0)


if __name__ == "__main__":
    unittest.main()
