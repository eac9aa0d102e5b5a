// Node's http2, as client against `wireloom serve` and as server for `wireloom connect`; WebSockets over it (RFC 8441)
// with the Receiver and Sender of ws.
'use strict';

const assert = require('node:assert');
const http2 = require('node:http2');
const { once } = require('node:events');
const { Receiver, Sender } = require('ws');
const [, , role, base] = process.argv;

// Frames on a stream, as messages.
function frames(stream, isServer) {
  const receiver = new Receiver({ isServer });
  const sender = new Sender(stream, {});
  // Only the last two matter without compression.
  const options = (binary) => ({ binary, compress: false, fin: true, mask: !isServer });
  stream.pipe(receiver);
  return {
    receiver,
    send: (data, binary) => sender.send(Buffer.from(data), options(binary), () => {}),
    ping: (data) => sender.ping(Buffer.from(data), !isServer, () => {}),
    pong: (data) => sender.pong(data, !isServer, () => {}),
    close: (code, reason) => sender.close(code, reason, !isServer, () => {}),
  };
}

async function post(session, path, body) {
  const stream = session.request({ ':method': 'POST', ':path': path, 'content-type': 'text/x-own' });
  stream.end(body);
  const [headers] = await once(stream, 'response');
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return [headers, Buffer.concat(pieces)];
}

async function tunnel(session) {
  const stream = session.request({
    ':method': 'CONNECT',
    ':protocol': 'websocket',
    ':path': '/echo',
    'sec-websocket-version': '13',
  });
  const [headers] = await once(stream, 'response');
  assert.strictEqual(headers[':status'], 200);
  const socket = frames(stream, false);
  for (const message of ['', 'a', 'häßlich 😀', 'x'.repeat(70000), Buffer.alloc(500000, 1)]) {
    socket.send(message, typeof message !== 'string');
    const [data, isBinary] = await once(socket.receiver, 'message');
    assert.strictEqual(isBinary, typeof message !== 'string');
    assert.ok(Buffer.from(message).equals(data));
  }
  socket.ping('are you there');
  assert.strictEqual((await once(socket.receiver, 'pong'))[0].toString(), 'are you there');
  socket.close(4321, 'bye');
  assert.strictEqual((await once(socket.receiver, 'conclude'))[0], 4321);
  stream.end();
  await once(stream, 'close');
  assert.strictEqual(stream.rstCode, http2.constants.NGHTTP2_NO_ERROR);
}

async function client() {
  const session = http2.connect(base, { rejectUnauthorized: false });
  const [settings] = await once(session, 'remoteSettings');
  assert.strictEqual(settings.enableConnectProtocol, true);
  for (const length of [0, 1, 65536, 900000]) {
    const body = Buffer.alloc(length, 'w');
    const [headers, back] = await post(session, '/echo', body);
    assert.strictEqual(headers[':status'], 200);
    assert.strictEqual(headers['content-type'], 'text/x-own');
    assert.ok(back.equals(body), `${length} bytes`);
  }
  const many = Array.from({ length: 200 }, (_, number) => post(session, '/echo', String(number)));
  (await Promise.all(many)).forEach(([, back], number) => assert.strictEqual(back.toString(), String(number)));
  assert.strictEqual((await post(session, '/nothing', ''))[0][':status'], 404);
  await Promise.all(Array.from({ length: 20 }, () => tunnel(session)));
  session.close();
  await once(session, 'close');
}

function server() {
  const listening = http2.createServer({ settings: { enableConnectProtocol: true } });
  listening.on('stream', (stream, headers) => {
    stream.on('error', () => {});
    if (headers[':path'] === '/forbidden') {
      stream.respond({ ':status': 403 }, { endStream: true });
      return;
    }
    if (headers[':protocol'] !== 'websocket') {
      stream.respond({ ':status': 200, 'content-type': headers['content-type'] ?? 'text/plain' }, { waitForTrailers: true });
      stream.on('wantTrailers', () => stream.sendTrailers({ 'x-trailer': 'there' }));
      stream.pipe(stream);
      return;
    }
    const offered = headers['sec-websocket-protocol'] ?? '';
    const chosen = offered.split(/, */).includes('chat') ? { 'sec-websocket-protocol': 'chat' } : {};
    stream.respond({ ':status': 200, ...chosen });
    const socket = frames(stream, true);
    socket.receiver.on('message', (data, isBinary) => {
      socket.send(data, isBinary);
      const text = data.toString();
      if (text.startsWith('close ')) socket.close(Number(text.slice(6)), 'as you wish');
    });
    socket.receiver.on('ping', (data) => socket.pong(data));
    socket.receiver.on('conclude', (code) => {
      if (code !== 4000) socket.close(code === 1005 ? 1000 : code, '');
      stream.end();
    });
    socket.receiver.on('error', () => stream.close());
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
