// A room by bun, which has uWebSockets inside: publish and subscribe as its documentation shows them. It ends with its standard input.
const deflate = Boolean(process.env.DEFLATE);
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
    perMessageDeflate: deflate,
    idleTimeout: 0,
    maxPayloadLength: 64 << 20,
    backpressureLimit: 64 << 20,
    open(socket) {
      socket.subscribe("room");
    },
    message(socket, message) {
      server.publish("room", message, deflate);
    },
  },
});
console.log(`listening on 127.0.0.1:${server.port}`);
process.stdin.on("end", () => process.exit(0));
process.stdin.resume();
