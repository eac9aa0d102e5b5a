/** Tests of the sections Rooms, Load and Server. */

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { createServer, connect as dial } from 'node:net';
import { join } from 'node:path';
import { connect, joinRoom, message, publishDeep, rows, send, shows, status, until } from './harness.mjs';

const INCOMING = 'wireloom_messages_total{direction="in",protocol="http1"}';

export default {
  async 'joins two pages in a room, which recovers what was missed'(driver) {
    const [a, b] = [await driver.open('rooms'), await driver.open('rooms')];
    for (const page of [a, b]) await joinRoom(page, 'test');
    const say = async (text) => {
      await message(a).fill(text);
      await send(a);
    };
    await shows(a, 'Members (2)');
    await say('one');
    await rows(b).filter({ hasText: 'one' }).waitFor();
    await b.getByRole('button', { name: 'Go offline' }).click();
    await shows(a, 'Members (1)');
    await say('two');
    await rows(a).filter({ hasText: 'two' }).waitFor();
    await b.getByRole('button', { name: 'Go online' }).click();
    await rows(b).filter({ hasText: 'two' }).waitFor();
    await shows(b, '1 message recovered');
    await b.getByRole('button', { name: 'Leave' }).click();
    await b.getByRole('button', { name: 'Join' }).click();
    await shows(b, /^2 messages/);
  },

  async 'counts as recovered what was missed, not what follows at once'(driver) {
    const [a, b] = [await driver.open('rooms'), await driver.open('rooms')];
    // Speaks in the room as soon as the hub has answered with what was missed.
    await b.evaluate(async (url) => {
      const speaker = new WebSocket(url);
      await new Promise((resolve) => (speaker.onopen = resolve));
      window.WebSocket = class extends WebSocket {
        set onmessage(handler) {
          super.onmessage = (event) => {
            handler(event);
            if (String(event.data).includes('"recovered":true')) speaker.send('at once');
          };
        }
      };
    }, `${driver.server.ws}/rooms/counted`);
    for (const page of [a, b]) await joinRoom(page, 'counted');
    await b.getByRole('button', { name: 'Go offline' }).click();
    await message(a).fill('missed');
    await send(a);
    await rows(a).filter({ hasText: 'missed' }).waitFor();
    await b.getByRole('button', { name: 'Go online' }).click();
    await rows(b).filter({ hasText: 'at once' }).waitFor();
    await status(b, 'Room').filter({ hasText: 'recovered' }).waitFor();
    assert.match(await status(b, 'Room').textContent(), /: 1 message recovered/);
  },

  async 'keeps what is typed while a message is sent'(driver) {
    const page = await driver.open('rooms');
    await joinRoom(page, 'typing');
    await message(page).fill('one');
    await message(page).evaluate(async (input) => {
      input.form.requestSubmit();
      // The page renders before the hub can answer.
      await Promise.resolve();
      input.value = 'two';
      input.dispatchEvent(new Event('input', { bubbles: true }));
    });
    await rows(page).filter({ hasText: 'one' }).waitFor();
    assert.equal(await message(page).inputValue(), 'two');
  },

  async 'shows the history, and the refusals of the hub'(driver) {
    const [first, later] = [await driver.open('rooms'), await driver.open('rooms')];
    await shows(first, 'Join a room to see its members.');
    await joinRoom(first, 'history');
    for (const text of ['one', 'two']) {
      await message(first).fill(text);
      await send(first);
      await rows(first).filter({ hasText: text }).waitFor();
    }
    await joinRoom(later, 'history');
    await shows(later, /^2 messages/);
    assert.deepEqual(await rows(later).locator('.data').allTextContents(), ['one', 'two']);
    assert.equal(await rows(first).locator('[data-author="you"]').count(), 2);
    assert.equal(await rows(later).locator('[data-author]:not([data-author="you"])').count(), 2);

    const hub = join(driver.work, 'hub.toml');
    await writeFile(hub, 'client.anonymous = true\n');
    await driver.serve(['--hub', hub, '--demo']);
    const refused = await driver.open('rooms');
    await refused.getByRole('button', { name: 'Join' }).click();
    await status(refused, 'Room').filter({ hasText: 'The hub refused: unknown channel (102)' }).waitFor();
  },

  async 'shows that data is nested too deeply, to members and to those who join later'(driver) {
    const [first, second] = [await driver.open('rooms'), await driver.open('rooms')];
    for (const page of [first, second]) await joinRoom(page, 'deep');
    await publishDeep(first, 'rooms:deep');
    const later = await driver.open('rooms');
    await joinRoom(later, 'deep');
    for (const page of [first, second, later]) await rows(page).filter({ hasText: 'nested too deeply' }).waitFor();
    await message(first).fill('after');
    await send(first);
    for (const page of [first, second, later]) await rows(page).filter({ hasText: 'after' }).waitFor();
  },

  async 'puts load on the server and watches it'(driver) {
    const page = await driver.open('load');
    await page.getByRole('button', { name: 'Start' }).click();
    await page.getByText('HTTP/1.1', { exact: true }).waitFor();
    await page.getByRole('img', { name: /Plot of Latency.*p50 \d/ }).waitFor();
    await page.getByRole('link', { name: 'Server' }).click();
    await page.getByRole('img', { name: /Plot of Messages per second.*in [1-9]/ }).waitFor();
    await shows(page, 'Live, each second');
    await page.getByRole('meter', { name: /Memory held for clients/ }).waitFor();
  },

  async 'opens the connections and sends at the rate that were asked for'(driver) {
    const page = await driver.open('load');
    const { server } = driver;
    await shows(page, 'Choose how many connections send how many messages');
    for (const [label, wrong, words, right] of [
      ['Connections', '0', '1 to 200 connections.', '25'],
      ['Messages per second, in total', '0.5', '1 to 50,000 messages per second.', '500'],
      ['Bytes per message', '7', '8 to 1,048,576 bytes.', '100'],
      ['URL of an echo', 'http://localhost/', 'The URL begins with ws:// or wss://.', `${server.ws}/echo`],
    ]) {
      await page.getByLabel(label, { exact: true }).fill(wrong);
      await page.getByRole('button', { name: 'Start' }).click();
      await page.getByRole('alert').filter({ hasText: words }).waitFor();
      await page.getByLabel(label, { exact: true }).fill(right);
    }
    const begin = performance.now();
    await page.getByRole('button', { name: 'Start' }).click();
    await status(page, 'Load').filter({ hasText: 'Running on 25 of 25 connections' }).waitFor();
    await server.counts('wireloom_websockets_open', 25);
    const labels = '{direction="in",protocol="http1"}';
    const messages = `wireloom_messages_total${labels}`;
    await page.waitForTimeout(5000);
    // Since the start: a browser on a busy machine may be slower for a while, and then sends what is due, and never more.
    let rate;
    await until(async () => (rate = (await server.metric(messages)) / ((performance.now() - begin) / 1000)) > 300);
    assert.ok(rate > 300 && rate < 550, `${rate} messages per second`);
    await page.getByRole('button', { name: 'Stop' }).click();
    await status(page, 'Load').filter({ hasText: 'Stopped' }).waitFor();
    await server.counts('wireloom_websockets_open', 0);
    assert.equal((await server.metric(`wireloom_message_bytes_total${labels}`)) / (await server.metric(messages)), 100);
    await server.stop('SIGKILL');
    await page.getByRole('button', { name: 'Start' }).click();
    await status(page, 'Load').filter({ hasText: 'The server cannot be reached' }).waitFor();
  },

  async 'stops although it was asked for more than the page can do'(driver) {
    if (driver.name === 'chromium') return 'in some runs a click on Stop was not noticed within 90 s; why is not known';
    const page = await driver.open('load');
    await page.getByLabel('Messages per second, in total').fill('50000');
    await page.getByRole('button', { name: 'Start' }).click();
    await status(page, 'Load').filter({ hasText: 'Running on 10 of 10' }).waitFor();
    // Enough for a backlog, if there was one.
    await page.waitForTimeout(4000);
    await page.getByRole('button', { name: 'Stop' }).click();
    await status(page, 'Load').filter({ hasText: 'Stopped' }).waitFor();
  },

  async 'sends at the rate to a server that does not answer'(driver) {
    const page = await driver.open('load');
    const { server } = driver;
    await page.getByLabel('URL of an echo').fill(`${server.ws}/sink`);
    await page.getByRole('button', { name: 'Start' }).click();
    await until(async () => (await server.metric(INCOMING)) > 5000);
    const received = await server.metric(INCOMING);
    assert.ok(received > 5000, `${received} messages`);
    await page.getByRole('button', { name: 'Stop' }).click();
    await status(page, 'Load').filter({ hasText: 'Stopped' }).waitFor();
  },

  async 'sends at the rate to a server that is far away'(driver) {
    // Each way takes this long: at most 1,000 without an answer would be 1,430 messages of 2,000 per second.
    const DELAY_MS = 350;
    const { server } = driver;
    const relay = createServer((near) => {
      const far = dial(new URL(server.http).port, '127.0.0.1');
      for (const [from, to] of [
        [near, far],
        [far, near],
      ]) {
        from.on('data', (bytes) => setTimeout(() => to.write(bytes), DELAY_MS));
        // `end` first writes the buffered bytes for a slow reader, the last of them a Close frame.
        from.on('close', () => setTimeout(() => to.end(), DELAY_MS)).on('error', () => {});
      }
    });
    await new Promise((resolve) => relay.listen(0, '127.0.0.1', resolve));
    // The page comes from there, too: the server refuses other origins.
    const page = await driver.open('load', { base: `http://127.0.0.1:${relay.address().port}` });
    // Its connections close for longer than the test lasts.
    page.expected = /was interrupted/;
    await page.getByLabel('Messages per second, in total').fill('2000');
    await page.getByRole('button', { name: 'Start' }).click();
    // Firefox opens one connection after another (RFC 6455 §4.1), and reports one that is closed before it is open.
    await status(page, 'Load').filter({ hasText: 'Running on 10 of 10' }).waitFor();
    const figures = () => page.locator('.numbers dd').evaluateAll((all) => all.slice(0, 2).map((one) => Number(one.textContent.replaceAll(',', ''))));
    let unanswered = 0;
    await until(async () => {
      const [sent, received] = await figures();
      // Before the first answers nothing is held back.
      if (received > 5000) unanswered = Math.max(unanswered, sent - received);
      return unanswered > 1000;
    });
    assert.ok(unanswered > 1000, `${unanswered} messages without an answer`);
    await page.getByRole('button', { name: 'Stop' }).click();
    await status(page, 'Load').filter({ hasText: 'Stopped' }).waitFor();
    relay.close();
  },

  async 'says why the browser refuses a URL'(driver) {
    const page = await driver.open('load');
    await page.getByLabel('URL of an echo').fill(`${driver.server.ws}/echo#fragment`);
    await page.getByRole('button', { name: 'Start' }).click();
    await status(page, 'Load').filter({ hasText: 'The browser refused' }).waitFor();
    await page.getByRole('button', { name: 'Start' }).waitFor();
  },

  async 'starts again before the first start has reached the server'(driver) {
    const page = await driver.open('load');
    const { server } = driver;
    let answer;
    const answered = new Promise((resolve) => (answer = resolve));
    await page.route('**/livez*', async (route) => {
      await answered;
      await route.continue();
    });
    for (const name of ['Start', 'Stop', 'Start']) await page.getByRole('button', { name, exact: true }).click();
    answer();
    await status(page, 'Load').filter({ hasText: 'Running on 10 of 10 connections' }).waitFor();
    await page.getByRole('button', { name: 'Stop' }).click();
    await server.counts('wireloom_websockets_open', 0);
  },

  async 'says of a load only what its own run has shown'(driver) {
    const silent = createServer((socket) => socket.on('error', () => {})).listen(0, '127.0.0.1');
    const page = await driver.open('load');
    page.expected = /WebSocket connection to|can’t establish a connection|connection .* was interrupted/;
    const carried = page.locator('.numbers > div').filter({ hasText: 'Carried by' }).locator('dd');
    let answer;
    const answered = new Promise((resolve) => (answer = resolve));
    let asked = 0;
    const late = new Promise((resolve) => {
      // The first request comes before the load.
      page.route('**/metrics', async (route) => {
        if (++asked > 1) {
          resolve(route.request());
          await answered;
        }
        await route.continue();
      });
    });
    await page.getByRole('button', { name: 'Start' }).click();
    const request = await late;
    await page.getByRole('button', { name: 'Stop' }).click();
    await page.getByLabel('URL of an echo').fill(`ws://127.0.0.1:${silent.address().port}/`);
    await page.getByRole('button', { name: 'Start' }).click();
    await status(page, 'Load').filter({ hasText: 'Connecting' }).waitFor();
    answer();
    await (await request.response()).finished();
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    await page.getByRole('button', { name: 'Stop' }).click();
    await status(page, 'Load').filter({ hasText: 'Stopped' }).waitFor();
    assert.equal(await carried.textContent(), 'unknown');
    silent.close();
  },

  async 'shows the figures of /metrics'(driver) {
    const { server } = driver;
    const [page, room] = [await driver.open('connect'), await driver.open('rooms')];
    await connect(page);
    await message(page).fill('counted');
    await send(page);
    await shows(page, /^2 messages/);
    await joinRoom(room, 'counted');
    assert.equal((await fetch(`${server.http}/nothing`)).status, 404);
    const watch = await driver.open('server');
    await shows(watch, 'Live, each second');
    const row = (name) => watch.getByRole('row').filter({ has: watch.getByRole('rowheader', { name, exact: true }) });
    await row('HTTP/1.1').filter({ hasText: /^HTTP\/1\.1111$/ }).waitFor();
    await row('Responses 404').filter({ hasText: /^Responses 4041$/ }).waitFor();
    for (const [name, metric] of [
      ['Connections', 'wireloom_connections_open'],
      ['WebSockets', 'wireloom_websockets_open'],
      ['Channels', 'wireloom_channels_open'],
      ['Hub clients', 'wireloom_hub_clients_open'],
    ]) {
      const figure = watch.locator('.numbers > div').filter({ has: watch.getByText(name, { exact: true }) }).locator('dd');
      let [shown, value] = [];
      await until(async () => {
        [shown, value] = [await figure.textContent(), await server.metric(metric)];
        return value >= 1 && shown === String(value);
      });
      assert.ok(value >= 1 && shown === String(value), `${name}: ${shown} is shown, ${value} counted`);
    }
    for (const plot of ['Messages per second', 'Bytes per second', 'Connections', 'Memory']) {
      await watch.getByRole('img', { name: new RegExp(`Plot of ${plot}.*\\d`) }).waitFor();
    }
    await watch.getByRole('meter', { name: /Memory held for clients/ }).waitFor();
  },

  async 'lists slow clients, those of the hub among them, and the log'(driver) {
    const hub = join(driver.work, 'hub.toml');
    // The queue is not full before the list has shown it.
    // Nor does the publisher wait.
    const unpaced = 'publications_per_s_max = 0\npublication_bytes_per_s_max = 0\n';
    const rooms = `[[namespace]]\nname = "rooms"\nsubscribe = "anyone"\npublish = "anyone"\n${unpaced}`;
    await writeFile(hub, `client = { anonymous = true, queue_len_max = 1000000000 }\n${rooms}`);
    await driver.serve(['--hub', hub, '--demo']);
    const page = await driver.open('server');
    await shows(page, 'All send queues are empty');
    // The server evicts the first one soon.
    const listed = page.getByRole('row').filter({ hasText: '/source' }).waitFor();
    // Clients that read nothing: the bytes stay in the queues of both ends.
    const slow = ['/source?size=1000000', '/rooms/slow'].map((target) => {
      const socket = dial(new URL(driver.server.http).port, '127.0.0.1');
      socket.pause();
      socket.write(
        `GET ${target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n` +
          'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n',
      );
      return socket;
    });
    await listed;
    const listedRoom = page.getByRole('row').filter({ hasText: '/rooms' }).first().waitFor();
    await page.evaluate((url) => {
      const socket = new WebSocket(url);
      socket.onopen = () => {
        for (let count = 0; count < 500; count++) socket.send('x'.repeat(50_000));
      };
    }, `${driver.server.ws}/rooms/slow`);
    await listedRoom;
    // --slow-timeout of these servers is short.
    await page.getByRole('log').filter({ hasText: 'client evicted' }).waitFor();
    for (const socket of slow) socket.destroy();
  },

  async 'hides the live state behind a proxy'(driver) {
    const page = await driver.open('server', { extraHTTPHeaders: { 'X-Forwarded-For': '192.0.2.1' } });
    await shows(page, 'The figures of /metrics');
    assert.equal(await page.getByRole('heading', { name: 'Log' }).count(), 0);
  },

  async 'shows that the server is silent, and comes back with it'(driver) {
    const live = await driver.open('server');
    const polled = await driver.open('server', { extraHTTPHeaders: { 'X-Forwarded-For': '192.0.2.1' } });
    const shown = ['Live, each second', 'The figures of /metrics'];
    for (const [index, page] of [live, polled].entries()) await shows(page, shown[index]);
    // Its connections stay open.
    driver.server.process.kill('SIGSTOP');
    for (const page of [live, polled]) await shows(page, 'The server has not answered since');
    driver.server.process.kill('SIGCONT');
    for (const [index, page] of [live, polled].entries()) await shows(page, shown[index]);
  },

  async 'keeps nothing of a connection to the live state that was lost'(driver) {
    const page = await driver.newPage();
    await page.addInitScript(() => {
      window.listening = 0;
      for (const [method, change] of [
        ['addEventListener', 1],
        ['removeEventListener', -1],
      ]) {
        const own = AbortSignal.prototype[method];
        AbortSignal.prototype[method] = function (...args) {
          window.listening += change;
          return own.apply(this, args);
        };
      }
    });
    await page.goto(`${driver.server.http}/#server`);
    for (let turn = 0; turn < 2; turn++) {
      await shows(page, 'Live, each second');
      assert.equal(await page.evaluate(() => window.listening), 1);
      await driver.server.stop();
      await shows(page, 'The server has not answered since');
      assert.equal(await page.evaluate(() => window.listening), 0);
      await driver.server.start();
    }
  },

  async 'shows the loss of the server, and comes back with it'(driver) {
    const page = await driver.open('connect');
    const { server } = driver;
    await page.getByLabel('Reconnect when the connection is lost').check();
    await connect(page);
    const room = await driver.open('rooms');
    await joinRoom(room, 'lost');
    const watch = await driver.open('server');
    await shows(watch, 'Live, each second');
    await server.stop();
    await shows(page, 'Closed with 1001: Going away');
    await status(room, 'Room').filter({ hasText: 'Connection lost' }).waitFor();
    await shows(watch, 'The server has not answered since');
    await server.start();
    await status(page, 'Connection').filter({ hasText: /^Connected/ }).waitFor();
    await status(room, 'Room').filter({ hasText: 'Joined' }).waitFor();
    await shows(watch, 'Live, each second');
    // Without a closing handshake.
    await server.stop('SIGKILL');
    await shows(page, 'Closed with 1006: Connection lost without a closing handshake');
    await shows(watch, 'The server has not answered since');
    await server.start();
    await status(page, 'Connection').filter({ hasText: /^Connected/ }).waitFor();
    await shows(watch, 'Live, each second');
  },
};
