// The npm client `centrifuge`, unmodified, over its transports without WebSocket, against the hub whose URL is in WIRELOOM_HUB, and
// against two nodes of a cluster between which its requests alternate.

import assert from 'node:assert/strict';
import net from 'node:net';
import test from 'node:test';
import { Centrifuge } from 'centrifuge';
import { Centrifuge as ProtobufCentrifuge } from 'centrifuge/build/protobuf';
import { EventSource } from 'eventsource';
import WebSocket from 'ws';
import { Nats, Node, hasNats } from './nodes.mjs';

const base = process.env.WIRELOOM_HUB.replace(/^ws/, 'http');

const json = { name: 'JSON', Client: Centrifuge, encode: (value) => value, decode: (data) => data };
const protobuf = {
  name: 'Protobuf',
  Client: ProtobufCentrifuge,
  encode: (value) => new TextEncoder().encode(JSON.stringify(value)),
  decode: (data) => JSON.parse(new TextDecoder().decode(data)),
};

function event(emitter, name) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${name} within 20 s`)), 20_000);
    emitter.once(name, (context) => {
      clearTimeout(timer);
      resolve(context);
    });
  });
}

function make({ Client }, transport, http = base, options = {}) {
  return new Client([{ transport, endpoint: `${http}/connection/${transport}` }], {
    eventsource: EventSource,
    websocket: WebSocket,
    emulationEndpoint: `${http}/emulation`,
    minReconnectDelay: 50,
    maxReconnectDelay: 200,
    ...options,
  });
}

let serial = 0;

async function talk(format, transport, http) {
  const clients = [make(format, transport, http), make(format, transport, http)];
  try {
    const [a, b] = clients;
    const channel = `chat:${process.pid}-${transport}-${serial++}`;
    const [first, second] = [a, b].map((client) => client.newSubscription(channel, { joinLeave: true }));
    const received = [];
    second.on('publication', ({ data }) => received.push(format.decode(data).n));
    for (const [client, subscription] of [[a, first], [b, second]]) {
      subscription.subscribe();
      client.connect();
      const { transport: used } = await event(client, 'connected');
      assert.equal(used, transport);
      if (subscription.state !== 'subscribed') await event(subscription, 'subscribed');
    }
    for (let n = 0; n < 30; n++) await first.publish(format.encode({ n, text: 'grüße\n"' }));
    while (received.length < 30) await event(second, 'publication');
    assert.deepEqual(received, Array.from({ length: 30 }, (_, n) => n));
    assert.equal(Object.keys((await first.presence()).clients).length, 2);
    assert.equal((await first.history({ limit: 100 })).publications.length, 30);
    await assert.rejects(a.rpc('none', format.encode({})), { code: 108 });

    // The stream is lost. Publications meanwhile are recovered.
    const back = event(second, 'subscribed');
    b._transport.close();
    for (let n = 30; n < 40; n++) await first.publish(format.encode({ n }));
    assert.ok((await back).recovered);
    while (received.length < 40) await event(second, 'publication');
    assert.deepEqual(received, Array.from({ length: 40 }, (_, n) => n));

    const left = event(first, 'leave');
    second.unsubscribe();
    await left;
  } finally {
    clients.forEach((client) => client.disconnect());
  }
}

const ways = [[json, 'http_stream'], [protobuf, 'http_stream'], [json, 'sse']];

for (const [format, transport] of ways) {
  test(`${format.name} over ${transport} talks and recovers`, () => talk(format, transport));

  test(`${format.name} over ${transport} answers pings and is told why it ends`, async () => {
    const client = make(format, transport);
    let interruptions = 0;
    client.on('connecting', () => interruptions++);
    client.connect();
    await event(client, 'connected');
    // Longer than a ping and the time for its answer.
    await new Promise((resolve) => setTimeout(resolve, 8_000));
    assert.deepEqual([client.state, interruptions], ['connected', 1]);
    client.disconnect();
    const refused = make(format, transport, base, { token: 'x' });
    refused.connect();
    assert.equal((await event(refused, 'disconnected')).code, 3500);
  });
}

test('falls back where WebSockets do not pass', async () => {
  const transports = [
    { transport: 'websocket', endpoint: `${base.replace('http', 'ws')}/nowhere` },
    { transport: 'http_stream', endpoint: `${base}/connection/http_stream` },
  ];
  const client = new Centrifuge(transports, { websocket: WebSocket, emulationEndpoint: `${base}/emulation`, minReconnectDelay: 50 });
  client.connect();
  assert.equal((await event(client, 'connected')).transport, 'http_stream');
  client.disconnect();
});

test('sessions are reached on any node', { skip: hasNats ? false : 'nats-server is not on the PATH' }, async (context) => {
  const nats = await Nats.start();
  const nodes = [await Node.start(nats), await Node.start(nats)];
  // Each connection goes to the other node than the one before.
  let turn = 0;
  const balancer = net.createServer((near) => {
    const [host, port] = nodes[turn++ % 2].address.split(':');
    const far = net.connect(Number(port), host);
    for (const [one, other] of [[near, far], [far, near]]) {
      one.on('error', () => other.destroy());
      one.on('close', () => other.destroy());
    }
    near.pipe(far).pipe(near);
  });
  await new Promise((resolve) => balancer.listen(0, '127.0.0.1', resolve));
  context.after(async () => {
    balancer.close();
    await Promise.all(nodes.map((node) => node.stop('SIGKILL')));
    await nats.stop();
  });
  for (const [format, transport] of ways) {
    await talk(format, transport, `http://127.0.0.1:${balancer.address().port}`);
  }
  assert.ok(turn > 10, `${turn} connections`);
});
