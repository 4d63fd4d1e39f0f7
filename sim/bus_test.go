package sim

import (
	"bytes"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"baton/ee"
)

// TestBits pins what transfers cost: 9 bit times a byte, address bytes
// included, and one for each START, repeated START and STOP.
func TestBits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		addr  uint16
		w, r  int
		bytes uint64
		bits  uint64
	}{
		{"page write", 0x57, 66, 0, 67, 603 + 2},
		{"read-back of a page", 0x57, 2, 64, 68, 612 + 3},
		{"poll that is answered", 0x57, 2, 0, 3, 27 + 2},
		{"current-address read", 0x57, 0, 1, 2, 18 + 2},
		{"nobody there", 0x11, 66, 8, 1, 9 + 2},
		{"largest read", 0x57, 2, 8192, 8196, 73764 + 3},
		{"register write", 0x40, 3, 0, 4, 36 + 2},
		{"register write and read", 0x40, 3, 2, 7, 63 + 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(Spec{})
				boot(w)
				b := w.Bus("bus0")
				t0 := time.Now()
				b.Tx(tt.addr, make([]byte, tt.w), make([]byte, tt.r))
				s := b.Stats()
				if s.Bytes != tt.bytes || s.Bits != tt.bits || s.Transfers != 1 {
					t.Errorf("%d bytes, %d bits, %d transfers; want %d, %d, 1", s.Bytes, s.Bits, s.Transfers, tt.bytes, tt.bits)
				}
				want := time.Duration(tt.bits) * 2500 * time.Nanosecond
				if took := time.Since(t0); took != want || s.Busy != want {
					t.Errorf("took %v, busy %v; want %v", took, s.Busy, want)
				}
			})
		})
	}
}

func TestBusSpeed(t *testing.T) {
	in(t, func(t *testing.T) {
		s := Spec{Buses: []BusSpec{{Name: "slow", Hz: 100_000}, {Name: "fast", Hz: 1_000_000}},
			Chips: []ChipSpec{{Name: "a", Bus: "slow"}, {Name: "b", Bus: "fast"}}}
		w := New(s)
		for bus, want := range map[string]time.Duration{"slow": 6050 * time.Microsecond, "fast": 605 * time.Microsecond} {
			addr := uint16(0x50)
			if bus == "fast" {
				addr = 0x51
			}
			t0 := time.Now()
			must(t, w.Bus(bus).Tx(addr, make([]byte, 66), nil))
			if took := time.Since(t0); took != want {
				t.Errorf("%s: a page write took %v; want %v", bus, took, want)
			}
		}
	})
}

// TestParallel pins that transfers on one bus follow each other and those on
// two go on at once.
func TestParallel(t *testing.T) {
	for _, tt := range []struct {
		name string
		bus2 string
		want time.Duration
	}{{"one bus", "bus0", 2 * 1512500}, {"two buses", "bus1", 1512500}} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(Spec{Buses: []BusSpec{{}, {}}, Chips: []ChipSpec{{Name: "a"}, {Name: "b", Bus: tt.bus2}}})
				t0 := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() { must(t, w.Bus("bus0").Tx(0x50, make([]byte, 66), nil)) })
				wg.Go(func() { must(t, w.Bus(tt.bus2).Tx(0x51, make([]byte, 66), nil)) })
				wg.Wait()
				if took := time.Since(t0); took != tt.want {
					t.Errorf("two page writes took %v; want %v", took, tt.want)
				}
			})
		})
	}
}

func TestFaults(t *testing.T) {
	const page = 0x57
	data := append([]byte{0, 0}, bytes.Repeat([]byte{0xA5}, 64)...)
	for _, tt := range []struct {
		name  string
		fault Fault
		errs  []error       // of page writes, one after the other
		took  time.Duration // of the first
		left  byte          // byte 0 of the chip afterwards
	}{
		{"address, twice", Fault{Kind: NACKAddr, Addr: page, Count: 2}, []error{syscall.ENXIO, syscall.ENXIO, nil}, 27500, 0xA5},
		{"another address", Fault{Kind: NACKAddr, Addr: 0x50}, []error{nil}, 1512500, 0xA5},
		{"after one", Fault{Kind: NACKAddr, Addr: page, Skip: 1, Count: 1}, []error{nil, syscall.ENXIO, nil}, 1512500, 0xA5},
		{"for ever", Fault{Kind: NACKAddr, Addr: page}, []error{syscall.ENXIO, syscall.ENXIO, syscall.ENXIO}, 27500, 0xFF},
		{"for 8 ms", Fault{Kind: NACKAddr, Addr: page, For: 8 * time.Millisecond}, []error{syscall.ENXIO, nil}, 27500, 0xA5},
		{"only reads", Fault{Kind: NACKAddr, Only: ReadOp}, []error{nil}, 1512500, 0xA5},
		// START, address, two word address bytes, one data byte, the one
		// that is not acknowledged, STOP. The byte before it is written.
		{"data", Fault{Kind: NACKData, Only: WriteOp, Byte: 3, Count: 1}, []error{syscall.EIO}, 47 * 2500, 0xA5},
		{"word address", Fault{Kind: NACKData, Byte: 1, Count: 1}, []error{syscall.EIO}, 29 * 2500, 0xFF},
		{"arbitration", Fault{Kind: ArbitrationLost, Count: 1}, []error{syscall.EAGAIN, nil}, 25000, 0xA5},
		{"SDA, clocked free", Fault{Kind: StuckSDA, Pulses: 18}, []error{syscall.EBUSY, syscall.EBUSY, nil}, 27500, 0xA5},
		{"SDA, for good", Fault{Kind: StuckSDA}, []error{syscall.EBUSY, syscall.EBUSY, syscall.EBUSY}, 27500, 0xFF},
		{"wedged", Fault{Kind: Wedged, Hold: 3 * time.Second, Count: 1}, []error{syscall.ETIMEDOUT, nil}, 3 * time.Second, 0xA5},
		{"stretched", Fault{Kind: Stretch, Hold: 20 * time.Millisecond, Count: 1}, []error{nil}, 20*time.Millisecond + 1512500, 0xA5},
		{"stretched too far", Fault{Kind: Stretch, Hold: time.Second, Count: 1}, []error{syscall.ETIMEDOUT, nil}, 100 * time.Millisecond, 0xA5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(Spec{})
				b := w.Bus("bus0")
				b.Inject(tt.fault)
				for i, want := range tt.errs {
					t0 := time.Now()
					err := b.Tx(page, data, nil)
					if !errors.Is(err, want) || (err == nil) != (want == nil) {
						t.Errorf("write %d = %v; want %v", i, err, want)
					}
					if took := time.Since(t0); i == 0 && took != tt.took {
						t.Errorf("took %v; want %v", took, tt.took)
					}
					var e *Error
					if err != nil && (!errors.As(err, &e) || e.Bus != "bus0" || e.Addr != page) {
						t.Errorf("error %#v does not name bus and address", err)
					}
					time.Sleep(8 * time.Millisecond)
				}
				if got := w.Chip("store").Image()[0]; got != tt.left {
					t.Errorf("byte 0 = %02x; want %02x", got, tt.left)
				}
			})
		})
	}
}

