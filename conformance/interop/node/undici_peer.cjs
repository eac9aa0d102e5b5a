// Node's own client (undici): fetch over HTTP/1.1, and the WebSocket API of browsers.
'use strict';

const assert = require('node:assert');
const { once } = require('node:events');
const [, , ...bases] = process.argv;

async function opened(url, protocols) {
  const socket = new WebSocket(url, protocols);
  socket.binaryType = 'arraybuffer';
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new Error(`${url} was not opened`));
  });
  socket.onerror = null;
  return socket;
}

async function client(base) {
  assert.strictEqual(await (await fetch(`${base}/healthz`)).text(), 'ok\n');
  assert.strictEqual((await fetch(`${base}/nothing`)).status, 404);
  const sent = Buffer.alloc(900000, 7);
  const stream = new Blob([sent]).stream();
  for (const options of [{ body: sent }, { body: stream, duplex: 'half' }]) {
    const answer = await fetch(`${base}/echo`, { method: 'POST', ...options });
    assert.ok(Buffer.from(await answer.arrayBuffer()).equals(sent));
  }
  const websockets = base.replace(/^http/, 'ws');
  const socket = await opened(`${websockets}/echo`);
  for (const message of ['', 'a', 'häßlich 😀', 'x'.repeat(70000), Buffer.alloc(1 << 20, 1), Buffer.alloc(0)]) {
    socket.send(message);
    const [{ data }] = await once(socket, 'message');
    if (typeof message === 'string') assert.strictEqual(data, message);
    else assert.ok(Buffer.from(data).equals(message), `${message.length} bytes`);
  }
  socket.close(4321, 'bye');
  const [{ code, reason, wasClean }] = await once(socket, 'close');
  assert.deepStrictEqual([code, reason, wasClean], [4321, 'bye', true]);
  const source = await opened(`${websockets}/source?size=10&count=3`);
  let messages = 0;
  source.onmessage = () => {
    messages += 1;
  };
  const [end] = await once(source, 'close');
  assert.deepStrictEqual([end.code, messages], [1000, 3]);
  await assert.rejects(opened(`${websockets}/nothing`));
}

(async () => {
  for (const base of bases) await client(base);
})().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
