/** Server: its figures each second, its slowest clients and its log; at the address of --admin also its channels. */

import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { Admin } from './admin';
import { bytes, clock, count } from './format';
import type { Metrics } from './metrics';
import { Monitor, type SlowClient, type State } from './monitor';
import { Plot } from './plot';
import { useStore } from './store';

const monitor = new Monitor();

export function Server() {
  useStore(monitor);
  useEffect(() => {
    monitor.start();
    return () => monitor.stop();
  }, []);
  const { state, metrics } = monitor;
  return (
    <>
      <p role="status" class={`state ${CLASSES[state.kind]}`}>
        <Status state={state} />
      </p>
      {metrics?.sum('wireloom_hub_engine_up') === 0 && (
        <p role="alert" class="state closed">
          Publications, presence or events cannot be stored: <a href="/healthz">the reason</a>.
        </p>
      )}
      {monitor.isAdmin && <Admin />}
      {metrics === null ? (
        state.kind !== 'hidden' && <p class="empty">{state.kind === 'lost' ? 'No figures yet.' : 'Loading the figures…'}</p>
      ) : (
        <div class="dashboard">
          <Figures metrics={metrics} />
          {state.kind !== 'polled' && (
            <div class="plots">
              <Slowest clients={monitor.slowest} />
              <Log lines={monitor.log} />
            </div>
          )}
        </div>
      )}
    </>
  );
}

const CLASSES: Record<State['kind'], string> = { loading: 'connecting', live: 'open', polled: 'open', hidden: 'closed', lost: 'closed' };

function Status({ state }: { state: State }) {
  switch (state.kind) {
    case 'loading':
      return <>Asking the server…</>;
    case 'live':
      return <>Live, each second</>;
    case 'polled':
      return <>The figures of /metrics. Slow clients and the log are for clients on the same machine (--live-stats).</>;
    case 'hidden':
      return <>This server does not show its figures here (--live-stats, --admin).</>;
    case 'lost':
      return <>The server has not answered since {clock(state.since).slice(0, 8)}. Trying again…</>;
  }
}

function Figures({ metrics }: { metrics: Metrics }) {
  const whole = (name: string) => {
    const value = metrics.sum(name);
    return value === null ? '–' : count(value);
  };
  const start = metrics.sum('process_start_time_seconds');
  const numbers = [
    ['Connections', whole('wireloom_connections_open')],
    ['WebSockets', whole('wireloom_websockets_open')],
    ['Channels', whole('wireloom_channels_open')],
    ['Hub clients', whole('wireloom_hub_clients_open')],
    ['Memory', bytes(metrics.sum('process_resident_memory_bytes') ?? 0)],
    ['Open files', `${whole('process_open_fds')} of ${whole('process_max_fds')}`],
    ['Running since', start === null ? '–' : new Date(start * 1000).toLocaleString('en-GB')],
  ] as const;
  return (
    <>
      <dl class="numbers">
        {numbers.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
        <Held metrics={metrics} />
      </dl>
      <div class="plots">
        <Plot label="Messages per second" series={monitor.messages} names={['in', 'out']} format={count} />
        <Plot label="Bytes per second" series={monitor.traffic} names={['in', 'out']} format={bytes} />
        <Plot label="Connections" series={monitor.connections} names={['TCP', 'WebSocket']} format={count} />
        <Plot label="Memory" series={monitor.memory} names={['resident', 'held for clients']} format={bytes} />
      </div>
      <div class="plots">
        <Protocols metrics={metrics} />
        <Refusals metrics={metrics} />
      </div>
    </>
  );
}

/** Memory that clients make the server hold, against its limit. */
function Held({ metrics }: { metrics: Metrics }) {
  const [held, max] = [metrics.sum('wireloom_memory_bytes'), metrics.sum('wireloom_memory_max_bytes')];
  if (held === null || max === null) return null;
  return (
    <div>
      <dt>Held for clients</dt>
      <dd>
        {bytes(held)} of {bytes(max)}
        <meter min={0} max={max} high={max * 0.75} value={held} aria-label="Memory held for clients, of its limit" />
      </dd>
    </div>
  );
}

const PROTOCOLS = [
  ['HTTP/1.1', 'http1'],
  ['HTTP/2', 'http2'],
] as const;

function Protocols({ metrics }: { metrics: Metrics }) {
  const rows = PROTOCOLS.map(([name, protocol]) => {
    const moved = (direction: string) => metrics.sum('wireloom_messages_total', { direction, protocol });
    return { name, open: metrics.sum('wireloom_route_websockets_open', { protocol }), received: moved('in'), sent: moved('out') };
  });
  return (
    <section class="card">
      <h2>WebSockets by protocol</h2>
      <table>
        <thead>
          <tr>
            <th scope="col">Protocol</th>
            <th scope="col">Open</th>
            <th scope="col">Messages in</th>
            <th scope="col">Messages out</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ name, open, received, sent }) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>{count(open ?? 0)}</td>
              <td>{count(received ?? 0)}</td>
              <td>{count(sent ?? 0)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="note">Of /echo, /sink and /source. Rooms are counted as hub clients.</p>
    </section>
  );
}

