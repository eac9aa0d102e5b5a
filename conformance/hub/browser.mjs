// The npm client `centrifuge`, unmodified, in Chromium and Firefox, against the hub of `wireloom serve` (the program is in WIRELOOM).

import assert from 'node:assert/strict';
import crypto from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import puppeteer from 'puppeteer-core';
import { Node } from './nodes.mjs';

const browsers = [
  ['chrome', ['/usr/bin/chromium', '/usr/bin/google-chrome'], ['--no-sandbox']],
  ['firefox', ['/usr/bin/firefox', '/usr/bin/firefox-esr'], []],
];

/** A token of the user 42 that expires within 2 s, for the connection or for a channel. */
function token(channel) {
  const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const claims = { sub: '42', exp: Math.floor(Date.now() / 1000) + 2, channel };
  const text = `${part({ alg: 'HS256', typ: 'JWT' })}.${part(claims)}`;
  return `${text}.${crypto.createHmac('sha256', 'secret').update(text).digest('base64url')}`;
}

/** Serves an empty page, the SDK and tokens. */
async function site() {
  const sdk = await readFile(new URL('node_modules/centrifuge/build/index.mjs', import.meta.url));
  const protobuf = await readFile(new URL('node_modules/centrifuge/build/protobuf/index.mjs', import.meta.url));
  const files = { '/': ['text/html', '<!doctype html><title>hub</title>'], '/sdk.mjs': ['text/javascript', sdk], '/protobuf.mjs': ['text/javascript', protobuf] };
  const server = http.createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url, 'http://localhost');
    if (pathname === '/token') files[request.url] = ['text/plain', token(searchParams.get('channel') ?? undefined)];
    const [type, body] = files[request.url] ?? [];
    response.writeHead(body ? 200 : 404, { 'Content-Type': type ?? 'text/plain' }).end(body);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { server, origin: `http://127.0.0.1:${server.address().port}` };
}

/** Runs in the page. */
async function scenario(sdk, endpoint, options) {
  const { Centrifuge } = await import(sdk);
  const isBinary = sdk.includes('protobuf');
  const encode = (value) => (isBinary ? new TextEncoder().encode(JSON.stringify(value)) : value);
  const decode = (data) => (isBinary ? JSON.parse(new TextDecoder().decode(data)) : data);
  const event = (emitter, name) => new Promise((resolve) => emitter.once(name, resolve));
  const tokens = { connection: 0, channel: 0 };
  const getToken = async () => {
    tokens.connection += 1;
    return (await fetch('/token')).text();
  };
  const getChannelToken = async () => {
    tokens.channel += 1;
    return (await fetch('/token?channel=private:x')).text();
  };
  const client = new Centrifuge(endpoint, { minReconnectDelay: 50, maxReconnectDelay: 200, getToken, ...options });
  const subscription = client.newSubscription(`chat:${Math.random()}`, { joinLeave: true });
  const received = [];
  subscription.on('publication', ({ data }) => received.push(decode(data)));
  subscription.subscribe();
  client.connect();
  await event(subscription, 'subscribed');
  await subscription.publish(encode({ n: 1 }));
  while (received.length < 1) await event(subscription, 'publication');
  const present = Object.keys((await subscription.presence()).clients).length;
  const { numUsers } = await subscription.presenceStats();
  const method = await client.rpc('none', encode({})).then(() => 0, ({ code }) => code);
  const hidden = client.newSubscription('private:x', { getToken: getChannelToken });
  hidden.subscribe();
  await event(hidden, 'subscribed');
  // The connection is lost, and another client publishes meanwhile.
  const other = new Centrifuge(endpoint, options);
  const same = other.newSubscription(subscription.channel);
  const joined = event(subscription, 'join');
  same.subscribe();
  other.connect();
  await event(same, 'subscribed');
  await joined;
  client.disconnect();
  for (let n = 2; n <= 20; n++) await same.publish(encode({ n }));
  const back = event(subscription, 'subscribed');
  client.connect();
  const { wasRecovering, recovered } = await back;
  while (received.length < 20) await event(subscription, 'publication');
  const history = (await subscription.history({ limit: 100 })).publications.map(({ data }) => decode(data).n);
  const left = event(subscription, 'leave');
  same.unsubscribe();
  await left;
  // Both tokens expire and are renewed, and nothing is interrupted.
  let interruptions = 0;
  client.on('connecting', () => interruptions++);
  hidden.on('subscribing', () => interruptions++);
  const before = { ...tokens };
  while (tokens.connection < before.connection + 2 || tokens.channel < before.channel + 2) {
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  const states = [client.state, hidden.state, subscription.state, interruptions];
  client.disconnect();
  other.disconnect();
  return { received: received.map(({ n }) => n), present, numUsers, method, wasRecovering, recovered, history, states };
}

for (const [browser, paths, args] of browsers) {
  const executablePath = paths.find(existsSync);
  const skip = executablePath ? false : `${browser} is not installed`;
  test(`the SDK in ${browser}`, { skip, timeout: 240_000 }, async (context) => {
    const { server, origin } = await site();
    const folder = await mkdtemp(join(tmpdir(), 'hub-'));
    const config = await readFile('hub.toml', 'utf8');
    // A loaded machine may take longer than a second to renew a token.
    const own = config.replace('[client]\n', `[client]\nallowed_origins = ["${origin}"]\n`).replace('expired_grace = "1s"', 'expired_grace = "10s"');
    await writeFile(join(folder, 'hub.toml'), own);
    const node = await Node.start(undefined, join(folder, 'hub.toml'));
    const running = await puppeteer.launch({ browser, executablePath, args, headless: true });
    context.after(async () => {
      await running.close();
      await node.stop('SIGKILL');
      server.close();
      await rm(folder, { recursive: true, force: true });
    });
    const page = await running.newPage();
    await page.goto(origin);
    const all = Array.from({ length: 20 }, (_, i) => i + 1);
    const http = `http://${node.address}`;
    const over = (transport) => [{ transport, endpoint: `${http}/connection/${transport}` }];
    const options = { emulationEndpoint: `${http}/emulation` };
    for (const [sdk, endpoint] of [
      ['/sdk.mjs', node.url],
      ['/protobuf.mjs', node.url],
      // Of another origin: the browser asks first.
      ['/sdk.mjs', over('http_stream')],
      ['/protobuf.mjs', over('http_stream')],
      ['/sdk.mjs', over('sse')],
    ]) {
      const result = await page.evaluate(scenario, sdk, endpoint, options);
      const expected = {
        received: all,
        present: 1,
        numUsers: 1,
        method: 108,
        wasRecovering: true,
        recovered: true,
        history: all,
        states: ['connected', 'subscribed', 'subscribed', 0],
      };
      assert.deepEqual(result, expected, `${sdk} ${JSON.stringify(endpoint)}`);
    }
  });
}
