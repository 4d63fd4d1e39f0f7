package ee

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"periph.io/x/conn/v3/i2c/i2ctest"
	"periph.io/x/conn/v3/physic"
)

// xfer is one transfer with the engine at 0x40: what is written and what is
// read, in hex.
func xfer(w, r string) i2ctest.IO { return i2ctest.IO{Addr: 0x40, W: unhex(w), R: unhex(r)} }

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	if len(b) == 0 {
		return nil
	}
	return b
}

func without(t testing.TB, c Caps) *Profile {
	p := regsV1(t)
	p.Caps &^= c
	return p
}

// line is a Reloader that counts.
type line struct {
	pulses int
	err    error
}

func (l *line) Reload(context.Context) error { l.pulses++; return l.err }

var errLine = errors.New("the line is stuck")

// The wire bytes of every method. When one of these changes, engines in the
// field are driven in another way than was tested.
func TestEngineWire(t *testing.T) {
	ctx := t.Context()
	peer := MAC{0x8c, 0xdf, 0x9d, 0, 1, 2}
	identity := []i2ctest.IO{
		xfer("0000", "45454931"),
		xfer("0006", "8cdf9d000201"),
		xfer("000c", "de10"),
		xfer("000e", "3023"),
		xfer("0010", "000212ff"), // the top byte is not the class's
		xfer("0014", "0807060504030201"),
		xfer("0118", "78563412"),
	}
	// CONTROL to IDENT of a slot that runs.
	const live = "47 0d 0c 6600 04000000 efbeadde 03000000 78563412"
	running := Observation{
		Control: CtlLink | CtlGuard | CtlHold | CtlPower, Status: StatLink | StatDevice | StatPower, Latch: LatchReset | LatchLinkLost,
		Group: 102, Resets: 4, Epoch: 0xDEADBEEF, Proven: 3, Ident: 0x12345678,
	}
	type setGot struct{ status, latch uint8 }
	type expectGot struct {
		peer MAC
		show uint8
	}
	for _, tc := range []struct {
		name    string
		profile *Profile
		ops     []i2ctest.IO
		call    func(e *Engine) (any, error)
		want    any
		err     error
	}{
		{"Identity", regsV1(t), identity,
			func(e *Engine) (any, error) { return e.Identity(ctx) },
			Identity{ID: EngineID, MAC: MAC{0x8c, 0xdf, 0x9d, 0, 2, 1}, Vendor: 0x10DE, Device: 0x2330, Class: 0x120200, Serial: 0x0102030405060708, Word: 0x12345678}, nil},
		{"Identity of something else", regsV1(t), []i2ctest.IO{xfer("0000", "30494545")}, // and no more is read of it
			func(e *Engine) (any, error) { return e.Identity(ctx) }, Identity{ID: 0x45454930}, ErrWrongID},
		{"Observe", regsV1(t), []i2ctest.IO{xfer("0107", live)},
			func(e *Engine) (any, error) { return e.Observe(ctx) }, running, nil},
		{"Peer", regsV1(t), []i2ctest.IO{xfer("0128", "8cdf9d000102 6600")},
			func(e *Engine) (any, error) { return e.Peer(ctx) }, Peer{MAC: peer, Group: 102}, nil},
		{"Peer, nobody", regsV1(t), []i2ctest.IO{xfer("0128", "0000000000000000")},
			func(e *Engine) (any, error) { return e.Peer(ctx) }, Peer{}, nil},
		{"Expected", regsV1(t), []i2ctest.IO{xfer("0100", "8cdf9d000102 07")},
			func(e *Engine) (any, error) { p, s, err := e.Expected(ctx); return expectGot{p, s}, err },
			expectGot{peer, ShowValid | ShowTarget | ShowPowerKept}, nil},
		{"Counters", regsV1(t), []i2ctest.IO{xfer("011c", "02000000 05000000 00010000")},
			func(e *Engine) (any, error) { return e.Counters(ctx) }, Counters{Swallowed: 2, LinkChanges: 5, Retransmits: 256}, nil},
		{"Set", regsV1(t), []i2ctest.IO{xfer("0107 4e", "2c 0c")},
			func(e *Engine) (any, error) {
				s, l, err := e.Set(ctx, CtlGuard|CtlHold|CtlQuiesce|CtlPower)
				return setGot{s, l}, err
			},
			setGot{StatDevice | StatPower | StatLoaded, LatchReset | LatchLinkLost}, nil},
		{"Reload", regsV1(t), []i2ctest.IO{xfer("0107 56", "")},
			func(e *Engine) (any, error) { return nil, e.Reload(ctx, CtlGuard|CtlHold|CtlPower) }, nil, nil},
		{"Reload with the link enabled", regsV1(t), nil,
			func(e *Engine) (any, error) { return nil, e.Reload(ctx, CtlLink|CtlPower) }, nil, ErrLinkOn},
		{"Loaded at once", regsV1(t), []i2ctest.IO{xfer("0107", "46 2c 00 6600 04000000")},
			func(e *Engine) (any, error) { return e.Loaded(ctx) },
			Observation{Control: 0x46, Status: StatDevice | StatPower | StatLoaded, Group: 102, Resets: 4}, nil},
		{"Loaded at the third look", regsV1(t), []i2ctest.IO{
			xfer("0107", "46 0c 00 0000 04000000"), xfer("0107", "46 0c 00 0000 04000000"), xfer("0107", "46 2c 00 6600 05000000")},
			func(e *Engine) (any, error) { return e.Loaded(ctx) },
			Observation{Control: 0x46, Status: StatDevice | StatPower | StatLoaded, Group: 102, Resets: 5}, nil},
		{"Loaded, block bad", regsV1(t), []i2ctest.IO{xfer("0107", "46 0c 00 0000 04000000"), xfer("0107", "46 3c 00 0000 04000000")},
			func(e *Engine) (any, error) { return e.Loaded(ctx) },
			Observation{Control: 0x46, Status: StatDevice | StatPower | StatLoaded | StatConfigBad, Resets: 4}, ErrConfigBad},
		{"Connect", regsV1(t), []i2ctest.IO{xfer("0100 8cdf9d000102 07 47", "")},
			func(e *Engine) (any, error) {
				return nil, e.Connect(ctx, peer, ShowValid|ShowTarget|ShowPowerKept, CtlLink|CtlGuard|CtlHold|CtlPower)
			}, nil, nil},
		{"Connect without ExpectPeer", without(t, CapExpectPeer), []i2ctest.IO{xfer("0106 01", ""), xfer("0107 41", "")},
			func(e *Engine) (any, error) { return nil, e.Connect(ctx, peer, ShowValid, CtlLink|CtlPower) }, nil, nil},
		{"Connect without FlagMirror", without(t, CapFlagMirror), []i2ctest.IO{xfer("0100 8cdf9d000102", ""), xfer("0107 41", "")},
			func(e *Engine) (any, error) { return nil, e.Connect(ctx, peer, ShowValid, CtlLink|CtlPower) }, nil, nil},
		{"Connect without both", without(t, CapExpectPeer|CapFlagMirror), []i2ctest.IO{xfer("0107 41", "")},
			func(e *Engine) (any, error) { return nil, e.Connect(ctx, peer, ShowValid, CtlLink|CtlPower) }, nil, nil},
		{"ClearLatches", regsV1(t), []i2ctest.IO{xfer("0109 06", "")},
			func(e *Engine) (any, error) { return nil, e.ClearLatches(ctx, LatchRestarted|LatchReset) }, nil, nil},
		{"Prove", regsV1(t), []i2ctest.IO{xfer("0114 04030201", "")},
			func(e *Engine) (any, error) { return nil, e.Prove(ctx, 0x01020304) }, nil, nil},
		{"ResetDevice", regsV1(t), []i2ctest.IO{xfer("0107 6e", "")},
			func(e *Engine) (any, error) {
				return nil, e.ResetDevice(ctx, CtlGuard|CtlHold|CtlQuiesce|CtlPower)
			}, nil, nil},
		{"WasReset at once", regsV1(t), []i2ctest.IO{xfer("0107", live)},
			func(e *Engine) (any, error) { return e.WasReset(ctx, 3) }, running, nil},
		{"WasReset once the device is out of reset", regsV1(t), []i2ctest.IO{
			xfer("0107", "47 4d 0c 6600 03000000 efbeadde 03000000 78563412"),
			xfer("0107", "47 4d 0c 6600 04000000 efbeadde 03000000 78563412"),
			xfer("0107", live)},
			func(e *Engine) (any, error) { return e.WasReset(ctx, 3) }, running, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bus := &i2ctest.Playback{Ops: tc.ops, DontPanic: true}
			got, err := tc.call(New(bus, 0x40, tc.profile, nil))
			if !errors.Is(err, tc.err) {
				t.Errorf("error %v; want %v", err, tc.err)
			}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(setGot{}, expectGot{})); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if err := bus.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Engines of profile nvm-only have no registers: nothing is sent to whoever is
// at their address, and what can not be done is refused by name.
func TestEngineWithoutRegisters(t *testing.T) {
	ctx := t.Context()
	for _, tc := range []struct {
		name string
		call func(e *Engine) error
	}{
		{"Identity", func(e *Engine) error { _, err := e.Identity(ctx); return err }},
		{"Observe", func(e *Engine) error { _, err := e.Observe(ctx); return err }},
		{"Peer", func(e *Engine) error { _, err := e.Peer(ctx); return err }},
		{"Expected", func(e *Engine) error { _, _, err := e.Expected(ctx); return err }},
		{"Counters", func(e *Engine) error { _, err := e.Counters(ctx); return err }},
		{"Set", func(e *Engine) error { _, _, err := e.Set(ctx, CtlPower); return err }},
		{"Connect", func(e *Engine) error { return e.Connect(ctx, MAC{1}, ShowValid, CtlLink) }},
		{"ClearLatches", func(e *Engine) error { return e.ClearLatches(ctx, LatchReset) }},
		{"Prove", func(e *Engine) error { return e.Prove(ctx, 1) }},
		{"ResetDevice", func(e *Engine) error { return e.ResetDevice(ctx, 0) }},
		{"WasReset", func(e *Engine) error { _, err := e.WasReset(ctx, 1); return err }},
		{"Reload without a line", func(e *Engine) error { return e.Reload(ctx, 0) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bus := &i2ctest.Playback{DontPanic: true} // any transfer is an error of another kind
			err := tc.call(New(bus, 0x40, nvmOnly(t), nil))
			if !errors.Is(err, ErrCapability) {
				t.Errorf("error %v; want ErrCapability", err)
			}
			var e *Error
			if !errors.As(err, &e) || e.Where != "playback/0x40" || e.Op == "" {
				t.Errorf("error %#v does not say what was refused and where", err)
			}
		})
	}
	t.Run("reload line", func(t *testing.T) {
		l := &line{}
		if err := New(&i2ctest.Playback{DontPanic: true}, 0x40, nvmOnly(t), l).Reload(ctx, CtlLink); err != nil || l.pulses != 1 {
			t.Errorf("Reload = %v, %d pulses", err, l.pulses)
		}
		l.err = errLine
		if err := New(&i2ctest.Playback{DontPanic: true}, 0x40, nvmOnly(t), l).Reload(ctx, 0); !errors.Is(err, errLine) {
			t.Errorf("Reload = %v; want the line's error", err)
		}
	})
	t.Run("load time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			e := New(&i2ctest.Playback{DontPanic: true}, 0x40, nvmOnly(t), nil)
			if o, err := e.Loaded(t.Context()); err != nil || o != (Observation{}) {
				t.Errorf("Loaded = %+v, %v", o, err)
			}
			if d := time.Since(began); d != 50*time.Millisecond {
				t.Errorf("waited %v; want the profile's load time of 50ms", d)
			}
		})
	})
}

