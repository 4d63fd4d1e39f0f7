package control

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"baton/ee"
	"baton/pcie"
	"baton/sim"
)

// linked is a world whose gpu0 is with server1, link up.
func linked(t *testing.T, s sim.Spec) *sim.World {
	t.Helper()
	s.Slots[0].Block = &ee.Block{Group: 101, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 0x9f3c2a10, Counter: 17}}
	w := sim.New(s)
	time.Sleep(w.Spec().EngineStartTime + w.Spec().ReloadLatency + 5*time.Millisecond)
	if err := w.Bus("bus0").Tx(0x40, []byte{ee.RegControl >> 8, ee.RegControl & 0xFF, ee.CtlPower | ee.CtlLink | ee.CtlGuard}, nil); err != nil {
		t.Fatal(err)
	}
	for !w.Server("server1").Reach("gpu0") {
		time.Sleep(time.Millisecond)
	}
	return w
}

// served gives a client of w's control socket, and how often it was told of a
// change.
func served(t *testing.T, w *sim.World) (*Client, *atomic.Int32) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "control.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var changes atomic.Int32
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, Handler(w, func() { changes.Add(1) })) }()
	c := Dial(path)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return c, &changes
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestStateAndMemory(t *testing.T) {
	ctx := t.Context()
	w := linked(t, ExampleWorld())
	c, changes := served(t, w)

	ok(t, c.StartVM(ctx, "server1", "train1", StartVM{Slots: []string{"gpu0"}}))
	ok(t, c.WriteMem(ctx, "server1", "gpu0", 100, []byte("hello")))
	got, err := c.ReadMem(ctx, "server1", "gpu0", 98, 8)
	if err != nil || !bytes.Equal(got, []byte("\x00\x00hello\x00")) {
		t.Errorf("ReadMem = %q, %v", got, err)
	}
	if n := changes.Load(); n != 3 {
		t.Errorf("told of %d changes; want 3", n)
	}

	s, err := c.State(ctx)
	ok(t, err)
	slot, found := s.Slot("gpu0")
	if !found || !slot.Link || slot.Peer != "server1" || slot.Reacher != "server1" || slot.Group != 101 || slot.Generation != "9f3c2a10-17" ||
		slot.Swallowed != 2 || slot.Resets != 1 {
		t.Errorf("slot = %+v; want linked to server1 in group 101, 2 resets swallowed", slot)
	}
	server, found := s.Server("server1")
	if !found || len(server.VMs) != 1 || server.VMs[0].Name != "train1" || !slices.Equal(server.VMs[0].Holds, []string{"gpu0"}) ||
		!slices.Equal(server.Reaches, []string{"gpu0"}) {
		t.Errorf("server = %+v; want train1 on gpu0", server)
	}
	if other, _ := s.Server("server2"); len(other.VMs) != 0 || len(other.Reaches) != 0 {
		t.Errorf("server2 = %+v; want nothing there", other)
	}
	if b := s.Buses[0]; b.Name != "bus0" || b.Transfers != 1 || b.Bytes != 4 {
		t.Errorf("bus = %+v; want one transfer of four bytes", b)
	}
	if !s.Powered || s.Now <= 0 || s.Positions != 1 {
		t.Errorf("powered %v, now %v, %d positions", s.Powered, s.Now, s.Positions)
	}

	d, err := c.DVSEC(ctx, "server1", "gpu0")
	ok(t, err)
	if d.Group != 101 || d.Counter != 17 || d.Engine != w.Spec().Slots[0].MAC || d.Flags&pcie.DVSECGuard == 0 {
		t.Errorf("DVSEC = %+v", d)
	}
}

