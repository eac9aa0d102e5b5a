/** Load: many connections, messages at a rate, and what comes back. */

import { useState } from 'preact/hooks';
import { count, millis } from './format';
import { Latencies, sentAt } from './latency';
import { fetchAccess, fetchMetrics, type Metrics } from './metrics';
import { Plot } from './plot';
import { isReachable } from './reachable';
import { Series } from './series';
import { Store, useStore } from './store';

const CONNECTIONS_MAX = 200;
const RATE_MAX = 50_000;
const SIZE_MAX = 1_048_576;
const TICK_MS = 20;
/** Bytes that the browser has not sent yet, of all sockets; more are not queued. */
const BUFFERED_MAX = 1_048_576;
/** How many messages may be without an answer, if the server answers. More may be on the way to a server that is far away: as many as are
 * answered in the time of the fastest answer and `BACKLOG_MS`. A page that has more to receive than it can does not notice a click on Stop. */
const UNANSWERED_MAX = 1000;
const BACKLOG_MS = 100;
/** How much of a turn is for sending. The rest is for what is received, and for the user. */
const SENDING_MS = 4;

interface Link {
  readonly socket: WebSocket;
  unanswered: number;
}

interface Plan {
  url: string;
  connections: number;
  rate: number;
  size: number;
}

class LoadTest extends Store {
  readonly throughput = new Series(2);
  readonly latency = new Series(3);
  state: 'idle' | 'running' | 'stopped' = 'idle';
  note = 'Not started';
  protocol = '';
  sent = 0;
  received = 0;
  withheld = 0;
  open = 0;
  /** In the last second. */
  private answered = 0;
  /** The time of the fastest answer of this run. */
  private fastest = Infinity;
  /** The answers of all runs when the last second ended. */
  private answeredBefore = 0;
  private latencies = new Latencies(5000);
  private links: Link[] = [];
  private timers: number[] = [];
  private before: Metrics | null = null;
  /** The number of runs that were started. */
  private run = 0;

  async start(plan: Plan): Promise<void> {
    this.stop();
    const run = ++this.run;
    const isStale = () => this.state !== 'running' || this.run !== run;
    this.throughput.clear();
    this.latency.clear();
    this.latencies.clear();
    this.sent = this.received = this.withheld = this.open = this.answered = 0;
    this.fastest = Infinity;
    this.protocol = '';
    this.state = 'running';
    this.note = 'Connecting…';
    this.changed();
    this.before = null;
    if (new URL(plan.url).host === location.host) {
      const answers = await isReachable();
      if (isStale()) return;
      if (!answers) return this.end('The server cannot be reached');
      const access = await fetchAccess().catch(() => null);
      const before = access?.metrics ? await fetchMetrics().catch(() => null) : null;
      if (isStale()) return;
      this.before = before;
    }
    try {
      while (this.links.length < plan.connections) this.links.push(this.connect(plan.url));
    } catch (error) {
      return this.end(`The browser refused: ${(error as Error).message}`);
    }
    this.send(plan);
    this.sample(isStale);
  }

  private connect(url: string): Link {
    const socket = new WebSocket(url);
    const link = { socket, unanswered: 0 };
    socket.binaryType = 'arraybuffer';
    let wasOpen = false;
    socket.onopen = () => {
      wasOpen = true;
      this.open++;
    };
    socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      this.received++;
      const now = performance.now();
      const sent = sentAt(data, now);
      if (sent === null) return;
      link.unanswered--;
      const latency = now - sent;
      this.latencies.add(latency);
      this.fastest = Math.min(this.fastest, latency);
    };
    socket.onclose = ({ code }) => {
      if (wasOpen) this.open--;
      if (this.state === 'running' && this.links.every((one) => one.socket.readyState === WebSocket.CLOSED)) this.end(`All connections are closed (${code})`);
    };
    return link;
  }

  private send({ rate, size }: Plan): void {
    const message = new Uint8Array(Math.max(8, size));
    const view = new DataView(message.buffer);
    let due = 0;
    let turn = 0;
    let last = performance.now();
    this.timers.push(
      window.setInterval(() => {
        const now = performance.now();
        // A page in the background runs once a second; older debts are not sent at once.
        due += (Math.min(now - last, 1000) * rate) / 1000;
        last = now;
        const links = this.links.filter(({ socket }) => socket.readyState === WebSocket.OPEN);
        if (links.length === 0) {
          due = 0;
          return;
        }
        const bufferedMax = BUFFERED_MAX / links.length;
        const answers = this.answered > 0 || this.latencies.total > this.answeredBefore;
        const onTheWay = (this.answered * (this.fastest + BACKLOG_MS)) / 1000;
        const unansweredMax = answers ? Math.max(UNANSWERED_MAX, onTheWay) / links.length : Infinity;
        const end = now + (document.hidden ? 1000 : SENDING_MS);
        // How many links in a row took nothing.
        let refusals = 0;
        let time = now;
        while (due >= 1 && refusals < links.length && time < end) {
          const link = links[turn++ % links.length]!;
          if (link.socket.bufferedAmount > bufferedMax || link.unanswered >= unansweredMax) {
            refusals++;
            continue;
          }
          refusals = 0;
          time = performance.now();
          view.setFloat64(0, time);
          link.socket.send(message);
          link.unanswered++;
          this.sent++;
          due--;
        }
        // Messages that are due for a tenth of a second are sent later.
        const withheld = Math.max(0, Math.floor(due - rate / 10));
        this.withheld += withheld;
        due -= withheld;
      }, TICK_MS),
    );
  }

  private sample(isStale: () => boolean): void {
    let [sent, received, last] = [0, 0, performance.now()];
    this.answeredBefore = this.latencies.total;
    this.timers.push(
      window.setInterval(() => {
        const now = performance.now();
        const seconds = (now - last) / 1000;
        this.answered = (this.latencies.total - this.answeredBefore) / seconds;
        this.answeredBefore = this.latencies.total;
        this.throughput.add(Date.now() / 1000, [(this.sent - sent) / seconds, (this.received - received) / seconds]);
        [sent, received, last] = [this.sent, this.received, now];
        const figures = this.latencies.percentiles();
        this.latency.add(Date.now() / 1000, figures ? [figures.p50, figures.p90, figures.p99] : [null, null, null]);
        if (this.open > 0) this.note = `Running on ${count(this.open)} of ${count(this.links.length)} connections`;
        if (this.before && this.protocol === '' && this.open > 0) void this.findProtocol(this.before, isStale);
        this.changed();
      }, 1000),
    );
  }

  /** A browser does not tell a page which version of HTTP carries a WebSocket; the server's counters do. */
  private async findProtocol(before: Metrics, isStale: () => boolean): Promise<void> {
    const after = await fetchMetrics().catch(() => null);
    if (!after || isStale()) return;
    const grown = (protocol: string) => {
      const labels = { direction: 'in', protocol };
      return (after.sum('wireloom_messages_total', labels) ?? 0) - (before.sum('wireloom_messages_total', labels) ?? 0);
    };
    const [http1, http2] = [grown('http1'), grown('http2')];
    if (http1 + http2 > 0) this.protocol = http2 > http1 ? 'HTTP/2' : 'HTTP/1.1';
  }

  stop(): void {
    if (this.state === 'running') this.end('Stopped');
  }

  private end(note: string): void {
    for (const timer of this.timers.splice(0)) window.clearInterval(timer);
    this.state = 'stopped';
    this.note = note;
    for (const { socket } of this.links.splice(0)) {
      // The next run does not count their events.
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
    this.changed();
  }
}

