// Rooms by socket.io, as its documentation shows them. It ends with its standard input.
//   --recovery      connection state recovery
//   --processes N   N processes and the cluster adapter
import cluster from 'node:cluster';
import { createServer } from 'node:http';
import { createAdapter, setupPrimary } from '@socket.io/cluster-adapter';
import { Server } from 'socket.io';

const value = (name) => process.argv[process.argv.indexOf(name) + 1];
const processes = process.argv.includes('--processes') ? Number(value('--processes')) : 1;

function serve(listening) {
  const server = createServer();
  const io = new Server(server, {
    transports: ['websocket'],
    serveClient: false,
    perMessageDeflate: false,
    // No ping comes between the messages.
    pingInterval: 3_600_000,
    maxHttpBufferSize: 64 << 20,
    ...(process.argv.includes('--recovery') && { connectionStateRecovery: { maxDisconnectionDuration: 600_000 } }),
    ...(processes > 1 && { adapter: createAdapter() }),
  });
  io.on('connection', (socket) => {
    socket.on('join', (channels, done) => {
      socket.join(channels);
      done();
    });
    socket.on('publish', (channel, data) => io.to(channel).emit('message', data));
  });
  server.listen(0, '127.0.0.1', () => listening(server.address().port));
}

const report = (port) => console.log(`listening on 127.0.0.1:${port}`);
if (processes === 1) {
  serve(report);
} else if (cluster.isPrimary) {
  setupPrimary();
  let ready = 0;
  for (let i = 0; i < processes; i++) {
    // The workers share one port.
    cluster.fork().on('listening', ({ port }) => {
      ready += 1;
      if (ready === processes) report(port);
    });
  }
} else {
  serve(() => {});
}
if (cluster.isPrimary) {
  process.stdin.on('end', () => process.exit(0));
  process.stdin.resume();
}
