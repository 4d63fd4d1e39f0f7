package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"baton/sim"
)

// Handler gives the control socket of w:
//
//	GET  /v1/state                              State
//	GET  /v1/record                             Record
//	POST /v1/power/cut                          PowerCut
//	POST /v1/power/on
//	POST /v1/servers/{server}                   {"do": hang, resume, panic-reboot, power-loss, power-on, link-loss, link-restore}
//	POST /v1/servers/{server}/vms/{vm}/start    StartVM
//	POST /v1/servers/{server}/vms/{vm}          {"do": stop, kill, reboot}
//	POST /v1/servers/{server}/slots/{slot}      {"do": reset, bus-master (on)}
//	POST /v1/servers/{server}/slots/{slot}/read   {offset, length} -> {data}
//	POST /v1/servers/{server}/slots/{slot}/write  {offset, data}
//	GET  /v1/servers/{server}/slots/{slot}/dvsec  {data}: the capability as in config space
//	POST /v1/slots/{slot}                       {"do": restart (after), kill, revive, ignore-control (n), cut-during-load, reseat, pulse}
//	POST /v1/chips/{chip}                       {"do": flip-bit (offset, bit), unstable (offset, n), worn (n, on), dead (on), write-protect (on), write-cycle (time)}
//	POST /v1/chips/{chip}/read                  {offset, length} -> {data}, without a transfer
//	POST /v1/chips/{chip}/write                 {offset, data}, without a write cycle
//	POST /v1/buses/{bus}/faults                 Fault
//	POST /v1/buses/{bus}/clear
//	GET  /v1/switch/{port}                      {"vlans": []}
//	POST /v1/switch/{port}                      {"do": join, leave (vlan), stick (on)}
//
// changed, if not nil, is called after every POST.
func Handler(w *sim.World, changed func()) http.Handler {
	c := &handler{w: w}
	mux := http.NewServeMux()
	get := func(path string, f func(r *http.Request) (any, error)) {
		mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, r *http.Request) { answer(rw, r, f) })
	}
	post := func(path string, f func(r *http.Request) (any, error)) {
		mux.HandleFunc("POST "+path, func(rw http.ResponseWriter, r *http.Request) {
			answer(rw, r, f)
			if changed != nil {
				changed()
			}
		})
	}
	get("/v1/state", func(*http.Request) (any, error) { return stateOf(w), nil })
	get("/v1/record", func(*http.Request) (any, error) { return recordOf(w), nil })
	post("/v1/power/cut", c.powerCut)
	post("/v1/power/on", func(*http.Request) (any, error) { w.PowerOn(); return nil, nil })
	post("/v1/servers/{server}", c.doServer)
	post("/v1/servers/{server}/vms/{vm}/start", c.startVM)
	post("/v1/servers/{server}/vms/{vm}", c.doVM)
	post("/v1/servers/{server}/slots/{slot}", c.doReached)
	post("/v1/servers/{server}/slots/{slot}/read", c.readMem)
	post("/v1/servers/{server}/slots/{slot}/write", c.writeMem)
	get("/v1/servers/{server}/slots/{slot}/dvsec", c.dvsec)
	post("/v1/slots/{slot}", c.doSlot)
	post("/v1/chips/{chip}", c.doChip)
	post("/v1/chips/{chip}/read", c.readChip)
	post("/v1/chips/{chip}/write", c.writeChip)
	post("/v1/buses/{bus}/faults", c.inject)
	post("/v1/buses/{bus}/clear", c.clear)
	get("/v1/switch/{port}", c.membership)
	post("/v1/switch/{port}", c.doSwitch)
	return mux
}

// Serve answers on l until ctx ends, then closes l and waits for the requests
// under way.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		// The requests are short: all of them go through the model's lock.
		bound, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		ended <- srv.Shutdown(bound)
	})
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("control socket: %w", err)
	}
	return <-ended
}

// maxBody bounds a request.
const maxBody = 1 << 20

// errUnknown and errBad are the answers 404 and 400; any other error is 409:
// the world is not in a state for it.
var (
	errUnknown = errors.New("there is no such thing")
	errBad     = errors.New("bad request")
)

