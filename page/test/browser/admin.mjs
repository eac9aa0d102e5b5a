/** Tests of the admin page: channels, for operators who have logged in. */

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { accessible, joinRoom, publishDeep, rows, shows, status } from './harness.mjs';

const KEY = 'a key for tests';
const HUB = `
[client]
anonymous = true
[api]
key = "${KEY}"
[[namespace]]
name = "rooms"
subscribe = "anyone"
publish = "anyone"
presence = true
history_size = 100
history_ttl = "10m"
[[namespace]]
name = "plain"
subscribe = "anyone"
`;

/** Serves channels alone, with an address for operators. */
async function serve(driver, hub) {
  const file = join(driver.work, 'admin.toml');
  await writeFile(file, hub);
  await driver.serve(['--hub', file, '--demo', '--admin', '127.0.0.1:0']);
}

/** The part Server at the address for operators. */
export async function openAdmin(driver, options = {}) {
  return driver.open('server', { base: driver.server.admin, ...options });
}

export async function logIn(page) {
  await page.getByLabel('API key').fill(KEY);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByRole('region', { name: 'Channels', exact: true }).waitFor();
}

/** A member of a room, in a page of its own. */
export async function member(driver, room) {
  const page = await driver.open('rooms');
  await joinRoom(page, room);
  return page;
}

export const serveAdmin = (driver) => serve(driver, HUB);

const opened = (page) => page.getByRole('region', { name: 'Opened channel' });

const channelButton = (page, name) => page.getByRole('button', { name, exact: true });
const heading = (page, name) => opened(page).getByRole('heading', { name }).waitFor();

/** Asks about a channel by `ask`; the first answer arrives after what is done `meanwhile`. In the page: WebDriver BiDi shows no bodies. */
async function late(page, ask, meanwhile) {
  await page.evaluate(() => {
    const { fetch } = window;
    window.fetch = async (...args) => {
      const isHeld = args[0].endsWith('/presence');
      if (isHeld) window.fetch = fetch;
      const response = await fetch(...args);
      if (isHeld) {
        await response.clone().text();
        await new Promise((resolve) => (window.answer = resolve));
      }
      return response;
    };
  });
  await ask();
  await page.waitForFunction(() => window.answer);
  await meanwhile();
  // The page has read the answer before it shows some frames.
  await page.evaluate(async () => {
    window.answer();
    delete window.answer;
    for (let frame = 0; frame < 3; frame++) await new Promise((resolve) => requestAnimationFrame(resolve));
  });
}

