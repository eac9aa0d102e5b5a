/** Tests of the page as a whole: its policy, its design, and ways to use it. */

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { accessible, connect, Driver, message, rows, send, shows, status, until } from './harness.mjs';

const SECTIONS = { connect: 'Connect to a WebSocket', rooms: 'Meet in a room', load: 'Put load on the server', server: 'Watch the server' };

/** A section in use. */
const USES = {
  async rooms(page) {
    await page.getByRole('button', { name: 'Join' }).click();
    await status(page, 'Room').filter({ hasText: 'Joined' }).waitFor();
    await message(page).fill('hello');
    await send(page);
    await shows(page, /^[1-9]\d* messages?/);
  },
  async load(page) {
    await page.getByRole('button', { name: 'Start' }).click();
    await page.getByRole('img', { name: /Plot of Latency.*p50 \d/ }).waitFor();
  },
  async server(page) {
    await shows(page, 'Live, each second');
  },
};

/** Presses a key until the element has the focus, which must be visible. */
async function moveTo(page, target, key = 'Tab') {
  const hasFocus = () => target.evaluate((element) => element === document.activeElement);
  for (let turn = 0; turn < 40 && !(await hasFocus()); turn++) await page.keyboard.press(key);
  assert.ok(await hasFocus(), `${target} can be reached by ${key}`);
  const outlines = await target.evaluate((element) => [element, element.nextElementSibling ?? element].map((one) => getComputedStyle(one).outlineStyle));
  assert.ok(outlines.includes('solid'), `the focus on ${target} is visible`);
}

