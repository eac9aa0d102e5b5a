// Channels by Faye on node, as its documentation shows them. It ends with its standard input.
import { createServer } from 'node:http';
import faye from 'faye';

const server = createServer();
// In seconds: no answer to /meta/connect comes between the messages.
new faye.NodeAdapter({ mount: '/faye', timeout: 3_600 }).attach(server);
server.listen(0, '127.0.0.1', () => console.log(`listening on 127.0.0.1:${server.address().port}`));
process.stdin.on('end', () => process.exit(0));
process.stdin.resume();