function Refusals({ metrics }: { metrics: Metrics }) {
  const labelled = (metric: string, text: string) =>
    metrics.all(metric).map(({ labels, value }) => [`${text}: ${(labels.reason ?? '').replaceAll('_', ' ')}`, value] as const);
  const rows = [
    ...labelled('wireloom_evictions_total', 'Evicted'),
    ...labelled('wireloom_hub_evictions_total', 'Evicted by the hub'),
    ['Evicted to free memory', metrics.sum('wireloom_memory_evicted_total')] as const,
    ['Connections refused', metrics.sum('wireloom_connections_refused_total')] as const,
    ['TLS handshakes failed', metrics.sum('wireloom_tls_failed_total')] as const,
    ['Hub commands refused', metrics.sum('wireloom_hub_refused_total')] as const,
    ...metrics
      .all('wireloom_responses_total')
      .filter(({ labels }) => Number(labels.code) >= 400)
      .map(({ labels, value }) => [`Responses ${labels.code}`, value] as const),
  ];
  return (
    <section class="card">
      <h2>Refusals and evictions</h2>
      <table>
        <thead>
          <tr>
            <th scope="col">Reason</th>
            <th scope="col">Count</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([name, value]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>{count(value ?? 0)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Slowest({ clients }: { clients: SlowClient[] }) {
  return (
    <section class="card">
      <h2>Slowest clients</h2>
      {clients.length === 0 ? (
        <p class="empty">All send queues are empty.</p>
      ) : (
        <table>
          <thead>
            <tr>
              <th scope="col">Client</th>
              <th scope="col">Route</th>
              <th scope="col">Queued</th>
              <th scope="col">Sent</th>
            </tr>
          </thead>
          <tbody>
            {clients.map(({ client, route, queued, sent }, index) => (
              <tr key={index}>
                <th scope="row">{client}</th>
                <td>{route}</td>
                <td>{bytes(queued)}</td>
                <td>{bytes(sent)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function Log({ lines }: { lines: string[] }) {
  const box = useRef<HTMLPreElement>(null);
  const isAtEnd = useRef(true);
  const newest = lines.at(-1);
  useLayoutEffect(() => {
    if (newest !== undefined && isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [newest]);
  return (
    <section class="card">
      <h2>Log</h2>
      {lines.length === 0 ? (
        <p class="empty">Nothing has been logged yet: evictions, warnings and errors appear here.</p>
      ) : (
        <pre
          ref={box}
          role="log"
          tabIndex={0}
          aria-label="Newest lines of the log"
          onScroll={({ currentTarget: log }) => {
            isAtEnd.current = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
          }}
        >
          {lines.join('\n')}
        </pre>
      )}
    </section>
  );
}
