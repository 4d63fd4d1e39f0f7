package plan

import (
	"testing"

	"pgregory.net/rapid"
)

// TestFlagAgainstOracle drives the table with any triggers in any order, and
// judges it by what the flag is for: a device's memory is one VM's, from a
// baseline on, until something came between. The oracle knows no states.
func TestFlagAgainstOracle(t *testing.T) {
	triggers := []Trigger{
		ArmProven, ArmUnproven, Fencing, Moving, Undoing, Starting, Disarming, Acking, Proving, Doubting, Replacing, Taking, Resetting, Powering,
	}
	rapid.Check(t, func(t *rapid.T) {
		flag := None
		spoilt := false // something came between since the last baseline or assignment
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			on := rapid.SampledFrom(triggers).Draw(t, "on")
			clean := rapid.Bool().Draw(t, "clean")
			to, err := Next(flag, on, clean)
			if err != nil {
				if to != flag {
					t.Fatalf("%s is refused in %s and leads to %s", on, flag, to)
				}
				continue
			}
			switch on {
			case Acking, Replacing: // a new baseline, or a new VM
				spoilt = false
			case Doubting, Taking, Powering:
				spoilt = true
			default:
				// What the engine saw counts where the table looks at it; that it
				// stays none or spent leaves it to the verdict.
				spoilt = spoilt || !clean && to == Void
			}
			switch {
			case spoilt && (to == Armed || to == Target):
				t.Fatalf("%s on %s (clean %v) leads to %s, though something came between", flag, on, clean, to)
			case to == Void && !spoilt && flag != Void && on != Resetting:
				t.Fatalf("%s on %s (clean %v) leads to void, though nothing came between", flag, on, clean)
			case flag == Void && to != Void && on != Acking && on != Replacing:
				t.Fatalf("void on %s leads to %s: only an ack or another VM ends it", on, to)
			}
			if on == Resetting && to == Void {
				spoilt = true
			}
			flag = to
		}
	})
}