// What the world refuses is the same error here as there.
func TestErrors(t *testing.T) {
	ctx := t.Context()
	spec := ExampleWorld()
	spec.Slots[0].Port = "lan3"
	w := sim.New(spec)
	c, _ := served(t, w)

	_, err := c.ReadMem(ctx, "server1", "gpu0", 0, 1)
	for _, tc := range []struct {
		name string
		err  error
		want error
	}{
		{"not linked", err, sim.ErrNotReached},
		{"no VM", c.VM(ctx, "server1", "train1", "stop"), sim.ErrNoVM},
		{"VM without its device", c.StartVM(ctx, "server1", "train1", StartVM{Slots: []string{"gpu0"}}), sim.ErrNotReached},
	} {
		if !errors.Is(tc.err, tc.want) {
			t.Errorf("%s: %v; want %v", tc.name, tc.err, tc.want)
		}
	}
	ok(t, c.Server(ctx, "server1", "hang"))
	if err := c.WriteMem(ctx, "server1", "gpu0", 0, nil); !errors.Is(err, sim.ErrServerHung) {
		t.Errorf("hung server: %v", err)
	}
	ok(t, c.Server(ctx, "server1", "power-loss"))
	if err := c.Reset(ctx, "server1", "gpu0"); !errors.Is(err, sim.ErrServerOff) {
		t.Errorf("server without power: %v", err)
	}
	ok(t, c.PowerCut(ctx, PowerCut{}))
	if err := c.Join(ctx, "lan3", 101); !errors.Is(err, sim.ErrPowerOff) {
		t.Errorf("switch without power: %v", err)
	}
}

func TestBadRequests(t *testing.T) {
	h := Handler(sim.New(ExampleWorld()), nil)
	for _, tc := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"POST", "/v1/servers/serverX", `{"do":"hang"}`, 404, "serverX"},
		{"POST", "/v1/servers/server1", `{"do":"explode"}`, 400, "explode"},
		{"POST", "/v1/servers/server1", `{"do":"hang","speed":3}`, 400, "speed"},
		{"POST", "/v1/servers/server1", `{"do":"hang"} {}`, 400, "behind"},
		{"POST", "/v1/servers/server1", `hang`, 400, "invalid"},
		{"POST", "/v1/servers/server1", ``, 400, "EOF"},
		{"POST", "/v1/servers/server1/vms/x/start", `{"slots":["gpu9"]}`, 404, "gpu9"},
		{"POST", "/v1/servers/server1/vms/x", `{"do":"fly"}`, 400, "fly"},
		{"POST", "/v1/servers/server1/slots/gpu9", `{"do":"reset"}`, 404, "gpu9"},
		{"POST", "/v1/servers/server1/slots/gpu0/read", `{"length":-1}`, 400, "-1"},
		{"POST", "/v1/servers/server1/slots/gpu0/read", `{"length":99999999}`, 400, "99999999"},
		{"GET", "/v1/servers/server1/slots/gpu9/dvsec", ``, 404, "gpu9"},
		{"POST", "/v1/slots/gpu9", `{"do":"kill"}`, 404, "gpu9"},
		{"POST", "/v1/slots/gpu0", `{"do":"pulse"}`, 400, "reload line"},
		{"POST", "/v1/slots/gpu0", `{"do":"x"}`, 400, `do \"x`},
		{"POST", "/v1/chips/x", `{"do":"dead"}`, 404, `chip \"x`},
		{"POST", "/v1/chips/gpu0", `{"do":"flip-bit","offset":32768}`, 400, "outside"},
		{"POST", "/v1/chips/gpu0", `{"do":"unstable","offset":32767,"n":2}`, 400, "outside"},
		{"POST", "/v1/chips/gpu0", `{"do":"worn","n":512}`, 400, "page 512"},
		{"POST", "/v1/chips/gpu0/read", `{"offset":32768,"length":1}`, 400, "outside"},
		{"POST", "/v1/chips/gpu0/write", `{"offset":-1,"data":"AA=="}`, 400, "outside"},
		{"POST", "/v1/buses/bus9/faults", `{"kind":"wedged"}`, 404, "bus9"},
		{"POST", "/v1/buses/bus0/faults", `{"kind":"gremlin"}`, 400, "gremlin"},
		{"POST", "/v1/buses/bus0/faults", `{"kind":"wedged","only":"now"}`, 400, "now"},
		{"POST", "/v1/buses/bus0/faults", `{"kind":"wedged","count":-1}`, 400, "below"},
		{"POST", "/v1/power/cut", `{"tear":"sideways"}`, 400, "sideways"},
		{"POST", "/v1/power/cut", `{"position":1,"after":"1s"}`, 400, "both"},
		{"POST", "/v1/power/cut", `{"after":"-1s"}`, 400, "below zero"},
		{"GET", "/v1/switch/lan9", ``, 404, "lan9"},
		{"GET", "/v1/power/on", ``, 405, ""},
		{"GET", "/v2/state", ``, 404, ""},
	} {
		t.Run(tc.path+" "+tc.body, func(t *testing.T) {
			rw := httptest.NewRecorder()
			h.ServeHTTP(rw, httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body)))
			if rw.Code != tc.status || !strings.Contains(rw.Body.String(), tc.text) {
				t.Errorf("%s %s = %d %s; want %d with %q", tc.method, tc.path, rw.Code, rw.Body, tc.status, tc.text)
			}
			if rw.Code != http.StatusMethodNotAllowed && tc.text != "" && rw.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s %s answers %s", tc.method, tc.path, rw.Header().Get("Content-Type"))
			}
		})
	}
}

