/** Tests of the page that `wireloom load --html` writes. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { accessible, shows, until } from './harness.mjs';

const DEVICES = { phone: { width: 360, height: 740 }, desktop: { width: 1280, height: 800 } };

/** Loads the server. The address of the page with the result. */
export async function report(driver, options, meanwhile = async () => {}) {
  const file = join(driver.work, 'report.html');
  const args = ['load', `${driver.server.ws}/echo`, '--quiet', '--html', file, ...options];
  const load = spawn(driver.server.program, args, { stdio: ['ignore', 'ignore', 'inherit'] });
  const exited = new Promise((resolve) => load.once('exit', resolve));
  await meanwhile();
  return { code: await exited, url: pathToFileURL(file).href };
}

/** The plots that are visible, by their names. */
function plots(page) {
  return page.getByRole('img').evaluateAll((images) =>
    images
      .filter((image) => image.checkVisibility())
      .map((image) => {
        const { left, right, height } = image.getBoundingClientRect();
        const texts = [...image.querySelectorAll('text')].map((text) => ({ label: text.textContent.trim(), box: text.getBoundingClientRect() }));
        const overlap = ({ box: a }, { box: b }) => Math.min(a.right - b.left, b.right - a.left) > 3 && Math.min(a.bottom - b.top, b.bottom - a.top) > 3;
        const unclear = texts.filter((text, index) => texts.slice(0, index).some((other) => overlap(text, other) || text.label === other.label && text.box.bottom === other.box.bottom));
        return {
          name: image.getAttribute('aria-label'),
          fits: left >= 0 && right <= innerWidth && height > 150,
          lines: image.querySelectorAll('polyline[stroke="#0969DA"]').length,
          textHeight: Math.min(...texts.map(({ box }) => box.height)),
          unclear: unclear.map(({ label }) => label),
        };
      }),
  );
}

export default {
  async 'reports a load on phones, desktops and paper'(driver) {
    const { code, url } = await report(driver, ['--rate', '200', '--duration', '3', '--connections', '5']);
    assert.equal(code, 0);
    for (const [device, viewport] of Object.entries(DEVICES)) {
      for (const colorScheme of driver.name === 'chromium' ? ['light', 'dark'] : [undefined]) {
        const where = `${device} ${colorScheme}`;
        const page = await driver.newPage({ viewport, colorScheme, bypassCSP: true });
        await page.goto(url);
        await page.getByRole('heading', { level: 1, name: `Load on ${driver.server.ws}/echo` }).waitFor();
        await shows(page, 'Scenario echo, 5 connections, open loop at 200 messages per second');
        await page.getByRole('heading', { level: 2, name: 'Warnings' }).waitFor();
        await shows(page, 'latencies are too few for p99');
        const found = await plots(page);
        assert.deepEqual(
          found.map(({ name }) => name),
          ['Latency by percentile', 'Messages per second', 'Latency over time', 'Connections'],
          where,
        );
        for (const { name, fits, lines, textHeight, unclear } of found) {
          assert.ok(fits && lines >= 1 && textHeight >= 9, `${where} ${name}: ${JSON.stringify({ fits, lines, textHeight })}`);
          assert.deepEqual(unclear, [], `${where} ${name}: labels that overlap, or that there are twice`);
        }
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${where} fits`);
        await accessible(page, where);
        const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
        assert.equal(await background(), colorScheme === 'dark' ? 'rgb(13, 17, 23)' : 'rgb(255, 255, 255)');
        // WebDriver BiDi has no media.
        if (driver.name !== 'chromium') continue;
        await page.emulateMedia({ media: 'print', colorScheme });
        assert.equal(await background(), 'rgb(255, 255, 255)', `${where}, printed`);
        assert.ok(await page.locator('svg.wide').first().isVisible());
        assert.ok(await page.locator('svg.narrow').first().isHidden());
        assert.equal(await page.locator('figure').first().evaluate((figure) => getComputedStyle(figure).breakInside), 'avoid');
        const pdf = (await page.pdf({ format: 'A4' })).toString('latin1');
        const sheets = pdf.match(/\/Type\s*\/Page\b/g).length;
        assert.ok(sheets >= 1 && sheets <= 4, `${sheets} sheets`);
      }
    }
  },

  async 'reports the errors of a load'(driver) {
    const { code, url } = await report(driver, ['--rate', '200', '--duration', '3600', '--connections', '5'], async () => {
      await driver.server.counts('wireloom_websockets_open', 5);
      // Some seconds of the report.
      await until(async () => (await driver.server.metric('wireloom_messages_total{direction="in",protocol="http1"}')) > 400);
      await driver.server.stop('SIGKILL');
    });
    assert.equal(code, 5);
    const page = await driver.newPage();
    await page.goto(url);
    const errors = (await plots(page)).find(({ name }) => name === 'Errors per second');
    assert.equal(errors?.lines, 1, JSON.stringify(await plots(page)));
    await page.locator('.cards div').filter({ hasText: 'Errors' }).locator('.bad').waitFor();
  },
};
