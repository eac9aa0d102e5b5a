// Firefox, driven by WebDriver BiDi, over a WebSocket of Node's own.
'use strict';

const assert = require('node:assert');
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

// It goes straight to where it is sent, and nowhere else.
const PREFERENCES = {
  'network.proxy.type': 0,
  'app.normandy.enabled': false,
  'app.update.disabledForTesting': true,
  'browser.safebrowsing.downloads.enabled': false,
  'browser.safebrowsing.malware.enabled': false,
  'browser.safebrowsing.phishing.enabled': false,
  'browser.topsites.contile.enabled': false,
  'datareporting.policy.dataSubmissionEnabled': false,
  'network.captive-portal-service.enabled': false,
  'network.connectivity-service.enabled': false,
  'services.settings.server': 'data:,none',
};

module.exports = class Firefox {
  constructor(program, profile) {
    fs.mkdirSync(profile, { recursive: true });
    const lines = Object.entries(PREFERENCES).map((preference) => `user_pref(${preference.map(JSON.stringify).join(', ')});\n`);
    fs.writeFileSync(path.join(profile, 'user.js'), lines.join(''));
    const options = ['--headless', '--no-remote', '--profile', profile, '--remote-debugging-port', '0'];
    this.process = spawn(program, options, { stdio: 'ignore' });
    this.profile = profile;
    this.asked = new Map();
    this.last = 0;
  }

  async begun() {
    this.socket = await this.connected();
    this.socket.onmessage = ({ data }) => {
      const { id, type, result, message } = JSON.parse(data);
      const answer = this.asked.get(id);
      this.asked.delete(id);
      if (answer) type === 'error' ? answer.reject(new Error(message)) : answer.resolve(result);
    };
    await this.ask('session.new', { capabilities: { alwaysMatch: { acceptInsecureCerts: true } } });
  }

  // Where it listens is written into its profile.
  async connected() {
    for (;;) {
      try {
        const { ws_port: port } = JSON.parse(fs.readFileSync(path.join(this.profile, 'WebDriverBiDiServer.json')));
        const socket = new WebSocket(`ws://127.0.0.1:${port}/session`);
        await new Promise((resolve, reject) => {
          socket.onopen = resolve;
          socket.onerror = reject;
        });
        return socket;
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  }

  ask(method, params) {
    this.last += 1;
    this.socket.send(JSON.stringify({ id: this.last, method, params }));
    return new Promise((resolve, reject) => this.asked.set(this.last, { resolve, reject }));
  }

  /// A new page, as a function that evaluates what is awaited and returns a string.
  async page(url) {
    const { context } = await this.ask('browsingContext.create', { type: 'tab' });
    await this.ask('browsingContext.navigate', { context, url, wait: 'complete' });
    return async (expression) => {
      const asked = { expression, awaitPromise: true, target: { context } };
      const { result, exceptionDetails } = await this.ask('script.evaluate', asked);
      assert.strictEqual(exceptionDetails, undefined, `${expression}: ${exceptionDetails?.text}`);
      return result.value;
    };
  }

  async close() {
    await this.ask('browser.close', {});
  }
};
