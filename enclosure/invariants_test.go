package enclosure_test

import (
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

// The invariants of docs/design.md, each by its number. make mutants puts a bug
// against each into the agent and expects that invariant's test, and no other,
// to fail.

func TestInvariant01OneOwner(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.C).SetGroup(rig.GroupB) // a stale server with B's group
		r.W.Server(rig.B).LinkLoss()
		q := r.Request(rig.VM1, rig.B)
		q.Wait = 100 * time.Millisecond
		r.E.Move(r.Ctx(), q)
		r.W.Server(rig.B).LinkRestore()
		time.Sleep(time.Second)
		for _, iv := range r.W.Reach() {
			if iv.Server == rig.C {
				t.Errorf("a server that is not the target reached the device: %+v", iv)
			}
		}
	})
}

func TestInvariant02Together(t *testing.T) {
	world(t, rig.Options{Slots: 4}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		moved := r.W.Now()
		// The last slot's chip takes no block.
		stop := r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x23, Only: sim.WriteOp, Byte: 5})
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		stop()
		if err != nil || m.State == enclosure.MoveDone {
			t.Fatalf("move = %s, %v", m.State, err)
		}
		for _, iv := range r.W.Reach() {
			if iv.Server == rig.B && iv.To > moved {
				t.Errorf("a link of a set came up before all of it was verified: %+v", iv)
			}
		}
	})
}

func TestInvariant03PowerCut(t *testing.T) {
	outcomes := map[string]int{}
	sweep(t, rig.Options{Slots: 2}, 35*time.Millisecond, 700*time.Microsecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		running(t, r)
		before := r.Gen("gpu0").Counter
		r.W.SetTear(sim.Tear{Kind: sim.TearPerByte, Seed: uint64(at), Unstable: 3})
		r.W.CutAfter(at)
		r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		time.Sleep(100 * time.Millisecond)
		r.PowerUp()
		time.Sleep(time.Second)
		host := r.SlotStatus("gpu0").Host
		if host != rig.A && host != rig.B {
			t.Fatalf("with %q after the power cut; want before or after", host)
		}
		r.WantHost("gpu0", host)
		r.WantHost("gpu1", host)
		if g := r.Gen("gpu0").Counter; g < before {
			t.Errorf("generation %d went back from %d", g, before)
		}
		outcomes[host]++
	})
	if outcomes[rig.A] == 0 || outcomes[rig.B] == 0 {
		t.Errorf("outcomes %v: the sweep does not reach both", outcomes)
	}
}

func TestInvariant04FlagNeverLies(t *testing.T) {
	world(t, rig.Options{Policy: plan.OnMove}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).GuestReboot(rig.VM1) // reaches the device; no proof of life after it
		r.W.Server(rig.A).Hang()
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		r.WantVerdict("gpu0", plan.No)
	})
}

func TestInvariant05Fencing(t *testing.T) {
	met := 0
	sweep(t, rig.Options{}, 26*time.Millisecond, time.Millisecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		running(t, r)
		q := r.Request(rig.VM1, rig.B)
		q.Expect = map[string]ee.Generation{"gpu0": {Counter: 1}}
		_, err := r.E.Move(r.Ctx(), q)
		wantCode(t, err, enclosure.CodeGenerationChanged)
		var linked time.Duration
		wait := background(func() {
			m, _ := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
			if m.State == enclosure.MoveHeld {
				met++
			}
		})
		time.Sleep(at)
		recorded := r.W.Now() + 10*time.Millisecond // the fence is in the store by then
		r.Fence(rig.B)
		wait()
		for _, iv := range r.W.Reach() {
			if iv.Server == rig.B && iv.From > recorded {
				linked = iv.From
			}
			if iv.Server == rig.B && iv.Open {
				t.Errorf("B reaches the device after its fence: %+v", iv)
			}
		}
		if linked != 0 {
			t.Errorf("B was linked at %v, after its fence was recorded by %v", linked, recorded)
		}
	})
	if met == 0 {
		t.Error("no move met the fence at its commit point")
	}
}

func TestInvariant06Once(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		q := r.Request(rig.VM1, rig.B)
		first, err := r.E.Move(r.Ctx(), q)
		if err != nil {
			t.Fatal(err)
		}
		r.Move(rig.VM1, rig.C)
		for _, when := range []string{"at once", "after a restart"} {
			quiet(t, r, func() {
				again, err := r.E.Move(r.Ctx(), q)
				if err != nil || again.State != first.State || again.To != rig.B {
					t.Errorf("repeated %s: %s to %s, %v; want %s to %s", when, again.State, again.To, err, first.State, first.To)
				}
			})
			r.WantHost("gpu0", rig.C)
			r.Restart()
		}
	})
}

func TestInvariant07Closed(t *testing.T) {
	world(t, rig.Options{Config: func(c *enclosure.Config) { c.VMs[0].Hosts = []string{rig.A, rig.B} }}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		_, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.C))
		wantCode(t, err, enclosure.CodeNotAllowed)
		_, err = r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.C})
		wantCode(t, err, enclosure.CodeNotAllowed)
		r.WantHost("gpu0", rig.A)
	})
}

func TestInvariant08ReadBack(t *testing.T) {
	world(t, rig.Options{Profile: "nvm-only"}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A)
		r.W.Chip("gpu0").SetWriteProtect(true)
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		if err != nil || m.State == enclosure.MoveDone {
			t.Errorf("move onto a write-protected chip = %s, %v", m.State, err)
		}
	})
}

func TestInvariant09NothingSilent(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		before := len(eventsOf(r, "refused"))
		q := r.Request(rig.VM1, "nowhere")
		_, err := r.E.Move(r.Ctx(), q)
		refusals := eventsOf(r, "refused")
		if err == nil || len(refusals) != before+1 || refusals[0].Code != string(enclosure.CodeUnknownHost) || refusals[0].Text == "" {
			t.Errorf("refusal %v made events %+v", err, refusals)
		}
	})
}

func eventsOf(r *rig.Rig, kind string) []enclosure.Event {
	var out []enclosure.Event
	events, _ := r.E.Events(0)
	for _, e := range events {
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

func TestInvariant10NoOldTenant(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A)
		secret := []byte("of the first tenant")
		if err := r.W.Server(rig.A).WriteMem("gpu0", 0, secret); err != nil {
			t.Fatal(err)
		}
		r.W.Server(rig.A).StopVM(rig.VM1)
		if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseFree}); err != nil {
			t.Fatal(err)
		}
		count := r.Verdict("gpu0").Now.Resets
		r.Attach(rig.VM2, rig.B)
		p := make([]byte, len(secret))
		if err := r.W.Server(rig.B).ReadMem("gpu0", 0, p); err != nil || string(p) == string(secret) {
			t.Errorf("the second tenant reads %q, %v", p, err)
		}
		if now := r.Verdict("gpu0").Now.Resets; now == count {
			t.Error("the engine's reset counter did not move")
		}
		resets := 0
		for _, rs := range r.W.Resets("gpu0") {
			if rs.Cause == "device reset" {
				resets++
			}
		}
		if resets == 0 {
			t.Error("the model saw no device reset")
		}
	})
}
