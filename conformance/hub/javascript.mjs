// The npm client `centrifuge`, unmodified, against the hub whose URL (ws://HOST:PORT) is in WIRELOOM_HUB.

import assert from 'node:assert/strict';
import crypto from 'node:crypto';
import test from 'node:test';
import { Centrifuge } from 'centrifuge';
import { Centrifuge as ProtobufCentrifuge } from 'centrifuge/build/protobuf';
import WebSocket from 'ws';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Node } from './nodes.mjs';

const base = process.env.WIRELOOM_HUB;
const url = `${base}/connection/websocket`;
const http = base.replace(/^ws/, 'http');
const admin = process.env.WIRELOOM_ADMIN;

const json = { name: 'JSON', Client: Centrifuge, encode: (value) => value, decode: (data) => data };
const protobuf = {
  name: 'Protobuf',
  Client: ProtobufCentrifuge,
  encode: (value) => new TextEncoder().encode(JSON.stringify(value)),
  decode: (data) => JSON.parse(new TextDecoder().decode(data)),
};

function event(emitter, name, what = name) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${what} within 10 s`)), 10_000);
    emitter.once(name, (context) => {
      clearTimeout(timer);
      resolve(context);
    });
  });
}

function token(claims, secret = 'secret') {
  const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const text = `${part({ alg: 'HS256', typ: 'JWT' })}.${part(claims)}`;
  return `${text}.${crypto.createHmac('sha256', secret).update(text).digest('base64url')}`;
}

const now = () => Math.floor(Date.now() / 1000);
let serial = 0;
const fresh = (namespace) => `${namespace}:${process.pid}-${serial++}`;

const clients = [];
function make(format = json, options = {}) {
  const client = new format.Client(url, { websocket: WebSocket, minReconnectDelay: 50, maxReconnectDelay: 200, ...options });
  clients.push(client);
  return client;
}

async function connected(format, options) {
  const client = make(format, options);
  client.connect();
  await event(client, 'connected');
  return client;
}

async function subscribed(client, channel, options) {
  const subscription = client.newSubscription(channel, options);
  subscription.subscribe();
  await event(subscription, 'subscribed');
  return subscription;
}

/** Breaks the connection as a network would. */
function cut(client) {
  client._transport._transport.terminate();
}

async function api(method, body) {
  const response = await fetch(`${admin}/api/${method}`, {
    method: 'POST',
    headers: { 'X-API-Key': 'key', 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  });
  assert.equal(response.status, 200);
  return response.json();
}

test.afterEach(() => clients.splice(0).forEach((client) => client.disconnect()));

for (const format of [json, protobuf]) {
  test(`${format.name}: publishes, with presence, history, joins and leaves`, async () => {
    const channel = fresh('chat');
    const [a, b] = [await connected(format), await connected(format)];
    const first = await subscribed(a, channel, { joinLeave: true });
    const joined = event(first, 'join');
    const second = await subscribed(b, channel);
    const join = await joined;

    const received = event(second, 'publication');
    await first.publish(format.encode({ text: 'grüße' }));
    const publication = await received;
    assert.deepEqual(format.decode(publication.data), { text: 'grüße' });
    assert.equal(publication.offset, 1);

    const { clients: present } = await first.presence();
    assert.equal(Object.keys(present).length, 2);
    assert.ok(present[join.info.client]);
    assert.deepEqual(await first.presenceStats(), { numClients: 2, numUsers: 1 });
    const history = await first.history({ limit: 10 });
    assert.deepEqual(history.publications.map((one) => format.decode(one.data)), [{ text: 'grüße' }]);

    const left = event(first, 'leave');
    second.unsubscribe();
    assert.equal((await left).info.client, join.info.client);
  });

  test(`${format.name}: recovers exactly what was missed`, async () => {
    const channel = fresh('chat');
    const client = await connected(format);
    const subscription = await subscribed(client, channel);
    const offsets = [];
    subscription.on('publication', (context) => offsets.push(context.offset));
    for (let round = 0; round < 3; round++) {
      const back = event(subscription, 'subscribed');
      cut(client);
      for (let i = 0; i < 20; i++) await api('publish', { channel, data: { round, i } });
      const context = await back;
      assert.ok(context.wasRecovering && context.recovered);
      await api('publish', { channel, data: {} });
    }
    while (offsets.length < 63) await event(subscription, 'publication');
    assert.deepEqual(offsets, Array.from({ length: 63 }, (_, i) => i + 1));
  });
}

for (const format of [json, protobuf]) {
  test(`${format.name}: puts deltas together`, async () => {
    const channel = fresh('state');
    const client = await connected(format);
    const subscription = client.newSubscription(channel, { delta: 'fossil' });
    const whole = [];
    let deltas = 0;
    const apply = client._codec.applyDeltaIfNeeded.bind(client._codec);
    client._codec.applyDeltaIfNeeded = (publication, before) => {
      deltas += Number(publication.delta ?? false);
      return apply(publication, before);
    };
    subscription.on('publication', (context) => whole.push(format.decode(context.data)));
    subscription.subscribe();
    await event(subscription, 'subscribed');
    const state = (n) => ({ text: 'größer als ein Absatz, 中文 und 😀, '.repeat(20), n, list: Array(n % 7).fill('ß😀') });
    for (let n = 0; n < 20; n++) await api('publish', { channel, data: state(n) });
    const back = event(subscription, 'subscribed');
    cut(client);
    for (let n = 20; n < 40; n++) await api('publish', { channel, data: state(n) });
    assert.ok((await back).recovered);
    for (let n = 40; n < 60; n++) await api('publish', { channel, data: state(n) });
    while (whole.length < 60) await event(subscription, 'publication');
    assert.deepEqual(whole, Array.from({ length: 60 }, (_, n) => state(n)));
    assert.ok(deltas >= 50, `${deltas} of 60 were deltas`);
  });
}

test('tells a client that it cannot recover', async () => {
  const channel = fresh('short');
  const client = await connected();
  const subscription = await subscribed(client, channel);
  const received = event(subscription, 'publication');
  await api('publish', { channel, data: 0 });
  await received;
  const back = event(subscription, 'subscribed');
  client.disconnect();
  for (let i = 0; i < 10; i++) await api('publish', { channel, data: i });
  client.connect();
  const context = await back;
  assert.ok(context.wasRecovering);
  assert.equal(context.recovered, false);
});

test('delivers the newest publication in cache mode', async () => {
  const channel = fresh('latest');
  await api('publish', { channel, data: { n: 1 } });
  await api('publish', { channel, data: { n: 2 } });
  const client = await connected();
  const subscription = client.newSubscription(channel, { since: { offset: 0, epoch: '' } });
  const received = event(subscription, 'publication');
  subscription.subscribe();
  assert.deepEqual((await received).data, { n: 2 });
});

test('refreshes the token of a connection', async () => {
  let asked = 0;
  const client = make(json, {
    getToken: async () => {
      asked++;
      return token({ sub: '42', exp: now() + 2 });
    },
  });
  let disconnected = 0;
  client.connect();
  await event(client, 'connected');
  client.on('disconnected', () => disconnected++);
  client.on('connecting', () => disconnected++);
  await new Promise((resolve) => setTimeout(resolve, 5_000));
  assert.ok(asked >= 2, `asked ${asked} times`);
  assert.equal(disconnected, 0);
});

test('ends a connection whose token is not refreshed', async () => {
  const socket = new WebSocket(url);
  await event(socket, 'open');
  socket.send(JSON.stringify({ id: 1, connect: { token: token({ sub: '42', exp: now() + 1 }) } }));
  socket.on('message', (message) => String(message) === '{}' && socket.send('{}'));
  const [code, reason] = await new Promise((resolve) => socket.on('close', (...args) => resolve(args)));
  assert.deepEqual([code, String(reason)], [3005, 'connection expired']);
});

test('refuses forged tokens for good', async () => {
  for (const bad of [token({ sub: '42' }, 'other'), 'x', token({ sub: '42' }).replace(/\.[^.]*$/, '.')]) {
    const client = make(json, { token: bad });
    client.connect();
    const context = await event(client, 'disconnected');
    assert.equal(context.code, 3500);
  }
});

test('subscribes to private channels by token alone', async () => {
  const channel = fresh('private');
  const client = await connected(json, { token: token({ sub: '42' }) });
  const refused = client.newSubscription(channel);
  refused.subscribe();
  const context = await event(refused, 'unsubscribed');
  assert.equal(context.code, 103);
  client.removeSubscription(refused);
  for (const [claims, works] of [
    [{ sub: '42', channel }, true],
    [{ sub: '43', channel }, false],
    [{ sub: '42', channel: 'private:other' }, false],
  ]) {
    const subscription = client.newSubscription(channel, { token: token(claims) });
    subscription.subscribe();
    await event(subscription, works ? 'subscribed' : 'unsubscribed', JSON.stringify(claims));
    subscription.unsubscribe();
    client.removeSubscription(subscription);
  }
});

test('refreshes the token of a subscription', async () => {
  const channel = fresh('private');
  const client = await connected(json, { token: token({ sub: '42' }) });
  let asked = 0;
  const subscription = client.newSubscription(channel, {
    getToken: async () => {
      asked++;
      return token({ sub: '42', channel, exp: now() + 2 });
    },
  });
  subscription.subscribe();
  await event(subscription, 'subscribed');
  let ended = 0;
  subscription.on('unsubscribed', () => ended++);
  subscription.on('subscribing', () => ended++);
  await new Promise((resolve) => setTimeout(resolve, 5_000));
  assert.ok(asked >= 2, `asked ${asked} times`);
  assert.equal(ended, 0);
});

test('makes server-side subscriptions from a token and from the API', async () => {
  const [named, later] = [fresh('chat'), fresh('chat')];
  const client = make(json, { token: token({ sub: 'api-user', subs: { [named]: {} } }) });
  const first = event(client, 'subscribed');
  client.connect();
  assert.equal((await first).channel, named);
  const received = event(client, 'publication');
  await api('publish', { channel: named, data: { n: 1 } });
  assert.deepEqual((await received).data, { n: 1 });

  const second = event(client, 'subscribed');
  await api('subscribe', { user: 'api-user', channel: later });
  assert.equal((await second).channel, later);
  const ended = event(client, 'unsubscribed');
  await api('unsubscribe', { user: 'api-user', channel: later });
  assert.equal((await ended).channel, later);

  const disconnected = event(client, 'disconnected');
  await api('disconnect', { user: 'api-user', disconnect: { code: 4501, reason: 'go away' } });
  assert.deepEqual(await disconnected, { code: 4501, reason: 'go away' });
});

test('answers the server API', async () => {
  const channel = fresh('chat');
  const client = await connected();
  await subscribed(client, channel);
  const { result } = await api('publish', { channel, data: { n: 1 } });
  assert.equal(result.offset, 1);
  const broadcast = await api('broadcast', { channels: [channel, 'nowhere:x'], data: 2 });
  assert.equal(broadcast.result.responses[0].result.offset, 2);
  assert.equal(broadcast.result.responses[1].error.code, 102);
  const history = await api('history', { channel, limit: -1 });
  assert.deepEqual(history.result.publications.map((one) => one.data), [{ n: 1 }, 2]);
  assert.equal(history.result.epoch, result.epoch);
  assert.equal((await api('presence_stats', { channel })).result.num_clients, 1);
  assert.equal(Object.keys((await api('presence', { channel })).result.presence).length, 1);
  assert.deepEqual((await api('channels', { pattern: channel })).result.channels, { [channel]: { num_clients: 1 } });
  assert.ok((await api('info', {})).result.nodes[0].num_clients >= 1);
  const batch = await api('batch', { commands: [{ publish: { channel, data: 3 } }, { history: { channel } }, { what: {} }] });
  assert.equal(batch.result.replies[0].publish.offset, 3);
  assert.equal(batch.result.replies[1].history.offset, 3);
  assert.equal(batch.result.replies[2].error.code, 104);
  await api('history_remove', { channel });
  assert.deepEqual((await api('history', { channel, limit: -1 })).result.publications ?? [], []);

  for (const headers of [{}, { 'X-API-Key': 'wrong' }, { 'X-API-Key': '' }]) {
    const response = await fetch(`${admin}/api/info`, { method: 'POST', headers, body: '{}' });
    assert.equal(response.status, 401);
  }
});

test('exchanges bare messages with plain WebSocket clients', async () => {
  const name = fresh('x').slice(2);
  const [a, b] = [0, 1].map(() => new WebSocket(`${base}/rooms/${name}`));
  await Promise.all([event(a, 'open'), event(b, 'open')]);
  const client = await connected();
  const subscription = await subscribed(client, `rooms:${name}`);
  for (const message of ['hello', '{"a": 1}', '"quoted"', '', Buffer.from([0xff, 0])]) {
    const [bare, shared] = [new Promise((resolve) => b.once('message', (...args) => resolve(args))), event(subscription, 'publication')];
    a.send(message);
    const [data, isBinary] = await bare;
    assert.equal(isBinary, typeof message !== 'string');
    assert.deepEqual(data, Buffer.from(message));
    await shared;
  }
  a.close();
  b.close();
});

test('streams events to clients that only receive', async () => {
  const channel = fresh('chat');
  const connect = encodeURIComponent(JSON.stringify({ subs: { [channel]: {} } }));
  const response = await fetch(`${http}/connection/uni_sse?cf_connect=${connect}`);
  assert.equal(response.headers.get('content-type'), 'text/event-stream');
  const events = [];
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  const read = async (count) => {
    while (events.length < count) {
      text += (await reader.read()).value;
      const parts = text.split('\n\n');
      text = parts.pop();
      events.push(...parts.map((part) => JSON.parse(part.replace(/^data: /, ''))));
    }
  };
  await read(2);
  assert.ok(events[0].connect.client);
  assert.ok(events[1].subscribe);
  await api('publish', { channel, data: { n: 1 } });
  await read(3);
  assert.deepEqual(events[2].pub.data, { n: 1 });
  await reader.cancel();
});

async function ended(message, subprotocol) {
  const socket = new WebSocket(url, subprotocol);
  await event(socket, 'open');
  if (message !== undefined) socket.send(message);
  return new Promise((resolve) => socket.on('close', (code) => resolve(code)));
}

test('ends connections that break the protocol', async () => {
  for (const bad of ['', '{', '[]', 'null', '{"id":1}', '{"id":1,"subscribe":{"channel":"x"}}', '{"connect":{}}', '{}', Buffer.from([1])]) {
    assert.equal(await ended(bad), 3501, String(bad));
  }
  assert.equal(await ended(Buffer.from([5, 1]), 'centrifuge-protobuf'), 3501);
  assert.equal(await ended(), 3502);
  const connect = '{"id":1,"connect":{}}';
  assert.equal(await ended(`${connect}\n${connect}`), 3501);
  assert.equal(await ended(`${connect}\n${'{}\n'.repeat(20_000)}`), 3013);
  assert.equal(await ended('x'.repeat(100_000)), 1009);
});

test('refuses commands with the code of the protocol', async () => {
  const client = await connected();
  const refused = async (channel) => {
    const subscription = client.newSubscription(channel);
    const failed = Promise.race([event(subscription, 'unsubscribed'), event(subscription, 'error').then((context) => context.error)]);
    subscription.subscribe();
    const { code } = await failed;
    client.removeSubscription(subscription);
    return code;
  };
  assert.equal(await refused('nowhere:x'), 102);
  assert.equal(await refused('$chat:x'), 103);
  assert.equal(await refused('chat:x#1,2'), 103);
  assert.equal(await refused(`chat:${'x'.repeat(300)}`), 106);
  await assert.rejects(client.publish(fresh('chat'), {}), { code: 103 });
  await assert.rejects(client.presence('x'), { code: 108 });
  await assert.rejects(client.history('x', { limit: 1 }), { code: 108 });
  await assert.rejects(client.rpc('nothing', {}), { code: 108 });
});

test('pings, and ends connections that do not answer', async () => {
  const socket = new WebSocket(url);
  await event(socket, 'open');
  socket.send('{"id":1,"connect":{}}');
  const code = await new Promise((resolve) => socket.on('close', resolve));
  assert.equal(code, 3012);
});

/** A server of a test's own: `run` gets it and the file of its configuration. */
async function served(config, run) {
  const folder = await mkdtemp(join(tmpdir(), 'hub-'));
  const file = join(folder, 'hub.toml');
  await writeFile(file, config);
  const node = await Node.start(undefined, file);
  try {
    await run(node, file);
  } finally {
    await node.stop();
    await rm(folder, { recursive: true });
  }
}

test('SIGHUP loads the configuration again, and a broken one changes nothing', async () => {
  const config = 'client.anonymous = true\napi.key = "key"\n';
  await served(config, async (node, file) => {
    const loaded = async (text, says) => {
      await writeFile(file, text);
      node.log = '';
      node.process.kill('SIGHUP');
      for (let i = 0; !node.log.includes(says); i++) {
        assert.ok(i < 200, `${says}: ${node.log}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    };
    const publish = async () => (await node.api('publish', { channel: 'later:x', data: 1 })).error?.code;
    assert.equal(await publish(), 102);
    await loaded(`${config}[[namespace]]\nname = "later"\n`, 'was loaded again');
    assert.equal(await publish(), undefined);
    await loaded('client.anonymous = 1', 'stays as it was');
    assert.equal(await publish(), undefined);
  });
});

