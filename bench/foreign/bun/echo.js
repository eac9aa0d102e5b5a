// An echo by bun, which has uWebSockets inside. It ends with its standard input.
// The file with the certificate and its key.
const pem = process.env.TLS && Bun.file(process.env.TLS);
const server = Bun.serve({
  tls: pem && { cert: pem, key: pem },
  hostname: "127.0.0.1",
  port: 0,
  fetch(request, server) {
    return server.upgrade(request) ? undefined : new Response("a WebSocket is wanted\n", { status: 426 });
  },
  websocket: {
    perMessageDeflate: false,
    idleTimeout: 0,
    maxPayloadLength: 64 << 20,
    backpressureLimit: 64 << 20,
    message(socket, message) {
      socket.send(message);
    },
  },
});
console.log(`listening on 127.0.0.1:${server.port}`);
process.stdin.on("end", () => process.exit(0));
process.stdin.resume();
