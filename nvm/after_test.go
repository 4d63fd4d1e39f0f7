package nvm_test

import (
	"fmt"
	"testing"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

// TestCutAfterRepair cuts every write of a store that has been salvaged, or
// whose damage was made good: it stands that as any other.
func TestCutAfterRepair(t *testing.T) {
	for _, sh := range shapes {
		logical := max(64, sh.g.Page)
		for _, how := range []string{"salvaged", "one head lost", "every head but one lost"} {
			if sh.g.Erase == 0 && how != "salvaged" {
				continue
			}
			for _, before := range []int{2, 7} {
				t.Run(fmt.Sprintf("%s/%s after %d", sh.name, how, before), func(t *testing.T) {
					all := workload(before + 5)
					first := len(workload(before))
					base := newMemory(sh.g, 1)
					model0 := newModel()
					if _, err := run(mustFormat(t, base, suspect), model0, all[:first]); err != nil {
						t.Fatal(err)
					}
					heads := 0
					switch how {
					case "salvaged":
						loseFormat(base, sh.g)
						if _, _, err := nvm.Salvage(bg, base, 0xba70, suspect); err != nil {
							t.Fatal(err)
						}
					default:
						img := base.Image()
						in, err := nvm.Inspect(bg, base)
						if err != nil {
							t.Fatal(err)
						}
						last := in.Batches[len(in.Batches)-1].Pages
						at := last[len(last)-1] * logical / sh.g.Erase
						for b := 0; b < len(img); b += sh.g.Erase {
							formed := img[b+10] == 1
							if how == "one head lost" && b/sh.g.Erase == at || how != "one head lost" && !(formed && heads == 0) {
								img[b+3] ^= 0x10
							} else if formed {
								heads++
							}
						}
						base.Load(img)
						if _, err := nvm.Inspect(bg, base); err != nil {
							t.Fatal(err)
						}
					}
					// A restart of the agent alone, or after a power cut.
					for _, opt := range []nvm.Options{suspect, {ReservePages: -1}} {
						m := clone(base, 1)
						s, _, err := nvm.Mount(bg, m, opt)
						if err != nil {
							t.Skip(err)
						}
						for k := range model0.forgotten {
							s.Forget(k)
						}
						at := m.Ops()
						if n, err := run(s, model0.clone(), all[first:]); err != nil {
							t.Logf("op %d: %v", n, err)
						}
						for n := range m.Ops() - at {
							for ti, tear := range nvmtest.Tears {
								if (n+ti)%(5*thin) != 0 {
									continue
								}
								seed := uint64(n*100 + ti)
								d := clone(base, seed)
								s, _, err := nvm.Mount(bg, d, opt)
								if err != nil {
									t.Fatal(err)
								}
								want := model0.clone()
								for k := range model0.forgotten {
									s.Forget(k)
								}
								d.Cut(n, tear.Tear)
								done, err := run(s, want, all[first:])
								var pending *op
								if err != nil {
									pending = &all[first+done]
								}
								checkCut(t, fmt.Sprintf("suspect %v, write %d torn %q", opt.Suspect, n, tear.Name), d, want, pending, seed, int(seed%1000))
								if t.Failed() {
									return
								}
							}
						}
					}
				})
			}
		}
	}
}