func answer(rw http.ResponseWriter, r *http.Request, f func(r *http.Request) (any, error)) {
	v, err := f(r)
	status := http.StatusOK
	if err != nil {
		a := failure{Error: err.Error()}
		for code, e := range codes {
			if errors.Is(err, e) {
				a.Code = code
			}
		}
		switch {
		case errors.Is(err, errUnknown):
			status = http.StatusNotFound
		case errors.Is(err, errBad):
			status = http.StatusBadRequest
		default:
			status = http.StatusConflict
		}
		v = a
	}
	if v == nil {
		v = struct{}{}
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(v) // a client that left needs no answer
}

// body reads the one object that a POST has.
func body[T any](r *http.Request) (v T, err error) {
	d := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, fmt.Errorf("%w: %w", errBad, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return v, fmt.Errorf("%w: something behind the object, or more than %d bytes", errBad, maxBody)
	}
	return v, nil
}

// handler carries requests out. The world's look-ups panic where there is no
// such name, so names are looked up in its Spec first.
type handler struct{ w *sim.World }

func (c *handler) server(r *http.Request) (*sim.Server, error) {
	name := r.PathValue("server")
	if !slices.ContainsFunc(c.w.Spec().Servers, func(s sim.ServerSpec) bool { return s.Name == name }) {
		return nil, fmt.Errorf("%w: server %q", errUnknown, name)
	}
	return c.w.Server(name), nil
}

func (c *handler) slotName(name string) error {
	if !slices.ContainsFunc(c.w.Spec().Slots, func(s sim.SlotSpec) bool { return s.Name == name }) {
		return fmt.Errorf("%w: slot %q", errUnknown, name)
	}
	return nil
}

// reached gives the server and slot of a path.
func (c *handler) reached(r *http.Request) (*sim.Server, string, error) {
	v, err := c.server(r)
	if err != nil {
		return nil, "", err
	}
	slot := r.PathValue("slot")
	return v, slot, c.slotName(slot)
}

func (c *handler) chip(r *http.Request) (*sim.Chip, int64, error) {
	name := r.PathValue("chip")
	for _, s := range c.w.Spec().Chips {
		if s.Name == name {
			return c.w.Chip(name), sim.Parts[s.Part].Size, nil
		}
	}
	return nil, 0, fmt.Errorf("%w: chip %q", errUnknown, name)
}

func (c *handler) bus(r *http.Request) (*sim.Bus, error) {
	name := r.PathValue("bus")
	if !slices.ContainsFunc(c.w.Spec().Buses, func(s sim.BusSpec) bool { return s.Name == name }) {
		return nil, fmt.Errorf("%w: bus %q", errUnknown, name)
	}
	return c.w.Bus(name), nil
}

func unknownDo(d do) error { return fmt.Errorf("%w: do %q", errBad, d.Do) }

func (c *handler) powerCut(r *http.Request) (any, error) {
	p, err := body[PowerCut](r)
	if err != nil {
		return nil, err
	}
	if p.Tear == "" {
		p.Tear = "half"
	}
	kind, ok := Tears[p.Tear]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: tear %q", errBad, p.Tear)
	case p.Position > 0 && p.After > 0:
		return nil, fmt.Errorf("%w: both position and after", errBad)
	case p.Unstable < 0:
		return nil, fmt.Errorf("%w: %d unstable bytes", errBad, p.Unstable)
	}
	c.w.SetTear(sim.Tear{Kind: kind, Seed: p.Seed, Unstable: p.Unstable})
	switch {
	case p.Position > 0:
		c.w.CutAt(p.Position)
	case p.After > 0:
		c.w.CutAfter(time.Duration(p.After))
	default:
		c.w.PowerCut()
	}
	return nil, nil
}

func (c *handler) doServer(r *http.Request) (any, error) {
	v, err := c.server(r)
	if err != nil {
		return nil, err
	}
	d, err := body[do](r)
	if err != nil {
		return nil, err
	}
	f, ok := map[string]func(){
		"hang": v.Hang, "resume": v.Resume, "panic-reboot": v.PanicReboot, "power-loss": v.PowerLoss, "power-on": v.PowerOn,
		"link-loss": v.LinkLoss, "link-restore": v.LinkRestore,
	}[d.Do]
	if !ok {
		return nil, unknownDo(d)
	}
	f()
	return nil, nil
}