test('calls methods of an HTTP endpoint', async () => {
  const calls = [];
  const endpoint = createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    const call = JSON.parse(body);
    calls.push(call.method);
    const answer = call.method === 'double' ? { result: { data: { n: call.data.n * 2 } } } : { error: { code: 1000, message: 'no' } };
    response.setHeader('Content-Type', 'application/json').end(JSON.stringify(answer));
  });
  await new Promise((resolve) => endpoint.listen(0, '127.0.0.1', resolve));
  const config = `client.anonymous = true\nrpc.url = "http://127.0.0.1:${endpoint.address().port}/"\n`;
  await served(config, async (node) => {
    for (const format of [json, protobuf]) {
      const client = new format.Client(node.url, { websocket: WebSocket });
      clients.push(client);
      client.connect();
      await event(client, 'connected');
      const { data } = await client.rpc('double', format.encode({ n: 21 }));
      assert.deepEqual(format.decode(data), { n: 42 });
      await assert.rejects(client.rpc('other', format.encode({})), { code: 1000 });
      // It has no reply; a client that broke the protocol by it would be disconnected before the next one.
      await client.send(format.encode({ n: 1 }));
      await client.rpc('double', format.encode({ n: 1 }));
    }
  });
  endpoint.close();
  assert.deepEqual(calls, ['double', 'other', 'double', 'double', 'other', 'double']);
});