// Everything that can be done to the parts arrives at the model.
func TestActions(t *testing.T) {
	ctx := t.Context()
	spec := ExampleWorld()
	spec.Slots[0].Port = "lan3"
	spec.Buses[0].Timeout = 5 * time.Millisecond
	spec.Slots[0].Block = &ee.Block{Group: 101, From: ee.GroupFree}
	w := sim.New(spec)
	c, _ := served(t, w)

	ok(t, c.Join(ctx, "lan3", 101))
	ok(t, c.Join(ctx, "lan3", 102))
	ok(t, c.Leave(ctx, "lan3", 101))
	if v, err := c.Membership(ctx, "lan3"); err != nil || !slices.Equal(v, []uint16{102}) {
		t.Errorf("Membership = %v, %v; want 102", v, err)
	}

	ok(t, c.WriteChip(ctx, "store", 64, []byte{1, 2, 3}))
	ok(t, c.FlipBit(ctx, "store", 65, 7))
	if p, err := c.ReadChip(ctx, "store", 63, 5); err != nil || !bytes.Equal(p, []byte{0xFF, 1, 0x82, 3, 0xFF}) {
		t.Errorf("ReadChip = % x, %v", p, err)
	}
	probe := func() error { return w.Bus("bus0").Tx(0x57, []byte{0, 0}, make([]byte, 1)) }
	ok(t, probe())
	ok(t, c.SetDead(ctx, "store", true))
	if probe() == nil {
		t.Error("a dead chip answers")
	}
	ok(t, c.SetDead(ctx, "store", false))
	ok(t, c.SetWriteCycle(ctx, "store", 40*time.Millisecond))
	ok(t, w.Bus("bus0").Tx(0x57, []byte{0, 0, 1}, nil))
	time.Sleep(10 * time.Millisecond)
	if probe() == nil {
		t.Error("a chip with a write cycle of 40 ms answers after 10")
	}
	time.Sleep(40 * time.Millisecond)
	ok(t, probe())

	for kind := range FaultKinds {
		f := Fault{Kind: kind, Addr: Hex[uint16]{0x57}, Count: 1, Hold: Duration(20 * time.Millisecond), Byte: 1}
		data := []byte{0, 0}
		if kind == "nack-data" {
			data = []byte{0, 0, 0}
			f.Byte = 0
		}
		ok(t, c.Inject(ctx, "bus0", f))
		r := []byte{0, 0}
		err := w.Bus("bus0").Tx(0x57, data, r)
		if (err == nil) != (kind == "flip-read") {
			t.Errorf("transfer under fault %s = %v", kind, err)
		}
		ok(t, c.ClearFaults(ctx, "bus0"))
	}
	ok(t, c.Inject(ctx, "bus0", Fault{Kind: "nack-address"}))
	if probe() == nil {
		t.Error("no fault on the bus")
	}
	ok(t, c.ClearFaults(ctx, "bus0"))
	ok(t, probe())

	before := w.Slot("gpu0").State()
	ok(t, c.Reseat(ctx, "gpu0"))
	if after := w.Slot("gpu0").State(); after.Epoch == before.Epoch || after.Resets != before.Resets+1 {
		t.Errorf("after a reseat epoch 0x%x, %d resets; were 0x%x, %d", after.Epoch, after.Resets, before.Epoch, before.Resets)
	}
	ok(t, c.RestartEngine(ctx, "gpu0"))
	if st := w.Slot("gpu0").State(); st.Resets != 1 || st.Latch&ee.LatchRestarted == 0 {
		t.Errorf("after a restart of the engine: %+v", st)
	}
	ok(t, c.KillEngine(ctx, "gpu0"))
	if st := w.Slot("gpu0").State(); st.Status&ee.StatPower != 0 {
		t.Error("a dead engine gives its device power")
	}
	ok(t, c.ReviveEngine(ctx, "gpu0"))
	for _, what := range []string{"link-loss", "link-restore", "panic-reboot", "hang", "resume", "power-loss", "power-on"} {
		ok(t, c.Server(ctx, "server1", what))
	}
}

