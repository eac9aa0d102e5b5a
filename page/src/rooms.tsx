/** Rooms: channels of the hub, through the Centrifugo client. */

import { Centrifuge, type ClientInfo, type Subscription } from 'centrifuge';
import { useState } from 'preact/hooks';
import { count, jsonText, messageCount, parseJson, visible } from './format';
import { MessageLog } from './log';
import { Members } from './members';
import { Messages } from './messages';
import { untilReachable } from './reachable';
import { Store, useStore } from './store';

const ENDPOINT = `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/connection/websocket`;
const HISTORY_MAX = 100;

type State =
  | { kind: 'idle'; note: string; isError: boolean }
  | { kind: 'joining'; note: string }
  | { kind: 'joined'; note: string }
  /** The connection was lost, and is opened again when the server answers. */
  | { kind: 'lost'; note: string }
  | { kind: 'offline'; note: string };

/** The user, or for an anonymous client the beginning of its identifier. */
function nameOf(info: ClientInfo): string {
  return visible(info.user || info.client.slice(0, 8));
}

/** The client of the SDK, whose data keeps the digits of its numbers. */
class Client extends Centrifuge {
  constructor(...args: ConstructorParameters<typeof Centrifuge>) {
    super(...args);
    const lines = (data: string) => data.split('\n').filter((line) => line.trim() !== '');
    this._codec.decodeReplies = (data: string) => lines(data).map(parseJson);
  }
}

class Room extends Store {
  readonly log = new MessageLog();
  readonly members = new Members();
  state: State = { kind: 'idle', note: 'Not in a room', isError: false };
  name = '';
  self = '';
  private client: Centrifuge | null = null;
  private subscription: Subscription | null = null;
  private received = 0;
  private lostAt = 0;
  private retry: AbortController | null = null;

  join(name: string): void {
    this.leave();
    this.name = name;
    this.log.clear();
    this.received = 0;
    this.self = '';
    this.become({ kind: 'joining', note: 'Joining…' });
    const client = new Client(ENDPOINT, { minReconnectDelay: 500, maxReconnectDelay: 5000 });
    const subscription = client.newSubscription(`rooms:${name}`, { joinLeave: true, positioned: true, recoverable: true });
    this.client = client;
    this.subscription = subscription;
    client.on('connected', (context) => {
      this.self = context.client;
      this.changed();
    });
    client.on('connecting', (context) => {
      if (this.state.kind === 'joined') {
        this.lostAt = this.received;
        this.lose(client, context.reason);
      }
    });
    client.on('error', (context) => {
      if (this.state.kind !== 'joining') return;
      // A server that is shutting down may still answer the probe and then refuse the connection.
      if (this.self) this.lose(client, context.error.message);
      else this.become({ kind: 'joining', note: `No connection to the hub: ${context.error.message}. Trying again…` });
    });
    client.on('disconnected', (context) => {
      if (this.client === client && !this.isAway) this.fail(`The hub ended the connection: ${context.reason} (${context.code})`);
    });
    subscription.on('subscribed', (context) => {
      let note = 'Joined';
      if (context.wasRecovering && context.recovered) {
        note = 'Joined again, nothing was lost';
        // The SDK hands over the missed publications in the turn of this event.
        queueMicrotask(() => {
          if (this.state.note === note) this.become({ kind: 'joined', note: `${note}: ${messageCount(this.received - this.lostAt)} recovered` });
        });
      } else if (context.wasRecovering) note = 'Joined again. The history does not reach back far enough: messages were lost';
      const isFirst = !context.wasRecovering;
      this.become({ kind: 'joined', note });
      void this.load(subscription, isFirst);
    });
    subscription.on('publication', (context) => {
      this.received++;
      this.push(context.data, context.info);
    });
    subscription.on('error', (context) => {
      if (this.state.kind === 'joining') this.become({ kind: 'joining', note: `The hub refused: ${context.error.message} (${context.error.code}). Trying again…` });
    });
    subscription.on('join', ({ info }) => {
      this.members.joined(info);
      this.changed();
    });
    subscription.on('leave', ({ info }) => {
      this.members.left(info);
      this.changed();
    });
    subscription.on('unsubscribed', (context) => {
      if (this.client === client && !this.isAway) this.fail(`The hub refused: ${context.reason} (${context.code})`);
    });
    subscription.subscribe();
    client.connect();
  }

  private get isAway(): boolean {
    return this.state.kind === 'offline' || this.state.kind === 'lost';
  }

  /** Waits for the server without the SDK's own attempts, which the browser would report as errors. */
  private lose(client: Centrifuge, reason: string): void {
    this.become({ kind: 'lost', note: `Connection lost (${reason}). Reconnecting…` });
    client.disconnect();
    void this.reconnect(client);
  }

  private async reconnect(client: Centrifuge): Promise<void> {
    this.retry?.abort();
    this.retry = new AbortController();
    const { signal } = this.retry;
    // A server that is shutting down answers its open connections a little longer.
    await new Promise((resolve) => setTimeout(resolve, 1000 + 1000 * Math.random()));
    if ((await untilReachable(signal)) && this.client === client) this.goOnline();
  }

