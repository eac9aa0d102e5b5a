/** The part of Server at the address of `--admin`: channels, their subscribers and history, for operators who have logged in. */

import { useEffect, useState } from 'preact/hooks';
import { Administration, type Channel, type Stored, type Subscriber } from './administration';
import { count, jsonError, preview, visible } from './format';
import { useStore } from './store';

const admin = new Administration();

/** How many channels and subscribers are shown. */
const SHOWN_MAX = 200;

export function Admin() {
  useStore(admin);
  useEffect(() => void admin.start(), []);
  const { state, note, isError } = admin;
  return (
    <div class="admin">
      <p role="status" class={isError ? 'problem' : 'note'}>
        {visible(note)}
      </p>
      {state.kind === 'off' && <p class="note">To list channels, publish and disconnect clients here, set a key: [api] key in the file of --hub.</p>}
      {state.kind === 'loggedOut' && <LogIn />}
      {state.kind === 'loggedIn' && (
        <div class="plots">
          <Channels />
          {admin.channel && <Opened channel={admin.channel} key={admin.channel.name} />}
        </div>
      )}
    </div>
  );
}

function LogIn() {
  const [key, setKey] = useState('');
  const submit = (event: Event) => {
    event.preventDefault();
    void admin.logIn(key);
    setKey('');
  };
  return (
    <form class="card login" onSubmit={submit} aria-label="Log in">
      <h2>Channels</h2>
      <p class="note">With the key of the server API you can see the channels, publish, and disconnect clients.</p>
      <label>
        API key
        <input type="password" autocomplete="current-password" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
      </label>
      <div class="actions">
        <button type="submit" class="primary" disabled={key === ''}>
          Log in
        </button>
      </div>
    </form>
  );
}

function Channels() {
  const [pattern, setPattern] = useState('');
  const [name, setName] = useState('');
  const { channels } = admin;
  const search = (event: Event) => {
    event.preventDefault();
    void admin.refresh(pattern);
  };
  const open = (event: Event) => {
    event.preventDefault();
    if (name !== '') void admin.open(name);
  };
  return (
    <section class="card" aria-label="Channels">
      <div class="actions">
        <h2 class="grow">Channels{channels.length > 0 && ` (${count(channels.length)})`}</h2>
        <button type="button" onClick={() => void admin.logOut()}>
          Log out
        </button>
      </div>
      <form class="actions" onSubmit={search} aria-label="Find channels">
        <input
          class="grow"
          type="search"
          aria-label="Pattern of names"
          placeholder="Pattern, such as chat:*"
          spellcheck={false}
          value={pattern}
          onInput={(event) => setPattern(event.currentTarget.value)}
        />
        <button type="submit">Refresh</button>
      </form>
      {channels.length === 0 ? (
        <p class="empty">No channel has subscribers.</p>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Channels with subscribers">
          <table>
            <thead>
              <tr>
                <th scope="col">Channel</th>
                <th scope="col">Subscribers</th>
              </tr>
            </thead>
            <tbody>
              {channels.slice(0, SHOWN_MAX).map(({ name: channel, clients }) => (
                <tr key={channel}>
                  <th scope="row">
                    <button type="button" class="link" aria-pressed={channel === admin.channel?.name} onClick={() => void admin.open(channel)}>
                      {visible(channel)}
                    </button>
                  </th>
                  <td>{count(clients)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {channels.length > SHOWN_MAX && <p class="note">{count(channels.length - SHOWN_MAX)} more are not shown: give a pattern.</p>}
      <form class="actions" onSubmit={open} aria-label="Open a channel">
        <input
          class="grow"
          type="text"
          aria-label="Name of a channel"
          placeholder="Channel without subscribers"
          spellcheck={false}
          autocomplete="off"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <button type="submit" disabled={name === ''}>
          Open
        </button>
      </form>
    </section>
  );
}

function Opened({ channel }: { channel: Channel }) {
  return (
    <section class="card" aria-label="Opened channel">
      <h2 class="name">{visible(channel.name)}</h2>
      <Publish name={channel.name} />
      <Subscribers name={channel.name} subscribers={channel.subscribers} />
      <History publications={channel.history} />
    </section>
  );
}

function Publish({ name }: { name: string }) {
  const [text, setText] = useState('');
  const [error, setError] = useState('');
  const publish = (event: Event) => {
    event.preventDefault();
    const problem = jsonError(text);
    setError(problem ? `This is not JSON: ${problem}` : '');
    if (problem) admin.clear();
    else void admin.publish(name, text);
  };
  return (
    <form onSubmit={publish} aria-label="Publish">
      <label>
        Publication, as JSON
        <textarea rows={2} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <p class="problem" role="status">
        {error}
      </p>
      <div class="actions">
        <button type="submit" class="primary" disabled={text.trim() === ''}>
          Publish
        </button>
      </div>
    </form>
  );
}

function Subscribers({ name, subscribers }: { name: string; subscribers: Subscriber[] | null }) {
  return (
    <>
      <h3>Subscribers{subscribers && ` (${count(subscribers.length)})`}</h3>
      {subscribers === null ? (
        <p class="note">This namespace has no presence, so that nobody knows who they are.</p>
      ) : subscribers.length === 0 ? (
        <p class="note">None.</p>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Subscribers">
          <table>
            <thead>
              <tr>
                <th scope="col">User</th>
                <th scope="col">
                  <span class="hidden">Disconnect</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {subscribers.slice(0, SHOWN_MAX).map((one) => (
                <tr key={one.client}>
                  <th scope="row">
                    {visible(one.user || 'anonymous')} <code class="note">{one.client.slice(0, 8)}</code>
                  </th>
                  <td>
                    <button type="button" aria-label={`Disconnect ${visible(one.user || one.client)}`} onClick={() => void admin.disconnect(name, one)}>
                      Disconnect
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {subscribers !== null && subscribers.length > SHOWN_MAX && <p class="note">{count(subscribers.length - SHOWN_MAX)} more are not shown.</p>}
    </>
  );
}

function History({ publications }: { publications: Stored[] | null }) {
  return (
    <>
      <h3>History</h3>
      {publications === null ? (
        <p class="note">This namespace keeps no history.</p>
      ) : publications.length === 0 ? (
        <p class="note">Empty.</p>
      ) : (
        <ol class="history" tabIndex={0} aria-label="Newest publications">
          {publications.map(({ offset, text }) => (
            <li key={offset}>
              <code class="note">{offset}</code> <code>{preview(text)}</code>
            </li>
          ))}
        </ol>
      )}
    </>
  );
}