func (c *handler) startVM(r *http.Request) (any, error) {
	v, err := c.server(r)
	if err != nil {
		return nil, err
	}
	o, err := body[StartVM](r)
	if err != nil {
		return nil, err
	}
	for _, s := range o.Slots {
		if err := c.slotName(s); err != nil {
			return nil, err
		}
	}
	return nil, v.StartVM(r.PathValue("vm"), o.Slots, o.options())
}

func (c *handler) doVM(r *http.Request) (any, error) {
	v, err := c.server(r)
	if err != nil {
		return nil, err
	}
	d, err := body[do](r)
	if err != nil {
		return nil, err
	}
	f, ok := map[string]func(string) error{"stop": v.StopVM, "kill": v.KillQEMU, "reboot": v.GuestReboot}[d.Do]
	if !ok {
		return nil, unknownDo(d)
	}
	return nil, f(r.PathValue("vm"))
}

func (c *handler) doReached(r *http.Request) (any, error) {
	v, slot, err := c.reached(r)
	if err != nil {
		return nil, err
	}
	d, err := body[do](r)
	if err != nil {
		return nil, err
	}
	switch d.Do {
	case "reset":
		return nil, v.Reset(slot)
	case "bus-master":
		return nil, v.SetBusMaster(slot, d.On)
	}
	return nil, unknownDo(d)
}

func (c *handler) readMem(r *http.Request) (any, error) {
	v, slot, err := c.reached(r)
	if err != nil {
		return nil, err
	}
	m, err := body[memory](r)
	if err != nil {
		return nil, err
	}
	if m.Length < 0 || m.Length > maxBody/2 {
		return nil, fmt.Errorf("%w: length %d, at most %d", errBad, m.Length, maxBody/2)
	}
	out := memory{Data: make([]byte, m.Length)}
	return out, v.ReadMem(slot, int(m.Offset), out.Data)
}

func (c *handler) writeMem(r *http.Request) (any, error) {
	v, slot, err := c.reached(r)
	if err != nil {
		return nil, err
	}
	m, err := body[memory](r)
	if err != nil {
		return nil, err
	}
	return nil, v.WriteMem(slot, int(m.Offset), m.Data)
}

func (c *handler) dvsec(r *http.Request) (any, error) {
	v, slot, err := c.reached(r)
	if err != nil {
		return nil, err
	}
	d, err := v.DVSEC(slot)
	if err != nil {
		return nil, err
	}
	return memory{Data: d.Encode()}, nil
}

func (c *handler) doSlot(r *http.Request) (any, error) {
	name := r.PathValue("slot")
	if err := c.slotName(name); err != nil {
		return nil, err
	}
	d, err := body[do](r)
	if err != nil {
		return nil, err
	}
	s := c.w.Slot(name)
	i := slices.IndexFunc(c.w.Spec().Slots, func(l sim.SlotSpec) bool { return l.Name == name })
	l := c.w.Spec().Slots[i]
	switch d.Do {
	case "restart":
		if d.After > 0 {
			s.RestartAfter(time.Duration(d.After))
		} else {
			s.Restart()
		}
	case "kill":
		s.Kill()
	case "revive":
		s.Revive()
	case "ignore-control":
		s.IgnoreControl(d.N)
	case "cut-during-load":
		s.CutDuringLoad()
	case "reseat": // the same device, taken out and put back: it loses its power
		s.InsertDevice(sim.Device{Vendor: l.Vendor, Device: l.Device, Class: l.Class, Serial: l.Serial})
	case "pulse":
		if !l.NVMOnly {
			return nil, fmt.Errorf("%w: the engine of %s has no reload line", errBad, name)
		}
		s.Pulse()
	default:
		return nil, unknownDo(d)
	}
	return nil, nil
}

