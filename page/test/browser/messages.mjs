/** Tests of the list of messages. */

import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { choose, connect, exported, joinRoom, message, paste, rows, send, shows } from './harness.mjs';
import { Trace } from './trace.mjs';

/** The lengths at which the header of a frame changes, and a long message. */
const SIZES = [0, 125, 126, 65_535, 65_536, 16_777_216];

export default {
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
        await shows(page, new RegExp(`^${count} messages`));
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
  },

  async 'keeps every row of 1,000 messages a second for 10 s, without long tasks'(driver) {
    const page = await driver.open('connect');
    await connect(page, `${driver.server.ws}/echo`);
    await page.getByRole('button', { name: 'Disconnect', exact: true }).click();
    await shows(page, 'Closed with');
    const trace = await Trace.start(driver, page);
    await connect(page, `${driver.server.ws}/source?size=64&rate=1000&count=10000`);
    await shows(page, /^10,000 messages/);
    const longest = await trace.longest();
    if (longest !== null) {
      console.log(`  longest task: ${longest} ms of processor time`);
      assert.ok(longest < 200, `a task took ${longest} ms`);
    }
    assert.ok((await rows(page).count()) < 100, 'the list is virtual');
    await page.getByRole('listbox').press('Home');
    await page.locator('.row[aria-selected=true][aria-posinset="1"]').waitFor();
    await page.getByRole('listbox').press('End');
    await page.locator('.row[aria-selected=true][aria-posinset="10000"]').waitFor();
  },

  async 'pauses at once under a flood'(driver) {
    if (driver.name === 'firefox') return 'Firefox handles no input while WebSocket messages flood in';
    const page = await driver.open('connect');
    await connect(page, `${driver.server.ws}/source?size=64`);
    await shows(page, /^\d+,\d+ messages/);
    const button = page.getByRole('button', { name: 'Pause', exact: true });
    await button.evaluate((element) => {
      const reaction = (window.reaction = {});
      let frames = 0;
      const count = () => requestAnimationFrame(() => (frames++, count()));
      document.addEventListener('click', count, { capture: true, once: true });
      const shown = new MutationObserver(() => (reaction.frames ??= frames));
      shown.observe(element, { attributes: true, attributeFilter: ['aria-pressed'] });
    });
    const { x, y, width, height } = await button.boundingBox();
    await page.mouse.click(x + width / 2, y + height / 2);
    // A page that does not keep up would not handle the click in time.
    await page.waitForFunction(() => 'frames' in window.reaction);
    const frames = await page.evaluate(() => window.reaction.frames);
    assert.ok(frames <= 2, `${frames} frames until it shows`);
    await page.getByRole('button', { name: /^Resume \(/ }).waitFor();
  },

  async 'stays responsive with long messages and invalid JSON'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    const trace = await Trace.start(driver, page);
    await choose(page, 'File');
    const file = join(driver.work, 'unfinished.json');
    await writeFile(file, `{"a":"${'x'.repeat(16_777_210)}`);
    await page.locator('input[type=file]').setInputFiles(file);
    await page.getByLabel('Send the file as text').check();
    await send(page);
    await shows(page, /^2 messages/);
    await rows(page).last().click();
    await shows(page, 'The beginning is shown');
    await page.getByRole('searchbox').fill('not in it');
    await shows(page, /^0 of 2 messages/);
    await page.getByRole('searchbox').fill('');
    await page.getByRole('button', { name: 'Clear' }).click();
    await choose(page, 'JSON');
    for (const text of ['['.repeat(10_000), `{"a":"${'x'.repeat(10_000)}`]) {
      await paste(message(page), text);
      await page.locator('#problem').filter({ hasText: /\S/ }).waitFor();
      assert.ok(await page.getByRole('button', { name: 'Send', exact: true }).isDisabled());
    }
    const longest = await trace.longest();
    if (longest !== null) {
      console.log(`  longest task: ${longest} ms of processor time`);
      // The browser itself copies and sends 16 MiB in one task.
      assert.ok(longest < 1500, `a task took ${longest} ms`);
    }
  },

  async 'pauses, resumes and clears'(driver) {
    const page = await driver.open('connect');
    await connect(page, `${driver.server.ws}/source?size=20&rate=200`);
    await shows(page, /^\d+ messages/);
    await page.getByRole('button', { name: 'Pause' }).click();
    await shows(page, /^Resume \([1-9]\d* new\)/);
    const shown = async () => (await page.locator('.messages > .note').first().textContent()).match(/^([\d,]+) of ([\d,]+) messages/).slice(1);
    const [paused, before] = await shown();
    await page.waitForFunction((text) => !document.querySelector('.messages > .note').textContent.includes(` of ${text} `), before);
    assert.equal((await shown())[0], paused);
    await page.getByRole('button', { name: /^Resume/ }).click();
    await shows(page, /^[\d,]+ messages/);
    await page.getByRole('button', { name: 'Disconnect', exact: true }).click();
    await shows(page, 'Closed with');
    await page.getByRole('button', { name: 'Clear' }).click();
    await shows(page, 'No messages yet');
  },

  async 'copies messages, and saves them'(driver) {
    const page = await driver.open('connect');
    await connect(page);
    const text = '{"a":"gr\u00fc\u00dfe"}';
    await message(page).fill(text);
    await send(page);
    await shows(page, /^2 messages/);
    await choose(page, 'Hex');
    await message(page).fill('00 ff 7f');
    await send(page);
    await shows(page, /^4 messages/);
    await choose(page, 'Text');
    for (const [row, expected] of [
      [1, text],
      [3, '00ff7f'],
    ]) {
      await rows(page).nth(row).click();
      await page.getByRole('button', { name: 'Copy' }).click();
      await shows(page, 'Copied.');
      await message(page).fill('');
      await message(page).press('Control+V');
      assert.equal(await message(page).inputValue(), expected);
    }
    // WebDriver BiDi reports no downloads.
    if (driver.name !== 'chromium') return;
    const download = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Save' }).click();
    const saved = await download;
    assert.equal(saved.suggestedFilename(), 'message.bin');
    assert.deepEqual([...(await readFile(await saved.path()))], [0, 0xff, 0x7f]);
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
    await joinRoom(page, hostile);
    await message(page).fill(hostile);
    await send(page);
    await rows(page).filter({ hasText: hostile }).waitFor();
    assert.equal(await page.evaluate(() => globalThis.ran), undefined);
    assert.equal(await page.locator('main img, main script').count(), 0);
  },
};
