package bank

import (
	"context"
	"errors"
	"strings"
	"testing"

	"baton/images/uboot"
	"baton/nvm"
	"baton/nvm/nvmtest"
)

var bg = context.Background()

type opened struct{ *nvmtest.NOR }

func (opened) Close() error { return nil }

// world is the flash of a controller, a chip for each partition.
type world map[string]*nvmtest.NOR

func newWorld(t *testing.T, v Vars) world {
	t.Helper()
	w := world{}
	for _, name := range []string{"u-boot-env", "bank-a", "bank-b"} {
		w[name] = nvmtest.NewNOR(nvm.Geometry{Size: 4096, Page: 256, Erase: 1024, Erased: 0xff}, 1)
	}
	e := uboot.Env{"bootcmd": "x", "altbootcmd": "y", "serial#": "42"}
	v.write(e)
	p, err := uboot.Encode(e, uboot.Active, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if err := Program(bg, w["u-boot-env"], p, 0); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w world) flash(cmdline string) *Flash {
	return New(cmdline, func(name string) (Part, error) { return opened{w[name]}, nil })
}

func (w world) vars(t *testing.T) Vars {
	t.Helper()
	e, err := LoadEnv(bg, w["u-boot-env"])
	if err != nil {
		t.Fatal(err)
	}
	if e["serial#"] != "42" || e["bootcmd"] != "x" {
		t.Errorf("variables of others are gone: %v", e)
	}
	return Read(e)
}

// TestOnce: what has been done is not done again, and costs no erase.
func TestOnce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		v     Vars
		on    string
		do    func(*Flash) error
		want  Vars
		calls int // of do, until nothing is written any more
	}{
		{"confirm", Vars{Bank: "a", Trial: true, Count: 1, Limit: 1}, "b", func(f *Flash) error { return f.Confirm(bg) }, Vars{Bank: "b", Limit: 1, Outcome: "bank b was tried and confirmed"}, 1},
		{"confirm what is", Vars{Bank: "a", Limit: 1}, "a", func(f *Flash) error { return f.Confirm(bg) }, Vars{Bank: "a", Limit: 1}, 0},
		{"confirm does not end what waits", Vars{Bank: "a", Trial: true, Limit: 1}, "a", func(f *Flash) error { return f.Confirm(bg) }, Vars{Bank: "a", Trial: true, Limit: 1}, 0},
		{"reject", Vars{Bank: "a", Trial: true, Count: 1, Limit: 1}, "b baton.trial=1", func(f *Flash) error { return f.Reject(bg, "it's dead") }, Vars{Bank: "a", Trial: true, Count: 2, Limit: 1, Outcome: "bank b was tried and given up: it.s dead"}, 1},
		{"settle", Vars{Bank: "a", Trial: true, Count: 2, Limit: 1}, "a", func(f *Flash) error { _, err := f.Settle(bg); return err }, Vars{Bank: "a", Limit: 1, Outcome: "bank b was started and not confirmed (power cut, restart or watchdog in its trial), bank a runs"}, 1},
		{"settle what is", Vars{Bank: "a", Limit: 1}, "a", func(f *Flash) error { _, err := f.Settle(bg); return err }, Vars{Bank: "a", Limit: 1}, 0},
		{"settle on trial", Vars{Bank: "a", Trial: true, Count: 1, Limit: 1}, "b", func(f *Flash) error { _, err := f.Settle(bg); return err }, Vars{Bank: "a", Trial: true, Count: 1, Limit: 1}, 0},
		{"settle where the other was booted", Vars{Bank: "a", Limit: 1}, "b", func(f *Flash) error { _, err := f.Settle(bg); return err }, Vars{Bank: "b", Limit: 1, Outcome: "the bootloader could not boot bank a, so bank b runs and is kept"}, 1},
		{"not from a bank", Vars{Bank: "a", Trial: true, Limit: 1}, "", func(f *Flash) error { return f.Confirm(bg) }, Vars{Bank: "a", Trial: true, Limit: 1}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.v)
			f := w.flash("quiet baton.bank=" + tt.on)
			env := w["u-boot-env"]
			for call := range 3 {
				before := env.Ops()
				if err := tt.do(f); err != nil {
					t.Fatal(err)
				}
				if wrote := env.Ops() != before; wrote != (call < tt.calls) {
					t.Errorf("call %d: written %v", call+1, wrote)
				}
			}
			if got := w.vars(t); got != tt.want {
				t.Errorf("left %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestBoot(t *testing.T) {
	for _, tt := range []struct {
		v       Vars
		cmdline string
		want    Boot
	}{
		{Vars{Bank: "a", Limit: 1}, "baton.bank=a", Boot{State: Steady, Bank: "a", Confirmed: "a"}},
		{Vars{Bank: "a", Limit: 1}, "quiet", Boot{State: Direct}},
		{Vars{Bank: "a", Limit: 1}, "baton.bank=c", Boot{State: Direct}},
		{Vars{Bank: "a", Trial: true, Count: 1, Limit: 1}, "baton.bank=b baton.trial=1", Boot{State: Trying, Bank: "b", Confirmed: "a", Trial: true, Count: 1}},
		// It was confirmed since it was started.
		{Vars{Bank: "b", Limit: 1}, "baton.bank=b baton.trial=1", Boot{State: Steady, Bank: "b", Confirmed: "b"}},
		{
			Vars{Bank: "a", Trial: true, Count: 1, Limit: 1}, "baton.bank=a",
			Boot{State: Failed, Bank: "a", Confirmed: "a", RolledBack: true, Count: 1, Outcome: "the bootloader could not boot bank b, so bank a runs"},
		},
	} {
		got, err := newWorld(t, tt.v).flash(tt.cmdline).Boot(bg)
		if err != nil || got != tt.want {
			t.Errorf("%+v, %q: Boot = %+v, %v\nwant %+v", tt.v, tt.cmdline, got, err, tt.want)
		}
	}
}

// TestLost: where no copy of the environment is good nothing is written: U-Boot
// boots by its own, and would not by one that has our variables only.
func TestLost(t *testing.T) {
	w := newWorld(t, Vars{Bank: "a", Limit: 1})
	env := w["u-boot-env"]
	if err := Erase(bg, env, 0, 4096, nil); err != nil {
		t.Fatal(err)
	}
	f := w.flash("baton.bank=b baton.trial=1")
	before := env.Ops()
	if b, err := f.Boot(bg); err != nil || b != (Boot{State: Lost, Bank: "b", Trial: true}) {
		t.Errorf("Boot = %+v, %v", b, err)
	}
	_, settled := f.Settle(bg)
	for what, err := range map[string]error{
		"Confirm": f.Confirm(bg), "Reject": f.Reject(bg, "x"), "Settle": settled,
		"Install": f.Install(bg, make([]byte, 100), func([]byte) error { return nil }, func(string, int64, int64) {}),
	} {
		var r *RefusedError
		if !errors.As(err, &r) || r.State != Lost || !strings.Contains(r.Next, "env default") {
			t.Errorf("%s = %v", what, err)
		}
	}
	if env.Ops() != before || w["bank-a"].Ops() != 0 {
		t.Error("something was written")
	}
}

// TestRejectNothing: what is not on trial is not given up.
func TestRejectNothing(t *testing.T) {
	w := newWorld(t, Vars{Bank: "a", Limit: 1})
	var r *RefusedError
	if err := w.flash("baton.bank=a").Reject(bg, "x"); !errors.As(err, &r) || r.State != Steady {
		t.Errorf("Reject = %v", err)
	}
	if got := w.vars(t); got != (Vars{Bank: "a", Limit: 1}) {
		t.Errorf("left %+v", got)
	}
}

func TestCopySize(t *testing.T) {
	for _, tt := range []struct {
		size  int64
		erase int
		want  int // 0 = an error
	}{
		{128 << 10, 64 << 10, 64 << 10},
		{128 << 10, 4 << 10, 64 << 10},
		{64 << 10, 64 << 10, 0},
		{3 << 10, 1 << 10, 0},
		{128 << 10, 0, 0},
		{8 << 20, 64 << 10, 0},
	} {
		got, err := CopySize(nvm.Geometry{Size: tt.size, Erase: tt.erase, Page: 256})
		if got != tt.want || (err == nil) != (tt.want > 0) {
			t.Errorf("CopySize(%d, %d) = %d, %v; want %d", tt.size, tt.erase, got, err, tt.want)
		}
	}
}

func TestContents(t *testing.T) {
	m := nvmtest.NewNOR(nvm.Geometry{Size: 4096, Page: 256, Erase: 1024, Erased: 0xff}, 1)
	if _, err := Contents(bg, m); !errors.Is(err, ErrEmpty) {
		t.Errorf("of an erased bank: %v", err)
	}
	if err := Program(bg, m, []byte{0xd0, 0x0d, 0xfe, 0xed, 0, 0, 0x10, 0x01}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Contents(bg, m); !errors.Is(err, ErrTooLarge) {
		t.Errorf("of an image of 4097 bytes in a bank of 4096: %v", err)
	}
}

// TestTrying: init, which finds the agent well a moment later, does not keep
// an image that was given up by hand, and what is booted next is not erased.
func TestGivenUp(t *testing.T) {
	for _, limit := range []int{1, 0} {
		w := newWorld(t, Vars{Bank: "a", Trial: true, Count: 1, Limit: limit})
		f := w.flash("baton.bank=b baton.trial=1")
		if was, err := f.Rollback(bg, nil); was != Trying || err != nil {
			t.Fatalf("Rollback = %s, %v", was, err)
		}
		var r *RefusedError
		if err := f.Confirm(bg); !errors.As(err, &r) || r.State != GivenUp {
			t.Errorf("Confirm = %v; want a refusal", err)
		}
		if err := f.Install(bg, make([]byte, 100), nil, nil); !errors.As(err, &r) || r.State != GivenUp || r.Next != "reboot" {
			t.Errorf("Install = %v; want a refusal", err)
		}
		if err := f.Reject(bg, "it hangs"); err != nil {
			t.Errorf("Reject = %v", err)
		}
		if b, err := f.Boot(bg); err != nil || b.State != GivenUp || b.Trial || b.Confirmed != "a" || b.Outcome != "the trial of bank b was given up by hand" {
			t.Errorf("Boot = %+v, %v", b, err)
		}
		if next, _, _ := w.vars(t).Plan(); next[0] != (Attempt{Bank: "a"}) {
			t.Errorf("the next start boots %v; want bank a", next)
		}
	}
}

// TestRollbackRace: what another process has changed since Rollback looked is
// not rolled back: it may be writing the bank by now.
func TestRollbackRace(t *testing.T) {
	w := newWorld(t, Vars{Bank: "a", Trial: true, Limit: 1})
	opens := 0
	f := New("baton.bank=a", func(name string) (Part, error) {
		if opens++; opens == 2 {
			if err := w.flash("baton.bank=a").happens(bg, clear, ""); err != nil {
				t.Fatal(err)
			}
		}
		return opened{w[name]}, nil
	})
	var r *RefusedError
	if _, err := f.Rollback(bg, nil); !errors.As(err, &r) {
		t.Errorf("Rollback = %v; want a refusal", err)
	}
	if v := w.vars(t); v.Trial {
		t.Errorf("left %+v: it points at the bank that is erased", v)
	}
}
