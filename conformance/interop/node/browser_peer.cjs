// A browser against a `wireloom serve` of its own: pages, fetch, WebSockets over HTTP/1.1 and HTTP/2, rooms between two pages,
// close codes, origins. The driver of each browser is in the file with its name.
'use strict';

const assert = require('node:assert');
const { spawn } = require('node:child_process');
const { once } = require('node:events');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const [, , wireloom, name, program, profile] = process.argv;
const Browser = require(`./${name}.cjs`);

const LONGEST = 2 << 20;

// Functions for every page.
const PRELUDE = `
  const open = (url, ...protocols) => new Promise((resolve, reject) => {
    const socket = new WebSocket(url, protocols);
    socket.binaryType = 'arraybuffer';
    socket.onopen = () => resolve(socket);
    socket.onclose = ({ code }) => reject(new Error('not opened: ' + code));
  });
  const heard = (socket) => new Promise((resolve, reject) => {
    socket.onmessage = ({ data }) => resolve(data);
    socket.onclose = ({ code }) => reject(new Error('closed: ' + code));
  });
  const closed = (socket) => new Promise((resolve) => {
    socket.onclose = ({ code, reason, wasClean }) => resolve({ code, reason, wasClean });
  });
  const read = async (answer) => ({ status: answer.status, text: await answer.text() });
`;

async function serve() {
  const listen = ['--listen', '127.0.0.1:0', '--tls', '--tls-listen', '127.0.0.1:0'];
  const log = ['--log', 'json', '--log-level', 'debug', '--max-message', String(LONGEST)];
  const child = spawn(wireloom, ['serve', ...listen, ...log], { stdio: ['ignore', 'ignore', 'pipe'] });
  process.on('exit', () => child.kill());
  const events = [];
  const said = readline.createInterface({ input: child.stderr });
  await new Promise((resolve) => {
    said.on('line', (line) => {
      events.push(JSON.parse(line));
      if (events.filter(({ message }) => message === 'listening').length === 2) resolve();
    });
  });
  const at = (tls) => events.find((event) => event.message === 'listening' && event.tls === tls).address;
  return { child, events, plain: at(false), secure: at(true) };
}

/// Checks that are the same for HTTP/1.1 and HTTP/2.
async function talk(page, websockets, version) {
  assert.strictEqual(await page(`return performance.getEntriesByType('navigation')[0].nextHopProtocol`), version);
  assert.match(await page('return document.body.innerText'), /Connect to a WebSocket/);
  assert.deepStrictEqual(await page(`return read(await fetch('/healthz'))`), { status: 200, text: 'ok\n' });
  assert.strictEqual(await page(`return (await fetch('/nothing')).status`), 404);
  assert.strictEqual(await page(`return (await fetch('/healthz', { method: 'HEAD' })).status`), 200);
  const sent = 'ä'.repeat(300000);
  const posted = await page(`return read(await fetch('/echo', { method: 'POST', body: 'ä'.repeat(300000) }))`);
  assert.ok(posted.status === 200 && posted.text === sent);
  const source = `return (await (await fetch('/source?size=5000&count=1000')).arrayBuffer()).byteLength`;
  assert.strictEqual(await page(source), 5000000);
  const [extensions, protocol] = await page(`
    const socket = await open('${websockets}/echo');
    for (const text of ['', 'a', 'häßlich 😀', 'x'.repeat(1 << 20)]) {
      socket.send(text);
      if (await heard(socket) !== text) throw new Error(text.length + ' characters of text');
    }
    for (const length of [0, 1, 125, 126, 65535, 65536, 1 << 20]) {
      const bytes = new Uint8Array(length);
      for (let at = 0; at < length; at += 1) bytes[at] = (at * 2654435761) >>> 13;
      socket.send(bytes);
      const back = new Uint8Array(await heard(socket));
      if (back.length !== length || bytes.some((byte, at) => byte !== back[at])) throw new Error(length + ' bytes');
    }
    const all = new Promise((resolve, reject) => {
      let next = 0;
      socket.onmessage = ({ data }) => {
        if (data !== String(next)) reject(new Error(data));
        next += 1;
        if (next === 2000) resolve();
      };
    });
    for (let number = 0; number < 2000; number += 1) socket.send(String(number));
    await all;
    socket.close(4321, 'bye');
    const end = await closed(socket);
    if (end.code !== 4321 || !end.wasClean) throw new Error(JSON.stringify(end));
    return [socket.extensions, socket.protocol];
  `);
  assert.match(extensions, /^permessage-deflate/);
  assert.strictEqual(protocol, '');
  const tooLong = await page(`
    const socket = await open('${websockets}/echo');
    const end = closed(socket);
    socket.send(new Uint8Array(${LONGEST + 1}));
    return end;
  `);
  assert.strictEqual(tooLong.code, 1009);
  const counted = await page(`
    const socket = await open('${websockets}/source?size=1000&count=50');
    let bytes = 0;
    socket.onmessage = ({ data }) => { bytes += data.byteLength; };
    const { code } = await closed(socket);
    return [bytes, code];
  `);
  assert.deepStrictEqual(counted, [50000, 1000]);
}

