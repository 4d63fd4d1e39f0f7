// Package control is how a test or a demonstration does things to a simulated
// world that runs in another process: the wire types, a server and a client of
// the simulator's control socket, and the file that a world is read from.
//
// The control socket stands for the hands, the mains switch and the racks of
// servers around an enclosure. An agent never speaks to it.
//
// # Protocol
//
// HTTP/1.1 with JSON on a Unix socket. GET reads, POST does; each POST takes
// one object and answers with one, or with 4xx and {"error": "text"}. Unknown
// fields are refused. Paths are in server.go.
package control
