/** The page: four sections, chosen by the fragment of the address. */

import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { Connect } from './connect';
import { Load } from './load';
import { Rooms } from './rooms';
import { Server } from './server';

const SECTIONS = [
  { id: 'connect', name: 'Connect', title: 'Connect to a WebSocket', View: Connect },
  { id: 'rooms', name: 'Rooms', title: 'Meet in a room', View: Rooms },
  { id: 'load', name: 'Load', title: 'Put load on the server', View: Load },
  { id: 'server', name: 'Server', title: 'Watch the server', View: Server },
] as const;

function chosen() {
  const id = location.hash.slice(1);
  return SECTIONS.find((section) => section.id === id) ?? SECTIONS[0];
}

function Page() {
  const [section, setSection] = useState(chosen);
  useEffect(() => {
    const onChange = () => setSection(chosen());
    addEventListener('hashchange', onChange);
    return () => removeEventListener('hashchange', onChange);
  }, []);
  useEffect(() => {
    document.title = `${section.name} · Wireloom`;
  }, [section]);
  return (
    <>
      <header>
        <a class="brand" href="#connect">
          Wireloom
        </a>
        <nav aria-label="Sections">
          {SECTIONS.map(({ id, name }) => (
            <a key={id} href={`#${id}`} aria-current={id === section.id ? 'page' : undefined}>
              {name}
            </a>
          ))}
        </nav>
      </header>
      <main>
        <h1>{section.title}</h1>
        <section.View />
      </main>
      <footer>
        <Routes />
      </footer>
    </>
  );
}

function Routes() {
  return (
    <details>
      <summary>Routes of this server</summary>
      <dl>
        <dt>/echo</dt>
        <dd>A WebSocket that sends back each message; a POST gets its body back.</dd>
        <dt>/rooms/NAME</dt>
        <dd>A WebSocket that sends each message to all members of the room.</dd>
        <dt>/connection/websocket</dt>
        <dd>Channels, with presence, history and recovery, for the Centrifugo clients.</dd>
        <dt>/sink</dt>
        <dd>A WebSocket, or a POST, whose content is counted and discarded.</dd>
        <dt>/source?size=1024&amp;rate=0&amp;count=0</dt>
        <dd>A WebSocket, or a GET, that sends messages of “size” bytes, “rate” each second (0: no limit), “count” in total (0: no end).</dd>
        <dt>
          <a href="/metrics">/metrics</a>, <a href="/livez">/livez</a>, <a href="/healthz">/healthz</a>
        </dt>
        <dd>Figures for Prometheus; whether the server answers, and whether its engine stores everything.</dd>
      </dl>
    </details>
  );
}

render(<Page />, document.getElementById('page')!);
