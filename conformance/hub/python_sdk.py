"""PyPI `centrifuge-python` and `cent`, unmodified, against the hub whose URL (ws://HOST:PORT) is in WIRELOOM_HUB."""

import asyncio
import base64
import hashlib
import hmac
import http.server
import json
import os
import re
import subprocess
import tempfile
import threading
import time
import unittest

from cent import Client as ServerClient
from cent import (
    BroadcastRequest,
    DisconnectRequest,
    HistoryRequest,
    PresenceStatsRequest,
    PublishRequest,
    SubscribeRequest,
    UnsubscribeRequest,
)
from cent import Disconnect
from centrifuge import (
    Client,
    ClientEventHandler,
    ClientState,
    ReplyError,
    StreamPosition,
    SubscriptionEventHandler,
    SubscriptionState,
)

BASE = os.environ["WIRELOOM_HUB"]
URL = BASE + "/connection/websocket"
API = os.environ["WIRELOOM_ADMIN"] + "/api"
serial = 0


def fresh(namespace):
    global serial
    serial += 1
    return f"{namespace}:py{os.getpid()}-{serial}"


def token(**claims):
    """A token of the user 42 that expires within 3 s, and not before 2 s."""
    claims = {"sub": "42", "exp": int(time.time()) + 3, **claims}
    part = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=")
    text = b".".join(part(json.dumps(value).encode()) for value in ({"alg": "HS256", "typ": "JWT"}, claims))
    return (text + b"." + part(hmac.digest(b"secret", text, hashlib.sha256))).decode()


class Events(SubscriptionEventHandler):
    def __init__(self):
        self.publications = asyncio.Queue()
        self.subscribed = asyncio.Queue()
        self.unsubscribed = asyncio.Queue()
        self.joined = asyncio.Queue()
        self.left = asyncio.Queue()

    async def on_publication(self, ctx):
        await self.publications.put(ctx.pub)

    async def on_subscribed(self, ctx):
        await self.subscribed.put(ctx)

    async def on_unsubscribed(self, ctx):
        await self.unsubscribed.put(ctx)

    async def on_join(self, ctx):
        await self.joined.put(ctx.info)

    async def on_leave(self, ctx):
        await self.left.put(ctx.info)


class ConnectionEvents(ClientEventHandler):
    """Every event of a connection and of its server-side subscriptions, by name."""

    def __init__(self):
        self.queues = {}

    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        async def put(ctx):
            await self.of(name[3:]).put(ctx)

        return put

    def of(self, name):
        return self.queues.setdefault(name, asyncio.Queue())

    async def next(self, name):
        return await within(self.of(name).get())


def within(awaitable):
    return asyncio.wait_for(awaitable, 10)


