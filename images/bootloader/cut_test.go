package bootloader

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"baton/images/bank"
	"baton/images/uboot"
	"baton/nvm"
	"baton/nvm/nvmtest"
)

var bg = context.Background()

// A small flash: the environment's two copies, and two banks.
const (
	envSize  = 4 << 10
	bankSize = 4 << 10
)

var small = nvm.Geometry{Size: envSize + 2*bankSize, Page: 256, Erase: 1024, Erased: 0xff}

// picture is an image of some number: a header as a FIT image has it, anything,
// and a sum over all.
func picture(n uint64, size int) []byte {
	p := make([]byte, size)
	rng := rand.New(rand.NewPCG(n, 7))
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	binary.BigEndian.PutUint32(p, 0xd00dfeed)
	binary.BigEndian.PutUint32(p[4:], uint32(size))
	sum := sha256.Sum256(p[:size-32])
	copy(p[size-32:], sum[:])
	return p
}

var errSum = errors.New("sum does not match")

func checkSum(p []byte) error {
	if len(p) < 40 {
		return errSum
	}
	if sum := sha256.Sum256(p[:len(p)-32]); !bytes.Equal(sum[:], p[len(p)-32:]) {
		return errSum
	}
	return nil
}

type open struct{ Partition }

func (open) Close() error { return nil }

// controller is one whose power may be cut, and what must be true of it.
type controller struct {
	flash    *nvmtest.NOR
	defaults uboot.Env
	booted   bank.Attempt
	running  []byte
	lost     int  // starts that found no environment
	loading  bool // the bootloader runs, not the agent
	broken   error

	// good may be booted as ever, candidates only on trial.
	good, candidates [][]byte

	must []byte // what the next start boots, if not nil
}

func (c *controller) part(name string) Partition {
	switch name {
	case "u-boot-env":
		return Partition{c.flash, 0, envSize}
	case "bank-a":
		return Partition{c.flash, envSize, bankSize}
	}
	return Partition{c.flash, envSize + bankSize, bankSize}
}

func (c *controller) agent() *bank.Flash {
	return bank.New("quiet "+strings.Join(Choice{Attempt: c.booted}.Words(), " "), func(name string) (bank.Part, error) { return open{c.part(name)}, nil })
}

func provisioned(tb testing.TB, seed uint64) *controller {
	tb.Helper()
	c := &controller{flash: nvmtest.NewNOR(small, seed), defaults: testScript()}
	first := picture(1, 2500)
	vars := testScript()
	vars["ethaddr"] = "c0:ff:ee:00:00:01"
	if err := bank.Provision(bg, c.part("u-boot-env"), c.part("bank-a"), vars, first, quiet); err != nil {
		tb.Fatal(err)
	}
	c.good, c.must = [][]byte{first}, first
	c.watch()
	return c
}

// watch has each write and erase looked at: a bank that is written may not be
// the first choice of any copy of the environment, and the agent may not erase
// a copy that could still be taken for whole.
func (c *controller) watch() {
	look := func(at int64, erase bool) error {
		for i := range int64(2) {
			p := make([]byte, envSize/2)
			from := i * int64(len(p))
			copy(p, c.flash.Image()[from:])
			e, _, err := uboot.Decode(p)
			if err != nil {
				continue
			}
			first, _, _ := bank.Read(e).Plan()
			if at >= envSize && (at >= envSize+bankSize) == (first[0].Bank == "b") {
				c.broken = fmt.Errorf("bank %s is written, and copy %d of the environment points at it", first[0].Bank, i)
			}
			if erase && at >= from && at < from+int64(len(p)) && !c.loading {
				c.broken = fmt.Errorf("copy %d is erased, and was not spoiled", i)
			}
		}
		return nil
	}
	c.flash.EraseHook = func(block int) error { return look(int64(block*small.Erase), true) }
	c.flash.ProgramHook = func(page int) error { return look(int64(page*small.Page), false) }
}

func quiet(string, int64, int64) {}

