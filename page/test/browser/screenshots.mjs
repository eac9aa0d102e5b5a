/** Pictures of each section for the documentation. */

import { join } from 'node:path';
import { logIn, member, openAdmin, serveAdmin } from './admin.mjs';
import { connect, message, send, shows, status } from './harness.mjs';
import { report } from './report.mjs';

const DEVICES = [
  ['desktop', { width: 1200, height: 760 }],
  ['phone', { width: 360, height: 740 }],
];

export async function screenshots(driver, folder) {
  for (const colorScheme of ['light', 'dark']) {
    for (const [device, viewport] of DEVICES) {
      const page = await driver.open('connect', { colorScheme, viewport });
      const take = async (section) => {
        await page.evaluate(() => scrollTo(0, 0));
        await page.screenshot({ path: join(folder, `${section}-${device}-${colorScheme}.png`), fullPage: device === 'phone' });
      };
      await connect(page);
      await page.getByLabel('Measure the round-trip time by echo').check();
      for (const text of ['hello', '{"event":"price","symbol":"ACME","value":41.7}', 'grüße', '{"event":"trade","id":7021}']) {
        await message(page).fill(text);
        await send(page);
      }
      await shows(page, /^8 messages/);
      await page.waitForTimeout(6000);
      await take('connect');
      await page.goto(`${driver.server.http}/#rooms`);
      await page.getByRole('button', { name: 'Join' }).click();
      await status(page, 'Room').filter({ hasText: 'Joined' }).waitFor();
      await message(page).fill(`hello from a ${device}`);
      await send(page);
      await page.waitForTimeout(300);
      await take('rooms');
      await page.goto(`${driver.server.http}/#load`);
      await page.getByRole('button', { name: 'Start' }).click();
      await page.waitForTimeout(6000);
      await take('load');
      await page.goto(`${driver.server.http}/#server`);
      await page.waitForTimeout(6000);
      await take('server');
      await driver.reset();
    }
  }
  await operators(driver, folder);
  const { url } = await report(driver, ['--connections', '50', '--rate', '5000', '--duration', '15']);
  const page = await driver.newPage({ viewport: DEVICES[0][1], colorScheme: 'light' });
  await page.goto(url);
  await page.screenshot({ path: join(folder, 'report-desktop-light.png'), fullPage: true });
}

/** The part of Server for operators. */
export async function operators(driver, folder) {
  await serveAdmin(driver);
  for (const room of ['lobby', 'lobby', 'support', 'news']) await member(driver, room);
  for (const colorScheme of ['light', 'dark']) {
    for (const [device, viewport] of DEVICES) {
      const page = await openAdmin(driver, { colorScheme, viewport });
      await logIn(page);
      await page.getByRole('button', { name: 'rooms:lobby' }).click();
      for (const text of ['{"text":"The server restarts at 10 pm"}', '{"text":"It is back"}']) {
        await page.getByLabel('Publication, as JSON').fill(text);
        await page.getByRole('button', { name: 'Publish' }).click();
        await shows(page, 'Published.');
      }
      await page.waitForTimeout(3000);
      await page.evaluate(() => scrollTo(0, 0));
      await page.screenshot({ path: join(folder, `admin-${device}-${colorScheme}.png`), fullPage: device === 'phone' });
    }
  }
}
