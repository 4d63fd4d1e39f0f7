package busfaults

import (
	"strings"
	"testing"
	"testing/synctest"

	"periph.io/x/conn/v3/i2c"

	"baton/enclosure"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// A blank chip of half the size that is configured shows each page at two
// addresses. It can be told only once something is in it; it must be told before
// a record is lost.
func TestBlankStoreOfHalfTheSize(t *testing.T) {
	for _, part := range []string{"24c128", "24c64"} {
		synctest.Test(t, func(t *testing.T) {
			r := rig.New(t, rig.Options{
				Fenced: true,
				Sim:    func(s *sim.Spec) { s.Chips[0].Part = part },
				Config: func(c *enclosure.Config) {
					var bus i2c.Bus = c.Slots[0].Bus
					c.Store.Part, c.Store.Medium = "24c256", nvm.NewEEPROM(bus, 0x57, nvm.Parts["24c256"])
				},
			})
			defer r.Stop()
			if st := r.E.Status(r.Ctx()).Store; st.OK || !strings.Contains(st.Problem, "bus0/0x57") {
				t.Errorf("a %s as a 24c256: %+v; want it refused, by its address", part, st)
			}
		})
	}
}