func (c *controller) start() error {
	l := Loader{
		Env: c.part("u-boot-env"), Banks: map[string]nvm.Medium{"a": c.part("bank-a"), "b": c.part("bank-b")},
		Defaults: c.defaults, Check: checkSum,
		Say: func(format string, _ ...any) {
			if strings.Contains(format, "bad CRC") {
				c.lost++
			}
		},
	}
	c.loading = true
	got, err := l.Start(bg)
	c.loading = false
	if err != nil {
		return err
	}
	may := c.good
	if got.Trial {
		may = c.candidates
	}
	if !slices.ContainsFunc(may, func(p []byte) bool { return bytes.Equal(p, got.Image) }) {
		return fmt.Errorf("booted bank %s, trial %v: an image that may not be booted so", got.Bank, got.Trial)
	}
	if c.must != nil && !bytes.Equal(c.must, got.Image) {
		return fmt.Errorf("booted bank %s: not the image that was to be booted", got.Bank)
	}
	c.must = nil
	c.booted, c.running = got.Attempt, got.Image
	return nil
}

func (c *controller) install(image []byte) error {
	// What was not settled for sure before is now.
	c.must = nil
	c.candidates = append(c.candidates, image)
	if err := c.agent().Install(bg, image, checkSum, quiet); err != nil {
		return err
	}
	c.good, c.candidates, c.must = [][]byte{c.running}, [][]byte{image}, image
	return nil
}

func (c *controller) confirm() error {
	c.good = append(c.good, c.running)
	if err := c.agent().Confirm(bg); err != nil {
		return err
	}
	c.good, c.candidates, c.must = [][]byte{c.running}, nil, c.running
	return nil
}

func (c *controller) reject() error {
	if err := c.agent().Reject(bg, "it hangs"); err != nil {
		return err
	}
	c.candidates, c.must = nil, c.good[0]
	return nil
}

func (c *controller) settle() error {
	_, err := c.agent().Settle(bg)
	return err
}

func (c *controller) back(other []byte) error {
	c.candidates = [][]byte{other}
	_, err := c.agent().Rollback(bg, checkSum)
	if err == nil {
		c.must = other
	}
	return err
}

// life is an image installed and confirmed, one that is rejected, one whose
// trial is cut short, and the way back. Its error is the first.
func (c *controller) life() error {
	two, three, four := picture(2, 3900), picture(3, 1500), picture(4, 4096)
	for _, step := range []func() error{
		c.start, c.settle,
		func() error { return c.install(two) }, c.start, c.settle, c.confirm, c.start, c.settle,
		func() error { return c.install(three) }, c.start, c.settle, c.reject, c.start, c.settle,
		// another one while one waits for its trial
		func() error { return c.install(two) }, func() error { return c.install(four) }, c.start, c.settle,
		func() error { c.candidates = nil; return nil }, c.start, c.settle,
		func() error { return c.back(four) }, c.start, c.settle, c.confirm, c.start,
	} {
		if err := step(); err != nil {
			return err
		}
		if c.broken != nil {
			return c.broken
		}
	}
	return nil
}

// recover is what follows a cut: starts until nothing is on trial, then an
// image that is installed, tried and confirmed.
func (c *controller) recover() error {
	for i := 0; ; i++ {
		if i == 5 {
			return errors.New("no end of trials")
		}
		if err := c.start(); err != nil {
			return err
		}
		if err := c.settle(); err != nil {
			return err
		}
		b, err := c.agent().Boot(bg)
		if err != nil {
			return err
		}
		if b.Trial {
			if err := c.confirm(); err != nil {
				return err
			}
			continue
		}
		if c.booted.Trial {
			return fmt.Errorf("on trial, and the state is %s", b.State)
		}
		if b.State == bank.Steady {
			break
		}
	}
	next := picture(9, 2000)
	if err := c.install(next); err != nil {
		return err
	}
	for _, step := range []func() error{c.start, c.settle, c.confirm, c.start} {
		if err := step(); err != nil {
			return err
		}
	}
	vars, err := bank.LoadEnv(bg, c.part("u-boot-env"))
	if err != nil {
		return err
	}
	if c.broken != nil {
		return c.broken
	}
	if vars["ethaddr"] != "c0:ff:ee:00:00:01" || vars["bootcmd"] != c.defaults["bootcmd"] {
		return errors.New("variables that are not ours were lost")
	}
	return nil
}

