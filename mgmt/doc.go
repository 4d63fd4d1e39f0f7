// Package mgmt is the agent's management interface as its clients see it: the
// types on the wire and a client (docs/api.md).
//
// HTTP/1.1 with JSON, paths below /v1. Version rule: within v1 the agent may
// add keys to its answers and codes to its problems, so clients ignore keys
// they do not know; a request with a key that the agent does not know is
// refused, because what it asks would silently not be done. Anything else is
// v2.
package mgmt

// Version is that of this source, for batond and baton alike.
const Version = "0.1.0"

// DefaultSocket is where batond listens unless its configuration says
// otherwise.
const DefaultSocket = "/run/baton/baton.sock"

// Bounds of a request and of an answer, in bytes.
const (
	MaxBody   = 64 << 10
	MaxConfig = 256 << 10 // of a request that carries a configuration
	MaxAnswer = 8 << 20
)
