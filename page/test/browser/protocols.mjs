/** `wss` over HTTP/1.1 and over HTTP/2, proved by the counters of the server and the browser's log of its network. */

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Driver, connect, message, send, shows } from './harness.mjs';

async function echo(driver, protocol) {
  const { server } = driver;
  const name = `wireloom_messages_total{direction="in",protocol="${protocol}"}`;
  const before = await server.metric(name);
  const page = await driver.open('connect', { base: server.https });
  await connect(page, server.https.replace(/^https/, 'wss').concat('/echo'));
  for (const text of ['one', 'two', 'three']) {
    await message(page).fill(text);
    await send(page);
  }
  await shows(page, /^6 messages/);
  assert.equal(await server.metric(name), before + 3);
  await page.goto(`${server.https}/#load`);
  await page.getByRole('button', { name: 'Start' }).click();
  await page.getByText({ http1: 'HTTP/1.1', http2: 'HTTP/2' }[protocol], { exact: true }).waitFor();
  assert.deepEqual(page.problems, []);
}

export default {
  async 'speaks wss over HTTP/2'({ name, server, work }) {
    const netLog = name === 'chromium' ? join(work, 'net-log.json') : '';
    const driver = await new Driver(name, server).launch({ netLog });
    await echo(driver, 'http2').finally(() => driver.close());
    // RFC 8441 §4: an extended CONNECT with `:protocol: websocket`.
    if (netLog) assert.match(await readFile(netLog, 'utf8'), /":protocol: websocket"/);
  },

  async 'speaks wss over HTTP/1.1'({ name, server, work }) {
    const netLog = name === 'chromium' ? join(work, 'net-log1.json') : '';
    const driver = await new Driver(name, server).launch({ http1: true, netLog });
    await echo(driver, 'http1').finally(() => driver.close());
    if (netLog) {
      const log = await readFile(netLog, 'utf8');
      assert.match(log, /Upgrade: websocket/);
      assert.doesNotMatch(log, /":protocol: websocket"/);
    }
  },
};
