package figures

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
	"baton/test/rig"
)

// TestRestart ends the agent, as kill -9 would, while a VM uses eight slots,
// and starts another on the same hardware: nobody must feel it.
func TestRestart(t *testing.T) {
	const slots = 8
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{Slots: slots})
		defer func() { r.Stop() }()
		r.StartVM(rig.VM1, rig.A)
		r.Run()
		time.Sleep(10 * time.Second) // what the start of the VM left to be done
		type counts struct {
			links            uint32
			registers, pages uint64
		}
		count := func() (c counts) {
			for i := range slots {
				regs := r.W.Slot(rig.Slot(i)).Registers()
				c.links += binary.LittleEndian.Uint32(regs[ee.RegLinkChanges:])
				c.registers += r.W.Slot(rig.Slot(i)).RegisterWrites()
			}
			c.pages = pages(r)
			return c
		}
		before := count()
		if before.links == 0 || before.registers == 0 || before.pages == 0 {
			t.Fatalf("the counters do not count: %+v", before)
		}
		r.Restart()
		r.Run()
		time.Sleep(10 * time.Second)
		after := count()
		for i := range slots {
			r.WantHost(rig.Slot(i), rig.A)
		}
		if after != before {
			t.Errorf("a restart of the agent: %+v before, %+v after", before, after)
		}
		figure("restart_link_changes", after.links-before.links, "changes, agent restarted with 8 slots in use")
		figure("restart_register_writes", after.registers-before.registers, "bytes, agent restarted with 8 slots in use")
		figure("restart_page_writes", after.pages-before.pages, "pages, agent restarted with 8 slots in use")
	})
}
