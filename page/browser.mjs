// The page in Chromium and Firefox, against the `wireloom` whose path is the argument: `browser.mjs PATH [BROWSER…] [--only WORDS]`.
// With `--screenshots FOLDER`, takes pictures instead. Exits with 77 when no browser is installed.

import assert from 'node:assert/strict';
import { parseArgs } from 'node:util';
import connectTests from './test/browser/connect.mjs';
import { Driver, find, Server } from './test/browser/harness.mjs';
import otherTests from './test/browser/others.mjs';
import protocolTests from './test/browser/protocols.mjs';
import { screenshots } from './test/browser/screenshots.mjs';

const { values, positionals } = parseArgs({ allowPositionals: true, options: { screenshots: { type: 'string' }, only: { type: 'string' } } });
const [program, ...asked] = positionals;
const server = await new Server(program, ['--log-level', 'debug', '--max-message', '16777216', '--slow-timeout', '5s', '--grace', '1s']).start();
const tests = Object.entries({ ...connectTests, ...otherTests, ...protocolTests }).filter(([name]) => name.includes(values.only ?? ''));
let failed = 0;
let ran = 0;

async function test(driver) {
  for (const [name, run] of tests) {
    ran++;
    try {
      const page = await run(driver);
      assert.deepEqual(page?.problems ?? [], []);
      await page?.context().close();
      console.log(`ok ${driver.name}: ${name}`);
    } catch (error) {
      failed++;
      console.log(`FAILED ${driver.name}: ${name}: ${error.stack}`);
    }
  }
}

try {
  for (const name of values.screenshots ? ['chromium'] : asked.length > 0 ? asked : ['chromium', 'firefox']) {
    const { program: found, remedy } = find(name);
    if (!found) {
      console.log(`skipped ${name}: not installed: ${remedy}`);
      continue;
    }
    const driver = await new Driver(name, server).launch();
    try {
      if (values.screenshots) {
        await screenshots(driver, values.screenshots);
        ran++;
      } else await test(driver);
    } finally {
      await driver.close();
    }
  }
} finally {
  await server.stop('SIGKILL');
}
console.log(`${ran} ran, ${failed} failed`);
process.exit(ran === 0 ? 77 : failed ? 1 : 0);
