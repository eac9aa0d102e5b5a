// Nodes of a cluster for a test: `wireloom serve --nats` on ports of its own, and the NATS server between them.

import { spawn, spawnSync } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const hasNats = spawnSync('nats-server', ['--version']).status === 0;

export class Nats {
  static async start() {
    const nats = new Nats();
    nats.store = await mkdtemp(join(tmpdir(), 'nats-'));
    await nats.run();
    return nats;
  }

  /** Runs a server on a port that it chooses, which it reports in a file, or on the port that it had before. */
  async run() {
    const port = String(this.port ?? -1);
    const args = ['-a', '127.0.0.1', '-p', port, '-js', '-sd', this.store, '--ports_file_dir', this.store];
    this.process = spawn('nats-server', args, { stdio: 'ignore' });
    const file = join(this.store, `nats-server_${this.process.pid}.ports`);
    for (const end = Date.now() + 60_000; ; await new Promise((resolve) => setTimeout(resolve, 20))) {
      if (Date.now() > end) throw new Error('nats-server does not start');
      // It is not written at once.
      const ports = await readFile(file, 'utf8').then(JSON.parse).catch(() => ({}));
      if (ports.nats) {
        this.port = Number(ports.nats[0].split(':').at(-1));
        return;
      }
    }
  }

  /** Kills the server, and waits until it is gone: until then it may still answer. */
  async kill() {
    const { process } = this;
    if (process.exitCode !== null || process.signalCode !== null) return;
    const exited = new Promise((resolve) => process.once('exit', resolve));
    process.kill('SIGKILL');
    await exited;
  }

  async stop() {
    await this.kill();
    await rm(this.store, { recursive: true, force: true, maxRetries: 10 });
  }
}

export class Node {
  /** Starts `wireloom serve`, connected to NATS where there is one. */
  static async start(nats, hub = 'hub.toml', args = []) {
    const node = new Node();
    const all = ['serve', '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0', '--hub', hub, ...args];
    if (nats) all.push('--nats', `nats://127.0.0.1:${nats.port}`);
    node.process = spawn(process.env.WIRELOOM, all, { stdio: ['ignore', 'pipe', 'pipe'] });
    node.log = '';
    node.process.stderr.on('data', (chunk) => (node.log += chunk));
    node.exited = new Promise((resolve) => node.process.on('exit', (code, signal) => resolve(code ?? signal)));
    [node.address, node.admin] = await new Promise((resolve, reject) => {
      let text = '';
      node.process.stdout.on('data', (chunk) => {
        text += chunk;
        const match = / on http:\/\/([^/\s]+)[^]*^admin on http:\/\/([^/\s]+)/m.exec(text);
        if (match) resolve(match.slice(1));
      });
      node.exited.then((code) => reject(new Error(`the server did not start (${code}): ${text}${node.log}`)));
    });
    return node;
  }

  get url() {
    return `ws://${this.address}/connection/websocket`;
  }

  async api(method, body) {
    const response = await fetch(`http://${this.admin}/api/${method}`, {
      method: 'POST',
      headers: { 'X-API-Key': 'key', 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    });
    if (response.status !== 200) throw new Error(`status ${response.status}`);
    return response.json();
  }

  /** Whether what is published now can be stored. */
  async isHealthy() {
    return (await fetch(`http://${this.admin}/healthz`)).ok;
  }

  async stop(signal = 'SIGTERM') {
    this.process.kill(signal);
    return this.exited;
  }
}

/** What stands before the nodes of a cluster: passes each connection on to the first node that accepts it. */
export class Balancer {
  static async start(nodes) {
    const balancer = new Balancer();
    const pass = (near, left) => {
      if (left.length === 0) return near.destroy();
      const [host, port] = left[0].address.split(':');
      const far = net.connect(Number(port), host);
      far.once('error', () => pass(near, left.slice(1)));
      far.once('connect', () => {
        far.removeAllListeners('error');
        for (const [one, other] of [[near, far], [far, near]]) {
          one.on('error', () => other.destroy());
          one.on('close', () => other.destroy());
        }
        near.pipe(far).pipe(near);
      });
    };
    balancer.server = net.createServer((near) => {
      near.on('error', () => {});
      pass(near, nodes);
    });
    await new Promise((resolve) => balancer.server.listen(0, '127.0.0.1', resolve));
    balancer.url = `ws://127.0.0.1:${balancer.server.address().port}/connection/websocket`;
    return balancer;
  }

  stop() {
    this.server.close();
  }
}
