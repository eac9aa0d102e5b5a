// The Go client `github.com/centrifugal/centrifuge-go`, unmodified, against the hub whose URL (ws://HOST:PORT) is in WIRELOOM_HUB.
package hub

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

var (
	base  = os.Getenv("WIRELOOM_HUB") + "/connection/websocket"
	admin = os.Getenv("WIRELOOM_ADMIN") + "/api/"

	serial atomic.Int32
)

// An encoding of the protocol.
type encoding struct {
	name string
	make func(string, centrifuge.Config) *centrifuge.Client
}

var encodings = []encoding{{"JSON", centrifuge.NewJsonClient}, {"Protobuf", centrifuge.NewProtobufClient}}

func eachEncoding(t *testing.T, test func(*testing.T, encoding)) {
	for _, encoding := range encodings {
		t.Run(encoding.name, func(t *testing.T) { test(t, encoding) })
	}
}

func fresh(namespace string) string {
	return fmt.Sprintf("%s:go%d-%d", namespace, os.Getpid(), serial.Add(1))
}

type claims map[string]any

// A token of the user 42 that expires within 3 s, and not before 2 s, unless other claims are given.
func token(given claims) string {
	all := claims{"sub": "42", "exp": time.Now().Unix() + 3}
	for name, value := range given {
		all[name] = value
	}
	part := func(value any) string {
		text, _ := json.Marshal(value)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := part(claims{"alg": "HS256", "typ": "JWT"}) + "." + part(all)
	mac := hmac.New(sha256.New, []byte("secret"))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Calls the server API.
func api(t *testing.T, method string, request any) {
	t.Helper()
	body, _ := json.Marshal(request)
	call, _ := http.NewRequest("POST", admin+method, bytes.NewReader(body))
	call.Header.Set("X-API-Key", "key")
	response, err := http.DefaultClient.Do(call)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct{ Error any }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Error != nil {
		t.Fatal(method, err, answer.Error)
	}
}

func publish(t *testing.T, channel string, data any) {
	t.Helper()
	api(t, "publish", claims{"channel": channel, "data": data})
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func next[E any](t *testing.T, events <-chan E) E {
	t.Helper()
	select {
	case event := <-events:
		return event
	case <-time.After(10 * time.Second):
		t.Fatalf("no %T within 10 s", *new(E))
		panic("unreachable")
	}
}

func expect[V comparable](t *testing.T, got, expected V) {
	t.Helper()
	if got != expected {
		t.Fatalf("%v instead of %v", got, expected)
	}
}

func succeed[V any](t *testing.T) func(V, error) V {
	t.Helper()
	return func(value V, err error) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func codeOf(err error) uint32 {
	var refusal *centrifuge.Error
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return 0
}

type connection struct {
	*centrifuge.Client
	connected    chan centrifuge.ConnectedEvent
	disconnected chan centrifuge.DisconnectedEvent
}

func connect(t *testing.T, encoding encoding, config centrifuge.Config) connection {
	t.Helper()
	config.MinReconnectDelay, config.MaxReconnectDelay = 50*time.Millisecond, 200*time.Millisecond
	client := connection{
		encoding.make(base, config), make(chan centrifuge.ConnectedEvent, 9), make(chan centrifuge.DisconnectedEvent, 9),
	}
	t.Cleanup(client.Close)
	client.OnConnected(func(event centrifuge.ConnectedEvent) { client.connected <- event })
	client.OnDisconnected(func(event centrifuge.DisconnectedEvent) { client.disconnected <- event })
	if err := client.Connect(); err != nil {
		t.Fatal(err)
	}
	return client
}

func connected(t *testing.T, encoding encoding, config centrifuge.Config) connection {
	t.Helper()
	client := connect(t, encoding, config)
	next(t, client.connected)
	return client
}

type subscription struct {
	*centrifuge.Subscription
	publications chan centrifuge.PublicationEvent
	subscribed   chan centrifuge.SubscribedEvent
	unsubscribed chan centrifuge.UnsubscribedEvent
	joined       chan centrifuge.JoinEvent
	left         chan centrifuge.LeaveEvent
}

func subscribe(t *testing.T, client connection, channel string, config centrifuge.SubscriptionConfig) subscription {
	t.Helper()
	one := subscription{
		succeed[*centrifuge.Subscription](t)(client.NewSubscription(channel, config)),
		make(chan centrifuge.PublicationEvent, 99), make(chan centrifuge.SubscribedEvent, 9),
		make(chan centrifuge.UnsubscribedEvent, 9), make(chan centrifuge.JoinEvent, 9), make(chan centrifuge.LeaveEvent, 9),
	}
	one.OnPublication(func(event centrifuge.PublicationEvent) { one.publications <- event })
	one.OnSubscribed(func(event centrifuge.SubscribedEvent) { one.subscribed <- event })
	one.OnUnsubscribed(func(event centrifuge.UnsubscribedEvent) { one.unsubscribed <- event })
	one.OnJoin(func(event centrifuge.JoinEvent) { one.joined <- event })
	one.OnLeave(func(event centrifuge.LeaveEvent) { one.left <- event })
	if err := one.Subscribe(); err != nil {
		t.Fatal(err)
	}
	return one
}

func subscribed(t *testing.T, client connection, channel string, config centrifuge.SubscriptionConfig) subscription {
	t.Helper()
	one := subscribe(t, client, channel, config)
	next(t, one.subscribed)
	return one
}

func TestGoTalks(t *testing.T) {
	eachEncoding(t, func(t *testing.T, encoding encoding) {
		channel := fresh("chat")
		one, two := connected(t, encoding, centrifuge.Config{}), connected(t, encoding, centrifuge.Config{})
		first := subscribed(t, one, channel, centrifuge.SubscriptionConfig{JoinLeave: true})
		second := subscribed(t, two, channel, centrifuge.SubscriptionConfig{})
		member := next(t, first.joined)
		succeed[centrifuge.PublishResult](t)(first.Publish(within(t), []byte(`{"text": "grüße"}`)))
		publication := next(t, second.publications)
		expect(t, string(publication.Data), `{"text": "grüße"}`)
		expect(t, publication.Offset, 1)
		expect(t, len(succeed[centrifuge.PresenceResult](t)(first.Presence(within(t))).Clients), 2)
		expect(t, succeed[centrifuge.PresenceStatsResult](t)(first.PresenceStats(within(t))).NumClients, 2)
		succeed[centrifuge.PublishResult](t)(first.Publish(within(t), []byte("2")))
		history := succeed[centrifuge.HistoryResult](t)
		all := history(first.History(within(t), centrifuge.WithHistoryLimit(10)))
		expect(t, len(all.Publications), 2)
		since := &centrifuge.StreamPosition{Offset: 1, Epoch: all.Epoch}
		later := history(first.History(within(t), centrifuge.WithHistoryLimit(10), centrifuge.WithHistorySince(since)))
		expect(t, string(later.Publications[0].Data), "2")
		newest := history(first.History(within(t), centrifuge.WithHistoryLimit(1), centrifuge.WithHistoryReverse(true)))
		expect(t, newest.Publications[0].Offset, 2)
		if err := second.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
		expect(t, next(t, first.left).Client, member.Client)
		expect(t, succeed[centrifuge.PresenceStatsResult](t)(first.PresenceStats(within(t))).NumClients, 1)
	})
}

func TestGoRecovers(t *testing.T) {
	eachEncoding(t, func(t *testing.T, encoding encoding) {
		channel := fresh("chat")
		client := connected(t, encoding, centrifuge.Config{})
		one := subscribed(t, client, channel, centrifuge.SubscriptionConfig{})
		for round := range 3 {
			if err := client.Disconnect(); err != nil {
				t.Fatal(err)
			}
			next(t, client.disconnected)
			for n := range 20 {
				publish(t, channel, round*20+n)
			}
			if err := client.Connect(); err != nil {
				t.Fatal(err)
			}
			event := next(t, one.subscribed)
			expect(t, event.WasRecovering && event.Recovered, true)
			for n := range 20 {
				expect(t, string(next(t, one.publications).Data), fmt.Sprint(round*20+n))
			}
		}
		expect(t, len(one.publications), 0)
	})
}

func TestGoReportsWhatItCannotRecover(t *testing.T) {
	channel := fresh("short")
	client := connected(t, encodings[0], centrifuge.Config{})
	one := subscribed(t, client, channel, centrifuge.SubscriptionConfig{})
	publish(t, channel, 0)
	next(t, one.publications)
	_ = client.Disconnect()
	next(t, client.disconnected)
	for n := range 10 {
		publish(t, channel, n)
	}
	_ = client.Connect()
	event := next(t, one.subscribed)
	expect(t, event.WasRecovering, true)
	expect(t, event.Recovered, false)
}

// The application loads its state, and the SDK continues from its position; it loads it again when that cannot be recovered.
func TestGoContinuesFromItsState(t *testing.T) {
	eachEncoding(t, func(t *testing.T, encoding encoding) {
		channel := fresh("short")
		publish(t, channel, 0)
		client := connected(t, encoding, centrifuge.Config{})
		var loaded atomic.Int32
		position := centrifuge.StreamPosition{Offset: 1}
		one := subscribed(t, client, channel, centrifuge.SubscriptionConfig{
			Recoverable: true,
			GetState: func(centrifuge.SubscriptionGetStateEvent) (centrifuge.StreamPosition, error) {
				loaded.Add(1)
				return position, nil
			},
		})
		publish(t, channel, 1)
		expect(t, string(next(t, one.publications).Data), "1")
		_ = client.Disconnect()
		next(t, client.disconnected)
		for n := range 10 {
			publish(t, channel, n)
		}
		position.Offset = 12
		_ = client.Connect()
		next(t, one.subscribed)
		expect(t, loaded.Load(), 2)
		publish(t, channel, "new")
		expect(t, string(next(t, one.publications).Data), `"new"`)
	})
}

func TestGoPutsDeltasTogether(t *testing.T) {
	eachEncoding(t, func(t *testing.T, encoding encoding) {
		channel := fresh("state")
		client := connected(t, encoding, centrifuge.Config{})
		one := subscribed(t, client, channel, centrifuge.SubscriptionConfig{Delta: centrifuge.DeltaTypeFossil, Recoverable: true})
		for n := range 5 {
			state := fmt.Sprintf(`{"long":"%0500d","n":%d}`, 0, n)
			publish(t, channel, json.RawMessage(state))
			expect(t, string(next(t, one.publications).Data), state)
		}
	})
}

func TestGoReceivesWhatItsFilterFits(t *testing.T) {
	channel := fresh("tagged")
	client := connected(t, encodings[0], centrifuge.Config{})
	one := subscribed(t, client, channel, centrifuge.SubscriptionConfig{TagsFilter: centrifuge.FilterEq("language", "de")})
	for n, language := range []string{"en", "de", "fr", "de"} {
		api(t, "publish", claims{"channel": channel, "data": n, "tags": claims{"language": language}})
	}
	expect(t, string(next(t, one.publications).Data), "1")
	expect(t, string(next(t, one.publications).Data), "3")
}

func TestGoIsRefused(t *testing.T) {
	client := connected(t, encodings[0], centrifuge.Config{Token: token(claims{"exp": time.Now().Unix() + 60})})
	for channel, code := range map[string]uint32{"nowhere:x": 102, fresh("private"): 103, "$chat:x": 103} {
		expect(t, next(t, subscribe(t, client, channel, centrifuge.SubscriptionConfig{}).unsubscribed).Code, code)
	}
	_, err := client.Publish(within(t), fresh("chat"), []byte("{}"))
	expect(t, codeOf(err), 103)
	_, err = client.RPC(within(t), "none", []byte("{}"))
	expect(t, codeOf(err), 108)
	forged := connect(t, encodings[0], centrifuge.Config{Token: token(nil) + "x"})
	expect(t, next(t, forged.disconnected).Code, 3500)
}

func TestGoHasServerSideSubscriptions(t *testing.T) {
	eachEncoding(t, func(t *testing.T, encoding encoding) {
		named, later := fresh("chat"), fresh("chat")
		user := "user-" + named
		given := claims{"sub": user, "exp": time.Now().Unix() + 60, "subs": claims{named: claims{}}}
		client := encoding.make(base, centrifuge.Config{Token: token(given)})
		t.Cleanup(client.Close)
		subscribed, unsubscribed := make(chan string, 9), make(chan string, 9)
		publications := make(chan centrifuge.ServerPublicationEvent, 9)
		disconnected := make(chan centrifuge.DisconnectedEvent, 9)
		client.OnSubscribed(func(event centrifuge.ServerSubscribedEvent) { subscribed <- event.Channel })
		client.OnUnsubscribed(func(event centrifuge.ServerUnsubscribedEvent) { unsubscribed <- event.Channel })
		client.OnPublication(func(event centrifuge.ServerPublicationEvent) { publications <- event })
		client.OnDisconnected(func(event centrifuge.DisconnectedEvent) { disconnected <- event })
		_ = client.Connect()
		expect(t, next(t, subscribed), named)
		publish(t, named, 1)
		publication := next(t, publications)
		expect(t, publication.Channel+string(publication.Data), named+"1")
		api(t, "subscribe", claims{"user": user, "channel": later})
		expect(t, next(t, subscribed), later)
		api(t, "unsubscribe", claims{"user": user, "channel": later})
		expect(t, next(t, unsubscribed), later)
		api(t, "disconnect", claims{"user": user, "disconnect": claims{"code": 4501, "reason": "go away"}})
		expect(t, next(t, disconnected), centrifuge.DisconnectedEvent{Code: 4501, Reason: "go away"})
	})
}

func TestGoRenewsTokens(t *testing.T) {
	channel := fresh("private")
	connections, channels := make(chan bool, 99), make(chan bool, 99)
	client := connected(t, encodings[0], centrifuge.Config{
		GetToken: func(centrifuge.ConnectionTokenEvent) (string, error) {
			connections <- true
			return token(nil), nil
		},
	})
	one := subscribed(t, client, channel, centrifuge.SubscriptionConfig{
		GetToken: func(event centrifuge.SubscriptionTokenEvent) (string, error) {
			channels <- true
			return token(claims{"channel": event.Channel}), nil
		},
	})
	for range 3 {
		next(t, connections)
		next(t, channels)
	}
	expect(t, client.State(), centrifuge.StateConnected)
	expect(t, one.State(), centrifuge.SubStateSubscribed)
	// Neither the connection nor the subscription was interrupted.
	expect(t, len(client.connected)+len(one.subscribed)+len(client.disconnected), 0)
}

// A message compressed for all, which this client inflates.
func TestGoInflates(t *testing.T) {
	channel := fresh("rooms")
	client := connected(t, encodings[0], centrifuge.Config{EnableCompression: true})
	one := subscribed(t, client, channel, centrifuge.SubscriptionConfig{})
	text := fmt.Sprintf(`"%02000d"`, 7)
	publish(t, channel, json.RawMessage(text))
	expect(t, string(next(t, one.publications).Data), text)
}
