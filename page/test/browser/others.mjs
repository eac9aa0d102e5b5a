/** Tests of the sections Rooms, Load and Server, and of what concerns all sections. */

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { connect, joinRoom, message, rows, send, shows, status } from './harness.mjs';

const axe = await readFile(new URL('../../node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');

async function accessible(page, name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  assert.deepEqual(
    violations.map(({ id, nodes }) => `${name}: ${id} ${nodes.map(({ html }) => html).join(' ')}`),
    [],
  );
}

export default {
  async 'joins two pages in a room, which recovers what was missed'(driver) {
    const [a, b] = [await driver.open('rooms'), await driver.open('rooms')];
    for (const page of [a, b]) await joinRoom(page, 'test');
    const say = async (text) => {
      await message(a).fill(text);
      await send(a);
    };
    await shows(a, 'Members (2)');
    await say('one');
    await rows(b).filter({ hasText: 'one' }).waitFor();
    await b.getByRole('button', { name: 'Go offline' }).click();
    await shows(a, 'Members (1)');
    await say('two');
    await rows(a).filter({ hasText: 'two' }).waitFor();
    await b.getByRole('button', { name: 'Go online' }).click();
    await rows(b).filter({ hasText: 'two' }).waitFor();
    await shows(b, '1 missed messages were recovered');
    await b.getByRole('button', { name: 'Leave' }).click();
    await b.getByRole('button', { name: 'Join' }).click();
    await shows(b, /^2 messages/);
    assert.deepEqual(a.problems, []);
    await a.context().close();
    return b;
  },

  async 'puts load on the server and watches it'(driver) {
    const page = await driver.open('load');
    await page.getByRole('button', { name: 'Start' }).click();
    await page.getByText('HTTP/1.1', { exact: true }).waitFor();
    await page.getByRole('img', { name: /Plot of Latency.*p50 \d/ }).waitFor();
    await page.getByRole('link', { name: 'Server' }).click();
    await page.getByRole('img', { name: /Plot of Messages per second.*in [1-9]/ }).waitFor();
    await shows(page, 'Live, each second');
    await page.getByRole('meter', { name: /Memory held for clients/ }).waitFor();
    return page;
  },

  async 'lists slow clients and the log'(driver) {
    const page = await driver.open('server');
    await shows(page, 'All send queues are empty');
    // A client that reads nothing: the bytes stay in the queues of both ends.
    const slow = await import('node:net').then(({ connect: dial }) => dial(new URL(driver.server.http).port, '127.0.0.1'));
    slow.pause();
    slow.write(
      'GET /source?size=1000000 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
        'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n',
    );
    await page.getByRole('row').filter({ hasText: '/source' }).waitFor();
    // --slow-timeout of these servers is short.
    await page.getByRole('log').filter({ hasText: 'client evicted' }).waitFor();
    slow.destroy();
    return page;
  },

  async 'hides the live state behind a proxy'(driver) {
    const page = await driver.open('server', { extraHTTPHeaders: { 'X-Forwarded-For': '192.0.2.1' } });
    await shows(page, 'The figures of /metrics');
    assert.equal(await page.getByRole('heading', { name: 'Log' }).count(), 0);
    return page;
  },

  async 'shows the loss of the server, and comes back with it'(driver) {
    const page = await driver.open('connect');
    const { server } = driver;
    await page.getByLabel('Reconnect when the connection is lost').check();
    await connect(page);
    const room = await driver.open('rooms');
    await joinRoom(room, 'lost');
    const watch = await driver.open('server');
    await shows(watch, 'Live, each second');
    await server.stop();
    await shows(page, 'Closed with 1001: Going away');
    await status(room, 'Room').filter({ hasText: 'Connection lost' }).waitFor();
    await shows(watch, 'The server has not answered since');
    await server.start();
    await status(page, 'Connection').filter({ hasText: /^Connected/ }).waitFor();
    await status(room, 'Room').filter({ hasText: 'Joined' }).waitFor();
    await shows(watch, 'Live, each second');
    // Without a closing handshake.
    await server.stop('SIGKILL');
    await shows(page, 'Closed with 1006: Connection lost without a closing handshake');
    await shows(watch, 'The server has not answered since');
    await server.start();
    await status(page, 'Connection').filter({ hasText: /^Connected/ }).waitFor();
    await shows(watch, 'Live, each second');
    for (const other of [room, watch]) {
      assert.deepEqual(other.problems, []);
      await other.context().close();
    }
    return page;
  },

  async 'has no violations of accessibility'(driver) {
    for (const colorScheme of driver.name === 'chromium' ? ['light', 'dark'] : [undefined]) {
      for (const width of [360, 1280]) {
        const page = await driver.open('connect', { colorScheme, viewport: { width, height: 800 }, bypassCSP: true });
        await connect(page);
        await message(page).fill('hello');
        await send(page);
        await shows(page, /^2 messages/);
        await rows(page).last().click();
        for (const section of ['connect', 'rooms', 'load', 'server']) {
          await page.goto(`${driver.server.http}/#${section}`);
          await page.waitForTimeout(300);
          await accessible(page, `${section} ${colorScheme} ${width}`);
          assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${section} fits ${width} pixels`);
        }
        await page.context().close();
      }
    }
  },
};
