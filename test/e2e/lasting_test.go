//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"baton/mgmt"
	"baton/nvm"
	"baton/nvm/nvmtest"
)

// ownAddress is what the board gets in TestBoard, on a VLAN of the management
// port.
const ownAddress = "192.0.2.10"

// trial changes the board's own network from its console, says nothing, and
// finds that the change was put back; then it confirms one, and finds it again
// after a power cut.
func (b *board) trial() {
	b.t.Helper()
	const (
		within = 10 * time.Second
		set    = `baton config set network '{"interface": "eth0", "vlan": 42, "address": "` + ownAddress + `/24", "gateway": "192.0.2.1"}' --yes --confirm-within 10s`
	)
	before := b.config()
	b.must(set)
	if !b.hasAddress() {
		b.t.Fatalf("%s is not there after it was set:\n%s", ownAddress, b.addresses())
	}
	if c := b.config(); c.Trial == nil {
		b.t.Errorf("the configuration says nothing of a trial: %+v", c)
	}
	for deadline := time.Now().Add(3 * within); b.hasAddress(); {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s is still there %v after it had to be confirmed within %v", ownAddress, 2*within, within)
		}
		time.Sleep(time.Second)
	}
	if c := b.config(); c.Text != before.Text || c.Version != before.Version || c.Trial != nil {
		b.t.Errorf("after the revert the configuration is version %d, trial %v; want version %d as before", c.Version, c.Trial, before.Version)
	}

	b.must(set)
	b.must("baton config confirm")
	kept := b.config()
	if kept.Trial != nil || kept.Version == before.Version || !strings.Contains(kept.Text, ownAddress) {
		b.t.Fatalf("after the confirmation: %+v", kept)
	}
	b.vm.Kill()
	b.boot()
	if c := b.config(); c.Version != kept.Version || c.Text != kept.Text || c.Where != "store" {
		b.t.Errorf("after the power cut the configuration is version %d in %s; want %d in the store, with the same text", c.Version, c.Where, kept.Version)
	}
	// The port's driver comes up some seconds after batond.
	for deadline := time.Now().Add(time.Minute); !b.hasAddress(); {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s is not there a minute after the boot:\n%s", ownAddress, b.addresses())
		}
		time.Sleep(time.Second)
	}
	b.slot()
}

func (b *board) config() mgmt.Config {
	b.t.Helper()
	var c mgmt.Config
	if output := b.must("baton config show --json"); json.Unmarshal([]byte(output), &c) != nil {
		b.t.Fatalf("baton config show --json:\n%s", output)
	}
	return c
}

func (b *board) hasAddress() bool {
	b.t.Helper()
	return strings.Contains(b.addresses(), ownAddress)
}

// addresses are those of the board. A listing that the kernel's changes
// interrupt, as while a port comes up, is asked for again.
func (b *board) addresses() string {
	b.t.Helper()
	for range 10 {
		if output, status := b.run("ip addr"); status == 0 {
			return output
		}
		time.Sleep(200 * time.Millisecond)
	}
	return b.must("ip addr")
}

// repair cuts the power in a write to the store as the chip's model tears it,
// loses both records that say that the medium is a store, and has the board
// mend that.
func (b *board) repair(rng *rand.Rand) {
	b.t.Helper()
	before := b.slot()
	b.vm.Kill()
	tearStore(b.t, b.machine.EEPROM("store"), rng)

	b.boot()
	if e := b.enclosure(); e.Store.OK {
		b.t.Fatal("batond uses a store without format records")
	}
	output, status := b.run("baton nvm check")
	if status != 1 {
		b.t.Fatalf("baton nvm check: status %d, want 1:\n%s", status, output)
	}
	b.t.Logf("baton nvm check:\n%s", output)
	if output, status := b.run("baton move " + theVM + " --to server1"); status != 1 {
		b.t.Errorf("a move with an unusable store: status %d, want 1:\n%s", status, output)
	}
	b.t.Logf("baton nvm repair:\n%s", b.must("baton nvm repair --yes"))
	b.must("baton nvm check")
	s := b.slot()
	if s.Host != before.Host || s.VM != before.VM || s.Generation != before.Generation {
		b.t.Errorf("after the repair %s is with %s for %s, generation %s; want %s, %s, %s", theSlot, s.Host, s.VM, s.Generation, before.Host, before.VM, before.Generation)
	}
	to := "server1"
	if s.Host == to {
		to = "server2"
	}
	b.must("baton move " + theVM + " --to " + to)
	b.arrived(to)
}

// tearStore is the power cut, on the image of a board that is off.
func tearStore(t *testing.T, file string, rng *rand.Rand) {
	t.Helper()
	image, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	part := nvm.Parts["24c256"]
	chip := nvmtest.NewChip(nvm.Geometry{Size: part.Size, Page: part.Page, Erased: 0xff}, rng.Uint64())
	chip.Load(image)
	ctx := context.Background()
	store, _, err := nvm.Mount(ctx, chip, nvm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mixed := nvmtest.Tears[slices.IndexFunc(nvmtest.Tears, func(n nvmtest.NamedTear) bool { return n.Name == "mixed" })]
	chip.Cut(0, mixed.Tear)
	if err := store.Put(ctx, nvm.Urgent, nvm.Record{Key: "hserver1", Value: make([]byte, 9)}); err == nil {
		t.Fatal("the write was not cut")
	}
	torn := chip.Image()
	for i := range 2 * part.Page { // both format records (docs/nvm-format.md)
		torn[i] = byte(rng.Uint32())
	}
	if err := os.WriteFile(file, torn, 0o644); err != nil {
		t.Fatal(err)
	}
}