const test = new LoadTest();
const own = `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/echo`;

export function Load() {
  useStore(test);
  const [plan, setPlan] = useState({ url: own, connections: '10', rate: '1000', size: '64' });
  const [error, setError] = useState('');
  const isRunning = test.state === 'running';
  const submit = (event: Event) => {
    event.preventDefault();
    if (isRunning) return test.stop();
    const numbers = { connections: Number(plan.connections), rate: Number(plan.rate), size: Number(plan.size) };
    const within = (value: number, min: number, max: number) => Number.isInteger(value) && value >= min && value <= max;
    if (!/^wss?:\/\/./i.test(plan.url) || !URL.canParse(plan.url)) return setError('The URL begins with ws:// or wss://.');
    if (!within(numbers.connections, 1, CONNECTIONS_MAX)) return setError(`1 to ${CONNECTIONS_MAX} connections.`);
    if (!within(numbers.rate, 1, RATE_MAX)) return setError(`1 to ${count(RATE_MAX)} messages per second.`);
    if (!within(numbers.size, 8, SIZE_MAX)) return setError(`8 to ${count(SIZE_MAX)} bytes.`);
    setError('');
    void test.start({ url: plan.url, ...numbers });
  };
  const field = (key: 'connections' | 'rate' | 'size', name: string) => (
    <label>
      {name}
      <input type="number" min={1} value={plan[key]} readOnly={isRunning} onInput={(event) => setPlan({ ...plan, [key]: event.currentTarget.value })} />
    </label>
  );
  return (
    <div class="columns">
      <div class="side">
        <form class="card" onSubmit={submit} noValidate aria-label="Load">
          <label>
            URL of an echo
            <input type="text" inputMode="url" spellcheck={false} value={plan.url} readOnly={isRunning} onInput={(event) => setPlan({ ...plan, url: event.currentTarget.value })} />
          </label>
          {field('connections', 'Connections')}
          {field('rate', 'Messages per second, in total')}
          {field('size', 'Bytes per message')}
          <p class="problem" role="alert">
            {error}
          </p>
          <button type="submit" class={isRunning ? '' : 'primary'}>
            {isRunning ? 'Stop' : 'Start'}
          </button>
          <p role="status" class={`state ${isRunning ? (test.open > 0 ? 'open' : 'connecting') : 'idle'}`}>
            {test.note}
          </p>
        </form>
      </div>
      <section class="figures" aria-label="Results">
        {test.state === 'idle' ? (
          <p class="empty">Choose how many connections send how many messages, then start. Throughput and latency appear here.</p>
        ) : (
          <>
            <dl class="numbers">
              <div>
                <dt>Sent</dt>
                <dd>{count(test.sent)}</dd>
              </div>
              <div>
                <dt>Received</dt>
                <dd>{count(test.received)}</dd>
              </div>
              <div>
                <dt>Carried by</dt>
                <dd>{test.protocol || 'unknown'}</dd>
              </div>
              {test.withheld > 0 && (
                <div>
                  <dt>Not sent: the server, the network or this page is too slow</dt>
                  <dd>{count(test.withheld)}</dd>
                </div>
              )}
            </dl>
            <Plot label="Messages per second" series={test.throughput} names={['sent', 'received']} format={count} />
            <Plot label="Latency" series={test.latency} names={['p50', 'p90', 'p99']} format={millis} />
          </>
        )}
      </section>
    </div>
  );
}
