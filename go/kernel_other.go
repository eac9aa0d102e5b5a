//go:build purego || !amd64

package websocket

// hasVectors is false without the kernels of an architecture: the compiler removes what needs them.
const (
	hasVectors    = false
	maskVectorMin = 1
	textVectorMin = 1
	textBlock     = 1
)

func maskVectors(_, _ *byte, _ int, _ uint32) uint32 { panic("websocket: no vectors") }

func textVectors(*byte, int) bool { panic("websocket: no vectors") }