func TestResetNeedsDeviceReset(t *testing.T) {
	bus := &i2ctest.Playback{DontPanic: true}
	if err := New(bus, 0x40, without(t, CapDeviceReset), nil).ResetDevice(t.Context(), CtlPower); !errors.Is(err, ErrCapability) {
		t.Errorf("ResetDevice = %v; want ErrCapability", err)
	}
}

// A profile with Status but without LinkControl has registers, yet reloads by
// its line: CONTROL has no reload bit there.
func TestReloadByLineBesideRegisters(t *testing.T) {
	l := &line{}
	bus := &i2ctest.Playback{DontPanic: true}
	if err := New(bus, 0x40, without(t, CapLinkControl), l).Reload(t.Context(), 0); err != nil || l.pulses != 1 {
		t.Errorf("Reload = %v, %d pulses", err, l.pulses)
	}
}

// flaky is a bus whose first transfers fail.
type flaky struct {
	fails int // so many more; negative = all
	err   error
	takes time.Duration
	n     int // transfers
	read  []byte
	last  []byte // what the last transfer wrote
}

func (f *flaky) String() string                  { return "flaky" }
func (f *flaky) SetSpeed(physic.Frequency) error { return nil }

func (f *flaky) Tx(_ uint16, w, r []byte) error {
	f.n++
	f.last = append([]byte(nil), w...)
	time.Sleep(f.takes)
	if f.fails != 0 {
		f.fails--
		return f.err
	}
	copy(r, f.read)
	return nil
}

