/** The channels of the hub, through the server API and the session of the admin page. */

import { jsonText } from './format';
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

export class Administration extends Store {
  state: State = { kind: 'loading' };
  channels: Listed[] = [];
  channel: Channel | null = null;
  /** What went wrong last, or what was done. */
  note = '';
  isError = false;

  async start(): Promise<void> {
    await this.attempt(async () => {
      const response = await fetch('/admin/session', { cache: 'no-store' });
      const { enabled, open } = (await response.json()) as { enabled: boolean; open: boolean };
      this.state = { kind: open ? 'loggedIn' : enabled ? 'loggedOut' : 'off' };
      if (open) await this.list('');
    });
  }

  logIn(key: string): Promise<void> {
    return this.attempt(async () => {
      const response = await fetch('/admin/login', { method: 'POST', body: JSON.stringify({ key }) });
      if (response.status === 403) throw new Error('The server refused: this is not its API key, or the page has an address that it does not know (--allow-host).');
      if (response.status === 429) throw new Error(`Too many wrong keys. Try again in ${response.headers.get('retry-after')} s.`);
      if (!response.ok) throw new Error(`The server answered ${response.status}.`);
      this.state = { kind: 'loggedIn' };
      await this.list('');
    });
  }

  logOut(): Promise<void> {
    return this.attempt(async () => {
      await fetch('/admin/logout', { method: 'POST' });
      this.end();
    });
  }

  /** Lists the channels whose names match, those with most subscribers first. */
  refresh(pattern: string): Promise<void> {
    return this.attempt(async () => {
      await this.list(pattern);
      if (this.channel) await this.load(this.channel.name);
    });
  }

  open(name: string): Promise<void> {
    return this.attempt(() => this.load(name));
  }

  /** Publishes JSON text, whose digits stay as they are. */
  publish(name: string, json: string): Promise<void> {
    return this.attempt(async () => {
      await this.call('publish', `{"channel":${JSON.stringify(name)},"data":${json}}`);
      await this.load(name);
      this.note = 'Published.';
    });
  }

  disconnect(name: string, { user, client }: Subscriber): Promise<void> {
    return this.attempt(async () => {
      await this.call('disconnect', JSON.stringify({ user, client }));
      await this.load(name);
      const left = this.channel?.subscribers?.filter((one) => one.client !== client) ?? null;
      // The connection takes a moment to end.
      this.channel = { ...this.channel!, subscribers: left };
      this.note = `Disconnected ${user || client}.`;
    });
  }

  private async list(pattern: string): Promise<void> {
    const { channels } = await this.call<{ channels: Record<string, { num_clients: number }> }>('channels', JSON.stringify({ pattern }));
    this.channels = Object.entries(channels)
      .map(([name, { num_clients: clients }]) => ({ name, clients }))
      .sort((a, b) => b.clients - a.clients || (a.name < b.name ? -1 : 1));
  }

  private async load(channel: string): Promise<void> {
    const request = JSON.stringify({ channel, limit: HISTORY_MAX, reverse: true });
    const [presence, history] = await Promise.all([
      this.ifAvailable<{ presence: Record<string, Subscriber> }>('presence', request),
      this.ifAvailable<{ publications: { offset: number; data?: unknown; b64data?: string }[] }>('history', request),
    ]);
    const publications = history?.publications.map(({ offset, data, b64data }) => ({ offset, text: b64data ?? jsonText(data) }));
    this.channel = { name: channel, subscribers: presence && Object.values(presence.presence), history: publications ?? null };
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
    if (response.status === 401) {
      this.end();
      throw new Error('The session has ended: log in again.');
    }
    if (!response.ok) throw new Error(`The server answered ${response.status}: ${await response.text()}`);
    const { result, error } = (await response.json()) as Answer<T>;
    if (error) throw new Refusal(error.code, error.message);
    return result as T;
  }

  /** Removes the note of what was done before. */
  clear(): void {
    this.note = '';
    this.isError = false;
    this.changed();
  }

  private end(): void {
    this.state = { kind: 'loggedOut' };
    this.channels = [];
    this.channel = null;
  }

  /** Runs a step, and shows why it failed. */
  private async attempt(step: () => Promise<void>): Promise<void> {
    this.clear();
    try {
      await step();
    } catch (error) {
      this.note = error instanceof TypeError ? 'The server cannot be reached.' : (error as Error).message;
      this.isError = true;
    }
    this.changed();
  }
}
