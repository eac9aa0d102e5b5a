package websocket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	websocket "github.com/wireloom/wireloom/go"
)

// The interface of mccutchen/websocket, as programs that change the import path use it. Compiling it is the test.
var (
	_ int                                                                                         = websocket.DefaultMaxFrameSize
	_ int                                                                                         = websocket.DefaultMaxMessageSize
	_ error                                                                                       = websocket.ErrConnectionClosed
	_ websocket.MaskingKey                                                                        = websocket.Unmasked
	_ func() websocket.MaskingKey                                                                 = websocket.NewMaskingKey
	_ func() websocket.ClientKey                                                                  = websocket.NewClientKey
	_ func(websocket.Opcode, bool, []byte, ...websocket.RSVBit) *websocket.Frame                  = websocket.NewFrame
	_ func(websocket.StatusCode, string) *websocket.Frame                                         = websocket.NewCloseFrame
	_ func(*websocket.Message, int) []*websocket.Frame                                            = websocket.FrameMessage
	_ func(io.Reader, websocket.Mode, int) (*websocket.Frame, error)                              = websocket.ReadFrame
	_ func(io.Writer, websocket.MaskingKey, *websocket.Frame) error                               = websocket.WriteFrame
	_ func(*websocket.Frame, websocket.MaskingKey) []byte                                         = websocket.MarshalFrame
	_ func(http.ResponseWriter, *http.Request) (websocket.ClientKey, error)                       = websocket.Handshake
	_ func(http.ResponseWriter, *http.Request, websocket.Options) (*websocket.Websocket, error)   = websocket.Accept
	_ func(net.Conn, websocket.ClientKey, websocket.Mode, websocket.Options) *websocket.Websocket = websocket.New
	_ websocket.Handler                                                                           = websocket.EchoHandler

	_ func(*websocket.Websocket, context.Context) (*websocket.Message, error) = (*websocket.Websocket).ReadMessage
	_ func(*websocket.Websocket, context.Context, *websocket.Message) error   = (*websocket.Websocket).WriteMessage
	_ func(*websocket.Websocket, context.Context, websocket.Handler) error    = (*websocket.Websocket).Handle
	_ func(*websocket.Websocket) error                                        = (*websocket.Websocket).Close
	_ func(*websocket.Websocket, websocket.StatusCode, string) error          = (*websocket.Websocket).CloseWithStatus
	_ func(*websocket.Websocket) websocket.ClientKey                          = (*websocket.Websocket).ClientKey
	_                                                                         = websocket.Options{
		Hooks: websocket.Hooks{
			OnCloseHandshakeStart: func(websocket.ClientKey, websocket.StatusCode, error) {},
			OnCloseHandshakeDone:  func(websocket.ClientKey, websocket.StatusCode, error) {},
			OnReadError:           func(websocket.ClientKey, error) {},
			OnReadFrame:           func(websocket.ClientKey, *websocket.Frame) {},
			OnReadMessage:         func(websocket.ClientKey, *websocket.Message) {},
			OnWriteError:          func(websocket.ClientKey, error) {},
			OnWriteFrame:          func(websocket.ClientKey, *websocket.Frame) {},
			OnWriteMessage:        func(websocket.ClientKey, *websocket.Message) {},
		},
		ReadTimeout: 1, WriteTimeout: 1, CloseTimeout: 1, MaxFrameSize: 1, MaxMessageSize: 1,
	}
	_ = websocket.Message{Binary: true, Payload: []byte{}}
	_ = []any{
		(*websocket.Frame).Fin, (*websocket.Frame).Opcode, (*websocket.Frame).RSV1, (*websocket.Frame).RSV2, (*websocket.Frame).RSV3,
		fmt.Stringer(websocket.Frame{}), fmt.Stringer(websocket.Message{}), fmt.Stringer(websocket.ServerMode), fmt.Stringer(websocket.OpcodeText),
	}
)

// Numbers and errors that programs compare with.
func TestValuesOfTheInterface(t *testing.T) {
	for code, want := range map[websocket.StatusCode]uint16{
		websocket.StatusNormalClosure: 1000, websocket.StatusGoingAway: 1001, websocket.StatusProtocolError: 1002,
		websocket.StatusUnsupportedData: 1003, websocket.StatusNoStatusRcvd: 1005, websocket.StatusAbnormalClose: 1006,
		websocket.StatusInvalidFramePayload: 1007, websocket.StatusPolicyViolation: 1008, websocket.StatusTooLarge: 1009,
		websocket.StatusMandatoryExtension: 1010, websocket.StatusInternalError: 1011, websocket.StatusServiceRestart: 1012,
		websocket.StatusTryAgainLater: 1013, websocket.StatusGatewayError: 1014, websocket.StatusTlSHandshake: 1015,
	} {
		equal(t, uint16(code), want)
	}
	for opcode, want := range map[websocket.Opcode]uint8{
		websocket.OpcodeContinuation: 0, websocket.OpcodeText: 1, websocket.OpcodeBinary: 2, websocket.OpcodeClose: 8,
		websocket.OpcodePing: 9, websocket.OpcodePong: 10,
	} {
		equal(t, uint8(opcode), want)
	}
	equal(t, bool(websocket.ServerMode), false)
	equal(t, bool(websocket.ClientMode), true)
	equal(t, websocket.Unmasked, websocket.MaskingKey{})
	equal(t, websocket.DefaultMaxFrameSize, 16<<10)
	equal(t, websocket.DefaultMaxMessageSize, 256<<10)
	for err, code := range map[*websocket.Error]websocket.StatusCode{
		websocket.ErrClientFrameUnmasked: 1002, websocket.ErrClosePayloadInvalid: 1002, websocket.ErrCloseStatusInvalid: 1002,
		websocket.ErrCloseStatusReserved: 1002, websocket.ErrContinuationExpected: 1002, websocket.ErrContinuationUnexpected: 1002,
		websocket.ErrControlFrameFragmented: 1002, websocket.ErrControlFrameTooLarge: 1002, websocket.ErrInvalidFramePayload: 1007,
		websocket.ErrFrameTooLarge: 1009, websocket.ErrMessageTooLarge: 1009, websocket.ErrOpcodeUnknown: 1002,
		websocket.ErrRSVBitsUnsupported: 1002,
	} {
		equal(t, err.StatusCode(), code)
		var known *websocket.Error
		if wrapped := fmt.Errorf("wrapped: %w", err); !errors.As(wrapped, &known) || !errors.Is(wrapped, err) || err.Unwrap() == nil {
			t.Errorf("%v is not found in an error that wraps it", err)
		}
	}
}