export default {
  async 'lists channels, publishes and disconnects for an operator'(driver) {
    await serve(driver, HUB);
    const client = await member(driver, 'lobby');
    const page = await openAdmin(driver);
    // Browsers report the response to a wrong key.
    page.expected = /403/;
    await page.getByLabel('API key').fill('wrong');
    await page.getByRole('button', { name: 'Log in' }).click();
    await shows(page, 'this is not its API key');
    await logIn(page);
    assert.equal(await page.evaluate(() => document.cookie), '');

    await page.getByRole('button', { name: 'rooms:lobby' }).click();
    await opened(page).getByText('Subscribers (1)').waitFor();
    const text = opened(page).getByLabel('Publication, as JSON');
    const publish = opened(page).getByRole('button', { name: 'Publish' });
    await text.fill('{"n": ');
    await publish.click();
    await shows(page, 'This is not JSON');
    await text.fill('{"n": 12345678901234567890}');
    await publish.click();
    await shows(page, 'Published.');
    const digits = { hasText: /"n": ?12345678901234567890}/ };
    await rows(client).filter(digits).waitFor();
    await opened(page).locator('.history li').filter(digits).waitFor();
    await text.fill('{"n": ');
    await publish.click();
    await shows(page, 'This is not JSON');
    await page.getByText('Published.').waitFor({ state: 'detached' });

    await opened(page).getByRole('button', { name: /^Disconnect / }).click();
    await shows(page, /^Disconnected /);
    await status(client, 'Room').filter({ hasText: 'force disconnect' }).waitFor();

    // A channel without subscribers, and one that keeps nothing.
    for (const [name, words] of [
      ['rooms:empty', ['Subscribers (0)', 'Empty.']],
      ['plain:a', ['no presence', 'no history']],
    ]) {
      await page.getByLabel('Name of a channel').fill(name);
      await page.getByRole('button', { name: 'Open' }).click();
      for (const word of words) await opened(page).getByText(word).waitFor();
    }
    await page.getByLabel('Name of a channel').fill('nowhere:a');
    await page.getByRole('button', { name: 'Open' }).click();
    await shows(page, 'unknown channel (102)');

    // The session outlives the page, and ends when the operator says so.
    await page.reload();
    await page.getByRole('button', { name: 'Log out' }).click();
    await page.getByLabel('API key').waitFor();
    await page.reload();
    await page.getByLabel('API key').waitFor();
  },

  async 'shows what was asked for last, whichever answer is late'(driver) {
    await serve(driver, HUB);
    for (const room of ['slow', 'fast']) await member(driver, room);
    const page = await openAdmin(driver);
    await logIn(page);
    const openFast = async () => {
      await channelButton(page, 'rooms:fast').click();
      await heading(page, 'rooms:fast');
      await opened(page).getByLabel('Publication, as JSON').fill('"typed"');
    };
    for (const ask of [() => channelButton(page, 'rooms:slow').click(), () => page.getByRole('button', { name: 'Refresh' }).click()]) {
      await late(page, ask, openFast);
      await heading(page, 'rooms:fast');
      assert.equal(await opened(page).getByLabel('Publication, as JSON').inputValue(), '"typed"');
      await channelButton(page, 'rooms:slow').click();
      await heading(page, 'rooms:slow');
    }
  },

  async 'shows nothing of a session that has ended in the next one'(driver) {
    await serve(driver, HUB);
    await member(driver, 'slow');
    const page = await openAdmin(driver);
    await logIn(page);
    await late(
      page,
      () => channelButton(page, 'rooms:slow').click(),
      async () => {
        await page.getByRole('button', { name: 'Log out' }).click();
        await page.getByLabel('API key').waitFor();
      },
    );
    await logIn(page);
    assert.equal(await opened(page).count(), 0);
  },

  async 'opens a channel whose history is nested too deeply'(driver) {
    await serve(driver, HUB);
    await publishDeep(await member(driver, 'deep'), 'rooms:deep');
    const page = await openAdmin(driver);
    await logIn(page);
    await page.getByRole('button', { name: 'rooms:deep' }).click();
    await opened(page).locator('.history li').filter({ hasText: 'nested too deeply' }).waitFor();
  },

  async 'shows characters that reorder the text in the names of channels'(driver) {
    await serve(driver, HUB);
    await member(driver, 'a\u202eevil');
    const page = await openAdmin(driver);
    await logIn(page);
    await page.getByRole('button', { name: 'rooms:a\\u202eevil' }).click();
    await opened(page).getByRole('heading', { name: 'rooms:a\\u202eevil' }).waitFor();
    await opened(page).getByText('Subscribers (1)').waitFor();
  },

  async 'offers a login at the address for operators alone'(driver) {
    await serve(driver, HUB);
    const page = await driver.open('server');
    await shows(page, 'This server does not show its figures here');
    assert.equal(await page.getByLabel('API key').count(), 0);
    await writeFile(join(driver.work, 'admin.toml'), HUB.replace(/\[api\]\nkey = .*/, ''));
    driver.server.process.kill('SIGHUP');
    await driver.server.logged(/was loaded again/);
    await shows(await openAdmin(driver), 'set a key: [api] key');
  },

  async 'has no violations of accessibility for operators'(driver) {
    await serve(driver, HUB);
    await member(driver, 'lobby');
    for (const colorScheme of driver.name === 'chromium' ? ['light', 'dark'] : [undefined]) {
      for (const width of [360, 1280]) {
        const page = await openAdmin(driver, { colorScheme, viewport: { width, height: 800 }, bypassCSP: true });
        await page.getByLabel('API key').waitFor();
        await accessible(page, `login ${colorScheme} ${width}`);
        await logIn(page);
        await page.getByRole('button', { name: 'rooms:lobby' }).click();
        await opened(page).waitFor();
        await accessible(page, `channels ${colorScheme} ${width}`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `fits ${width} pixels`);
      }
    }
  },
};