var errNACK = errors.New("no acknowledge")

func TestRetries(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fails int
		err   error
		n     int
		takes time.Duration
	}{
		{"none", 0, nil, 1, 0},
		{"one", 1, nil, 2, 500 * time.Microsecond},
		{"three", 3, nil, 4, 7500 * time.Microsecond},
		{"four", 4, errNACK, 4, 7500 * time.Microsecond},
		{"for ever", -1, errNACK, 4, 7500 * time.Microsecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus := &flaky{fails: tc.fails, err: errNACK}
				e := New(bus, 0x41, regsV1(t), nil)
				began := time.Now()
				err := e.Prove(t.Context(), 7)
				if !errors.Is(err, tc.err) || bus.n != tc.n || time.Since(began) != tc.takes {
					t.Errorf("Prove = %v after %d transfers and %v; want %v, %d, %v", err, bus.n, time.Since(began), tc.err, tc.n, tc.takes)
				}
				var at *Error
				if err != nil && (!errors.As(err, &at) || at.Where != "flaky/0x41" || at.Op != "write proof") {
					t.Errorf("error %v does not say what failed and where", err)
				}
				// A retry writes the very same bytes.
				if want := unhex("0114 07000000"); string(bus.last) != string(want) {
					t.Errorf("last wrote % x; want % x", bus.last, want)
				}
			})
		})
	}
}

func TestRetriesEndWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := &flaky{fails: -1, err: errNACK}
		e := New(bus, 0x41, regsV1(t), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := e.Observe(ctx); err == nil || time.Since(began) != time.Millisecond || bus.n != 2 {
			t.Errorf("Observe = %v after %v and %d transfers; want an error after 1ms and 2", err, time.Since(began), bus.n)
		}
		n := bus.n
		if _, err := e.Observe(ctx); !errors.Is(err, context.DeadlineExceeded) || bus.n != n {
			t.Errorf("Observe with an ended context = %v after %d more transfers", err, bus.n-n)
		}
	})
}

// Waits end at their bounds, also where every transfer succeeds.
func TestWaitsAreBounded(t *testing.T) {
	for _, tc := range []struct {
		name string
		read string
		call func(ctx context.Context, e *Engine) error
		want error
		max  time.Duration
	}{
		{"Loaded", "46 0c 00 0000 04000000", func(ctx context.Context, e *Engine) error { _, err := e.Loaded(ctx); return err },
			ErrNotLoaded, 25*time.Millisecond + loadPoll},
		{"WasReset, counter stands", "47 0d 00 6600 04000000", func(ctx context.Context, e *Engine) error { _, err := e.WasReset(ctx, 4); return err },
			ErrNoReset, 500*time.Millisecond + resetPoll},
		{"WasReset, stays in reset", "47 4d 00 6600 05000000", func(ctx context.Context, e *Engine) error { _, err := e.WasReset(ctx, 4); return err },
			ErrNoReset, 500*time.Millisecond + resetPoll},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := New(&flaky{read: unhex(tc.read)}, 0x41, regsV1(t), nil)
				began := time.Now()
				if err := tc.call(t.Context(), e); !errors.Is(err, tc.want) {
					t.Errorf("error %v; want %v", err, tc.want)
				}
				if d := time.Since(began); d > tc.max || d < tc.max/2 {
					t.Errorf("after %v; want at most %v", d, tc.max)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
				defer cancel()
				began = time.Now()
				if err := tc.call(ctx, e); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Millisecond {
					t.Errorf("error %v after %v; want the context's after 3ms", err, time.Since(began))
				}
			})
		})
	}
}

func TestErrorText(t *testing.T) {
	e := New(&flaky{fails: -1, err: errNACK}, 0x41, regsV1(t), nil)
	_, err := e.Observe(t.Context())
	if want := "engine flaky/0x41: read live registers: no acknowledge"; err == nil || err.Error() != want {
		t.Errorf("error %q; want %q", err, want)
	}
	if e.Where() != "flaky/0x41" || e.Profile().Name != "regs-v1" {
		t.Errorf("Where = %q, Profile = %q", e.Where(), e.Profile().Name)
	}
}
