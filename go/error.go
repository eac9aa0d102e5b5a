package websocket

import (
	"errors"
	"fmt"
	"net"
	"unicode/utf8"
)

// StatusCode is the status code of a Close frame (RFC 6455 §7.4).
type StatusCode uint16

// Status codes of RFC 6455 §7.4.1 and of IANA's registry. NoStatusRcvd, AbnormalClose and TlSHandshake describe what an
// endpoint observed; RFC 6455 forbids to send them.
const (
	StatusNormalClosure       StatusCode = 1000
	StatusGoingAway           StatusCode = 1001
	StatusProtocolError       StatusCode = 1002
	StatusUnsupportedData     StatusCode = 1003
	StatusNoStatusRcvd        StatusCode = 1005
	StatusAbnormalClose       StatusCode = 1006
	StatusInvalidFramePayload StatusCode = 1007
	StatusPolicyViolation     StatusCode = 1008
	StatusTooLarge            StatusCode = 1009
	StatusMandatoryExtension  StatusCode = 1010
	StatusInternalError       StatusCode = 1011
	StatusServiceRestart      StatusCode = 1012
	StatusTryAgainLater       StatusCode = 1013
	StatusGatewayError        StatusCode = 1014
	StatusTlSHandshake        StatusCode = 1015
)

// Error is an error with the [StatusCode] of the Close frame that answers it.
type Error struct {
	code   StatusCode
	reason string // of the Close frame; an error of the connection names addresses, which the peer may not know
	err    error
}

// Error returns the message.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the cause, such as an error of the connection.
func (e *Error) Unwrap() error { return e.err }

// StatusCode returns the code of the Close frame that answers the error.
func (e *Error) StatusCode() StatusCode { return e.code }

// Errors of the protocol. The errors of [Websocket.ReadMessage] wrap them: test with [errors.Is].
var (
	ErrClientFrameUnmasked    = protocolError("client frame must be masked")                        // RFC 6455 §5.1
	ErrServerFrameMasked      = protocolError("server frame must not be masked")                    // RFC 6455 §5.1
	ErrOpcodeUnknown          = protocolError("opcode is reserved")                                 // RFC 6455 §5.2
	ErrRSVBitsUnsupported     = protocolError("reserved bits without an extension that uses them")  // RFC 6455 §5.2
	ErrFrameLengthInvalid     = protocolError("frame length must be in its shortest form")          // RFC 6455 §5.2
	ErrContinuationExpected   = protocolError("continuation frame expected")                        // RFC 6455 §5.4
	ErrContinuationUnexpected = protocolError("continuation frame unexpected")                      // RFC 6455 §5.4
	ErrControlFrameFragmented = protocolError("control frame must not be fragmented")               // RFC 6455 §5.5
	ErrControlFrameTooLarge   = protocolError("control frame payload must be at most 125 bytes")    // RFC 6455 §5.5
	ErrClosePayloadInvalid    = protocolError("close frame payload must be empty or start a code")  // RFC 6455 §5.5.1
	ErrCloseStatusInvalid     = protocolError("close status code must be between 1000 and 4999")    // RFC 6455 §7.4
	ErrCloseStatusReserved    = protocolError("close status code is reserved")                      // RFC 6455 §7.4
	ErrInvalidFramePayload    = newError(StatusInvalidFramePayload, "text must be valid UTF-8")     // RFC 6455 §8.1
	ErrInvalidDeflate         = newError(StatusInvalidFramePayload, "compressed data is not valid") // RFC 7692 §7.2.2
	ErrFrameTooLarge          = newError(StatusTooLarge, "frame is larger than MaxFrameSize")
	ErrMessageTooLarge        = newError(StatusTooLarge, "message is larger than MaxMessageSize")
)

// ErrConnectionClosed is returned by reads, writes and closes of a connection that is closing or closed. It is a
// [net.ErrClosed].
var ErrConnectionClosed error = fmt.Errorf("websocket: the connection is closing or closed: %w", net.ErrClosed)

// errCutShort is the error of writes after one that ended within a message.
var errCutShort = fmt.Errorf("websocket: write: an earlier message was cut short: %w", net.ErrClosed)

func newError(code StatusCode, text string) *Error {
	return &Error{code, text, errors.New(text)}
}

func protocolError(text string) *Error {
	return newError(StatusProtocolError, text)
}

// ioError is an error of the connection at a place in the protocol.
func ioError(place string, err error) *Error {
	return &Error{StatusAbnormalClose, place, fmt.Errorf("%s: %w", place, err)}
}

// closeReason returns the code and the reason of the Close frame that answers an error.
func closeReason(err error) (StatusCode, string) {
	var known *Error
	if errors.As(err, &known) {
		return known.code, known.reason
	}
	return StatusInternalError, err.Error()
}

// handlerReason is [closeReason] of an error of the handler, which may describe another connection: a code that says what an
// endpoint observed is not sent.
func handlerReason(err error) (StatusCode, string) {
	status, reason := closeReason(err)
	if !status.isSendable() {
		status = StatusInternalError
	}
	return status, reason
}

// isSendable reports whether a Close frame may hold the code (RFC 6455 §7.4.1, §7.4.2).
func (c StatusCode) isSendable() bool {
	return c >= 1000 && c <= 1003 || c >= 1007 && c <= 1014 || c >= 3000 && c <= 4999
}

// checkClose validates the payload of a received Close frame (RFC 6455 §5.5.1).
func checkClose(payload []byte) error {
	switch {
	case len(payload) == 0:
		return nil
	case len(payload) == 1:
		return ErrClosePayloadInvalid
	}
	code := closeCode(payload)
	switch {
	case code < 1000 || code > 4999:
		return ErrCloseStatusInvalid
	case !code.isSendable():
		return ErrCloseStatusReserved
	case !utf8.Valid(payload[2:]):
		return ErrInvalidFramePayload
	}
	return nil
}

// closeCode returns the code in the payload of a Close frame, NoStatusRcvd if it is empty.
func closeCode(payload []byte) StatusCode {
	if len(payload) < 2 {
		return StatusNoStatusRcvd
	}
	return StatusCode(payload[0])<<8 | StatusCode(payload[1])
}
