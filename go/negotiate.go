package websocket

import (
	"errors"
	"strconv"
	"strings"
)

// deflateParams are the negotiated parameters of permessage-deflate (RFC 7692 §7.1).
type deflateParams struct {
	server, client deflateSide
}

// deflateSide are the parameters of the messages of one sender.
type deflateSide struct {
	noTakeover bool
	// bits is the base-2 logarithm of the window, 8 to 15.
	bits int
}

const deflateName = "permessage-deflate"

// accept selects the first offer that a server can meet (RFC 7692 §5); nil if there is none.
func (c *Compression) accept(offers []string) *deflateParams {
	for _, offer := range extensions(offers) {
		params := &deflateParams{server: deflateSide{bits: 15}, client: deflateSide{bits: 15}}
		if offer.name != deflateName || params.parse(offer.params, true) != nil {
			continue
		}
		// The client's window is a hint of what it can do: inflating costs the same for all sizes.
		params.client.bits = 15
		if !c.ContextTakeover {
			// RFC 7692 §7.1.1: a server may require both.
			params.server.noTakeover, params.client.noTakeover = true, true
		}
		return params
	}
	return nil
}

// response returns the extension field of a server's response.
func (p *deflateParams) response() string {
	field := deflateName
	if p.server.noTakeover {
		field += "; server_no_context_takeover"
	}
	if p.client.noTakeover {
		field += "; client_no_context_takeover"
	}
	if p.server.bits < 15 {
		field += "; server_max_window_bits=" + strconv.Itoa(p.server.bits)
	}
	return field
}

// offer returns the extension field of a client's request.
func (c *Compression) offer() string {
	field := deflateName + "; client_max_window_bits"
	if !c.ContextTakeover {
		field += "; server_no_context_takeover; client_no_context_takeover"
	}
	return field
}

// check returns the parameters of a server's response to an offer; nil if the server does not compress. A client fails the
// connection on an error (RFC 6455 §4.1, RFC 7692 §7.1).
func (c *Compression) check(response []string) (*deflateParams, error) {
	accepted := extensions(response)
	if len(accepted) == 0 {
		return nil, nil
	}
	if c == nil || len(accepted) > 1 || accepted[0].name != deflateName {
		return nil, errors.New("the server selected an extension that was not offered")
	}
	params := &deflateParams{server: deflateSide{bits: 15}, client: deflateSide{bits: 15}}
	if err := params.parse(accepted[0].params, false); err != nil {
		return nil, err
	}
	if !c.ContextTakeover {
		if !params.server.noTakeover {
			return nil, errors.New("the server ignored server_no_context_takeover")
		}
		params.client.noTakeover = true
	}
	return params, nil
}

var errDeflateParam = errors.New("a parameter of permessage-deflate is unknown, repeated or not valid")

// parse reads the parameters of an offer or of a response. A value of client_max_window_bits may be left out in offers only.
func (p *deflateParams) parse(params []param, isOffer bool) error {
	seen := make(map[string]bool)
	for _, param := range params {
		if seen[param.name] {
			return errDeflateParam
		}
		seen[param.name] = true
		side := &p.server
		if strings.HasPrefix(param.name, "client_") {
			side = &p.client
		}
		switch param.name {
		case "server_no_context_takeover", "client_no_context_takeover":
			if param.hasValue {
				return errDeflateParam
			}
			side.noTakeover = true
		case "server_max_window_bits", "client_max_window_bits":
			if !param.hasValue && isOffer && side == &p.client {
				continue
			}
			bits, err := strconv.Atoi(param.value)
			// RFC 7692 §7.1.2: a decimal number without leading zeros.
			if err != nil || bits < 8 || bits > 15 || strconv.Itoa(bits) != param.value {
				return errDeflateParam
			}
			side.bits = bits
		default:
			return errDeflateParam
		}
	}
	return nil
}

// extension is an element of Sec-WebSocket-Extensions (RFC 6455 §9.1).
type extension struct {
	name   string
	params []param
}

type param struct {
	name, value string
	hasValue    bool
}

// extensions parses the fields. No known extension has a value that contains a comma or a semicolon.
func extensions(fields []string) []extension {
	var found []extension
	for _, field := range fields {
		for element := range strings.SplitSeq(field, ",") {
			name, rest, _ := strings.Cut(element, ";")
			if name = strings.TrimSpace(name); name == "" {
				continue
			}
			next := extension{name: name}
			for rest != "" {
				var text string
				text, rest, _ = strings.Cut(rest, ";")
				key, value, hasValue := strings.Cut(text, "=")
				value = strings.TrimSpace(value)
				if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
					value = value[1 : len(value)-1]
				}
				next.params = append(next.params, param{strings.TrimSpace(key), value, hasValue})
			}
			found = append(found, next)
		}
	}
	return found
}
