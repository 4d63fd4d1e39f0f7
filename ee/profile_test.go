package ee

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEmbeddedProfiles(t *testing.T) {
	if got, want := ProfileNames(), []string{"nvm-only", "regs-v1"}; !slices.Equal(got, want) {
		t.Fatalf("ProfileNames = %v; want %v", got, want)
	}
	for _, n := range ProfileNames() {
		p, err := LoadProfile(n)
		if err != nil {
			t.Errorf("LoadProfile(%q): %v", n, err)
			continue
		}
		if p.Name != n || p.About == "" || p.LoadTime <= 0 {
			t.Errorf("profile %s: %+v", n, p)
		}
	}
}

// The constants of registers.go, by which sim models the chip, and the embedded
// profile say the same.
func TestRegsV1IsTheRegisterFile(t *testing.T) {
	p := regsV1(t)
	want := [numRegs]uint16{
		rID: RegID, rMAC: RegMAC, rVendor: RegVendor, rDevice: RegDevice, rClass: RegClass, rSerial: RegSerial,
		rExpectPeer: RegExpectPeer, rDVSEC: RegDVSEC, rControl: RegControl, rStatus: RegStatus, rLatch: RegLatch, rGroup: RegGroup,
		rResets: RegResets, rEpoch: RegEpoch, rProven: RegProven, rIdent: RegIdent, rSwallowed: RegSwallowed,
		rLinkChanges: RegLinkChanges, rRetransmits: RegRetransmits, rPeerMAC: RegPeerMAC, rPeerGroup: RegPeerGroup,
		rGeneration: RegGeneration, rFromGroup: RegFromGroup,
	}
	if d := cmp.Diff(want, p.regs); d != "" {
		t.Errorf("regs-v1 differs from registers.go (-registers.go +profile):\n%s", d)
	}
	if p.ID != EngineID || p.DVSECVendor != 0x1033 || p.BlockOffset != 0 {
		t.Errorf("ID 0x%08x, DVSEC vendor 0x%04x, block at %d", p.ID, p.DVSECVendor, p.BlockOffset)
	}
	if want := Caps(1<<len(capNames) - 1); p.Caps != want {
		t.Errorf("capabilities %v; want all", p.Caps.Names())
	}
	if p.LoadTime != 25*time.Millisecond || p.ResetTime != 500*time.Millisecond {
		t.Errorf("load time %v, reset time %v", p.LoadTime, p.ResetTime)
	}
}

