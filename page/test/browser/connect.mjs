/** Tests of the section Connect. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { choose, connect, exported, message, openUrl, paste, rows, send, shows, status } from './harness.mjs';

export default {
  async 'echoes text, JSON, hex and a file'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    await message(page).fill('grüße');
    await send(page);
    await shows(page, /^2 messages/);
    await choose(page, 'JSON');
    await message(page).fill('{"a":');
    assert.ok(await page.getByRole('button', { name: 'Send', exact: true }).isDisabled());
    await message(page).fill('{"a":12345678901234567890}');
    await page.getByRole('button', { name: 'Format' }).click();
    assert.equal(await message(page).inputValue(), '{\n  "a": 12345678901234567890\n}');
    await send(page);
    await shows(page, /^4 messages/);
    await choose(page, 'Hex');
    await message(page).fill('00 ff 7f');
    await send(page);
    await shows(page, /^6 messages/);
    assert.equal(await rows(page).last().locator('.data').textContent(), '00 ff 7f');
    await page.getByRole('combobox', { name: 'Type' }).selectOption('text');
    await page.getByRole('combobox', { name: 'Direction' }).selectOption('received');
    await shows(page, /^2 of 6 messages/);
    await page.getByRole('searchbox').fill('GRÜ');
    await shows(page, /^1 of 6 messages/);
    assert.deepEqual((await exported(driver, page)).map(({ text }) => text), ['grüße']);
  },

  async 'closes with the codes and reasons of both sides'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    // A connection that the user closes is not reopened.
    await page.getByLabel('Reconnect when the connection is lost').check();
    await page.getByText('Close with a code').click();
    await page.getByLabel('Code', { exact: true }).fill('4321');
    await page.getByLabel('Reason').fill('enough');
    await page.getByRole('button', { name: 'Close', exact: true }).click();
    await shows(page, 'Closed with 4321: Code of the application');
    assert.ok(await page.getByRole('button', { name: 'Connect', exact: true }).isVisible());
    await page.getByLabel('Reconnect when the connection is lost').uncheck();
    await driver.server.logged(/websocket closed.*"code":4321|"code":4321.*websocket closed/);
    // RFC 6455 §7.4.1: 1000 by the server, and 1009 with its reason.
    await openUrl(page, `${driver.server.ws}/source?size=5&count=3`);
    await shows(page, 'Closed with 1000: Normal closure');
    await connect(page, `${driver.server.ws}/echo`);
    await choose(page, 'File');
    const file = join(driver.work, 'too-long.bin');
    await writeFile(file, Buffer.alloc(17_000_000));
    await page.locator('input[type=file]').setInputFiles(file);
    await send(page);
    await shows(page, 'Closed with 1009: Message too big');
  },

  async 'shows refusals in words'(driver) {
    const page = await driver.open('connect');
    // The browser itself reports what it was asked for and refused.
    page.expected = /WebSocket connection to|Failed to load resource|can’t establish a connection/;
    for (const [url, words] of [
      [`${driver.server.ws}/nothing`, 'The server answered 404'],
      ['ws://127.0.0.1:1/', 'the attempt failed'],
    ]) {
      await openUrl(page, url);
      await shows(page, words);
    }
  },

  async 'ends an attempt that is cancelled, which is no failure'(driver) {
    const silent = createServer((socket) => socket.on('error', () => {})).listen(0, '127.0.0.1');
    try {
      const page = await driver.open('connect');
      page.expected = /WebSocket connection to|can’t establish a connection|connection .* was interrupted/;
      await openUrl(page, `ws://127.0.0.1:${silent.address().port}/`);
      await shows(page, 'Connecting…');
      await page.getByRole('button', { name: 'Disconnect' }).click();
      await status(page, 'Connection').filter({ hasText: /^Not connected$/ }).waitFor();
    } finally {
      silent.close();
    }
  },

  async 'gives up to reconnect when that is no longer wanted'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    const wanted = page.getByLabel('Reconnect when the connection is lost');
    await wanted.check();
    await driver.server.stop('SIGKILL');
    await shows(page, 'Closed with 1006');
    await page.getByRole('button', { name: 'Disconnect', exact: true }).waitFor();
    await wanted.uncheck();
    await page.getByRole('button', { name: 'Connect', exact: true }).waitFor();
  },

  async 'shows the messages within the first screen of a phone'(driver) {
    const page = await driver.open('connect', { viewport: { width: 360, height: 740 } });
    await connect(page);
    await message(page).fill('hello');
    await send(page);
    await shows(page, /^2 messages/);
    const { y } = await rows(page).first().boundingBox();
    assert.ok(y + 32 < 740, `the first message is at ${y}`);
  },

  async 'names keys where there are some'(driver) {
    const keys = 'Ctrl + Enter sends';
    const desktop = await driver.open('connect');
    await connect(desktop);
    await shows(desktop, keys);
    if (driver.name === 'firefox') return 'only Chromium is a phone here';
    const phone = await driver.open('connect', { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
    await connect(phone);
    await phone.getByText(keys).waitFor({ state: 'hidden' });
    assert.equal(await phone.getByText('Connect to send').count(), 0);
  },

  async 'measures the round trip'(driver) {
    const page = await driver.open('connect');
    await page.getByLabel('Measure the round-trip time by echo').check();
    await shows(page, 'Connect to measure.');
    await connect(page);
    await page.getByRole('img', { name: /Plot of Round-trip time.*p50 \d.*p90 \d.*p99 \d/ }).waitFor();
    // It is live, and its messages are not listed.
    const plotted = await page.getByRole('img', { name: /Plot of/ }).locator('canvas').evaluate((canvas) => canvas.toDataURL());
    await page.waitForFunction((before) => document.querySelector('.plot canvas').toDataURL() !== before, plotted);
    await shows(page, 'No messages yet');
  },

  async 'keeps the connections of its tabs apart'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    await message(page).fill('of the first');
    await send(page);
    await shows(page, /^2 messages/);
    await page.getByRole('button', { name: 'New tab' }).click();
    await shows(page, 'No messages yet');
    await connect(page);
    await driver.server.counts('wireloom_websockets_open', 2);
    await page.getByRole('tab', { selected: true }).press('ArrowLeft');
    await page.getByRole('tab', { name: /Connection 1/, selected: true }).waitFor();
    await shows(page, /^2 messages/);
    assert.equal(await rows(page).last().locator('.data').textContent(), 'of the first');
    await page.getByRole('button', { name: 'Close tab' }).click();
    await driver.server.counts('wireloom_websockets_open', 1);
    await shows(page, 'No messages yet');
    assert.equal(await page.getByRole('tab').count(), 1);
  },

  async 'offers subprotocols'(driver) {
    const page = await driver.open('connect');
    const subprotocols = page.getByLabel(/^Subprotocols/);
    await subprotocols.fill('nothing, centrifuge-json');
    await connect(page, `${driver.server.ws}/connection/websocket`);
    assert.match(await status(page, 'Connection').textContent(), /subprotocol centrifuge-json/);
    await message(page).fill('{"id":1,"connect":{}}');
    await send(page);
    await rows(page).filter({ hasText: '"id":1' }).last().waitFor();
    await page.getByRole('button', { name: 'Disconnect', exact: true }).click();
    await shows(page, 'Closed with');
    await subprotocols.fill('no@token');
    await page.getByRole('button', { name: 'Connect', exact: true }).click();
    await shows(page, 'Not connected: the attempt failed');
    // The browser's own words.
    assert.match(await status(page, 'Connection').locator('.line').textContent(), /\w{3}/);
  },

  async 'sends a dropped file'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    await choose(page, 'File');
    await page.locator('.drop').evaluate((zone) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(['dropped \u00fc'], 'dropped.txt'));
      zone.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
    });
    await shows(page, 'dropped.txt, 10 B');
    await send(page);
    await shows(page, /^2 messages/);
    assert.equal(await rows(page).last().locator('.data').textContent(), '64 72 6f 70 70 65 64 20 c3 bc');
    await page.getByLabel('Send the file as text').check();
    await send(page);
    await shows(page, /^4 messages/);
    assert.equal(await rows(page).last().locator('.data').textContent(), 'dropped \u00fc');
    // Not UTF-8: a text message cannot have it.
    await page.locator('input[type=file]').setInputFiles({ name: 'x.bin', mimeType: 'application/octet-stream', buffer: Buffer.from([0xff]) });
    await send(page);
    await shows(page, 'The file is not UTF-8');
  },

  async 'compresses what it sends'(driver) {
    const record = join(driver.work, 'compressed.wlr');
    await driver.serve(['--record', record]);
    const page = await driver.open('connect');
    await connect(page);
    assert.match(await status(page, 'Connection').textContent(), /permessage-deflate/);
    const text = 'compressed '.repeat(500);
    await paste(message(page), text);
    await send(page);
    await shows(page, /^2 messages/);
    await page.getByRole('button', { name: 'Disconnect', exact: true }).click();
    await shows(page, 'Closed with 1000');
    await driver.server.stop();
    const { stdout } = spawnSync(driver.server.program, ['inspect', '--json', record], { encoding: 'utf8' });
    const frames = stdout.trim().split('\n').map((line) => JSON.parse(line)).filter(({ type }) => type === 'TEXT');
    assert.deepEqual(frames.map(({ from }) => from), ['client', 'server']);
    for (const { flags, length, text: inflated } of frames) {
      assert.ok(flags.includes('RSV1') && length < 500, `${flags} ${length}`);
      assert.equal(inflated, text);
    }
  },
};
