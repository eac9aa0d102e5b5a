/** What the tests in browsers share: servers, browsers, and the steps that a user takes. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium, firefox } from 'playwright-core';

/** What a step of a test may take, on a machine that builds and tests other things meanwhile. */
const STEP_MS = 90_000;

const BROWSERS = {
  chromium: { programs: ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'], package: 'chromium' },
  firefox: { programs: ['/usr/bin/firefox-esr', '/usr/bin/firefox'], package: 'firefox-esr' },
};

/** Waits until it is so, or for as long as a step may take. */
export async function until(isSo) {
  const end = performance.now() + STEP_MS;
  while (!(await isSo()) && performance.now() < end) await new Promise((resolve) => setTimeout(resolve, 100));
}

/** The program of a browser, and how to get it. */
export function find(name) {
  const { programs, package: debian } = BROWSERS[name];
  return { program: programs.find(existsSync), remedy: `apt-get install ${debian}` };
}

/** A `wireloom serve`. */
export class Server {
  /** `fileKib`: how long its files may become. */
  constructor(program, options, { fileKib = 0 } = {}) {
    this.program = program;
    this.options = options;
    this.fileKib = fileKib;
    this.log = '';
  }

  /** Starts it, on the ports that it had before: as soon as no other program uses them. */
  async start() {
    await until(() =>
      this.startOnce().catch((error) => {
        if (!/in use/.test(error.message)) throw error;
      }),
    );
    assert.ok(this.isListening, this.log);
    return this;
  }

  async startOnce() {
    this.isListening = false;
    const port = (url) => (url ? new URL(url).port : '0');
    const listen = ['--listen', `127.0.0.1:${port(this.http)}`, '--tls', '--tls-listen', `127.0.0.1:${port(this.https)}`];
    const options = ['serve', '--log', 'json', ...listen, ...this.options];
    const limit = ['bash', '-c', `trap '' XFSZ; ulimit -f ${this.fileKib} && exec "$0" "$@"`];
    const [command, ...args] = [...(this.fileKib ? limit : []), this.program, ...options];
    this.process = spawn(command, args, { stdio: ['ignore', 'ignore', 'pipe'] });
    this.exited = new Promise((resolve) => this.process.once('exit', resolve));
    const begin = this.log.length;
    const address = (isTls) => new RegExp(`"listening","address":"([^"]+)","tls":${isTls}`).exec(this.log.slice(begin))?.[1];
    await new Promise((resolve, reject) => {
      this.process.stderr.on('data', (chunk) => {
        this.log += chunk;
        if (address(false) && address(true)) resolve();
      });
      this.exited.then(() => reject(new Error(`the server did not start: ${this.log.slice(begin)}`)));
    });
    this.http = `http://${address(false)}`;
    this.https = `https://${address(true)}`;
    this.admin = `http://${/"admin listening","address":"([^"]+)"/.exec(this.log.slice(begin))?.[1]}`;
    return (this.isListening = true);
  }

  get ws() {
    return this.http.replace(/^http/, 'ws');
  }

  async metric(name) {
    const text = await (await fetch(`${this.http}/metrics`)).text();
    const line = text.split('\n').find((one) => one.startsWith(`${name} `));
    return Number(line?.split(' ').at(-1));
  }

  /** Waits until the metric has this value. */
  async counts(name, value) {
    await until(async () => (await this.metric(name)) === value);
    assert.equal(await this.metric(name), value, name);
  }

  async logged(pattern) {
    await until(async () => pattern.test(this.log));
    assert.match(this.log, pattern);
  }

  async stop(signal = 'SIGTERM') {
    this.process?.kill(signal);
    await this.exited;
  }
}

/** A browser on a server. */
export class Driver {
  /** The pages that were opened. */
  pages = [];

  constructor(name, server) {
    this.name = name;
    this.server = server;
  }

  /** `http1`: without HTTP/2; `netLog`: a file for the log of its network (Chromium); `prefs`: preferences (Firefox). */
  async launch({ http1 = false, netLog = '', prefs = {} } = {}) {
    const executablePath = find(this.name).program;
    this.work = await mkdtemp(join(tmpdir(), 'page-'));
    if (this.name === 'chromium') {
      const args = ['--no-sandbox', ...(http1 ? ['--disable-http2'] : []), ...(netLog ? [`--log-net-log=${netLog}`] : [])];
      this.browser = await chromium.launch({ executablePath, args });
    } else {
      // The channel makes playwright speak WebDriver BiDi, which the Firefox of a distribution understands.
      const firefoxUserPrefs = { 'network.http.http2.enabled': !http1, ...prefs };
      this.browser = await firefox.launch({ channel: 'moz-firefox', executablePath, firefoxUserPrefs });
    }
    return this;
  }

  /** Closes all pages. Their problems that were not expected. */
  async reset() {
    const pages = this.pages.splice(0);
    for (const context of new Set(pages.map((page) => page.context()))) await context.close().catch(() => {});
    return pages.flatMap(({ problems, expected }) => problems.filter((text) => !expected?.test(text)));
  }

  /** Replaces the server by one that has these options as well. */
  async serve(options, limits) {
    await this.server.stop('SIGKILL');
    this.server = await new Server(this.server.program, [...this.server.options, ...options], limits).start();
  }

  get isRunning() {
    return this.browser?.isConnected() ?? false;
  }

  async close() {
    await this.browser.close();
    await rm(this.work, { recursive: true, force: true });
  }

  /**
   * A page of its own. Everything on its console that is an error goes into `problems`. A test that makes the browser
   * report something sets `expected`, a pattern: the report may arrive after the page has shown what it means.
   */
  async newPage(options = {}) {
    const context = await this.browser.newContext({ ignoreHTTPSErrors: true, ...options });
    context.setDefaultTimeout(STEP_MS);
    const page = await context.newPage();
    page.problems = [];
    this.pages.push(page);
    page.on('pageerror', (error) => page.problems.push(String(error)));
    page.on('console', (message) => message.type() === 'error' && page.problems.push(message.text()));
    return page;
  }

  /** Opens a section of the page. */
  async open(section, { base = this.server.http, ...options } = {}) {
    const page = await this.newPage(options);
    await page.goto(`${base}/#${section}`);
    await page.getByRole('heading', { level: 1 }).waitFor();
    return page;
  }
}

export const status = (page, form) => page.getByRole('form', { name: form, exact: true }).locator('.state');
export const rows = (page) => page.locator('.row[role=option]');
export const shows = (page, text) => page.getByText(text, { exact: false }).first().waitFor();
export const send = (page) => page.getByRole('button', { name: 'Send', exact: true }).click();
export const message = (page) => page.getByLabel('Message', { exact: true });

/** Puts a long text into an area, as pasting does: WebDriver BiDi types what is filled in, character by character. */
export const paste = (area, text) =>
  area.evaluate((element, value) => {
    element.value = value;
    element.dispatchEvent(new InputEvent('input', { bubbles: true }));
  }, text);

/** Begins to connect, by what the page has in its field if no URL is given. */
export async function openUrl(page, url) {
  if (url) await page.getByLabel('URL', { exact: true }).fill(url);
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
}

export async function connect(page, url) {
  await openUrl(page, url);
  await status(page, 'Connection').filter({ hasText: /^Connected/ }).waitFor();
}

export async function choose(page, mode) {
  // The radio button lies invisibly above its name.
  await page.getByLabel(mode, { exact: true }).check({ force: true });
}

export async function joinRoom(page, name) {
  await page.getByRole('textbox', { name: 'Room' }).fill(name);
  await page.getByRole('button', { name: 'Join' }).click();
  await status(page, 'Room').filter({ hasText: 'Joined' }).waitFor();
}

/**
 * Publishes JSON that JavaScript can read but not write, from a connection of its own. Chromium writes arrays at any depth, but not
 * beside a member with this name.
 */
export const publishDeep = (page, channel) =>
  page.evaluate(
    async ([url, name]) => {
      const socket = new WebSocket(url);
      const reply = () => new Promise((resolve) => (socket.onmessage = ({ data }) => resolve(data)));
      await new Promise((resolve) => (socket.onopen = resolve));
      const connected = reply();
      socket.send('{"id":1,"connect":{}}');
      await connected;
      const published = reply();
      socket.send(`{"id":2,"publish":{"channel":${JSON.stringify(name)},"data":{"toJSON":0,"deep":${'['.repeat(30_000)}${']'.repeat(30_000)}}}}`);
      const answer = await published;
      socket.close();
      if (JSON.parse(answer).error) throw new Error(answer);
    },
    [`${page.url().replace(/^http/, 'ws').replace(/#.*/, '')}connection/websocket`, channel],
  );

const axe = await readFile(new URL('../../node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');

/** Fails for each violation that axe finds. The page needs `bypassCSP`. */
export async function accessible(page, name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  assert.deepEqual(
    violations.map(({ id, nodes }) => `${name}: ${id} ${nodes.map(({ html }) => html).join(' ')}`),
    [],
  );
}

/** The messages that *Export JSON* saves: their directions, kinds and lengths, and short texts. */
export async function exported(driver, page) {
  await page.evaluate(() => {
    const create = URL.createObjectURL;
    URL.createObjectURL = (blob) => {
      globalThis.saved = blob;
      return create.call(URL, blob);
    };
  });
  // WebDriver BiDi reports no downloads.
  const download = driver.name === 'chromium' ? page.waitForEvent('download') : null;
  await page.getByRole('button', { name: 'Export JSON' }).click();
  if (download) assert.equal((await download).suggestedFilename(), 'messages.json');
  return page.evaluate(async () =>
    JSON.parse(await globalThis.saved.text()).map(({ direction, kind, text, base64 }) => ({
      direction,
      kind,
      length: text === undefined ? atob(base64).length : text.length,
      text: text?.slice(0, 100),
    })),
  );
}