// TestLife is without a cut.
func TestLife(t *testing.T) {
	c := provisioned(t, 1)
	before := c.flash.Ops()
	if err := c.life(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d writes and erases", c.flash.Ops()-before)
	if err := c.recover(); err != nil {
		t.Fatal(err)
	}
	if c.lost > 0 {
		t.Error("the environment was lost")
	}
}

// TestPowerCut cuts the power in every write and erase of a life, in every way.
// The bootloader must find an image each time that it may boot in that way.
func TestPowerCut(t *testing.T) {
	whole := provisioned(t, 1)
	first := whole.flash.Ops()
	if err := whole.life(); err != nil {
		t.Fatal(err)
	}
	n := whole.flash.Ops() - first
	cases := 0
	for at := range n {
		for i, tear := range nvmtest.Tears {
			if (at+i)%thin != 0 {
				continue
			}
			c := provisioned(t, uint64(at*100+i))
			c.flash.EraseHook, c.flash.ProgramHook = nil, nil // takes half of the time
			c.flash.Cut(at, tear.Tear)
			if err := c.life(); !c.flash.Off() {
				t.Fatalf("op %d, %s: no cut: %v", at, tear.Name, err)
			}
			c.flash.PowerOn()
			c.must = nil
			if err := c.recover(); err != nil {
				t.Fatalf("cut in op %d of %d, %s: %v", at, n, tear.Name, err)
			}
			if c.lost > 0 {
				t.Fatalf("cut in op %d of %d, %s: the environment was lost", at, n, tear.Name)
			}
			cases++
		}
	}
	t.Logf("%d cuts: each of %d writes and erases, torn in %d ways, one case in %d", cases, n, len(nvmtest.Tears), thin)
}

// TestPowerCutTwice cuts again in what follows a cut. An image is found after
// both. U-Boot's own save of the count may lose the environment then, and
// U-Boot's built-in one serves.
func TestPowerCutTwice(t *testing.T) {
	rounds := 1000
	if os.Getenv("BATON_FULL") == "1" {
		rounds = 100000
	}
	whole := provisioned(t, 1)
	first := whole.flash.Ops()
	if err := whole.life(); err != nil {
		t.Fatal(err)
	}
	n := whole.flash.Ops() - first
	cuts, lost := 0, 0
	for round := range rounds / thin {
		rng := rand.New(rand.NewPCG(uint64(round), 11))
		c := provisioned(t, uint64(round))
		at, again := rng.IntN(n), rng.IntN(40)
		one, two := nvmtest.Tears[rng.IntN(len(nvmtest.Tears))], nvmtest.Tears[rng.IntN(len(nvmtest.Tears))]
		what := fmt.Sprintf("round %d: cut in op %d, %s; then in op %d, %s", round, at, one.Name, again, two.Name)
		c.flash.Cut(at, one.Tear)
		if err := c.life(); !c.flash.Off() {
			t.Fatalf("%s: no cut: %v", what, err)
		}
		c.flash.PowerOn()
		c.must = nil
		c.flash.Cut(again, two.Tear)
		if err := c.recover(); err != nil && !c.flash.Off() {
			t.Fatalf("%s: %v", what, err)
		}
		if c.flash.Off() {
			cuts++
		}
		c.flash.PowerOn()
		c.must = nil
		if err := c.recover(); err != nil {
			t.Fatalf("%s: afterwards: %v", what, err)
		}
		if c.lost > 0 {
			lost++
		}
	}
	t.Logf("%d second cuts; the environment was lost %d times", cuts, lost)
}
