package websocket_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

// connectTLS returns a server's connection over TLS, and both ends of it.
func connectTLS(t testing.TB, opts websocket.Options, config *tls.Config) (ws *websocket.Websocket, client *tls.Conn, raw net.Conn) {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	config.InsecureSkipVerify = true
	p := connect(t, websocket.Options{}, websocket.Options{}, nil)
	client = tls.Client(p.clientConn, config)
	handshake := inBackground(t, client.Handshake)
	server := tls.Server(p.serverConn, certified.TLS)
	noError(t, server.Handshake())
	noError(t, handshake())
	return websocket.New(server, "server", websocket.ServerMode, opts), client, p.clientConn
}

// secret is a traffic secret of a client with TLS_AES_128_GCM_SHA256 (RFC 8446 §7.1), as it is after the handshake.
type secret struct {
	value  []byte
	number uint64 // of the next record
}

func (s *secret) expand(t testing.TB, label string, n int) []byte {
	info := append(binary.BigEndian.AppendUint16(nil, uint16(n)), byte(6+len(label)))
	info = append(append(info, "tls13 "+label...), 0)
	out, err := hkdf.Expand(sha256.New, s.value, string(info), n)
	noError(t, err)
	return out
}

// update is what a KeyUpdate does (RFC 8446 §7.2).
func (s *secret) update(t testing.TB) { s.value, s.number = s.expand(t, "traffic upd", 32), 0 }

// seal returns a record (RFC 8446 §5.2).
func (s *secret) seal(t testing.TB, kind byte, content []byte) []byte {
	block, err := aes.NewCipher(s.expand(t, "key", 16))
	noError(t, err)
	gcm, err := cipher.NewGCM(block)
	noError(t, err)
	nonce := s.expand(t, "iv", 12)
	binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^s.number)
	s.number++
	inner := append(bytes.Clone(content), kind)
	header := []byte{23, 3, 3, 0, 0}
	binary.BigEndian.PutUint16(header[3:], uint16(len(inner)+gcm.Overhead()))
	return gcm.Seal(header, nonce, inner, header)
}

// TLS answers a KeyUpdate while it reads. The deadline of an earlier write does not apply to that.
func TestKeyUpdatesBetweenWrites(t *testing.T) {
	for name, write := range map[string]func(ws *websocket.Websocket, msg *websocket.Message) error{
		"after WriteTimeout": func(ws *websocket.Websocket, msg *websocket.Message) error {
			return ws.WriteMessage(context.Background(), msg)
		},
		"after the context": func(ws *websocket.Websocket, msg *websocket.Message) error {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			return ws.WriteMessage(ctx, msg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var keys bytes.Buffer
			opts := websocket.Options{}
			if name == "after WriteTimeout" {
				opts.WriteTimeout = 500 * time.Millisecond
			}
			ws, client, raw := connectTLS(t, opts, &tls.Config{MinVersion: tls.VersionTLS13, KeyLogWriter: &keys})
			if client.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
				t.Skip("this processor has no instructions for AES")
			}
			_, line, _ := strings.Cut(keys.String(), "CLIENT_TRAFFIC_SECRET_0 ")
			value, err := hex.DecodeString(strings.Fields(line)[1])
			noError(t, err)
			noError(t, write(ws, &websocket.Message{Payload: []byte("before")}))
			equal(t, string(readFrame(t, client).Payload), "before")
			time.Sleep(opts.WriteTimeout + 50*time.Millisecond)

			s := secret{value: value}
			const handshake, applicationData = 22, 23
			_, err = raw.Write(s.seal(t, handshake, []byte{24, 0, 0, 1, 1})) // KeyUpdate, update_requested
			noError(t, err)
			s.update(t)
			var frame bytes.Buffer
			noError(t, websocket.WriteFrame(&frame, websocket.NewMaskingKey(), text("updated")))
			_, err = raw.Write(s.seal(t, applicationData, frame.Bytes()))
			noError(t, err)
			wantMessage(t, ws, "updated")
			noError(t, write(ws, &websocket.Message{Payload: []byte("after")}))
			equal(t, string(readFrame(t, client).Payload), "after")
		})
	}
}