func regsV1(t testing.TB) *Profile {
	t.Helper()
	p, err := LoadProfile("regs-v1")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func nvmOnly(t testing.TB) *Profile {
	t.Helper()
	p, err := LoadProfile("nvm-only")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCaps(t *testing.T) {
	c := CapStatus | CapResetGuard
	for _, tc := range []struct {
		want Caps
		has  bool
	}{
		{0, true}, {CapStatus, true}, {CapStatus | CapResetGuard, true}, {CapLatches, false}, {CapStatus | CapLatches, false},
	} {
		if got := c.Has(tc.want); got != tc.has {
			t.Errorf("%v.Has(%v) = %v", c.Names(), tc.want.Names(), got)
		}
	}
	if got, want := c.Names(), []string{"ResetGuard", "Status"}; !slices.Equal(got, want) {
		t.Errorf("Names = %v; want %v", got, want)
	}
	if got := Caps(0).Names(); got != nil {
		t.Errorf("Names of none = %v", got)
	}
}

func TestHolds(t *testing.T) {
	with := func(c Caps) *Profile { return &Profile{Caps: c} }
	all := regsV1(t).Caps
	for _, tc := range []struct {
		name string
		p    *Profile
		not  []Invariant
	}{
		{"regs-v1", regsV1(t), nil},
		{"nvm-only", nvmOnly(t), []Invariant{1, 2, 8, 10}},
		{"without LinkControl", with(all &^ CapLinkControl), []Invariant{1, 2}},
		{"without DeviceReset", with(all &^ CapDeviceReset), []Invariant{10}},
		{"without ResetGuard", with(all &^ CapResetGuard), nil},
		{"without ExpectPeer", with(all &^ CapExpectPeer), nil},
		{"Status alone", with(CapStatus), []Invariant{1, 2, 10}},
	} {
		var not []Invariant
		for n := Invariant(1); n <= Invariants; n++ {
			ok, why := tc.p.Holds(n)
			if ok != (why == "") {
				t.Errorf("%s: Holds(%d) = %v, %q", tc.name, n, ok, why)
			}
			if !ok {
				not = append(not, n)
			}
		}
		if !slices.Equal(not, tc.not) {
			t.Errorf("%s can not hold %v; want %v", tc.name, not, tc.not)
		}
	}
}

func TestLoadProfileRefuses(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.json")
	if err := os.WriteFile(broken, []byte(`{"name": "x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, want string }{
		{"", "embedded ones: nvm-only, regs-v1"},
		{"regs-v2", `"regs-v2": there is no such profile`},
		{"regs-v1.json", "a file's path has a slash in it"},
		{"..", "there is no such profile"},
		{filepath.Join(dir, "missing.json"), "no such file"},
		{broken, broken + ": load_time"},
	} {
		p, err := LoadProfile(tc.name)
		if err == nil || !strings.Contains(err.Error(), tc.want) || p != nil {
			t.Errorf("LoadProfile(%q) = %v, %v; want %q", tc.name, p, err, tc.want)
		}
	}
}

func TestLoadProfileFromFile(t *testing.T) {
	src, err := embedded.ReadFile("profiles/regs-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "board.json")
	if err := os.WriteFile(path, src, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := LoadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(regsV1(t), got, cmp.AllowUnexported(Profile{})); d != "" {
		t.Errorf("the same profile from a file (-embedded +file):\n%s", d)
	}
}

// source is a profile that a test changes: regs-v1 as JSON values.
func source(t testing.TB) map[string]any {
	t.Helper()
	b, err := embedded.ReadFile("profiles/regs-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// parse makes a profile of source, with those registers moved.
func parse(t testing.TB, change func(m map[string]any, regs map[string]any)) (*Profile, error) {
	t.Helper()
	m := source(t)
	change(m, m["registers"].(map[string]any))
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return ParseProfile(b)
}

func TestParseProfileRefuses(t *testing.T) {
	type obj = map[string]any
	for _, tc := range []struct {
		name   string
		change func(m, regs obj)
		want   []string // every line of the error, in order
	}{
		{"no name", func(m, _ obj) { delete(m, "name") }, []string{"name: missing"}},
		{"block across a page", func(m, _ obj) { m["block_offset"] = 32 }, []string{"block_offset: 32 is not a multiple of 64: the block would cross a page"}},
		{"block before the chip", func(m, _ obj) { m["block_offset"] = -64 }, []string{"block_offset: -64 is not a multiple of 64: the block would cross a page"}},
		{"unknown capability", func(m, _ obj) { m["capabilities"] = []string{"Status", "Latch"} },
			[]string{`capabilities: "Latch" is unknown; known: LinkControl, ResetGuard, Quiesce, DeviceReset, DevicePower, ExpectPeer, Status, Latches, FlagMirror`}},
		{"no Status", func(m, _ obj) { m["capabilities"] = []string{"LinkControl"} },
			[]string{"capabilities: LinkControl without Status: what can not be read back can not be trusted"}},
		{"no load time", func(m, _ obj) { delete(m, "load_time") }, []string{`load_time: "" is not a duration above 0 and up to 1m`}},
		{"load time zero", func(m, _ obj) { m["load_time"] = "0s" }, []string{`load_time: "0s" is not a duration above 0 and up to 1m`}},
		{"load time without a unit", func(m, _ obj) { m["load_time"] = "25" }, []string{`load_time: "25" is not a duration above 0 and up to 1m`}},
		{"reset time too long", func(m, _ obj) { m["reset_time"] = "61s" }, []string{`reset_time: "61s" is not a duration above 0 and up to 1m`}},
		{"ID of 33 bits", func(m, _ obj) { m["id"] = "0x131494545" }, []string{`id: "0x131494545" is not a number of 32 bits`}},
		{"no ID", func(m, _ obj) { delete(m, "id") }, []string{`id: "" is not a number of 32 bits`}},
		{"DVSEC vendor", func(m, _ obj) { m["dvsec_vendor"] = "NEC" }, []string{`dvsec_vendor: "NEC" is not a number of 16 bits`}},
		{"register missing", func(_, regs obj) { delete(regs, "Epoch") }, []string{"registers: Epoch is missing"}},
		{"register no number", func(_, regs obj) { regs["Group"] = "010a" }, []string{`registers: Group: "010a" is not a number of 16 bits`}},
		{"register beyond 16 bits", func(_, regs obj) { regs["Group"] = "0x1010a" }, []string{`registers: Group: "0x1010a" is not a number of 16 bits`}},
		{"register across the end", func(_, regs obj) { regs["FromGroup"] = "0xffff" }, []string{"registers: FromGroup at 0xffff has 2 bytes: it goes beyond 0xffff"}},
		{"unknown registers", func(_, regs obj) { regs["Temperature"], regs["Fan"] = "0x200", "0x202" },
			[]string{`registers: "Fan" is unknown`, `registers: "Temperature" is unknown`}},
		{"overlap by one byte", func(_, regs obj) { regs["MAC"] = "0x0003" }, []string{"registers: MAC at 0x0003 overlaps ID at 0x0000"}},
		{"overlap of a whole register", func(_, regs obj) { regs["Device"] = "0x0016" }, []string{"registers: Serial at 0x0014 overlaps Device at 0x0016"}},
		{"same place", func(_, regs obj) { regs["Swallowed"] = "0x0120" }, []string{"registers: LinkChanges at 0x0120 overlaps Swallowed at 0x0120"}},
		{"burst in another order", func(_, regs obj) { regs["Status"], regs["Latch"] = "0x0109", "0x0108" },
			[]string{"registers: Control to Ident are read as one burst: they must lie in the order of regs-v1 within 64 bytes"}},
		{"burst too long", func(_, regs obj) { regs["Ident"] = "0x0144" },
			[]string{"registers: Control to Ident are read as one burst: they must lie in the order of regs-v1 within 64 bytes"}},
		{"another burst in another order", func(_, regs obj) { regs["PeerGroup"] = "0x00f0" },
			[]string{"registers: PeerMAC to PeerGroup are read as one burst: they must lie in the order of regs-v1 within 64 bytes"}},
		{"all at once", func(m, regs obj) {
			m["name"], m["block_offset"], m["load_time"], m["id"] = "", 1, "soon", "EEI1"
			delete(regs, "MAC")
			regs["Vendor"], regs["Color"] = "twelve", "0x10"
		}, []string{
			"name: missing",
			"block_offset: 1 is not a multiple of 64: the block would cross a page",
			`load_time: "soon" is not a duration above 0 and up to 1m`,
			`id: "EEI1" is not a number of 32 bits`,
			"registers: MAC is missing",
			`registers: Vendor: "twelve" is not a number of 16 bits`,
			`registers: "Color" is unknown`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := parse(t, tc.change)
			if err == nil || p != nil {
				t.Fatalf("ParseProfile = %v, %v; want a refusal", p, err)
			}
			if d := cmp.Diff(tc.want, strings.Split(err.Error(), "\n")); d != "" {
				t.Errorf("errors (-want +got):\n%s", d)
			}
		})
	}
}

func TestParseProfileRefusesText(t *testing.T) {
	good, err := embedded.ReadFile("profiles/nvm-only.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, text, want string }{
		{"nothing", "", "EOF"},
		{"not JSON", "name = nvm-only", "invalid character"},
		{"cut short", string(good[:len(good)/2]), "unexpected EOF"},
		{"a list", "[]", "cannot unmarshal array"},
		{"unknown key", `{"name": "x", "load_time": "1ms", "colour": "red"}`, `unknown field "colour"`},
		{"register as a number", `{"name": "x", "registers": {"ID": 0}}`, "cannot unmarshal number"},
		{"two profiles", string(good) + string(good), "something follows the profile"},
		{"a brace too many", string(good) + "}", "something follows the profile"},
	} {
		if p, err := ParseProfile([]byte(tc.text)); err == nil || p != nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: ParseProfile = %v, %v; want %q", tc.name, p, err, tc.want)
		}
	}
}

func TestParseProfileAccepts(t *testing.T) {
	type obj = map[string]any
	for _, tc := range []struct {
		name   string
		change func(m, regs obj)
		check  func(p *Profile) bool
	}{
		{"block elsewhere", func(m, _ obj) { m["block_offset"] = 4096 }, func(p *Profile) bool { return p.BlockOffset == 4096 }},
		{"longest times", func(m, _ obj) { m["load_time"], m["reset_time"] = "1m", "60s" },
			func(p *Profile) bool { return p.LoadTime == time.Minute && p.ResetTime == time.Minute }},
		{"decimal pointer", func(_, regs obj) { regs["Group"] = "266" }, func(p *Profile) bool { return p.regs[rGroup] == 0x10A }},
		{"last register at the very end", func(_, regs obj) { regs["FromGroup"] = "0xfffe" }, func(p *Profile) bool { return p.regs[rFromGroup] == 0xFFFE }},
		{"burst of just 64 bytes", func(_, regs obj) { regs["Ident"] = "0x0143" }, func(p *Profile) bool { return p.regs[rIdent] == 0x143 }},
		{"no capability, no registers", func(m, _ obj) {
			for k := range maps.Clone(m) {
				if k != "name" && k != "load_time" {
					delete(m, k)
				}
			}
		}, func(p *Profile) bool { return p.Caps == 0 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := parse(t, tc.change)
			if err != nil || !tc.check(p) {
				t.Errorf("ParseProfile = %+v, %v", p, err)
			}
		})
	}
}

// FuzzParseProfile: whatever is taken can be driven: no register overlaps, no
// burst is longer than the engine's buffer.
func FuzzParseProfile(f *testing.F) {
	for _, n := range ProfileNames() {
		b, err := embedded.ReadFile("profiles/" + n + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseProfile(b)
		if err != nil {
			return
		}
		if p.Name == "" || p.BlockOffset < 0 || p.BlockOffset%BlockSize != 0 || p.LoadTime <= 0 {
			t.Errorf("%+v was taken", p)
		}
		if !p.Caps.Has(CapStatus) {
			if p.Caps != 0 {
				t.Errorf("%v without Status was taken", p.Caps.Names())
			}
			return
		}
		for _, b := range bursts {
			n := p.end(b[len(b)-1]) - int(p.regs[b[0]])
			if n <= 0 || n > len(Engine{}.in) {
				t.Errorf("burst of %d bytes from 0x%04x", n, p.regs[b[0]])
			}
		}
	})
}
