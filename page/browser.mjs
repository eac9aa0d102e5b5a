// The page in Chromium, against the `wireloom` whose path is the argument. With `--screenshots FOLDER`, takes pictures instead.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile, writeFile, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [program, option, folder] = process.argv.slice(2);
const executablePath = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);
if (!executablePath) {
  console.log('skipped: Chromium is not installed: apt-get install chromium');
  process.exit(77);
}
const axe = await readFile(new URL('node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');

const serve = spawn(program, ['serve', '--listen', '127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'ignore'] });
const base = await new Promise((resolve, reject) => {
  let text = '';
  serve.stdout.on('data', (chunk) => {
    text += chunk;
    const match = / on (http:\/\/[^/\s]+)/.exec(text);
    if (match) resolve(match[1]);
  });
  serve.on('exit', () => reject(new Error(`the server did not start: ${text}`)));
});
const ws = base.replace(/^http/, 'ws');
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
const work = await mkdtemp(join(tmpdir(), 'page-'));

async function open(section, options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.problems = [];
  page.on('pageerror', (error) => page.problems.push(String(error)));
  page.on('console', (message) => /Content Security Policy/.test(message.text()) && page.problems.push(message.text()));
  await page.goto(`${base}/#${section}`);
  await page.getByRole('heading', { level: 1 }).waitFor();
  return page;
}

const status = (page, form) => page.getByRole('form', { name: form, exact: true }).locator('.state');
async function connect(page, url) {
  if (url) await page.getByLabel('URL', { exact: true }).fill(url);
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
  await status(page, 'Connection').filter({ hasText: /^Connected/ }).waitFor();
}
const send = (page) => page.getByRole('button', { name: 'Send', exact: true }).click();
const rows = (page) => page.locator('.row[role=option]');
const shows = (page, text, timeout = 10_000) => page.getByText(text, { exact: false }).first().waitFor({ timeout });

async function accessible(page, name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  assert.deepEqual(violations.map(({ id, nodes }) => `${name}: ${id} ${nodes.map(({ html }) => html).join(' ')}`), []);
}

const tests = {
  async 'echoes text, JSON, hex and a file'() {
    const page = await open('connect');
    await connect(page);
    await page.getByLabel('Message', { exact: true }).fill('grüße');
    await send(page);
    await shows(page, /^2 messages/);
    await page.getByLabel('JSON', { exact: true }).check({ force: true });
    await page.getByLabel('Message', { exact: true }).fill('{"a":');
    assert.ok(await page.getByRole('button', { name: 'Send', exact: true }).isDisabled());
    await page.getByLabel('Message', { exact: true }).fill('{"a":1}');
    await page.getByRole('button', { name: 'Format' }).click();
    assert.equal(await page.getByLabel('Message', { exact: true }).inputValue(), '{\n  "a": 1\n}');
    await send(page);
    await shows(page, /^4 messages/);
    await page.getByLabel('Hex', { exact: true }).check({ force: true });
    await page.getByLabel('Message', { exact: true }).fill('00 ff 7f');
    await send(page);
    await shows(page, /^6 messages/);
    assert.equal(await rows(page).last().locator('.data').innerText(), '00 ff 7f');
    await page.getByLabel('File', { exact: true }).check({ force: true });
    const file = join(work, 'large.bin');
    await writeFile(file, Buffer.alloc(16_777_216, 7));
    await page.locator('input[type=file]').setInputFiles(file);
    await send(page);
    await shows(page, /^8 messages/, 30_000);
    await rows(page).last().click();
    await shows(page, 'The beginning is shown');
    await page.getByRole('combobox', { name: 'Type' }).selectOption('binary');
    await page.getByRole('combobox', { name: 'Direction' }).selectOption('received');
    await shows(page, /^2 of 8 messages/);
    const download = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Export JSON' }).click();
    const exported = JSON.parse(await readFile(await (await download).path(), 'utf8'));
    assert.equal(exported.length, 2);
    assert.equal(Buffer.from(exported[0].base64, 'base64').toString('hex'), '00ff7f');
    return page;
  },
  async 'shows close codes, refusals and lost servers in words'() {
    const page = await open('connect');
    await connect(page);
    await page.getByText('Close with a code').click();
    await page.getByLabel('Code', { exact: true }).fill('4321');
    await page.getByLabel('Reason').fill('enough');
    await page.getByRole('button', { name: 'Close', exact: true }).click();
    await shows(page, 'Closed with 4321: Code of the application');
    await page.getByLabel('URL', { exact: true }).fill(`${ws}/nothing`);
    await page.getByRole('button', { name: 'Connect', exact: true }).click();
    await shows(page, 'The server answered 404');
    await page.getByLabel('URL', { exact: true }).fill(`${ws}/source?size=5&count=3`);
    await page.getByRole('button', { name: 'Connect', exact: true }).click();
    await shows(page, 'Closed with 1000: Normal closure');
    await page.getByLabel('URL', { exact: true }).fill('ws://127.0.0.1:1/');
    await page.getByRole('button', { name: 'Connect', exact: true }).click();
    await shows(page, 'the attempt failed');
    return page;
  },
  async 'measures the round trip and has tabs'() {
    const page = await open('connect');
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
  async 'keeps every row of 1,000 messages a second for 10 s, without long tasks'() {
    const page = await open('connect');
    await page.evaluate(() => {
      globalThis.longest = 0;
      new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) globalThis.longest = Math.max(globalThis.longest, entry.duration);
      }).observe({ type: 'longtask' });
    });
    await connect(page, `${ws}/source?size=64&rate=1000&count=10000`);
    await shows(page, /^10,000 messages/, 40_000);
    console.log(`  longest task: ${await page.evaluate(() => globalThis.longest)} ms (0: none above 50 ms)`);
    assert.ok((await rows(page).count()) < 100, 'the list is virtual');
    await page.getByRole('listbox').press('Home');
    assert.equal(await page.locator('.row[aria-selected=true]').getAttribute('aria-posinset'), '1');
    return page;
  },
  async 'shows hostile messages and room names as text'() {
    const hostile = '<img src=x onerror="window.ran=1"><script>window.ran=1</script>';
    const page = await open('connect');
    await connect(page);
    await page.getByLabel('Message', { exact: true }).fill(hostile);
    await send(page);
    await shows(page, /^2 messages/);
    assert.equal(await rows(page).last().locator('.data').innerText(), hostile);
    await rows(page).last().click();
    assert.equal(await page.getByLabel('Content').innerText(), hostile);
    await page.goto(`${base}/#rooms`);
    await page.getByRole('textbox', { name: 'Room' }).fill(hostile);
    await page.getByRole('button', { name: 'Join' }).click();
    await page.waitForTimeout(500);
    assert.equal(await page.evaluate(() => globalThis.ran), undefined);
    assert.equal(await page.locator('main img, main script').count(), 0);
    return page;
  },
  async 'joins two pages in a room, which recovers what was missed'() {
    const [a, b] = [await open('rooms'), await open('rooms')];
    for (const page of [a, b]) {
      await page.getByRole('textbox', { name: 'Room' }).fill('test');
      await page.getByRole('button', { name: 'Join' }).click();
      await status(page, 'Room').filter({ hasText: 'Joined' }).waitFor();
    }
    const say = async (text) => {
      await a.getByLabel('Message', { exact: true }).fill(text);
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
    return b;
  },
  async 'puts load on the server and watches it'() {
    const page = await open('load');
    await page.getByRole('button', { name: 'Start' }).click();
    await page.getByText('HTTP/1.1', { exact: true }).waitFor();
    await page.getByRole('img', { name: /Plot of Latency.*p50 \d/ }).waitFor();
    await page.getByRole('link', { name: 'Server' }).click();
    await page.getByRole('img', { name: /Plot of Messages per second.*in [1-9]/ }).waitFor();
    return page;
  },
  async 'has no violations of accessibility'() {
    for (const colorScheme of ['light', 'dark']) {
      for (const width of [360, 1280]) {
        const page = await open('connect', { colorScheme, viewport: { width, height: 800 }, bypassCSP: true });
        await connect(page);
        await page.getByLabel('Message', { exact: true }).fill('hello');
        await send(page);
        await shows(page, /^2 messages/);
        await rows(page).last().click();
        for (const section of ['connect', 'rooms', 'load', 'server']) {
          await page.goto(`${base}/#${section}`);
          await page.waitForTimeout(300);
          await accessible(page, `${section} ${colorScheme} ${width}`);
          assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${section} fits ${width} pixels`);
        }
        await page.context().close();
      }
    }
  },
};

/** Pictures of each section that the documentation shows. */
async function screenshots() {
  for (const colorScheme of ['light', 'dark']) {
    for (const [device, viewport] of [['desktop', { width: 1200, height: 760 }], ['phone', { width: 360, height: 740 }]]) {
      const page = await open('connect', { colorScheme, viewport });
      const take = async (section) => {
        await page.evaluate(() => scrollTo(0, 0));
        await page.screenshot({ path: join(folder, `${section}-${device}-${colorScheme}.png`), fullPage: device === 'phone' });
      };
      await connect(page);
      await page.getByLabel('Measure the round-trip time by echo').check();
      for (const text of ['hello', '{"event":"price","symbol":"ACME","value":41.7}', 'grüße', '{"event":"trade","id":7021}']) {
        await page.getByLabel('Message', { exact: true }).fill(text);
        await send(page);
      }
      await shows(page, /^8 messages/);
      await page.waitForTimeout(6000);
      await take('connect');
      await page.goto(`${base}/#rooms`);
      await page.getByRole('button', { name: 'Join' }).click();
      await status(page, 'Room').filter({ hasText: 'Joined' }).waitFor();
      await page.getByLabel('Message', { exact: true }).fill(`hello from a ${device}`);
      await send(page);
      await page.waitForTimeout(300);
      await take('rooms');
      await page.goto(`${base}/#load`);
      await page.getByRole('button', { name: 'Start' }).click();
      await page.waitForTimeout(6000);
      await take('load');
      await page.goto(`${base}/#server`);
      await page.waitForTimeout(6000);
      await take('server');
      await page.context().close();
    }
  }
}

let failed = 0;
try {
  if (option === '--screenshots') await screenshots();
  else {
    for (const [name, run] of Object.entries(tests)) {
      try {
        const page = await run();
        assert.deepEqual(page?.problems ?? [], []);
        await page?.context().close();
        console.log(`ok ${name}`);
      } catch (error) {
        failed++;
        console.log(`FAILED ${name}: ${error.stack}`);
      }
    }
  }
} finally {
  await browser.close();
  serve.kill();
  await rm(work, { recursive: true });
}
process.exit(failed ? 1 : 0);
