// The npm client `centrifuge`, unmodified, against two nodes of `wireloom serve --nats` (the program is in WIRELOOM).

import assert from 'node:assert/strict';
import test from 'node:test';
import { Centrifuge } from 'centrifuge';
import WebSocket from 'ws';
import { Balancer, Nats, Node, hasNats } from './nodes.mjs';

const skip = hasNats ? false : 'nats-server is not on the PATH';
const event = (emitter, name) => new Promise((resolve) => emitter.once(name, resolve));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(condition, what, ms = 20_000) {
  for (const end = Date.now() + ms; !(await condition()); await sleep(50)) {
    assert.ok(Date.now() < end, `${what} within ${ms} ms`);
  }
}

/** A client, and what it has received on a channel. */
async function subscriber(channel, url) {
  const client = new Centrifuge(url, { websocket: WebSocket, minReconnectDelay: 20, maxReconnectDelay: 200 });
  const subscription = client.newSubscription(channel);
  const state = { client, subscription, received: [], codes: [], unrecovered: 0, id: undefined };
  client.on('connected', (context) => (state.id = context.client));
  client.on('connecting', (context) => state.codes.push(context.code));
  subscription.on('publication', ({ data }) => state.received.push(data));
  subscription.on('subscribed', ({ wasRecovering, recovered }) => (state.unrecovered += wasRecovering && !recovered));
  subscription.subscribe();
  client.connect();
  await event(subscription, 'subscribed');
  return state;
}

const count = (n) => Array.from({ length: n }, (_, i) => i);

async function cluster(context, size) {
  const nats = await Nats.start();
  const nodes = await Promise.all(count(size).map(() => Node.start(nats)));
  const states = [];
  context.after(async () => {
    states.forEach(({ client }) => client.disconnect());
    await Promise.all(nodes.map((node) => node.stop('SIGKILL')));
    await nats.stop();
  });
  return { nats, nodes, states };
}

test('a message published on one node is delivered on the other', { skip }, async (context) => {
  const { nodes, states } = await cluster(context, 2);
  const [a, b] = nodes;
  const [one, two] = [await subscriber('chat:x', a.url), await subscriber('chat:x', b.url)];
  states.push(one, two);
  await one.subscription.presence().then(({ clients }) => assert.deepEqual(Object.keys(clients).sort(), [one.id, two.id].sort()));
  await a.api('publish', { channel: 'chat:x', data: { from: 'a' } });
  await b.api('publish', { channel: 'chat:x', data: { from: 'b' } });
  for (const state of [one, two]) {
    await until(() => state.received.length === 2, 'both messages');
    assert.deepEqual(state.received, [{ from: 'a' }, { from: 'b' }]);
  }
});

for (const [signal, exit, code] of [['SIGTERM', 0, 3001], ['SIGKILL', 'SIGKILL', undefined]]) {
  test(`${signal} of a node moves its clients to the other without a lost message`, { skip }, async (context) => {
    const { nodes, states } = await cluster(context, 2);
    const [a, b] = nodes;
    const balancer = await Balancer.start([a, b]);
    context.after(() => balancer.stop());
    for (let i = 0; i < 10; i++) states.push(await subscriber('chat:x', balancer.url));
    const stays = await subscriber('chat:x', b.url);
    states.push(stays);
    const before = states.map(({ id }) => id);
    const total = 400;
    let ended;
    for (let i = 0; i < total; i++) {
      await b.api('publish', { channel: 'chat:x', data: i });
      if (i === 100) ended = a.stop(signal);
    }
    assert.equal(await ended, exit, a.log);
    for (const state of states) {
      await until(() => state.received.length >= total, 'all messages');
      assert.deepEqual(state.received, count(total));
      assert.equal(state.unrecovered, 0);
      if (code && state !== stays) assert.ok(state.codes.includes(code), `${state.codes}`);
    }
    // The clients of the lost node leave presence within the lease; those that moved are listed once.
    const listed = async () => Object.keys((await stays.subscription.presence()).clients).sort();
    const now = states.map(({ id }) => id).sort();
    await until(async () => JSON.stringify(await listed()) === JSON.stringify(now), 'presence', 60_000);
    assert.equal(new Set([...before, ...now]).size, 21);
  });
}

test('the loss of NATS refuses what could not be recovered, and interrupts no client', { skip }, async (context) => {
  const { nats, nodes, states } = await cluster(context, 2);
  const [a, b] = nodes;
  const [one, two] = [await subscriber('chat:x', a.url), await subscriber('chat:x', b.url)];
  states.push(one, two);
  await a.api('publish', { channel: 'chat:x', data: 'before' });
  await until(() => two.received.length === 1, 'the first message');
  await nats.kill();
  // Until the node knows of the loss, a publication whose answer is lost may have been stored.
  await until(async () => !(await a.isHealthy()), 'the loss of NATS');
  const refused = await a.api('publish', { channel: 'chat:x', data: 'without' });
  assert.ok(refused.error, 'a publication is refused without NATS');
  await nats.run();
  await until(async () => (await a.api('publish', { channel: 'chat:x', data: 'after' })).result?.offset > 0, 'NATS');
  for (const state of [one, two]) {
    await until(() => state.received.includes('after'), 'a message after the loss');
    assert.equal(state.codes.length, 1, 'no client was disconnected');
    assert.equal(state.received[0], 'before');
    assert.ok(!state.received.includes('without'), 'what was refused is not delivered');
  }
});