export default {
  async 'works by keyboard alone'(driver) {
    const page = await driver.open('connect');
    const button = (name) => page.getByRole('button', { name, exact: true });
    await moveTo(page, page.getByLabel('URL', { exact: true }));
    await page.keyboard.press('Enter');
    await status(page, 'Connection').filter({ hasText: /^Connected/ }).waitFor();
    await moveTo(page, message(page));
    await page.keyboard.type('by keyboard');
    await page.keyboard.press('Control+Enter');
    await shows(page, /^2 messages/);
    await moveTo(page, page.getByRole('radio', { name: 'Text' }), 'Shift+Tab');
    await page.keyboard.press('ArrowRight');
    assert.ok(await page.getByRole('radio', { name: 'JSON' }).isChecked());
    await moveTo(page, page.getByRole('listbox'));
    await page.keyboard.press('End');
    await page.getByRole('region', { name: 'Selected message' }).filter({ hasText: 'by keyboard' }).waitFor();
    await moveTo(page, button('Copy'));
    await page.keyboard.press('Enter');
    await shows(page, 'Copied.');
    await moveTo(page, button('Disconnect'), 'Shift+Tab');
    await page.keyboard.press('Space');
    await shows(page, 'Closed with 1000');
    await moveTo(page, page.getByRole('link', { name: 'Rooms' }), 'Shift+Tab');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { level: 1, name: SECTIONS.rooms }).waitFor();
    await moveTo(page, button('Join'));
    await page.keyboard.press('Enter');
    await status(page, 'Room').filter({ hasText: 'Joined' }).waitFor();
    await moveTo(page, page.getByRole('link', { name: 'Load' }), 'Shift+Tab');
    await page.keyboard.press('Enter');
    await moveTo(page, button('Start'));
    await page.keyboard.press('Enter');
    await status(page, 'Load').filter({ hasText: 'Running on 10 of 10' }).waitFor();
    await page.keyboard.press('Enter');
    await status(page, 'Load').filter({ hasText: 'Stopped' }).waitFor();
  },

  async 'has landmarks, headings and live regions'(driver) {
    const page = await driver.open('connect');
    for (const [section, title] of Object.entries(SECTIONS)) {
      await page.goto(`${driver.server.http}/#${section}`);
      await page.getByRole('heading', { level: 1, name: title }).waitFor();
      // It follows the heading.
      await page.waitForFunction((title) => document.title === title, `${section[0].toUpperCase()}${section.slice(1)} \u00b7 Wireloom`);
      for (const role of ['banner', 'navigation', 'main', 'contentinfo']) assert.equal(await page.getByRole(role).count(), 1, `${section}: ${role}`);
      assert.equal(await page.locator('nav [aria-current=page]').getAttribute('href'), `#${section}`);
      assert.ok((await page.getByRole('status').count()) > 0, `${section} announces its state`);
    }
  },

  async 'shows what a section is for before there is anything in it'(driver) {
    const page = await driver.open('connect');
    await shows(page, 'No messages yet. Connect, then send one.');
    await page.goto(`${driver.server.http}/#rooms`);
    await shows(page, 'Join a room to see its messages, the newest 100 of its history first.');
    await page.goto(`${driver.server.http}/#load`);
    await shows(page, 'Throughput and latency appear here.');
    // The server takes its time.
    let answer;
    const answered = new Promise((resolve) => (answer = resolve));
    await page.route('**/livez*', async (route) => {
      await answered;
      await route.continue().catch(() => {});
    });
    await page.goto(`${driver.server.http}/#server`);
    await shows(page, 'Loading the figures');
    answer();
    await shows(page, 'Live, each second');
    await page.getByRole('log').filter({ hasText: 'listening' }).waitFor();
  },

  async 'shows the figures while publications cannot be stored'(driver) {
    await driver.serve(['--data', join(driver.work, 'full')], { fileKib: 4096 });
    const { server } = driver;
    const publisher = await driver.open('rooms');
    // A refused publication ends the connection to the room.
    publisher.expected = /WebSocket/;
    await publisher.evaluate((url) => {
      const publish = () => {
        const socket = new WebSocket(url);
        const timer = setInterval(() => socket.readyState === WebSocket.OPEN && socket.send('x'.repeat(200_000)), 20);
        socket.onclose = () => {
          clearInterval(timer);
          setTimeout(publish, 100);
        };
      };
      publish();
    }, `${server.ws}/rooms/full`);
    const health = async () => (await fetch(`${server.http}/healthz`)).status;
    await until(async () => (await health()) === 503);
    const page = await driver.open('server');
    await shows(page, 'Live, each second');
    const polled = await driver.open('server', { extraHTTPHeaders: { 'X-Forwarded-For': '192.0.2.1' } });
    await shows(polled, 'The figures of /metrics');
    for (const one of [page, polled]) await one.getByRole('alert').filter({ hasText: 'Publications, presence or events cannot be stored' }).waitFor();
    await page.goto(`${server.http}/#connect`);
    await connect(page);
    assert.equal(await health(), 503);
  },

  async 'loads nothing from elsewhere, and runs nothing inline'(driver) {
    const page = await driver.open('connect');
    // The browser reports the script that it did not run.
    page.expected = /Content.Security.Policy/i;
    const requests = [];
    page.on('request', (request) => requests.push(request.url()));
    const response = await page.reload();
    for (const section of Object.keys(SECTIONS)) {
      await page.goto(`${driver.server.http}/#${section}`);
      await page.getByRole('heading', { level: 1, name: SECTIONS[section] }).waitFor();
    }
    await shows(page, 'Live, each second');
    assert.ok(requests.length >= 3, `${requests}`);
    for (const url of requests) assert.ok(url.startsWith(`${driver.server.http}/`) || /^(data|ws):/.test(url), url);
    const policy = response.headers()['content-security-policy'];
    assert.match(policy, /default-src 'none'; script-src 'self'; style-src 'self';/);
    assert.doesNotMatch(policy, /unsafe|\*/);
    const html = await response.text();
    assert.doesNotMatch(html, /<script(?![^>]* src=)|<style|\son\w+\s*=|\sstyle\s*=|javascript:/i);
    await page.evaluate(() => {
      document.addEventListener('securitypolicyviolation', ({ violatedDirective }) => (window.blocked = violatedDirective));
      const script = document.createElement('script');
      script.textContent = 'globalThis.ran = 1';
      document.body.append(script);
    });
    // A script that is allowed runs when it is appended.
    assert.equal(await page.evaluate(() => globalThis.ran), undefined);
    await page.waitForFunction(() => window.blocked);
    assert.match(await page.evaluate(() => window.blocked), /^script-src/);
  },

  async 'explains itself without JavaScript'(driver) {
    if (driver.name !== 'chromium') return 'WebDriver BiDi cannot switch it off';
    const page = await driver.open('connect', { javaScriptEnabled: false });
    await page.getByRole('heading', { level: 1, name: 'Wireloom is serving' }).waitFor();
    assert.match(await page.locator('noscript p').first().textContent(), /for which it needs JavaScript/);
    assert.equal(await page.getByRole('link', { name: '/metrics' }).getAttribute('href'), '/metrics');
  },

  async 'moves nothing for those who want no motion'(driver) {
    for (const [reducedMotion, moves] of [
      ['reduce', false],
      ['no-preference', true],
    ]) {
      // WebDriver BiDi cannot ask for it, but a preference of the browser can.
      const prefs = { 'ui.prefersReducedMotion': reducedMotion === 'reduce' ? 1 : 0 };
      const own = driver.name === 'chromium' ? driver : await new Driver(driver.name, driver.server).launch({ prefs });
      const page = await own.open('connect', driver === own ? { reducedMotion } : {});
      const moving = await page.evaluate(() =>
        [...document.querySelectorAll('*')].some((element) => {
          const { transitionDuration, animationName } = getComputedStyle(element);
          return animationName !== 'none' || transitionDuration.split(', ').some((time) => time !== '0s');
        }),
      );
      if (own !== driver) await own.close();
      assert.equal(moving, moves, reducedMotion);
    }
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
          await page.getByRole('heading', { level: 1, name: SECTIONS[section] }).waitFor();
          await accessible(page, `${section} ${colorScheme} ${width} at first`);
          await USES[section]?.(page);
          await accessible(page, `${section} ${colorScheme} ${width}`);
          // The load would go on in the other sections.
          if (section === 'load') await page.getByRole('button', { name: 'Stop' }).click();
          assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${section} fits ${width} pixels`);
        }
      }
    }
  },
};
