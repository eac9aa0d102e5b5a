// Node's ws, as client against `wireloom serve` and as server for `wireloom connect`.
'use strict';

const assert = require('node:assert');
const http = require('node:http');
const { once } = require('node:events');
const WebSocket = require('ws');
const [, , role, base] = process.argv;

async function client() {
  for (const perMessageDeflate of [false, true]) {
    const socket = new WebSocket(`${base}/echo`, { perMessageDeflate });
    await once(socket, 'open');
    assert.strictEqual(socket.extensions.includes('permessage-deflate'), perMessageDeflate);
    for (const message of ['', 'a', 'häßlich 😀', 'x'.repeat(70000), Buffer.alloc(5000000, 1), Buffer.alloc(0)]) {
      socket.send(message);
      const [data, isBinary] = await once(socket, 'message');
      assert.strictEqual(isBinary, typeof message !== 'string');
      assert.ok(Buffer.from(message).equals(data), `${message.length} bytes`);
    }
    socket.send('one ', { fin: false });
    socket.send('two', { fin: true });
    assert.strictEqual((await once(socket, 'message'))[0].toString(), 'one two');
    const arrived = new Promise((resolve) => {
      let next = 0;
      socket.on('message', (data) => {
        assert.strictEqual(data.toString(), String(next));
        next += 1;
        if (next === 1000) resolve();
      });
    });
    for (let number = 0; number < 1000; number += 1) socket.send(String(number));
    await arrived;
    socket.ping('are you there');
    assert.strictEqual((await once(socket, 'pong'))[0].toString(), 'are you there');
    socket.close(4321, 'bye');
    const [code, reason] = await once(socket, 'close');
    assert.deepStrictEqual([code, reason.toString()], [4321, 'bye']);
  }
}

function server() {
  const listening = http.createServer();
  const sockets = new WebSocket.Server({
    noServer: true,
    perMessageDeflate: true,
    handleProtocols: (offered) => (offered.has('chat') ? 'chat' : false),
  });
  listening.on('upgrade', (request, socket, head) => {
    if (request.url === '/forbidden') {
      socket.end('HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n');
      return;
    }
    sockets.handleUpgrade(request, socket, head, (open) => {
      open.on('message', (data, isBinary) => {
        open.send(data, { binary: isBinary });
        const text = data.toString();
        if (text.startsWith('close ')) open.close(Number(text.slice(6)), 'as you wish');
      });
    });
  });
  listening.listen(0, '127.0.0.1', () => console.log(`on 127.0.0.1:${listening.address().port}`));
}

if (role === 'client') {
  client().then(
    () => process.exit(0),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
} else {
  server();
}
