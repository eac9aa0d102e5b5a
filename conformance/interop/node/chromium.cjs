// Chromium, driven over its debugging pipe: an object a message, 0 after each.
'use strict';

const assert = require('node:assert');
const { spawn } = require('node:child_process');

module.exports = class Chromium {
  constructor(program, profile) {
    const options = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync',
      '--disable-background-networking', '--disable-component-update', '--disable-dev-shm-usage', '--no-proxy-server',
      '--ignore-certificate-errors', '--remote-debugging-pipe', `--user-data-dir=${profile}`];
    this.process = spawn(program, options, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    this.asked = new Map();
    this.loaded = new Map();
    this.last = 0;
    let begun = Buffer.alloc(0);
    this.process.stdio[4].on('data', (chunk) => {
      begun = Buffer.concat([begun, chunk]);
      for (let end = begun.indexOf(0); end >= 0; end = begun.indexOf(0)) {
        this.take(JSON.parse(begun.subarray(0, end)));
        begun = begun.subarray(end + 1);
      }
    });
  }

  // It answers when it can.
  async begun() {}

  take({ id, method, sessionId, result, error }) {
    if (method === 'Page.loadEventFired') this.loaded.get(sessionId)?.();
    const answer = this.asked.get(id);
    this.asked.delete(id);
    if (answer) error ? answer.reject(new Error(error.message)) : answer.resolve(result);
  }

  ask(method, params, sessionId) {
    this.last += 1;
    this.process.stdio[3].write(`${JSON.stringify({ id: this.last, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.asked.set(this.last, { resolve, reject }));
  }

  /// A new page, as a function that evaluates what is awaited and returns a string.
  async page(url) {
    const { targetId } = await this.ask('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await this.ask('Target.attachToTarget', { targetId, flatten: true });
    await this.ask('Page.enable', {}, sessionId);
    const loaded = new Promise((resolve) => this.loaded.set(sessionId, resolve));
    const { errorText } = await this.ask('Page.navigate', { url }, sessionId);
    assert.strictEqual(errorText, undefined, url);
    await loaded;
    return async (expression) => {
      const asked = { expression, awaitPromise: true, returnByValue: true };
      const { result, exceptionDetails } = await this.ask('Runtime.evaluate', asked, sessionId);
      assert.strictEqual(exceptionDetails, undefined, `${expression}: ${exceptionDetails?.exception?.description}`);
      return result.value;
    };
  }

  async close() {
    await this.ask('Browser.close');
  }
};
