"""The backend of a chat: it makes tokens, decides who joins a room and what is said there, and learns who has left.

With complete.toml it also knows sessions, and has a method that calls the server API.

python3 backend.py [PORT], with the secret of tokens in WIRELOOM_HUB_TOKEN_HMAC_SECRET; for complete.toml with the key of the
server API in WIRELOOM_HUB_API_KEY.
"""

import base64
import hashlib
import hmac
import json
import os
import pathlib
import secrets
import sys
import time
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

SECRET = os.environ["WIRELOOM_HUB_TOKEN_HMAC_SECRET"].encode()
# The server API, at --admin of any node.
API = os.environ.get("WIRELOOM_API", "http://127.0.0.1:9090/api")
# The users who have logged in, by the session in their cookie.
SESSIONS = {}
MEMBERS = {"chat:lobby": {"ada", "bob"}, "chat:staff": {"ada"}}
PAGE = pathlib.Path(__file__).with_name("index.html")
# A copy of the SDK, if there is one.
SDK = PAGE.with_name("centrifuge.js")


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def token(user):
    """A JSON Web Token (RFC 7519) for a connection of ten minutes. Its user is one who has logged in; here it is anyone's word."""
    parts = [{"alg": "HS256", "typ": "JWT"}, {"sub": user, "exp": int(time.time()) + 600}]
    text = b".".join(base64url(json.dumps(part).encode()) for part in parts)
    return text + b"." + base64url(hmac.new(SECRET, text, hashlib.sha256).digest())


def log_in(user):
    session = secrets.token_urlsafe()
    SESSIONS[session] = user
    return session


def connect(call):
    session = SimpleCookie(call["cookie"]).get("session")
    user = SESSIONS.get(session.value) if session else None
    if user is None:
        return {"disconnect": {"code": 4501, "reason": "log in first"}}
    return {"result": {"user": user}}


def subscribe(call):
    if call["user"] in MEMBERS.get(call["channel"], ()):
        return {"result": {}}
    return {"error": {"code": 103, "message": "permission denied"}}


def publish(call):
    data = call.get("data")
    text = data.get("text") if isinstance(data, dict) else None
    if not isinstance(text, str) or not 0 < len(text) <= 500:
        return {"error": {"code": 1000, "message": "a text of 1 to 500 characters"}}
    # The author is the user of the token, whatever the client says.
    return {"result": {"data": {"user": call["user"], "text": text}}}


def rpc(call):
    if call["method"] != "remove":
        return {"error": {"code": 108, "message": "method not found"}}
    data = call.get("data")
    user = data.get("user") if isinstance(data, dict) else None
    if call["user"] not in MEMBERS["chat:staff"] or not isinstance(user, str):
        return {"error": {"code": 103, "message": "permission denied"}}
    # On whichever node the user is.
    return {"result": {"data": server_api("disconnect", {"user": user})}}


def server_api(method, request):
    headers = {"X-API-Key": os.environ["WIRELOOM_HUB_API_KEY"]}
    with urlopen(Request(f"{API}/{method}", json.dumps(request).encode(), headers), timeout=2) as response:
        return json.load(response)


def events(call):
    # One may arrive twice, with the same id.
    for event in call["events"]:
        print(event["type"], event["user"], event.get("channel", ""), event["reason"], file=sys.stderr)
    return {"result": {}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave together. A body by itself waits until the head is acknowledged, which takes 40 ms.
    wbufsize = -1

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/token":
            self.answer("text/plain", token(parse_qs(url.query)["user"][0]))
        elif url.path == "/login":
            session = log_in(parse_qs(url.query)["user"][0])
            self.answer("text/html; charset=utf-8", PAGE.read_bytes(), ("Set-Cookie", f"session={session}; HttpOnly; SameSite=Strict"))
        elif url.path == "/centrifuge.js" and SDK.exists():
            self.answer("text/javascript", SDK.read_bytes())
        else:
            self.answer("text/html; charset=utf-8", PAGE.read_bytes())

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        # Of the client's own request: see forward_headers.
        call["cookie"] = self.headers.get("Cookie", "")
        decide = {f.__name__: f for f in (connect, subscribe, publish, rpc, events)}[self.path[1:]]
        self.answer("application/json", json.dumps(decide(call)).encode())

    def answer(self, kind, body, *more):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9000), Handler)
print(f"http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
