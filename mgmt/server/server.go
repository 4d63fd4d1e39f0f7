// Package server serves the management interface of package mgmt on a Unix
// socket.
//
// Who may do what is one table (routes.go), what an error becomes another
// (errors.go). An operation runs under the server's own context, not the
// client's: a client that goes away, or reads slowly, neither ends nor delays
// it.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path"
	"runtime/debug"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt"
)

// Backend is the enclosure, of which *enclosure.Enclosure is the real one.
type Backend interface {
	Status(ctx context.Context) enclosure.Status
	Move(ctx context.Context, r enclosure.MoveRequest) (enclosure.Move, error)
	MoveByID(id ee.UUID) (enclosure.Move, bool)
	Attach(ctx context.Context, r enclosure.AttachRequest) (enclosure.Attached, error)
	Arm(ctx context.Context, r enclosure.ArmRequest) (plan.Arming, error)
	Disarm(ctx context.Context, slot string, id ee.UUID, by string) error
	Ack(ctx context.Context, r enclosure.AckRequest) error
	Alive(ctx context.Context, r enclosure.AliveRequest) error
	Release(ctx context.Context, r enclosure.ReleaseRequest) error
	Fence(ctx context.Context, host, by string) (enclosure.Fenced, error)
	Unfence(ctx context.Context, host string, epoch uint32, by string) error
	Verdict(ctx context.Context, slot string) (plan.Verdict, error)
	Events(after uint64) ([]enclosure.Event, bool)
	Seq() uint64 // of the newest event
	Changed() <-chan struct{}
	Audit() ([]enclosure.AuditRecord, uint32)
	Refuse(by string, code enclosure.Code, text string)
	Counters() enclosure.Counters
	Drain(ctx context.Context, r enclosure.DrainRequest) (enclosure.Drained, error)
	AdoptionOf(ctx context.Context, slot string) (enclosure.Adoption, error)
	Adopt(ctx context.Context, slot, token, by string) (enclosure.Adoption, error)
	Locate(ctx context.Context, slot string, on bool, by string) error
	Power(ctx context.Context, r enclosure.PowerRequest) error
	Reset(ctx context.Context, r enclosure.ResetRequest) error
	Resolve(ctx context.Context, id ee.UUID, drop []string, by string) (enclosure.Move, error)
	ForceFree(ctx context.Context, slot, typed, by string) error
	CheckNVM(ctx context.Context) (enclosure.NVMReport, error)
	RepairNVM(ctx context.Context, token string, format bool, by string) (enclosure.NVMReport, error)
	DumpNVM(ctx context.Context, of string) (enclosure.NVMDump, error)
	Check(ctx context.Context) []enclosure.CheckLine
	Note(ev enclosure.Event)
}

// Keeper keeps the agent's configuration: it checks, stores and applies it, and
// records what it changed or refused. Errors are *enclosure.Error,
// *mgmt.Problem or config.Errors.
type Keeper interface {
	Config() mgmt.Config
	VMs() []mgmt.VM     // as configured now
	Warnings() []string // that follow from the configuration
	Apply(ctx context.Context, r mgmt.ConfigRequest, by string) (mgmt.ConfigApplied, error)
	Confirm(ctx context.Context, by string) (mgmt.Config, error) // keeps the network that is on trial
	Revert(ctx context.Context, by string) (mgmt.Config, error)  // puts the one before back at once
	Backup(ctx context.Context) (mgmt.Backup, error)
	Restore(ctx context.Context, r mgmt.RestoreRequest, by string) (mgmt.Restored, error)
	// Restart ends the agent's run and starts it anew. It does not wait for
	// that: operations under way are answered first, so Apply and Restore call
	// it themselves. The server calls it after a repair.
	Restart(why string)
}

// Options are what the server says beside what the enclosure says.
type Options struct {
	Agent    string // version
	Keeper   Keeper
	AdminUID uint32 // beside root; the agent's own
	// Check, if set, looks at what is not the enclosure's: buses, socket, clock.
	Check func(ctx context.Context) []enclosure.CheckLine
	Log   *slog.Logger
}

// Server answers requests. Make one with New.
type Server struct {
	backend  Backend
	opt      Options
	run      uint32 // tells event numbers of this run from those of others
	mux      *http.ServeMux
	watch    chan struct{} // one token per watcher
	looks    looks
	checking chan struct{} // full while everything is checked
	crashed  chan error

	// Set by Serve. ops ends last: an operation under way gets grace.
	ops, streams context.Context
}

// Bounds that keep a hostile client from costing others more than memory.
const (
	maxWatchers  = 32
	readTimeout  = 10 * time.Second // of a request's body, and of its headers
	writeTimeout = 10 * time.Second // of an answer, or of one event
	idleTimeout  = time.Minute
	keepAlive    = 15 * time.Second // between comments on a stream without events
	maxHeader    = 8 << 10
	grace        = 10 * time.Second // for operations under way when the agent is stopped
)

// New returns a server for b.
func New(b Backend, opt Options) *Server {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		backend: b,
		opt:     opt,
		// Not crypto/rand: that would wait for entropy after power-up, and
		// this is no secret.
		run:      rand.Uint32(),
		mux:      http.NewServeMux(),
		watch:    make(chan struct{}, maxWatchers),
		checking: make(chan struct{}, 1),
		crashed:  make(chan error, 1),
	}
	s.mount()
	return s
}

// Serve answers on l, which comes from Listen, until ctx ends; then operations
// under way get 10 s. It returns when all its goroutines have, with nil if ctx
// ended, and closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	// Values of ctx are kept, its end is not.
	var endOps, endStreams context.CancelFunc
	s.ops, endOps = context.WithCancel(context.WithoutCancel(ctx))
	s.streams, endStreams = context.WithCancel(context.WithoutCancel(ctx))
	defer endOps()
	defer endStreams()

	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       withPeer,
		ErrorLog:          slog.NewLogLogger(s.opt.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()

	var err error
	select {
	case <-ctx.Done():
	case err = <-s.crashed:
	case err = <-served:
		served <- err
	}
	endStreams()
	// Shutdown closes l and waits for handlers; those still there when grace
	// is over are made to end by their context.
	soft, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if srv.Shutdown(soft) != nil {
		endOps()
		hard, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if stuck := srv.Shutdown(hard); stuck != nil {
			err = errors.Join(err, fmt.Errorf("operations did not end within %v of being told to: %w", grace, stuck))
		}
	}
	if e := <-served; err == nil && !errors.Is(e, http.ErrServerClosed) {
		err = e
	}
	return err
}

// ServeHTTP guards what is behind the routes.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body != http.NoBody {
		// Cleared once the body is read: it would end a long operation otherwise.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout)) // fails on no connection of ours
	}
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		// State may be half changed and locks held: end, and recover as after
		// any other crash.
		s.opt.Log.Error("bug: the agent ends and starts again", "panic", p, "stack", string(debug.Stack()))
		s.fail(w, r, &enclosure.Error{Code: enclosure.CodeInternal, What: "the agent has a bug here and starts again", Next: "look at its log; what was under way is recovered"})
		select {
		case s.crashed <- fmt.Errorf("panic while serving %s %s: %v", r.Method, r.URL.Path, p):
		default:
		}
	}()
	if r.URL.Path != path.Clean(r.URL.Path) {
		s.noRoute(w, r) // ServeMux would answer with a redirect, which is no JSON
		return
	}
	s.mux.ServeHTTP(w, r)
}
