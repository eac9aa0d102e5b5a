// The page in Chromium and Firefox, against the `wireloom` whose path is the argument: `browser.mjs PATH [BROWSER…] [--only WORDS]…`.
// With `--screenshots FOLDER`, takes pictures instead. Exits with 77 when no browser is installed.

import assert from 'node:assert/strict';
import { parseArgs } from 'node:util';
import adminTests from './test/browser/admin.mjs';
import connectTests from './test/browser/connect.mjs';
import { Driver, find, Server } from './test/browser/harness.mjs';
import messageTests from './test/browser/messages.mjs';
import pageTests from './test/browser/page.mjs';
import protocolTests from './test/browser/protocols.mjs';
import reportTests from './test/browser/report.mjs';
import sectionTests from './test/browser/sections.mjs';
import { screenshots } from './test/browser/screenshots.mjs';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { screenshots: { type: 'string' }, only: { type: 'string', multiple: true, default: [] } },
});
const [program, ...asked] = positionals;
const OPTIONS = ['--log-level', 'debug', '--max-message', '16777216', '--slow-timeout', '5s', '--grace', '1s'];
/** Longer than any test takes. */
const DEADLINE_MS = 240_000;
const all = Object.entries({ ...connectTests, ...messageTests, ...sectionTests, ...pageTests, ...protocolTests, ...reportTests, ...adminTests });
for (const words of values.only) {
  assert.ok(
    all.some(([name]) => name.includes(words)),
    `no test has these words: ${words}`,
  );
}
const tests = values.only.length === 0 ? all : all.filter(([name]) => values.only.some((words) => name.includes(words)));
let failed = 0;
let ran = 0;

/** Each test has a server and pages of its own, so that none depends on how another one ended. */
async function test(driver, name, run) {
  ran++;
  const begin = performance.now();
  driver.server = new Server(program, OPTIONS);
  let timer;
  try {
    if (!driver.isRunning) await driver.launch();
    await driver.server.start();
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`it did not end within ${DEADLINE_MS / 1000} s`)), DEADLINE_MS);
    });
    // A test that cannot run in this browser returns the reason.
    const reason = await Promise.race([run(driver), late]);
    assert.deepEqual(await driver.reset(), []);
    console.log(reason ? `limited: ${driver.name}: ${name}: ${reason}` : `ok ${driver.name}: ${name} (${((performance.now() - begin) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed++;
    console.log(`FAILED ${driver.name}: ${name}: ${error.stack}`);
  } finally {
    clearTimeout(timer);
    await driver.reset();
    await driver.server.stop('SIGKILL');
  }
}

for (const name of values.screenshots ? ['chromium'] : asked.length > 0 ? asked : ['chromium', 'firefox']) {
  const { program: found, remedy } = find(name);
  if (!found) {
    console.log(`skipped: ${name}: not installed: ${remedy}`);
    continue;
  }
  const driver = await new Driver(name).launch();
  try {
    if (values.screenshots) await test(driver, 'takes the pictures', () => screenshots(driver, values.screenshots));
    else for (const [title, run] of tests) await test(driver, title, run);
  } finally {
    await driver.close();
  }
}
console.log(`${ran} ran, ${failed} failed`);
process.exit(ran === 0 ? 77 : failed ? 1 : 0);