  private async load(subscription: Subscription, withHistory: boolean): Promise<void> {
    try {
      const presence = await subscription.presence();
      this.members.replace(Object.values(presence.clients));
      if (withHistory && this.log.next === this.log.first) {
        const history = await subscription.history({ limit: HISTORY_MAX, reverse: true });
        if (this.log.next === this.log.first) for (const publication of history.publications.reverse()) this.push(publication.data, publication.info);
      }
    } catch {
      // A configuration may forbid both; the room works without them.
    }
    this.changed();
  }

  private push(data: unknown, info?: ClientInfo): void {
    const isOwn = info !== undefined && info.client === this.self;
    const text = typeof data === 'string' ? data : jsonText(data);
    this.log.push(isOwn ? 'sent' : 'received', text, { author: info && (isOwn ? 'you' : nameOf(info)) });
    this.changed();
  }

  async send(text: string): Promise<string | null> {
    try {
      await this.subscription!.publish(text);
      return null;
    } catch (error) {
      return `Not sent: ${(error as { message?: string }).message ?? 'the hub refused'}`;
    }
  }

  /** Cuts the connection; what is published meanwhile is recovered by `goOnline`. */
  goOffline(): void {
    this.lostAt = this.received;
    this.become({ kind: 'offline', note: 'Offline. Messages sent now are recovered when you go online.' });
    this.client?.disconnect();
  }

  goOnline(): void {
    this.become({ kind: 'joining', note: 'Reconnecting…' });
    this.client?.connect();
  }

  leave(): void {
    const client = this.client;
    this.retry?.abort();
    this.client = null;
    this.subscription = null;
    this.members.replace([]);
    client?.disconnect();
    this.become({ kind: 'idle', note: 'Not in a room', isError: false });
  }

  clear(): void {
    this.log.clear();
    this.changed();
  }

  private fail(note: string): void {
    this.leave();
    this.become({ kind: 'idle', note, isError: true });
  }

  private become(state: State): void {
    this.state = state;
    this.changed();
  }
}

const room = new Room();

export function Rooms() {
  useStore(room);
  const [name, setName] = useState(room.name || 'lobby');
  const [text, setText] = useState('');
  const [error, setError] = useState('');
  const { state } = room;
  const members = room.members.list();
  const isIdle = state.kind === 'idle';
  const join = (event: Event) => {
    event.preventDefault();
    if (!isIdle) room.leave();
    else if (name.trim() !== '') room.join(name.trim());
  };
  const send = async (event: Event) => {
    event.preventDefault();
    if (state.kind !== 'joined' || text === '') return;
    // Cleared now: the next message may be typed before the hub has answered.
    setText('');
    const failure = await room.send(text);
    setError(failure ?? '');
    if (failure) setText((next) => (next === '' ? text : next));
  };
  // Enter alone submits the form.
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) void send(event);
  };
  return (
    <div class="columns">
      <div class="side">
        <form class="card" onSubmit={join} aria-label="Room">
          <label>
            Room
            <input type="text" maxLength={200} spellcheck={false} autocomplete="off" value={name} readOnly={!isIdle} onInput={(event) => setName(event.currentTarget.value)} />
          </label>
          <div class="actions">
            <button type="submit" class={isIdle ? 'primary' : ''} disabled={isIdle && name.trim() === ''}>
              {isIdle ? 'Join' : 'Leave'}
            </button>
            {state.kind === 'joined' && (
              <button type="button" onClick={() => room.goOffline()}>
                Go offline
              </button>
            )}
            {state.kind === 'offline' && (
              <button type="button" onClick={() => room.goOnline()}>
                Go online
              </button>
            )}
          </div>
          <p role="status" class={`state ${state.kind === 'joined' ? 'open' : state.kind === 'joining' || state.kind === 'lost' ? 'connecting' : state.kind === 'idle' && !state.isError ? 'idle' : 'closed'}`}>
            {state.note}
          </p>
        </form>
        <form class="card" onSubmit={send} aria-label="Message to the room">
          <label>
            Message
            <input type="text" autocomplete="off" value={text} disabled={state.kind !== 'joined'} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={onKeyDown} />
          </label>
          <p class="problem" role="status">
            {error}
          </p>
          <button type="submit" class="primary" disabled={state.kind !== 'joined' || text === ''}>
            Send
          </button>
        </form>
        <section class="card" aria-label="Members">
          <h2>Members{room.members.total > 0 && ` (${count(room.members.total)})`}</h2>
          {members.length === 0 ? (
            <p class="empty">{isIdle ? 'Join a room to see its members.' : 'No members are known.'}</p>
          ) : (
            <ul class="members">
              {members.map((info) => (
                <li key={info.client}>
                  <code>{nameOf(info)}</code>
                  {info.client === room.self && ' (you)'}
                </li>
              ))}
            </ul>
          )}
        </section>
      </div>
      <Messages log={room.log} empty={isIdle ? 'Join a room to see its messages, the newest 100 of its history first.' : 'No messages in this room yet.'} onClear={() => room.clear()} />
    </div>
  );
}
