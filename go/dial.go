package websocket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"time"
)

// DialOptions are the settings of a client's connection. The zero value is ready for use. [Options.CheckOrigin] does not
// apply.
type DialOptions struct {
	Options
	// Header is sent with the request: Authorization, Cookie, Origin, Host and others.
	Header http.Header
	// Transport opens the connection, with its proxy, TLS configuration and dialer. It must report the connection to
	// [net/http/httptrace], as [http.Transport] does. nil: [http.DefaultTransport].
	Transport http.RoundTripper
}

// maxRefusalLen is how much of the body of a response that refuses the handshake is kept, in bytes.
const maxRefusalLen = 4 << 10

// Dial opens a connection to a ws:, wss:, http: or https: URL. The context bounds the handshake only.
//
// If the server answered, its response is returned, also with an error: a server that refuses may have sent a redirection,
// which Dial does not follow, or a challenge. Up to 4 KiB of such a response's body can be read.
func Dial(ctx context.Context, target string, opts DialOptions) (*Websocket, *http.Response, error) {
	ws, response, err := dial(ctx, target, &opts)
	if err != nil {
		return nil, response, fmt.Errorf("websocket: dial: %w", err)
	}
	return ws.track(), response, nil
}

func dial(ctx context.Context, target string, opts *DialOptions) (*Websocket, *http.Response, error) {
	key := NewClientKey()
	// The context of the request lives as long as the connection.
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	var conn net.Conn
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { conn = info.Conn }}
	request, err := newRequest(httptrace.WithClientTrace(lasting, trace), target, key, opts)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	transport := opts.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	response, err := transport.RoundTrip(request)
	if err == nil && response.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusalLen)) // until the context ends
		_ = response.Body.Close()
		response.Body = io.NopCloser(bytes.NewReader(body))
		stop()
		cancel()
		return nil, response, fmt.Errorf("the server refused the handshake: %s", response.Status)
	}
	if !stop() {
		// The context ended during the handshake.
		cancel()
		if err == nil {
			_ = response.Body.Close()
		}
		return nil, nil, ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, nil, err
	}
	deflate, err := opts.checkResponse(response, key)
	if err == nil && conn == nil {
		err = errors.New("the transport does not report its connection to net/http/httptrace")
	}
	var early []byte
	if err == nil {
		early, err = takeEarly(response.Body, conn)
	}
	if err != nil {
		_ = response.Body.Close()
		response.Body = http.NoBody
		cancel()
		return nil, response, err
	}
	response.Body = http.NoBody
	ws := newWebsocket(conn, key, ClientMode, &opts.Options, deflate)
	ws.cancel = cancel
	ws.subprotocol = response.Header.Get("Sec-Websocket-Protocol")
	ws.reader.take(early)
	return ws, response, nil
}

// newRequest returns the request of a client's opening handshake (RFC 6455 §4.1).
func newRequest(ctx context.Context, target string, key ClientKey, opts *DialOptions) (*http.Request, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "ws":
		u.Scheme = "http"
	case "wss":
		u.Scheme = "https"
	case "http", "https":
	default:
		return nil, fmt.Errorf("scheme %q is not ws or wss", u.Scheme)
	}
	u.Fragment = "" // RFC 6455 §3: a URL has none
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	header := opts.Header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	if host := header.Get("Host"); host != "" {
		request.Host = host
		header.Del("Host")
	}
	header.Set("Connection", "Upgrade")
	header.Set("Upgrade", "websocket")
	header.Set("Sec-Websocket-Version", version)
	header.Set("Sec-Websocket-Key", string(key))
	if len(opts.Subprotocols) > 0 {
		header.Set("Sec-Websocket-Protocol", strings.Join(opts.Subprotocols, ", "))
	}
	if opts.Compression != nil {
		header.Set("Sec-Websocket-Extensions", opts.Compression.offer())
	}
	request.Header = header
	return request, nil
}

// checkResponse validates the response 101 of an opening handshake (RFC 6455 §4.1).
func (o *DialOptions) checkResponse(response *http.Response, key ClientKey) (*deflateParams, error) {
	header := response.Header
	switch {
	case !hasToken(header, "Upgrade", "websocket") || !hasToken(header, "Connection", "upgrade"):
		return nil, errors.New("the server switched to another protocol")
	case header.Get("Sec-Websocket-Accept") != key.accept():
		return nil, errors.New("`Sec-WebSocket-Accept` does not answer the key")
	}
	if selected := header.Values("Sec-Websocket-Protocol"); len(selected) > 1 ||
		len(selected) == 1 && !slices.Contains(o.Subprotocols, selected[0]) {
		return nil, errors.New("the server selected a subprotocol that was not offered")
	}
	return o.Compression.check(header.Values("Sec-Websocket-Extensions"))
}

// takeEarly returns what the transport has read behind the response, so that the connection can be used without it. The
// transport's reader returns what it holds, and then reads from the connection, which fails because of its deadline.
func takeEarly(body io.Reader, conn net.Conn) ([]byte, error) {
	if err := conn.SetReadDeadline(past); err != nil {
		return nil, err
	}
	var early []byte
	buffer := make([]byte, 4<<10)
	for {
		n, err := body.Read(buffer)
		early = append(early, buffer[:n]...)
		if err == nil {
			continue
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			return nil, err
		}
		return early, conn.SetReadDeadline(time.Time{})
	}
}
