/** One tab: a WebSocket, its messages, and its round-trip times. */

import { Latencies, Probes } from './latency';
import { MessageLog } from './log';
import { isReachable, untilReachable } from './reachable';
import { Series } from './series';
import { Store } from './store';

export type State =
  | { kind: 'idle' }
  | { kind: 'connecting'; attempt: number }
  | { kind: 'open'; protocol: string; extensions: string }
  | { kind: 'closing' }
  | { kind: 'closed'; code: number; reason: string; wasOpen: boolean; detail: string; retryAt: number | null };

/** What the browser may buffer of messages that the server does not read. */
const BUFFERED_MAX = 64 * 1_048_576;
const PROBE_INTERVAL_MS = 200;
const RETRY_MAX_MS = 16_000;

let serial = 0;

export class Session extends Store {
  readonly id = ++serial;
  readonly log = new MessageLog();
  readonly rtts = new Latencies(500);
  readonly rttSeries = new Series(3);
  state: State = { kind: 'idle' };
  url: string;
  protocols = '';
  reconnects = false;
  isMeasuring = false;
  received = { messages: 0, size: 0 };
  sent = { messages: 0, size: 0 };

  private socket: WebSocket | null = null;
  private attempt = 0;
  private retry: AbortController | null = null;
  private prober = 0;
  private readonly probes = new Probes(this.id);

  constructor(url: string) {
    super();
    this.url = url;
  }

  get isBusy(): boolean {
    return this.state.kind === 'connecting' || this.state.kind === 'open' || this.state.kind === 'closing' || this.isRetrying;
  }

  get isRetrying(): boolean {
    return this.state.kind === 'closed' && this.state.retryAt !== null;
  }

  set<K extends 'url' | 'protocols' | 'reconnects'>(key: K, value: this[K]): void {
    this[key] = value;
    if (this.isRetrying && !this.reconnects) this.close();
    this.changed();
  }

  connect(): void {
    this.attempt = 0;
    this.open();
  }

  private open(): void {
    this.drop();
    const problem = urlProblem(this.url);
    if (problem) {
      this.become({ kind: 'closed', code: 1006, reason: '', wasOpen: false, detail: problem, retryAt: null });
      return;
    }
    let socket: WebSocket;
    try {
      const protocols = this.protocols.split(/[\s,]+/).filter((name) => name !== '');
      socket = new WebSocket(this.url.trim(), protocols);
    } catch (error) {
      this.become({ kind: 'closed', code: 1006, reason: '', wasOpen: false, detail: (error as Error).message, retryAt: null });
      return;
    }
    socket.binaryType = 'arraybuffer';
    this.socket = socket;
    this.become({ kind: 'connecting', attempt: this.attempt });
    let wasOpen = false;
    socket.onopen = () => {
      wasOpen = true;
      this.attempt = 0;
      this.become({ kind: 'open', protocol: socket.protocol, extensions: socket.extensions });
      if (this.isMeasuring) this.startProbes();
    };
    socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => this.receive(data);
    socket.onclose = ({ code, reason, wasClean }) => void this.closed(code, reason, wasOpen, wasClean);
  }

  private receive(data: string | ArrayBuffer): void {
    if (typeof data === 'string') {
      const rtt = this.probes.answered(data, performance.now());
      if (rtt !== null) return this.rtts.add(rtt);
    }
    const payload = typeof data === 'string' ? data : new Uint8Array(data);
    this.received.messages++;
    this.received.size += this.log.push('received', payload);
    this.changed();
  }

  private async closed(code: number, reason: string, wasOpen: boolean, wasClean: boolean): Promise<void> {
    const isClosing = this.state.kind === 'closing';
    const isLost = !isClosing && !(wasClean && code === 1000);
    this.drop();
    // The user has cancelled the attempt, which did not fail.
    if (isClosing && !wasOpen) return this.become({ kind: 'idle' });
    const mayRetry = this.reconnects && isLost;
    const delay = Math.min(500 * 2 ** this.attempt++, RETRY_MAX_MS);
    const state: State = { kind: 'closed', code, reason, wasOpen, detail: '', retryAt: mayRetry ? Date.now() + delay : null };
    this.become(state);
    if (mayRetry) void this.openAgain(delay);
    if (wasOpen || mayRetry) return;
    const detail = await refusal(this.url);
    if (this.state === state) this.become({ ...state, detail });
  }

