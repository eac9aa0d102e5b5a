/** The state of the server: live from `/live`, or from `/metrics` each second where only that may be seen. */

import { fetchAccess, fetchMetrics, Metrics } from './metrics';
import { isReachable, untilReachable } from './reachable';
import { Series } from './series';
import { Store } from './store';

export type State =
  | { kind: 'loading' }
  | { kind: 'live' }
  /** Without slow clients and log. */
  | { kind: 'polled' }
  | { kind: 'hidden' }
  | { kind: 'lost'; since: number };

export interface SlowClient {
  client: string;
  route: string;
  queued: number;
  sent: number;
}

/** A message of `/live`. */
interface Live {
  metrics: string;
  slowest: SlowClient[];
  log: string[];
}

const POLL_MS = 1000;
const LOG_MAX = 200;
/** How many seconds the server may be silent. */
const SILENT_MAX = 5;

export class Monitor extends Store {
  readonly messages = new Series(2);
  readonly traffic = new Series(2);
  readonly connections = new Series(2);
  readonly memory = new Series(2);
  state: State = { kind: 'loading' };
  metrics: Metrics | null = null;
  /** Whether this address has the admin page. */
  isAdmin = false;
  slowest: SlowClient[] = [];
  log: string[] = [];
  private watching = new AbortController();
  private last: { time: number; metrics: Metrics } | null = null;

  start(): void {
    this.watching = new AbortController();
    void this.watch(this.watching.signal);
  }

  stop(): void {
    this.watching.abort();
    this.last = null;
  }

  private async watch(signal: AbortSignal): Promise<void> {
    while (await untilReachable(signal)) {
      // A server that has been restarted may show more or less than before.
      const access = await fetchAccess().catch(() => null);
      if (signal.aborted) return;
      this.isAdmin = access?.admin ?? this.isAdmin;
      if (access?.allowed) await this.follow(signal);
      else if (access?.metrics) await this.poll(signal);
      else if (access) {
        this.become({ kind: 'hidden' });
        return;
      }
      if (signal.aborted) return;
      this.last = null;
      if (this.state.kind !== 'lost') this.become({ kind: 'lost', since: Date.now() });
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }

  /** Until the WebSocket is closed, or the server is silent. */
  private follow(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const socket = new WebSocket(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/live`);
      // Seconds in which this page ran, which may itself be stopped.
      let silent = 0;
      const timer = setInterval(() => ++silent > SILENT_MAX && end(), 1000);
      const end = () => {
        clearInterval(timer);
        signal.removeEventListener('abort', end);
        // The server may answer the closing handshake much later.
        socket.onclose = socket.onmessage = null;
        socket.close();
        resolve();
      };
      signal.addEventListener('abort', end);
      socket.onclose = end;
      // Each connection begins with the newest lines of the log.
      let isFirst = true;
      socket.onmessage = ({ data }: MessageEvent<string>) => {
        silent = 0;
        const live = JSON.parse(data) as Live;
        this.slowest = live.slowest;
        this.log = [...(isFirst ? [] : this.log), ...live.log].slice(-LOG_MAX);
        isFirst = false;
        this.add(Metrics.parse(live.metrics));
        this.become({ kind: 'live' });
      };
    });
  }

  /** Until the server does not answer. */
  private async poll(signal: AbortSignal): Promise<void> {
    this.slowest = [];
    this.log = [];
    while (!signal.aborted && (await isReachable())) {
      try {
        this.add(await fetchMetrics());
      } catch {
        return;
      }
      this.become({ kind: 'polled' });
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }

  private add(metrics: Metrics): void {
    const time = performance.now();
    const now = Date.now() / 1000;
    const { last } = this;
    const rate = (name: string, labels: Record<string, string>) => {
      const [after, before] = [metrics.sum(name, labels), last?.metrics.sum(name, labels) ?? null];
      // A counter that went back belongs to a server that has been restarted.
      return last === null || after === null || before === null || after < before ? null : ((after - before) * 1000) / (time - last.time);
    };
    const both = (name: string) => ['in', 'out'].map((direction) => rate(name, { direction }));
    this.messages.add(now, both('wireloom_messages_total'));
    this.traffic.add(now, both('wireloom_message_bytes_total'));
    this.connections.add(now, [metrics.sum('wireloom_connections_open'), metrics.sum('wireloom_websockets_open')]);
    this.memory.add(now, [metrics.sum('process_resident_memory_bytes'), metrics.sum('wireloom_memory_bytes')]);
    this.metrics = metrics;
    this.last = { time, metrics };
  }

  private become(state: State): void {
    this.state = state;
    this.changed();
  }
}
