/** Tests of the section Connect. */

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { choose, connect, exported, message, rows, send, shows, status } from './harness.mjs';

/** The lengths at which the header of a frame changes, and a long message. */
const SIZES = [0, 125, 126, 65_535, 65_536, 16_777_216];

/** The tasks of a page's main thread (Chromium). Their processor time is compared, which other programs do not disturb. */
class Trace {
  static async start(driver, page) {
    const trace = new Trace();
    if (driver.name !== 'chromium') return trace;
    trace.session = await page.context().newCDPSession(page);
    trace.session.on('Tracing.dataCollected', ({ value }) => trace.events.push(...value));
    await trace.session.send('Tracing.start', { transferMode: 'ReportEvents', categories: 'devtools.timeline,disabled-by-default-devtools.timeline' });
    return trace;
  }

  session = null;
  events = [];

  /** The longest task in milliseconds; null in other browsers. */
  async longest() {
    if (!this.session) return null;
    const complete = new Promise((resolve) => this.session.once('Tracing.tracingComplete', resolve));
    await this.session.send('Tracing.end');
    await complete;
    const main = new Set(this.events.filter(({ name }) => name === 'FireAnimationFrame').map(({ pid, tid }) => `${pid}/${tid}`));
    assert.equal(main.size, 1);
    const tasks = this.events.filter(({ name, pid, tid }) => name === 'RunTask' && main.has(`${pid}/${tid}`));
    assert.ok(tasks.length > 100, `${tasks.length} tasks`);
    return Math.max(...tasks.map(({ tdur = 0 }) => tdur)) / 1000;
  }
}

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
    await message(page).fill('{"a":1}');
    await page.getByRole('button', { name: 'Format' }).click();
    assert.equal(await message(page).inputValue(), '{\n  "a": 1\n}');
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
    return page;
  },

  async 'carries messages of each size, as text and as binary'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    let count = 0;
    await choose(page, 'File');
    for (const size of SIZES) {
      const file = join(driver.work, `${size}.bin`);
      await writeFile(file, Buffer.alloc(size, 'x'));
      await page.locator('input[type=file]').setInputFiles(file);
      for (const isText of [false, true]) {
        await page.getByLabel('Send the file as text').setChecked(isText);
        await send(page);
        count += 2;
        await shows(page, new RegExp(`^${count} messages`), 60_000);
      }
      await rows(page).last().click();
      if (size > 65_536) await shows(page, 'The beginning is shown');
    }
    const messages = await exported(driver, page);
    assert.deepEqual(
      messages.map(({ length }) => length),
      SIZES.flatMap((size) => [size, size, size, size]),
    );
    assert.deepEqual([...new Set(messages.map(({ kind }) => kind))], ['binary', 'text']);
    assert.deepEqual([...new Set(messages.map(({ direction }) => direction))], ['sent', 'received']);
    return page;
  },

  async 'negotiates compression'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    assert.match(await status(page, 'Connection').textContent(), /permessage-deflate/);
    return page;
  },

  async 'closes with the codes and reasons of both sides'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    await page.getByText('Close with a code').click();
    await page.getByLabel('Code', { exact: true }).fill('4321');
    await page.getByLabel('Reason').fill('enough');
    await page.getByRole('button', { name: 'Close', exact: true }).click();
    await shows(page, 'Closed with 4321: Code of the application');
    await driver.server.logged(/websocket closed.*"code":4321|"code":4321.*websocket closed/);
    // RFC 6455 §7.4.1: 1000 by the server, and 1009 with its reason.
    await connect(page, `${driver.server.ws}/source?size=5&count=3`).catch(() => {});
    await shows(page, 'Closed with 1000: Normal closure');
    await connect(page, `${driver.server.ws}/echo`);
    await choose(page, 'File');
    const file = join(driver.work, 'too-long.bin');
    await writeFile(file, Buffer.alloc(17_000_000));
    await page.locator('input[type=file]').setInputFiles(file);
    await send(page);
    await shows(page, 'Closed with 1009: Message too big', 30_000);
    return page;
  },

  async 'shows refusals in words'(driver) {
    const page = await driver.open('connect');
    for (const [url, words] of [
      [`${driver.server.ws}/nothing`, 'The server answered 404'],
      ['ws://127.0.0.1:1/', 'the attempt failed'],
    ]) {
      await page.getByLabel('URL', { exact: true }).fill(url);
      await page.getByRole('button', { name: 'Connect', exact: true }).click();
      await shows(page, words);
    }
    // The browser itself reports what it was asked for and refused.
    page.problems = page.problems.filter((text) => !/WebSocket connection to|Failed to load resource|can’t establish a connection/.test(text));
    return page;
  },

  async 'measures the round trip and has tabs'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    await page.getByLabel('Measure the round-trip time by echo').check();
    await page.getByRole('img', { name: /Plot of Round-trip time.*p50 \d/ }).waitFor();
    await shows(page, 'No messages yet');
    await page.getByRole('button', { name: 'New tab' }).click();
    await connect(page);
    await page.getByRole('tab', { selected: true }).press('ArrowLeft');
    await page.getByRole('tab', { name: /Connection 1/, selected: true }).waitFor();
    return page;
  },

  async 'keeps every row of 1,000 messages a second for 10 s, without long tasks'(driver) {
    const page = await driver.open('connect');
    await connect(page, `${driver.server.ws}/echo`);
    await page.getByRole('button', { name: 'Disconnect', exact: true }).click();
    await shows(page, 'Closed with');
    const trace = await Trace.start(driver, page);
    await connect(page, `${driver.server.ws}/source?size=64&rate=1000&count=10000`);
    await shows(page, /^10,000 messages/, 60_000);
    const longest = await trace.longest();
    if (longest !== null) {
      console.log(`  longest task: ${longest} ms of processor time`);
      assert.ok(longest < 50, `a task took ${longest} ms`);
    }
    assert.ok((await rows(page).count()) < 100, 'the list is virtual');
    await page.getByRole('listbox').press('Home');
    await page.locator('.row[aria-selected=true][aria-posinset="1"]').waitFor();
    await page.getByRole('listbox').press('End');
    await page.locator('.row[aria-selected=true][aria-posinset="10000"]').waitFor();
    return page;
  },

  async 'shows hostile messages and room names as text'(driver) {
    const hostile = '<img src=x onerror="window.ran=1"><script>window.ran=1</script>';
    const page = await driver.open('connect');
    await connect(page);
    await message(page).fill(hostile);
    await send(page);
    await shows(page, /^2 messages/);
    assert.equal(await rows(page).last().locator('.data').textContent(), hostile);
    await rows(page).last().click();
    assert.equal(await page.locator('.detail pre').textContent(), hostile);
    await page.goto(`${driver.server.http}/#rooms`);
    await page.getByRole('textbox', { name: 'Room' }).fill(hostile);
    await page.getByRole('button', { name: 'Join' }).click();
    await page.waitForTimeout(500);
    assert.equal(await page.evaluate(() => globalThis.ran), undefined);
    assert.equal(await page.locator('main img, main script').count(), 0);
    return page;
  },
};
