/** Server: the figures of `/metrics`, each second. */

import { useEffect } from 'preact/hooks';
import { bytes, clock, count } from './format';
import { fetchMetrics, type Metrics, MetricsRefused } from './metrics';
import { Plot } from './plot';
import { Series } from './series';
import { Store, useStore } from './store';

type State = { kind: 'loading' } | { kind: 'live' } | { kind: 'lost'; since: number } | { kind: 'refused'; status: number };

class Monitor extends Store {
  readonly messages = new Series(2);
  readonly traffic = new Series(2);
  readonly connections = new Series(2);
  readonly memory = new Series(1);
  state: State = { kind: 'loading' };
  metrics: Metrics | null = null;
  private timer = 0;
  private last: { time: number; metrics: Metrics } | null = null;

  start(): void {
    void this.poll();
  }

  stop(): void {
    window.clearTimeout(this.timer);
    this.timer = -1;
    this.last = null;
  }

  private async poll(): Promise<void> {
    this.timer = 0;
    let delay = 1000;
    try {
      const metrics = await fetchMetrics();
      this.state = { kind: 'live' };
      this.add(metrics);
    } catch (error) {
      if (error instanceof MetricsRefused) this.state = { kind: 'refused', status: error.status };
      else if (this.state.kind !== 'lost') this.state = { kind: 'lost', since: Date.now() };
      delay = 3000;
      this.last = null;
    }
    this.changed();
    if (this.timer === 0) this.timer = window.setTimeout(() => void this.poll(), delay);
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
    this.memory.add(now, [metrics.sum('process_resident_memory_bytes')]);
    this.metrics = metrics;
    this.last = { time, metrics };
  }
}

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
      <p role="status" class={`state ${state.kind === 'live' ? 'open' : state.kind === 'loading' ? 'connecting' : 'closed'}`}>
        <Status state={state} />
      </p>
      {metrics === null ? state.kind === 'loading' && <p class="empty">Loading the figures…</p> : <Figures metrics={metrics} />}
    </>
  );
}

function Status({ state }: { state: State }) {
  switch (state.kind) {
    case 'loading':
      return <>Asking the server…</>;
    case 'live':
      return <>Live, each second, from /metrics</>;
    case 'lost':
      return <>The server does not answer since {clock(state.since).slice(0, 8)}. Trying again…</>;
    case 'refused':
      return state.status === 404 ? <>This server has its figures at another address (--admin).</> : <>The server answered {state.status}.</>;
  }
}

function Figures({ metrics }: { metrics: Metrics }) {
  const whole = (name: string) => {
    const value = metrics.sum(name);
    return value === null ? '–' : count(value);
  };
  const byReason = [
    ...metrics.all('wireloom_evictions_total').map(({ labels, value }) => [`Evicted: ${labels['reason']}`, value] as const),
    ...metrics.all('wireloom_hub_evictions_total').map(({ labels, value }) => [`Evicted by the hub: ${labels['reason']}`, value] as const),
    ['Connections refused', metrics.sum('wireloom_connections_refused_total')] as const,
    ['TLS handshakes failed', metrics.sum('wireloom_tls_failed_total')] as const,
    ['Hub commands refused', metrics.sum('wireloom_hub_refused_total')] as const,
    ...metrics
      .all('wireloom_responses_total')
      .filter(({ labels }) => Number(labels['code']) >= 400)
      .map(({ labels, value }) => [`Responses ${labels['code']}`, value] as const),
  ];
  const protocols = [
    ['HTTP/1.1', 'http1'],
    ['HTTP/2', 'http2'],
  ] as const;
  const start = metrics.sum('process_start_time_seconds');
  return (
    <div class="dashboard">
      <dl class="numbers">
        {(
          [
            ['Connections', whole('wireloom_connections_open')],
            ['WebSockets', whole('wireloom_websockets_open')],
            ['Channels', whole('wireloom_channels_open')],
            ['Hub clients', whole('wireloom_hub_clients_open')],
            ['Memory', bytes(metrics.sum('process_resident_memory_bytes') ?? 0)],
            ['Open files', `${whole('process_open_fds')} of ${whole('process_max_fds')}`],
            ['Running since', start === null ? '–' : new Date(start * 1000).toLocaleString('en-GB')],
          ] as const
        ).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <div class="plots">
        <Plot label="Messages per second" series={monitor.messages} names={['in', 'out']} format={count} />
        <Plot label="Bytes per second" series={monitor.traffic} names={['in', 'out']} format={bytes} />
        <Plot label="Connections" series={monitor.connections} names={['TCP', 'WebSocket']} format={count} />
        <Plot label="Memory" series={monitor.memory} names={['resident']} format={bytes} />
      </div>
      <div class="plots">
        <section class="card">
          <h2>Messages by protocol</h2>
          <table>
            <thead>
              <tr>
                <th scope="col">Protocol</th>
                <th scope="col">In</th>
                <th scope="col">Out</th>
              </tr>
            </thead>
            <tbody>
              {protocols.map(([name, protocol]) => (
                <tr key={protocol}>
                  <th scope="row">{name}</th>
                  {['in', 'out'].map((direction) => (
                    <td key={direction}>{count(metrics.sum('wireloom_messages_total', { direction, protocol }) ?? 0)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </section>
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
              {byReason.map(([name, value]) => (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  <td>{count(value ?? 0)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      </div>
    </div>
  );
}