/// Two pages of a room hear each other; another room hears nothing.
async function meet(one, other, websockets) {
  for (const page of [one, other]) await page(`
    const lobby = await open('${websockets}/rooms/lobby');
    const elsewhere = await open('${websockets}/rooms/elsewhere-' + Math.random());
    window.lobby = lobby;
    window.said = [];
    lobby.onmessage = ({ data }) => window.said.push(data);
    elsewhere.onmessage = ({ data }) => window.said.push('elsewhere: ' + data);
  `);
  for (let number = 0; number < 10; number += 1) await [one, other][number % 2](`window.lobby.send('${number}')`);
  for (const page of [one, other]) {
    const said = await page(`
      while (window.said.length < 10) await new Promise((resolve) => setTimeout(resolve, 10));
      return window.said;
    `);
    assert.deepStrictEqual([...said].sort(), [...'0123456789']);
  }
}

/// A page at `url`, as a function that runs the body of one in it and returns what that does.
async function show(browser, url) {
  const evaluate = await browser.page(url);
  return async (body) => {
    const told = await evaluate(`(async () => { ${PRELUDE} return JSON.stringify(await (async () => { ${body} })()) ?? 'null'; })()`);
    return JSON.parse(told);
  };
}

async function main(browser) {
  const { child, events, plain, secure } = await serve();
  /// Waits for this number of lines of the log, which may be written after the browser has its answer; there are no more.
  const logged = async (count, is) => {
    for (const end = Date.now() + 20_000; events.filter(is).length < count && Date.now() < end; await sleep(10));
    assert.strictEqual(events.filter(is).length, count);
  };
  const is = (method, path) => (event) => event.method === method && event.path === path;
  const first = await show(browser, `http://${plain}/`);
  await talk(first, `ws://${plain}`, 'http/1.1');
  await logged(0, is('CONNECT', '/echo'));
  console.log('ok: HTTP/1.1');
  const second = await show(browser, `https://${secure}/`);
  await talk(second, `wss://${secure}`, 'h2');
  // RFC 8441: the WebSockets came as streams of the connection that the page came over.
  await logged(2, is('CONNECT', '/echo'));
  await logged(1, is('CONNECT', '/source'));
  assert.ok(events.filter(is('CONNECT', '/echo')).every(({ status }) => status === 200));
  console.log('ok: HTTP/2');
  await meet(first, await show(browser, `http://${plain}/`), `ws://${plain}`);
  const third = await show(browser, `https://${secure}/`);
  await meet(second, third, `wss://${secure}`);
  console.log('ok: rooms');
  // Another port is another origin.
  for (const [page, url] of [[first, `wss://${secure}/echo`], [second, `ws://${plain}/echo`]]) {
    const refused = await page(`return open('${url}').then(() => 'opened', ({ message }) => message)`);
    assert.strictEqual(refused, 'not opened: 1006');
  }
  await logged(2, ({ status }) => status === 403);
  console.log('ok: origins');
  // They hear that the server goes.
  for (const page of [first, second]) await page('window.end = closed(window.lobby)');
  const ended = once(child, 'exit');
  child.kill('SIGTERM');
  for (const page of [first, second]) {
    const { code, wasClean } = await page('return window.end');
    assert.deepStrictEqual([code, wasClean], [1001, true]);
  }
  assert.deepStrictEqual(await ended, [0, null]);
  console.log('ok: the end');
}

const browser = new Browser(program, profile);
const exited = once(browser.process, 'exit');
const lost = exited.then(([code]) => {
  throw new Error(`${program} ended: ${code}`);
});
// Whatever happens, it does not outlive this, and neither does the server.
process.on('exit', () => browser.process.kill());
process.on('SIGTERM', () => process.exit(1));
Promise.race([browser.begun().then(() => main(browser)), lost]).then(
  async () => {
    await browser.close();
    await exited;
    process.exit(0);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
