package websocket

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// version is the only one (RFC 6455 §4.1).
const version = "13"

// ClientKey is the Sec-WebSocket-Key of the opening handshake. It identifies the connection in [Hooks].
type ClientKey string

// NewClientKey returns a random key (RFC 6455 §4.1).
func NewClientKey() ClientKey {
	var nonce [16]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		panic("websocket: no randomness: " + err.Error())
	}
	return ClientKey(base64.StdEncoding.EncodeToString(nonce[:]))
}

// accept returns the Sec-WebSocket-Accept that answers the key (RFC 6455 §4.2.2).
func (k ClientKey) accept() string {
	hash := sha1.New()
	_, _ = io.WriteString(hash, string(k)+"258EAFA5-E914-47DA-95CA-C5AB0DC85B11")
	return base64.StdEncoding.EncodeToString(hash.Sum(nil))
}

// isValid reports whether the key is 16 bytes in base64. The RFC does not restrict the unused bits of the last digit.
func (k ClientKey) isValid() bool {
	nonce, err := base64.StdEncoding.DecodeString(string(k))
	return err == nil && len(nonce) == 16
}

// Handshake validates the request of an opening handshake and sends the response, 101, after which the connection is for
// frames only. If the request is not valid, it sends nothing and returns an error; the caller responds, with
// [http.StatusBadRequest].
//
// It does not look at [Options]. [Accept] does, and takes over the connection.
func Handshake(w http.ResponseWriter, r *http.Request) (ClientKey, error) {
	key, err := checkRequest(w, r)
	if err != nil {
		return "", err
	}
	setFields(w.Header(), key)
	w.WriteHeader(http.StatusSwitchingProtocols)
	return key, nil
}

// checkRequest validates the request of an opening handshake (RFC 6455 §4.2.1). Missing and wrong Connection fields are
// accepted, because proxies remove them.
func checkRequest(w http.ResponseWriter, r *http.Request) (ClientKey, error) {
	switch {
	case r.Method != http.MethodGet:
		return "", errors.New("method must be GET")
	case !hasToken(r.Header, "Upgrade", "websocket"):
		return "", errors.New("missing `Upgrade: websocket` header")
	case r.Header.Get("Sec-Websocket-Version") != version:
		// RFC 6455 §4.4: the response names the supported versions.
		w.Header().Set("Sec-Websocket-Version", version)
		return "", fmt.Errorf("`Sec-WebSocket-Version` must be %s, not %q", version, r.Header.Get("Sec-Websocket-Version"))
	}
	key := ClientKey(r.Header.Get("Sec-Websocket-Key"))
	if !key.isValid() {
		return "", errors.New("`Sec-WebSocket-Key` must be 16 bytes in base64")
	}
	return key, nil
}

// setFields sets the fields of the response (RFC 6455 §4.2.2).
func setFields(header http.Header, key ClientKey) {
	header.Set("Connection", "upgrade")
	header.Set("Upgrade", "websocket")
	header.Set("Sec-Websocket-Accept", key.accept())
}

// hasToken reports whether a field contains the token, in any case.
func hasToken(header http.Header, field, token string) bool {
	return slices.ContainsFunc(tokens(header, field), func(other string) bool { return strings.EqualFold(other, token) })
}

// tokens returns the elements of a field that is a list.
func tokens(header http.Header, field string) []string {
	var found []string
	for _, value := range header.Values(field) {
		for element := range strings.SplitSeq(value, ",") {
			found = append(found, strings.TrimSpace(element))
		}
	}
	return found
}

// Accept performs the server's part of the opening handshake and takes over the connection. If the request is not valid, it
// sends nothing and returns an error; the caller responds, with [http.StatusBadRequest].
//
// The fields of w are sent with the response. Accept panics if the connection cannot be taken over: w, or what it unwraps to,
// must implement [http.Hijacker], as in HTTP/1.1 it does unless middleware hides it.
func Accept(w http.ResponseWriter, r *http.Request, opts Options) (*Websocket, error) {
	key, err := checkRequest(w, r)
	if err == nil && opts.CheckOrigin != nil && !opts.CheckOrigin(r) {
		err = errors.New("origin is not allowed")
	}
	if err != nil {
		return nil, fmt.Errorf("websocket: accept: handshake failed: %w", err)
	}
	subprotocol := selectSubprotocol(w, r, opts.Subprotocols)
	var deflate *deflateParams
	if opts.Compression != nil {
		deflate = opts.Compression.accept(r.Header.Values("Sec-Websocket-Extensions"))
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if errors.Is(err, http.ErrNotSupported) {
		panic("websocket: accept: server does not support hijacking")
	}
	if err != nil {
		panic(fmt.Errorf("websocket: accept: hijack failed: %w", err))
	}
	extension := ""
	if deflate != nil {
		extension = deflate.response()
	}
	response := appendFields([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"), w.Header())
	response = appendField(response, "Sec-WebSocket-Accept", key.accept())
	response = appendField(response, "Sec-WebSocket-Protocol", subprotocol)
	response = appendField(response, "Sec-WebSocket-Extensions", extension)
	if _, err := conn.Write(append(response, "\r\n"...)); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("websocket: accept: %w", err)
	}
	ws := newWebsocket(conn, key, ServerMode, &opts, deflate)
	ws.subprotocol = subprotocol
	// The client may have sent frames with its request.
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	ws.reader.take(early)
	return ws.track(), nil
}

// selectSubprotocol returns the first of the supported subprotocols that the client offers; without a list, the choice of the
// application, which is in the fields of the response.
func selectSubprotocol(w http.ResponseWriter, r *http.Request, supported []string) string {
	if supported == nil {
		return w.Header().Get("Sec-Websocket-Protocol")
	}
	offered := tokens(r.Header, "Sec-Websocket-Protocol")
	for _, subprotocol := range supported {
		if slices.Contains(offered, subprotocol) {
			return subprotocol
		}
	}
	return ""
}

// appendFields appends the fields that the application has set, except those of the handshake.
//
// [Accept] writes its response itself: net/http needs more stack for it, which would double the stack of the goroutine
// for the life of the connection.
func appendFields(b []byte, header http.Header) []byte {
	for name, values := range header {
		switch name {
		case "Connection", "Upgrade", "Sec-Websocket-Accept", "Sec-Websocket-Protocol", "Sec-Websocket-Extensions":
			continue
		}
		for _, value := range values {
			b = appendField(b, name, value)
		}
	}
	return b
}

// appendField appends a field with a value. A line end within it becomes a space, so that a value cannot add a field.
func appendField(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(append(b, name...), ": "...)
	for i := range len(value) {
		if c := value[i]; c == '\r' || c == '\n' {
			b = append(b, ' ')
		} else {
			b = append(b, c)
		}
	}
	return append(b, "\r\n"...)
}

// SameOrigin is an [Options.CheckOrigin] that accepts requests from pages of the same host, and those without an Origin
// field, which browsers always send.
func SameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	page, err := url.Parse(origin)
	return err == nil && strings.EqualFold(page.Host, r.Host)
}
