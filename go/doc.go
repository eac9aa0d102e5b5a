// Package websocket implements WebSocket (RFC 6455) with permessage-deflate (RFC 7692), for servers and clients, on the
// standard library alone.
//
// A server accepts a connection in an HTTP handler:
//
//	ws, err := websocket.Accept(w, r, websocket.Options{})
//	if err != nil {
//		http.Error(w, err.Error(), http.StatusBadRequest)
//		return
//	}
//	err = ws.Handle(r.Context(), websocket.EchoHandler)
//
// A client opens one with [Dial]. Both read with [Websocket.ReadMessage] and write with [Websocket.WriteMessage].
package websocket
