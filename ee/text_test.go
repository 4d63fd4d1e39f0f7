package ee

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTextForms(t *testing.T) {
	if got, want := (Generation{0x9f3c2a10, 17}).String(), "9f3c2a10-17"; got != want {
		t.Errorf("Generation = %q; want %q", got, want)
	}
	if got, want := (Generation{0x1f, 0}).String(), "0000001f-0"; got != want {
		t.Errorf("Generation = %q; want %q", got, want)
	}
	if got, want := exampleBlock.VM.String(), "6ba7b810-9dad-41d1-80b4-00c04fd430c8"; got != want {
		t.Errorf("UUID = %q; want %q", got, want)
	}
	if got, want := (MAC{0x8c, 0xdf, 0x9d, 0, 2, 1}).String(), "8c:df:9d:00:02:01"; got != want {
		t.Errorf("MAC = %q; want %q", got, want)
	}
	if u, err := ParseUUID("6BA7B810-9DAD-41D1-80B4-00C04FD430C8"); err != nil || u != exampleBlock.VM {
		t.Errorf("ParseUUID in upper case = %s, %v", u, err)
	}
	if m, err := ParseMAC("8C:DF:9D:00:02:01"); err != nil || m != (MAC{0x8c, 0xdf, 0x9d, 0, 2, 1}) {
		t.Errorf("ParseMAC in upper case = %s, %v", m, err)
	}
	if !(UUID{}).IsZero() || exampleBlock.VM.IsZero() || !(MAC{}).IsZero() || (MAC{5: 1}).IsZero() {
		t.Error("IsZero is wrong")
	}
}

func TestTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Generation{rapid.Uint32().Draw(t, "incarnation"), rapid.Uint32().Draw(t, "counter")}
		if got, err := ParseGeneration(g.String()); err != nil || got != g {
			t.Fatalf("%s came back as %s, %v", g, got, err)
		}
		u := drawUUID(t, "uuid")
		if got, err := ParseUUID(u.String()); err != nil || got != u {
			t.Fatalf("%s came back as %s, %v", u, got, err)
		}
		m := MAC(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "mac"))
		if got, err := ParseMAC(m.String()); err != nil || got != m {
			t.Fatalf("%s came back as %s, %v", m, got, err)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	generation := func(s string) (any, error) { g, err := ParseGeneration(s); return g == Generation{}, err }
	uuid := func(s string) (any, error) { u, err := ParseUUID(s); return u.IsZero(), err }
	mac := func(s string) (any, error) { m, err := ParseMAC(s); return m.IsZero(), err }
	for _, tc := range []struct {
		name  string
		parse func(string) (any, error)
		bad   []string
	}{
		{"generation", generation, []string{
			"", "-", "17", "9f3c2a10", "9f3c2a10-", "-17", "9f3c2a1-17", "9f3c2a101-17", "9f3c2a1g-17", "9f3c2a10-4294967296",
			"9f3c2a10--1", "9f3c2a10-+1", "9f3c2a10-0x11", "9f3c2a10-1 ", " 9f3c2a10-1", "9f3c2a10-1-1", "+f3c2a10-17", "9f3c_a10-17",
		}},
		{"UUID", uuid, []string{
			"", "6ba7b810-9dad-41d1-80b4-00c04fd430c", "6ba7b810-9dad-41d1-80b4-00c04fd430c80", "6ba7b8109dad41d180b400c04fd430c8",
			"{6ba7b810-9dad-41d1-80b4-00c04fd430c8}", "6ba7b810-9dad-41d1-80b4-00c04fd430cg", "6ba7b810_9dad-41d1-80b4-00c04fd430c8",
			"6ba7b81-09dad-41d1-80b4-00c04fd430c8", "6ba7b810-9dad-41d1-80b4-00c04fd430\u00e9", " ba7b810-9dad-41d1-80b4-00c04fd430c8",
		}},
		{"MAC", mac, []string{
			"", "8c:df:9d:00:02", "8c:df:9d:00:02:01:00", "8c-df-9d-00-02-01", "8cdf9d000201", "8c:df:9d:00:02:0g", "8c:df:9d:00:02:1",
			"8c:df:9d:00:02: 1", "0x8cdf9d000201", "8c:df:9d:00:02;01", "8c:df:9d:00:02:\u00e9",
		}},
	} {
		for _, s := range tc.bad {
			none, err := tc.parse(s)
			if err == nil {
				t.Errorf("%s: %q was taken", tc.name, s)
				continue
			}
			if none != true {
				t.Errorf("%s: %q gave a value beside %v", tc.name, s, err)
			}
			if !strings.Contains(err.Error(), tc.name) {
				t.Errorf("%s: the refusal of %q does not say what was meant: %v", tc.name, s, err)
			}
		}
	}
}

// FuzzParse: what a parser takes, its String gives back, but for the case of
// letters and leading zeros of the counter.
func FuzzParse(f *testing.F) {
	f.Add("9f3c2a10-17")
	f.Add("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
	f.Add("8c:df:9d:00:02:01")
	f.Fuzz(func(t *testing.T, s string) {
		if g, err := ParseGeneration(s); err == nil {
			if again, err := ParseGeneration(g.String()); err != nil || again != g {
				t.Errorf("generation %q: %s, then %s, %v", s, g, again, err)
			}
		}
		if u, err := ParseUUID(s); err == nil && u.String() != strings.ToLower(s) {
			t.Errorf("UUID %q: %s", s, u)
		}
		if m, err := ParseMAC(s); err == nil && m.String() != strings.ToLower(s) {
			t.Errorf("MAC %q: %s", s, m)
		}
	})
}
