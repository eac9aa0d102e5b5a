"""A WebSocket over TLS whose secrets are logged. tls.py PORT VERSION KEYS"""
import socket, ssl, sys

port, version, keys = int(sys.argv[1]), sys.argv[2], sys.argv[3]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
context.keylog_filename = keys
context.set_alpn_protocols(["http/1.1"])
number = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
context.minimum_version = context.maximum_version = number
client = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")
client.sendall((f"GET /echo HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                "Authorization: Bearer secret\r\n\r\n").encode())
client.recv(4096)
client.sendall(bytes([0x81, 0x85, 0, 0, 0, 0]) + b"hello")
client.recv(4096)
client.sendall(bytes([0x88, 0x82, 0, 0, 0, 0, 0x03, 0xE8]))
client.recv(4096)
client.close()
