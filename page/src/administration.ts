/** The channels of the hub, through the server API and the session of the admin page. */

import { jsonText, parseJson } from './format';
import { Store } from './store';

export type State =
  | { kind: 'loading' }
  /** The configuration has no API key. */
  | { kind: 'off' }
  | { kind: 'loggedOut' }
  | { kind: 'loggedIn' };

export interface Listed {
  name: string;
  clients: number;
}

export interface Subscriber {
  client: string;
  /** Nobody, if the client is anonymous. */
  user?: string;
}

export interface Stored {
  offset: number;
  /** As JSON, or as base64 of what is not JSON. */
  text: string;
}

/** A channel that was opened. `null` where its namespace keeps none. */
export interface Channel {
  name: string;
  subscribers: Subscriber[] | null;
  history: Stored[] | null;
}

const HISTORY_MAX = 20;
/** The code of the protocol for a channel that has no presence or no history. */
const NOT_AVAILABLE = 108;

/** An answer of the server API that is an error. */
class Refusal extends Error {
  constructor(
    readonly code: number,
    message: string,
  ) {
    super(`${message} (${code})`);
  }
}

interface Answer<T> {
  result?: T;
  error?: { code: number; message: string };
}

/** The server no longer knows the login of this page. */
class SessionEnded extends Error {}

/** What a step may change. */
interface Shown {
  state: State;
  channels: Listed[];
  channel: Channel | null;
  /** What went wrong last, or what was done. */
  note: string;
  isError: boolean;
}

const NOTHING = { channels: [], channel: null, note: '', isError: false };

export class Administration extends Store implements Shown {
  state: State = { kind: 'loading' };
  channels: Listed[] = [];
  channel: Channel | null = null;
  note = '';
  isError = false;
  /** How many steps have begun, and how many when a session ended last. */
  private steps = 0;
  private ended = 0;
  /** Which step has set a field. */
  private readonly setBy: Partial<Record<keyof Shown, number>> = {};

  start(): Promise<void> {
    return this.attempt(async () => {
      const response = await fetch('/admin/session', { cache: 'no-store' });
      const { enabled, open } = (await response.json()) as { enabled: boolean; open: boolean };
      if (!open) return { ...NOTHING, state: { kind: enabled ? 'loggedOut' : 'off' } };
      return { state: { kind: 'loggedIn' }, channels: await this.list('') };
    });
  }

  logIn(key: string): Promise<void> {
    return this.attempt(async () => {
      const response = await fetch('/admin/login', { method: 'POST', body: JSON.stringify({ key }) });
      if (response.status === 403) throw new Error('The server refused: this is not its API key, or the page has an address that it does not know (--allow-host).');
      if (response.status === 429) throw new Error(`Too many wrong keys. Try again in ${response.headers.get('retry-after')} s.`);
      if (!response.ok) throw new Error(`The server answered ${response.status}.`);
      return { state: { kind: 'loggedIn' }, channels: await this.list('') };
    });
  }

  logOut(): Promise<void> {
    return this.attempt(async () => {
      await fetch('/admin/logout', { method: 'POST' });
      this.end();
      return {};
    });
  }

  /** Lists the channels whose names match, those with most subscribers first. */
  refresh(pattern: string): Promise<void> {
    const { channel } = this;
    return this.attempt(async () => ({ channels: await this.list(pattern), ...(channel && { channel: await this.load(channel.name) }) }));
  }

  open(name: string): Promise<void> {
    return this.attempt(async () => ({ channel: await this.load(name) }));
  }

  /** Publishes JSON text, whose digits stay as they are. */
  publish(name: string, json: string): Promise<void> {
    return this.attempt(async () => {
      await this.call('publish', `{"channel":${JSON.stringify(name)},"data":${json}}`);
      return { channel: await this.load(name), note: 'Published.' };
    });
  }

  disconnect(name: string, { user, client }: Subscriber): Promise<void> {
    return this.attempt(async () => {
      await this.call('disconnect', JSON.stringify({ user, client }));
      const channel = await this.load(name);
      // The connection takes a moment to end.
      const subscribers = channel.subscribers?.filter((one) => one.client !== client) ?? null;
      return { channel: { ...channel, subscribers }, note: `Disconnected ${user || client}.` };
    });
  }

  private async list(pattern: string): Promise<Listed[]> {
    const { channels } = await this.call<{ channels: Record<string, { num_clients: number }> }>('channels', JSON.stringify({ pattern }));
    return Object.entries(channels)
      .map(([name, { num_clients: clients }]) => ({ name, clients }))
      .sort((a, b) => b.clients - a.clients || (a.name < b.name ? -1 : 1));
  }

  private async load(channel: string): Promise<Channel> {
    const request = JSON.stringify({ channel, limit: HISTORY_MAX, reverse: true });
    const [presence, history] = await Promise.all([
      this.ifAvailable<{ presence: Record<string, Subscriber> }>('presence', request),
      this.ifAvailable<{ publications: { offset: number; data?: unknown; b64data?: string }[] }>('history', request),
    ]);
    const publications = history?.publications.map(({ offset, data, b64data }) => ({ offset, text: b64data ?? jsonText(data) }));
    return { name: channel, subscribers: presence && Object.values(presence.presence), history: publications ?? null };
  }

  private async ifAvailable<T>(method: string, request: string): Promise<T | null> {
    try {
      return await this.call<T>(method, request);
    } catch (error) {
      if (error instanceof Refusal && error.code === NOT_AVAILABLE) return null;
      throw error;
    }
  }

  private async call<T>(method: string, request: string): Promise<T> {
    const response = await fetch(`/admin/api/${method}`, { method: 'POST', body: request });
    if (response.status === 401) throw new SessionEnded('The session has ended: log in again.');
    if (!response.ok) throw new Error(`The server answered ${response.status}: ${await response.text()}`);
    const { result, error } = parseJson(await response.text()) as Answer<T>;
    if (error) throw new Refusal(error.code, error.message);
    return result as T;
  }

  /** Removes the note of what was done before. */
  clear(): void {
    this.show(++this.steps, { note: '', isError: false });
  }

  /** What was asked in a session that has ended is not shown. */
  private end(): void {
    this.show(++this.steps, { ...NOTHING, state: { kind: 'loggedOut' } });
    this.ended = this.steps;
  }

  /** Runs a step, which only asks, and shows its result, or why it failed. */
  private async attempt(ask: () => Promise<Partial<Shown>>): Promise<void> {
    this.clear();
    const step = this.steps;
    try {
      this.show(step, await ask());
    } catch (error) {
      if (step <= this.ended) return;
      const isEnd = error instanceof SessionEnded;
      if (isEnd) this.end();
      const note = error instanceof TypeError ? 'The server cannot be reached.' : (error as Error).message;
      this.show(isEnd ? ++this.steps : step, { note, isError: true });
    }
  }

  /** Shows what a step has found, unless a later step has set it. */
  private show(step: number, found: Partial<Shown>): void {
    if (step <= this.ended) return;
    for (const key of Object.keys(found) as (keyof Shown)[]) {
      if ((this.setBy[key] ?? 0) > step) continue;
      this.setBy[key] = step;
      Object.assign(this, { [key]: found[key] });
    }
    this.changed();
  }
}