  private async openAgain(delay: number): Promise<void> {
    const retry = new AbortController();
    this.retry = retry;
    await new Promise((resolve) => setTimeout(resolve, delay));
    if (isOwn(this.url) ? await untilReachable(retry.signal) : !retry.signal.aborted) this.open();
  }

  /** Sends a message. The result is an error in words, or null. */
  send(data: string | Uint8Array<ArrayBuffer>): string | null {
    const socket = this.socket;
    if (socket?.readyState !== WebSocket.OPEN) return 'The connection is not open.';
    if (socket.bufferedAmount > BUFFERED_MAX) return 'The server has not read the earlier messages yet. Try again later.';
    socket.send(data);
    this.sent.messages++;
    this.sent.size += this.log.push('sent', data);
    this.changed();
    return null;
  }

  close(code = 1000, reason = ''): string | null {
    this.retry?.abort();
    if (this.state.kind === 'closed') {
      this.become({ ...this.state, retryAt: null });
      return null;
    }
    try {
      this.socket?.close(code, reason);
    } catch (error) {
      return (error as Error).message;
    }
    this.become({ kind: 'closing' });
    return null;
  }

  measure(isMeasuring: boolean): void {
    this.isMeasuring = isMeasuring;
    if (isMeasuring && this.state.kind === 'open') this.startProbes();
    if (!isMeasuring) this.stopProbes();
    this.changed();
  }

  /** Probes are not listed among the messages. */
  private startProbes(): void {
    this.stopProbes();
    let ticks = 0;
    this.prober = window.setInterval(() => {
      if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(this.probes.next(performance.now()));
      const now = this.rtts.percentiles();
      if (now && ++ticks % 5 === 0) {
        this.rttSeries.add(Date.now() / 1000, [now.p50, now.p90, now.p99]);
        this.changed();
      }
    }, PROBE_INTERVAL_MS);
  }

  private stopProbes(): void {
    window.clearInterval(this.prober);
    this.probes.clear();
  }

  clear(): void {
    this.log.clear();
    this.changed();
  }

  /** Ends the connection for good: the tab is closed. */
  dispose(): void {
    const socket = this.socket;
    this.drop();
    socket?.close();
  }

  private drop(): void {
    this.retry?.abort();
    this.stopProbes();
    if (this.socket) this.socket.onopen = this.socket.onmessage = this.socket.onclose = null;
    this.socket = null;
  }

  private become(state: State): void {
    this.state = state;
    this.changed();
  }
}

/** Why a text is no URL of a WebSocket, or null. A browser would resolve a relative one against the server of this page. */
export function urlProblem(url: string): string | null {
  const text = url.trim();
  if (text === '') return 'Enter a URL: ws://HOST/PATH or wss://HOST/PATH.';
  if (!/^(wss?|https?):\/\//i.test(text)) return 'The URL must begin with ws:// or wss://.';
  return null;
}

/** The address that a WebSocket is asked of. */
function addressOf(url: string): URL | null {
  const address = url.trim().replace(/^ws/i, 'http');
  return URL.canParse(address) ? new URL(address) : null;
}

/** Whether the server of this page is asked. */
function isOwn(url: string): boolean {
  return addressOf(url)?.origin === location.origin;
}

/** A browser hides the response that refused a WebSocket, so a server of the same origin is asked again by a plain request. */
async function refusal(url: string): Promise<string> {
  const unknown = 'The browser does not show why. From a shell, “wireloom connect” shows the response.';
  const address = addressOf(url);
  if (!address || !isOwn(url)) return unknown;
  if (!(await isReachable())) return 'The server cannot be reached.';
  try {
    const abort = new AbortController();
    const response = await fetch(address, { signal: abort.signal, cache: 'no-store' });
    if (response.ok || response.status === 426) {
      abort.abort();
      return unknown;
    }
    const first = await response.body?.getReader().read();
    abort.abort();
    const text = new TextDecoder().decode(first?.value?.subarray(0, 1024)).trim();
    return `The server answered ${response.status}${text ? `: ${text}` : ''}`;
  } catch {
    return 'The server cannot be reached.';
  }
}
