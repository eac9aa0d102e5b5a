import assert from 'node:assert/strict';

/** The tasks of a page's main thread (Chromium). Their processor time is compared, which other programs do not disturb. */
export class Trace {
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