class Sdk(unittest.IsolatedAsyncioTestCase):
    def client(self, url=URL, events=None, **options):
        delays = {"min_reconnect_delay": 0.05, "max_reconnect_delay": 0.2}
        client = Client(url, events=events or ClientEventHandler(), **delays, **options)
        self.addAsyncCleanup(client.disconnect)
        return client

    async def connected(self, **options):
        client = self.client(**options)
        await client.connect()
        await within(client.ready())
        return client

    async def subscribed(self, client, channel, **options):
        events = Events()
        subscription = client.new_subscription(channel, events=events, **options)
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
        first, members = await self.subscribed(one, channel, join_leave=True)
        second, events = await self.subscribed(two, channel)
        joined = await within(members.joined.get())
        await within(first.publish(pack({"text": "grüße"})))
        publication = await within(events.publications.get())
        self.assertEqual((unpack(publication.data), publication.offset), ({"text": "grüße"}, 1))
        self.assertEqual(len((await within(first.presence())).clients), 2)
        self.assertEqual((await within(first.presence_stats())).num_clients, 2)
        history = await within(first.history(limit=10))
        self.assertEqual([unpack(one.data) for one in history.publications], [{"text": "grüße"}])
        await within(first.publish(pack(2)))
        since = StreamPosition(offset=1, epoch=history.epoch)
        later = await within(first.history(limit=10, since=since))
        self.assertEqual([(unpack(one.data), one.offset) for one in later.publications], [(2, 2)])
        newest = await within(first.history(limit=1, reverse=True))
        self.assertEqual([one.offset for one in newest.publications], [2])
        self.assertEqual((await within(first.history())).publications, [])
        await second.unsubscribe()
        self.assertEqual((await within(events.unsubscribed.get())).code, 0)
        self.assertEqual((await within(members.left.get())).client, joined.client)
        self.assertEqual((await within(first.presence_stats())).num_clients, 1)

    async def test_json(self):
        await self.exchange(use_protobuf=False)

    async def test_protobuf(self):
        await self.exchange(use_protobuf=True)

    async def recover(self, use_protobuf):
        unpack = json.loads if use_protobuf else (lambda data: data)
        channel = fresh("chat")
        connection = ConnectionEvents()
        client = await self.connected(events=connection, use_protobuf=use_protobuf)
        _, events = await self.subscribed(client, channel)
        server = ServerClient(API, "key")
        for round in range(3):
            await client._conn.close()
            await connection.next("connecting")
            for n in range(20):
                await asyncio.to_thread(server.publish, PublishRequest(channel=channel, data=[round, n]))
            context = await within(events.subscribed.get())
            self.assertTrue(context.was_recovering and context.recovered)
            received = [unpack((await within(events.publications.get())).data) for _ in range(20)]
            self.assertEqual(received, [[round, n] for n in range(20)])
        self.assertTrue(events.publications.empty())

    async def test_reconnects_and_recovers_json(self):
        await self.recover(use_protobuf=False)

    async def test_reconnects_and_recovers_protobuf(self):
        await self.recover(use_protobuf=True)

    async def test_reports_what_it_cannot_recover(self):
        channel = fresh("short")
        client = await self.connected()
        _, events = await self.subscribed(client, channel)
        server = ServerClient(API, "key")
        await asyncio.to_thread(server.publish, PublishRequest(channel=channel, data=0))
        await within(events.publications.get())
        await client.disconnect()
        for n in range(10):
            await asyncio.to_thread(server.publish, PublishRequest(channel=channel, data=n))
        await client.connect()
        context = await within(events.subscribed.get())
        self.assertTrue(context.was_recovering)
        self.assertFalse(context.recovered)

    async def test_refuses_what_is_not_allowed(self):
        client = await self.connected(token=token(exp=int(time.time()) + 60))
        for channel, code in [("nowhere:x", 102), (fresh("private"), 103), ("$chat:x", 103)]:
            events = Events()
            await client.new_subscription(channel, events=events).subscribe()
            self.assertEqual((await within(events.unsubscribed.get())).code, code, channel)
        with self.assertRaises(ReplyError) as refused:
            await within(client.publish(fresh("chat"), {}))
        self.assertEqual(refused.exception.code, 103)
        events = ConnectionEvents()
        forged = self.client(events=events, token=token() + "x")
        await forged.connect()
        self.assertEqual((await events.next("disconnected")).code, 3500)

    async def test_server_side_subscriptions(self):
        named, later = fresh("chat"), fresh("chat")
        user = f"user-{named}"
        events = ConnectionEvents()
        await self.connected(events=events, token=token(sub=user, exp=int(time.time()) + 60, subs={named: {}}))
        self.assertEqual((await events.next("subscribed")).channel, named)
        server = ServerClient(API, "key")
        await asyncio.to_thread(server.publish, PublishRequest(channel=named, data=1))
        context = await events.next("publication")
        self.assertEqual((context.channel, context.pub.data), (named, 1))
        await asyncio.to_thread(server.subscribe, SubscribeRequest(user=user, channel=later))
        self.assertEqual((await events.next("subscribed")).channel, later)
        await asyncio.to_thread(server.unsubscribe, UnsubscribeRequest(user=user, channel=later))
        self.assertEqual((await events.next("unsubscribed")).channel, later)
        reason = Disconnect(code=4501, reason="go away")
        await asyncio.to_thread(server.disconnect, DisconnectRequest(user=user, disconnect=reason))
        context = await events.next("disconnected")
        self.assertEqual((context.code, context.reason), (4501, "go away"))

    async def test_calls_methods(self):
        class Endpoint(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = {"result": {"data": call["data"]["n"] * 2}} if call["method"] == "double" else {"error": {"code": 1000, "message": "no"}}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_):
                pass

        endpoint = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        self.addCleanup(endpoint.shutdown)
        config = f'client.anonymous = true\nrpc.url = "http://127.0.0.1:{endpoint.server_port}/"\n'
        url = await asyncio.to_thread(self.serve, config)
        for use_protobuf in (False, True):
            client = await self.connected(url=url, use_protobuf=use_protobuf)
            argument = json.dumps({"n": 21}).encode() if use_protobuf else {"n": 21}
            result = (await within(client.rpc("double", argument))).data
            self.assertEqual(json.loads(result) if use_protobuf else result, 42)
            with self.assertRaises(ReplyError) as refused:
                await within(client.rpc("other", argument))
            self.assertEqual(refused.exception.code, 1000)

    def serve(self, config):
        """The URL of a server with a configuration of its own."""
        file = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.addCleanup(file.close)
        file.write(config)
        file.flush()
        command = [os.environ["WIRELOOM"], "serve", "--listen", "127.0.0.1:0", "--hub", file.name]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(lambda: (server.kill(), server.communicate()))
        return "ws://" + re.search(r" on http://([^/]+)/", server.stdout.readline())[1] + "/connection/websocket"

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
        self.assertEqual(refused.exception.code, 108)
        for _ in range(300):
            if min(asked.values()) >= 3:
                break
            await asyncio.sleep(0.1)
        self.assertGreaterEqual(min(asked.values()), 3, asked)
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