func TestFaultOnRead(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(Spec{})
		b := w.Bus("bus0")
		b.Inject(Fault{Kind: FlipRead, Addr: 0x57, Byte: 2, Bit: 4, Count: 1})
		for _, want := range [][]byte{{0xFF, 0xFF, 0xEF, 0xFF}, {0xFF, 0xFF, 0xFF, 0xFF}} {
			r := make([]byte, 4)
			must(t, b.Tx(0x57, []byte{0, 0}, r))
			if !bytes.Equal(r, want) {
				t.Errorf("read % x; want % x", r, want)
			}
		}
	})
}

func TestFaultRemoved(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(Spec{})
		b := w.Bus("bus0")
		first := b.Inject(Fault{Kind: NACKAddr})
		second := b.Inject(Fault{Kind: StuckSDA})
		for _, step := range []struct {
			do   func()
			want error
		}{{func() {}, syscall.ENXIO}, {first, syscall.EBUSY}, {second, nil}, {func() { b.Inject(Fault{Kind: Wedged}) }, syscall.ETIMEDOUT}, {b.ClearFaults, nil}} {
			step.do()
			if err := b.Tx(0x57, []byte{0, 0}, nil); !errors.Is(err, step.want) {
				t.Errorf("Tx = %v; want %v", err, step.want)
			}
		}
	})
}

// TestEngineDataNACK: what came before the byte that was not acknowledged is in
// effect.
func TestEngineDataNACK(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		e := engineOf(t, w, "gpu0")
		w.Bus("bus0").Inject(Fault{Kind: NACKData, Addr: e.at, Byte: 2 + 7, Count: 1})
		burst := []byte{1, 0, 1, 2, 3, 4, 5, 6, ee.ShowValid, ee.CtlPower | ee.CtlLink}
		if err := e.bus.Tx(e.at, burst, nil); !errors.Is(err, syscall.EIO) {
			t.Fatalf("Tx = %v; want EIO", err)
		}
		st := w.Slot("gpu0").State()
		if st.Expect != (MAC{1, 2, 3, 4, 5, 6}) || st.Show != ee.ShowValid || st.Control != ee.CtlPower {
			t.Errorf("state %+v", st)
		}
	})
}

// TestOnTransfer lets something happen between two steps.
func TestOnTransfer(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), 0)
		proven := []byte{1, 0x14, 1, 0, 0, 0}
		w.Bus("bus0").OnTransfer(func(addr uint16, p []byte) {
			if addr == e.at && bytes.Equal(p, proven) {
				must(t, w.Server("server1").Reset("gpu0"))
			}
		})
		if got := e.get4(ee.RegResets); got != 1 {
			t.Errorf("RESETS = %d before", got)
		}
		must(t, e.bus.Tx(e.at, proven, nil))
		if st := w.Slot("gpu0").State(); st.Resets != 2 || st.Proven != 1 {
			t.Errorf("%+v", st)
		}
		w.Bus("bus0").OnTransfer(nil)
		must(t, e.bus.Tx(e.at, proven, nil))
		if got := e.get4(ee.RegResets); got != 2 {
			t.Errorf("RESETS = %d after the hook was taken away", got)
		}
	})
}

func TestBusOddities(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(Spec{})
		b := w.Bus("bus0")
		if b.String() != "bus0" || b.SetSpeed(100_000) == nil || b.Close() != nil {
			t.Errorf("%s: SetSpeed must fail, Close must not", b)
		}
		err := b.Tx(0x11, []byte{0}, nil)
		if want := "bus0: 0x11: no such device or address"; err == nil || err.Error() != want {
			t.Errorf("Tx = %v; want %s", err, want)
		}
		if at, now := w.Time(time.Now()), w.Now(); at != now || at == 0 {
			t.Errorf("Time(time.Now()) = %v; Now() = %v", at, now)
		}
	})
}

func TestEmptyTransfer(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(Spec{})
		must(t, w.Bus("bus0").Tx(0x11, nil, nil))
		if s := w.Bus("bus0").Stats(); s.Transfers != 0 || s.Bits != 0 {
			t.Errorf("%+v after nothing", s)
		}
	})
}