// The record is the model's, and its helpers agree with the model's own.
func TestRecord(t *testing.T) {
	ctx := t.Context()
	w := linked(t, ExampleWorld())
	c, _ := served(t, w)
	ok(t, c.Reset(ctx, "server1", "gpu0")) // swallowed
	calm := w.Now()
	r, err := c.Record(ctx)
	ok(t, err)
	if len(r.Reach) != 1 || r.Reach[0].Server != "server1" || !r.Reach[0].Open || r.MaxOwners["gpu0"] != 1 || len(r.Violations) != 0 {
		t.Errorf("record = %+v", r)
	}
	if n := r.Reached("gpu0"); n != 1 { // power-up
		t.Errorf("%d resets reached the device; want 1", n)
	}
	if !r.IntactSince("gpu0", calm) || r.IntactSince("gpu0", 0) {
		t.Errorf("intact since %v: %v, since 0: %v", calm, r.IntactSince("gpu0", calm), r.IntactSince("gpu0", 0))
	}

	ok(t, c.Reset(ctx, "server1", "gpu0"))
	r, err = c.Record(ctx)
	ok(t, err)
	if last := r.Resets[len(r.Resets)-1]; time.Duration(last.At) < calm || !last.Swallowed || !r.IntactSince("gpu0", calm) {
		t.Errorf("a reset that was swallowed: %+v, intact since: %v", last, r.IntactSince("gpu0", calm))
	}

	ok(t, c.PowerCut(ctx, PowerCut{Tear: "zeros"}))
	ok(t, c.PowerOn(ctx))
	r, err = c.Record(ctx)
	ok(t, err)
	if len(r.PowerLoss) != 1 || r.IntactSince("gpu0", calm) || r.Reach[0].Open {
		t.Errorf("after a power cut: %+v", r)
	}
	if got, want := r.IntactSince("gpu0", calm), w.MemoryIntactSince("gpu0", calm); got != want {
		t.Errorf("IntactSince = %v; the model says %v", got, want)
	}
}

// A planned cut: the power goes after so many bytes, and stays away.
func TestPlannedPowerCut(t *testing.T) {
	ctx := t.Context()
	w := sim.New(ExampleWorld())
	c, _ := served(t, w)
	ok(t, c.PowerCut(ctx, PowerCut{Position: 3}))
	if err := w.Bus("bus0").Tx(0x57, []byte{0, 0, 1, 2, 3, 4}, nil); !errors.Is(err, sim.ErrPowerOff) {
		t.Errorf("a write of four bytes with the power going at the third = %v", err)
	}
	s, err := c.State(ctx)
	if err != nil || s.Powered {
		t.Errorf("powered %v, %v; want off", s.Powered, err)
	}
	ok(t, c.PowerOn(ctx))
	ok(t, c.PowerCut(ctx, PowerCut{After: Duration(20 * time.Millisecond)}))
	if !w.Powered() {
		t.Error("power went before its time")
	}
	time.Sleep(30 * time.Millisecond)
	if w.Powered() {
		t.Error("power did not go at its time")
	}
}