func (c *handler) doChip(r *http.Request) (any, error) {
	chip, size, err := c.chip(r)
	if err != nil {
		return nil, err
	}
	d, err := body[do](r)
	if err != nil {
		return nil, err
	}
	inside := func(n int) error {
		if d.Offset < 0 || n < 0 || d.Offset+int64(n) > size {
			return fmt.Errorf("%w: %d bytes at %d are outside the chip's %d", errBad, n, d.Offset, size)
		}
		return nil
	}
	switch d.Do {
	case "flip-bit":
		if err := inside(1); err != nil {
			return nil, err
		}
		chip.FlipBit(d.Offset, d.Bit)
	case "unstable":
		if err := inside(d.N); err != nil {
			return nil, err
		}
		chip.SetUnstable(d.Offset, d.N)
	case "worn":
		if d.N < 0 || d.N >= len(chip.Wear()) {
			return nil, fmt.Errorf("%w: page %d of %d", errBad, d.N, len(chip.Wear()))
		}
		chip.SetWorn(d.N, d.On)
	case "dead":
		chip.SetDead(d.On)
	case "write-protect":
		chip.SetWriteProtect(d.On)
	case "write-cycle":
		chip.SetWriteCycle(time.Duration(d.Time))
	default:
		return nil, unknownDo(d)
	}
	return nil, nil
}

func (c *handler) readChip(r *http.Request) (any, error) {
	chip, size, err := c.chip(r)
	if err != nil {
		return nil, err
	}
	m, err := body[memory](r)
	if err != nil {
		return nil, err
	}
	if m.Offset < 0 || m.Length < 0 || m.Offset+int64(m.Length) > size {
		return nil, fmt.Errorf("%w: %d bytes at %d are outside the chip's %d", errBad, m.Length, m.Offset, size)
	}
	return memory{Data: chip.Peek(m.Offset, m.Length)}, nil
}

func (c *handler) writeChip(r *http.Request) (any, error) {
	chip, size, err := c.chip(r)
	if err != nil {
		return nil, err
	}
	m, err := body[memory](r)
	if err != nil {
		return nil, err
	}
	if m.Offset < 0 || m.Offset+int64(len(m.Data)) > size {
		return nil, fmt.Errorf("%w: %d bytes at %d are outside the chip's %d", errBad, len(m.Data), m.Offset, size)
	}
	chip.Poke(m.Offset, m.Data)
	return nil, nil
}

func (c *handler) inject(r *http.Request) (any, error) {
	b, err := c.bus(r)
	if err != nil {
		return nil, err
	}
	f, err := body[Fault](r)
	if err != nil {
		return nil, err
	}
	kind, ok := FaultKinds[f.Kind]
	only, ok2 := faultOps[f.Only]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: kind %q", errBad, f.Kind)
	case !ok2:
		return nil, fmt.Errorf("%w: only %q", errBad, f.Only)
	case f.Skip < 0 || f.Count < 0 || f.Pulses < 0 || f.Byte < 0:
		return nil, fmt.Errorf("%w: a count below 0", errBad)
	}
	b.Inject(sim.Fault{
		Kind: kind, Addr: f.Addr.N, Only: only, Skip: f.Skip, Count: f.Count, For: time.Duration(f.For), Hold: time.Duration(f.Hold),
		Pulses: f.Pulses, Byte: f.Byte, Bit: f.Bit,
	})
	return nil, nil
}

func (c *handler) clear(r *http.Request) (any, error) {
	b, err := c.bus(r)
	if err != nil {
		return nil, err
	}
	b.ClearFaults()
	return nil, nil
}

func (c *handler) port(r *http.Request) (string, error) {
	port := r.PathValue("port")
	if !slices.ContainsFunc(c.w.Spec().Slots, func(s sim.SlotSpec) bool { return s.Port == port }) {
		return "", fmt.Errorf("%w: switch port %q", errUnknown, port)
	}
	return port, nil
}

func (c *handler) membership(r *http.Request) (any, error) {
	port, err := c.port(r)
	if err != nil {
		return nil, err
	}
	have, err := c.w.Switch().Membership(r.Context(), port)
	return vlans{have}, err
}

func (c *handler) doSwitch(r *http.Request) (any, error) {
	port, err := c.port(r)
	if err != nil {
		return nil, err
	}
	d, err := body[do](r)
	if err != nil {
		return nil, err
	}
	switch d.Do {
	case "join":
		return nil, c.w.Switch().Join(r.Context(), port, d.VLAN)
	case "leave":
		return nil, c.w.Switch().Leave(r.Context(), port, d.VLAN)
	case "stick":
		c.w.Switch().Stick(port, d.On)
		return nil, nil
	}
	return nil, unknownDo(d)
}
