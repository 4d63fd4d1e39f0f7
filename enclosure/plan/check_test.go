package plan

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"baton/ee"
	"baton/nvm"
	"baton/nvm/nvmtest"
)

var bg = context.Background()

const testInc = 0x1234abcd

// failer is what testing.TB and rapid.T have in common.
type failer interface {
	Helper()
	Error(...any)
	Errorf(string, ...any)
	Fatal(...any)
	Fatalf(string, ...any)
}

// bench is an enclosure's memories, as an agent that ran left them.
type bench struct {
	chip   *nvmtest.Chip
	blocks map[string][]byte // slot -> page
	slots  []string
	hosts  []string
	now    map[string]Assignment
	top    uint32 // highest generation that was given
}

func chip(seed uint64) *nvmtest.Chip {
	return nvmtest.NewChip(nvm.Geometry{Size: 96 * 64, Page: 64, Erased: 0xff, WriteMax: 5 * time.Millisecond}, seed)
}

func vmID(n byte) ee.UUID { return ee.UUID{0: 0xba, 15: n} }

// newBench writes n changes of assignments as an agent does: record, then
// blocks. The last write's block is behind if lag is set.
func newBench(t failer, n int, seed uint64) *bench {
	t.Helper()
	b := &bench{chip: chip(seed), blocks: map[string][]byte{}, slots: []string{"gpu0", "gpu1", "nic0"}, hosts: []string{"a", "b"}, now: map[string]Assignment{}}
	s, err := nvm.Format(bg, b.chip, testInc, nvm.Options{ReservePages: -1})
	if err != nil {
		t.Fatal(err)
	}
	put := func(recs ...nvm.Record) {
		t.Helper()
		if err := s.Put(bg, nvm.Urgent, recs...); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range b.slots {
		put(nvm.Record{Key: SlotKey(PrefixName, i), Value: []byte(n)})
		b.blocks[n] = slices.Repeat([]byte{0xff}, ee.BlockSize)
	}
	hosts := map[string]Host{}
	host := func(n string, h Host) {
		h.Serial = RollOf(hosts).Serial + 1
		hosts[n] = h
		put(nvm.Record{Key: PrefixHost + n, Value: h.Encode()})
		put(nvm.Record{Key: KeyRoll, Value: RollOf(hosts).Encode()})
	}
	r := rand.New(rand.NewPCG(seed, 7))
	host("a", Host{Epoch: 1})
	host("b", Host{Epoch: 2})
	for gen := uint32(1); gen <= uint32(n); gen++ {
		a := Assignment{Kind: KindMove, Preserve: r.IntN(2) == 0, To: uint16(100 + r.IntN(2)), VM: vmID(byte(1 + r.IntN(2))), ID: vmID(byte(gen)), Gen: gen}
		for i := range b.slots {
			if r.IntN(2) == 0 || a.Slots == 0 && i == len(b.slots)-1 {
				a.Slots = a.Slots.With(i)
			}
		}
		put(nvm.Record{Key: a.Key(), Value: a.Encode()})
		for i, n := range b.slots {
			if a.Slots.Has(i) {
				b.now[n] = a
				b.blocks[n] = Slot{Index: i, Now: a}.Block(testInc).Encode()
			}
		}
		if r.IntN(3) == 0 {
			put(nvm.Record{Key: SlotKey(PrefixEvidence, 0), Value: Evidence{Flag: Spent, Gen: gen, Acked: true}.Encode()})
		}
		if r.IntN(4) == 0 {
			host("a", Host{Fenced: r.IntN(2) == 0, Epoch: gen})
		}
		b.top = gen
		for g := uint32(1); g+8 < gen; g++ { // as the agent lets go of what is old
			if !slices.ContainsFunc(b.slots, func(n string) bool { return b.now[n].Gen == g }) {
				s.Forget(Assignment{Gen: g}.Key())
			}
		}
	}
	return b
}

func (b *bench) input(t failer) CheckInput {
	t.Helper()
	in := CheckInput{Slots: b.slots, Hosts: b.hosts}
	in.Store, in.StoreErr = nvm.Inspect(bg, b.chip)
	if in.StoreErr != nil {
		t.Fatal(in.StoreErr)
	}
	if in.Store.Err != nil {
		var err error
		if in.Salvage, err = nvm.FindLost(bg, b.chip); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range b.slots {
		in.Blocks = append(in.Blocks, BlockRead{Slot: n, Where: "bus0/" + n, Page: b.blocks[n]})
	}
	return in
}

// repair checks, repairs and checks again.
func (b *bench) repair(t failer) (first, second Checked) {
	t.Helper()
	first = Check(b.input(t))
	if !first.Repair.None() {
		if _, _, err := nvm.Mend(bg, b.chip, first.Repair, nvm.Options{ReservePages: -1}); err != nil {
			t.Fatalf("Mend: %v\n%+v", err, first)
		}
	}
	return first, Check(b.input(t))
}

// slot is what the records say of a slot.
func (b *bench) slot(t failer, n string) (Assignment, bool) {
	t.Helper()
	in, err := nvm.Inspect(bg, b.chip)
	if err != nil || in.Err != nil {
		t.Fatal(err, in.Err)
	}
	bk := readBook(live(in))
	i, ok := bk.index(n)
	a, known := bk.newest[i]
	return a, ok && known
}

func live(in *nvm.Inspection) (recs []nvm.Record) {
	for _, l := range in.Live {
		recs = append(recs, l.Record)
	}
	return recs
}

func find(c Checked, what string) *Finding {
	for i := range c.Findings {
		if f := &c.Findings[i]; strings.Contains(f.Where+" "+f.What, what) {
			return f
		}
	}
	return nil
}

// put writes to the store as nobody should.
func (b *bench) put(t failer, recs ...nvm.Record) {
	t.Helper()
	s, _, err := nvm.Mount(bg, b.chip, nvm.Options{ReservePages: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(bg, nvm.Urgent, recs...); err != nil {
		t.Fatal(err)
	}
}

func TestCheckFindings(t *testing.T) {
	block := func(b *bench, n string, change func(*ee.Block)) {
		k, err := ee.DecodeBlock(b.blocks[n])
		if err != nil {
			panic(err)
		}
		change(&k)
		b.blocks[n] = k.Encode()
	}
	crc := func(b *bench, n string) { b.blocks[n] = slices.Clone(b.blocks[n]); b.blocks[n][30] ^= 1 }
	for _, tt := range []struct {
		name   string
		spoil  func(t *testing.T, b *bench)
		what   string // of the finding
		grade  Grade
		repair string
		lost   string
		after  func(t *testing.T, b *bench, was map[string]Assignment)
	}{
		{"record of an assignment", func(t *testing.T, b *bench) {
			b.put(t, nvm.Record{Key: Assignment{Gen: 90}.Key(), Value: []byte("?")})
		}, "unknown form", Damage, "dropped", "an assignment", func(t *testing.T, b *bench, was map[string]Assignment) {
			for n, a := range was { // the blocks say that nothing newer was carried out
				if now, _ := b.slot(t, n); now.Gen != a.Gen {
					t.Errorf("%s: generation %d; want %d", n, now.Gen, a.Gen)
				}
			}
		}},
		{"record of an assignment, and a block", func(t *testing.T, b *bench) {
			b.put(t, nvm.Record{Key: Assignment{Gen: 90}.Key(), Value: []byte("?")})
			crc(b, "gpu1")
		}, "gpu1 config block", Damage, "free", "who has", func(t *testing.T, b *bench, was map[string]Assignment) {
			if now, _ := b.slot(t, "gpu1"); now.Gen <= 90 || now.To != ee.GroupFree || !now.VM.IsZero() {
				t.Errorf("gpu1: %+v; want free, above 90", now)
			}
		}},
		{"block damaged", func(_ *testing.T, b *bench) { crc(b, "gpu0") }, "gpu0 config block", Damage, "", "", nil},
		{"block blank", func(_ *testing.T, b *bench) { b.blocks["gpu0"] = slices.Repeat([]byte{0xff}, 64) }, "gpu0 config block", Damage, "", "", nil},
		{"block foreign", func(_ *testing.T, b *bench) { b.blocks["gpu0"] = make([]byte, 64) }, "magic", Damage, "", "", nil},
		{"block of another store", func(_ *testing.T, b *bench) {
			block(b, "gpu0", func(k *ee.Block) { k.Generation.Incarnation = 7 })
		}, "another store", Damage, "", "", nil},
		{"block newer than the store", func(_ *testing.T, b *bench) {
			block(b, "gpu0", func(k *ee.Block) { k.Generation.Counter, k.Group = 77, 200 })
		}, "older image", Damage, "from the block", "every host is fenced", func(t *testing.T, b *bench, _ map[string]Assignment) {
			if now, _ := b.slot(t, "gpu0"); now.Gen != 77 || now.To != 200 {
				t.Errorf("gpu0: %+v; want what the block says", now)
			}
			b.wantFenced(t)
		}},
		{"block of another slot", func(_ *testing.T, b *bench) { // gpu0's newest was not gpu1's
			block(b, "gpu1", func(k *ee.Block) { k.Generation.Counter = b.now["gpu1"].Gen - 1 })
		}, "older than its record", Damage, "", "", nil},
		{"record of a host", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: PrefixHost + "b", Value: []byte{9}}) },
			`record "hb"`, Damage, "dropped", "every host is", func(t *testing.T, b *bench, _ map[string]Assignment) { b.wantFenced(t) }},
		{"older record of a host", func(t *testing.T, b *bench) {
			b.put(t, nvm.Record{Key: PrefixHost + "b", Value: Host{Epoch: 1, Serial: 1}.Encode()})
		}, "hosts are missing", Damage, "recorded as fenced", "unfence", func(t *testing.T, b *bench, _ map[string]Assignment) { b.wantFenced(t) }},
		{"roll", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: KeyRoll, Value: []byte{}}) },
			`record "H"`, Damage, "dropped", "every host is fenced", func(t *testing.T, b *bench, _ map[string]Assignment) { b.wantFenced(t) }},
		{"evidence", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: "b\x00", Value: []byte{1}}) },
			`record "b`, Damage, "void", "void", nil},
		{"start", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: "s\x00", Value: []byte{1}}) },
			`record "s`, Damage, "dropped", "attach again", nil},
		{"released", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: "r\x00", Value: []byte{1}}) },
			`record "r`, Damage, "dropped", "in use", nil},
		{"unknown key", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: "?x", Value: []byte{1}}) },
			"does not know", Note, "", "", nil},
		{"every other kind", func(t *testing.T, b *bench) {
			b.put(t, nvm.Record{Key: KeyConfiguration, Value: Configuration{Version: 3, Packed: []byte{1}}.Encode()}, nvm.Record{Key: KeyConfigMark, Value: EncodeConfigMark(3)},
				nvm.Record{Key: PrefixAudit + "\x00", Value: Audit{Seq: 1, Kind: "move"}.Encode()}, nvm.Record{Key: KeyFloor, Value: Floor{Counter: 4}.Encode()},
				nvm.Record{Key: "i\x00", Value: Adopted{}.Encode()}, nvm.Record{Key: "u\x00", Value: Uncut{Gen: 3}.Encode()})
		}, "", "", "", "", nil},
		{"configuration", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: KeyConfiguration, Value: []byte{1}}) },
			`record "c"`, Damage, "", "config apply", nil},
		{"mark of the configuration", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: KeyConfigMark, Value: []byte{1}}) },
			`record "C"`, Damage, "", "config apply", nil},
		{"audit", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: "l\x00", Value: []byte{1}}) },
			`record "l`, Damage, "dropped", "what it said", nil},
		{"adopted", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: "i\x00", Value: []byte{1}}) },
			`record "i`, Damage, "dropped", "the configured ones count", nil},
		{"uncut", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: "u\x00", Value: []byte{1}}) },
			`record "u`, Damage, "dropped", "may still reach", nil},
		{"floor", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: KeyFloor, Value: []byte{1}}) },
			`record "g"`, Damage, "dropped", "backup", nil},
		{"floor above all, and a block", func(t *testing.T, b *bench) {
			b.put(t, nvm.Record{Key: KeyFloor, Value: Floor{Incarnation: testInc, Counter: 5000}.Encode()}, nvm.Record{Key: "n\x01"})
			crc(b, "gpu1")
		}, "number 1 has records", Damage, "out of use", "which slot", func(t *testing.T, b *bench, _ map[string]Assignment) {
			if now, ok := b.slot(t, "gpu1"); !ok || now.Gen <= 5000 {
				t.Errorf("gpu1: %+v, %v; want a generation above the floor", now, ok)
			}
		}},
		{"name of a slot", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: "n\x01"}) },
			"number 1 has records", Damage, "it is gpu1, by its config block", "", func(t *testing.T, b *bench, was map[string]Assignment) {
				if now, ok := b.slot(t, "gpu1"); !ok || now.Gen != was["gpu1"].Gen {
					t.Errorf("gpu1: %+v, %v; want its own again", now, ok)
				}
			}},
		{"name of a slot, and its block", func(t *testing.T, b *bench) {
			b.put(t, nvm.Record{Key: "n\x01"})
			crc(b, "gpu1")
		}, "number 1 has records", Damage, "out of use", "which slot", func(t *testing.T, b *bench, was map[string]Assignment) {
			if now, ok := b.slot(t, "gpu1"); !ok || now.To != ee.GroupFree || !now.VM.IsZero() || now.Gen <= b.top {
				t.Errorf("gpu1: %+v, %v; want free under a new generation", now, ok)
			}
		}},
		{"two numbers for a slot", func(t *testing.T, b *bench) { b.put(t, nvm.Record{Key: "n\x09", Value: []byte("gpu1")}) },
			"two numbers", Damage, "out of use", "which slot", func(t *testing.T, b *bench, was map[string]Assignment) {
				if now, ok := b.slot(t, "gpu1"); !ok || now.Gen != was["gpu1"].Gen {
					t.Errorf("gpu1: %+v, %v; want the number that its block confirms", now, ok)
				}
			}},
		{"both format records", func(_ *testing.T, b *bench) { b.chip.Flip(8); b.chip.Flip(64*8 + 8) },
			"lost all its format records", Unusable, "written anew", "", func(t *testing.T, b *bench, was map[string]Assignment) {
				for n, a := range was {
					if now, _ := b.slot(t, n); now != a {
						t.Errorf("%s: %+v; want %+v as before", n, now, a)
					}
				}
			}},
		{"one format record", func(_ *testing.T, b *bench) { b.chip.Flip(8) }, "format record", Damage, "written anew", "", nil},
		{"page of the ring", func(t *testing.T, b *bench) { b.chip.Flip(9*64*8 + 100) }, "page 9", Damage, "cleared", "records in it", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, 20, 3)
			was := map[string]Assignment{}
			for n := range b.now {
				was[n] = b.now[n]
			}
			tt.spoil(t, b)
			c, again := b.repair(t)
			if tt.what == "" {
				if len(c.Findings) > 0 {
					t.Errorf("findings %+v; want none", c.Findings)
				}
				return
			}
			f := find(c, tt.what)
			if f == nil {
				t.Fatalf("no finding says %q: %+v", tt.what, c.Findings)
			}
			if f.Grade != tt.grade || !strings.Contains(f.Repair, tt.repair) || (tt.repair == "") != (f.Repair == "") || !strings.Contains(f.Lost, tt.lost) {
				t.Errorf("finding = %+v; want grade %s, repair %q, lost %q", f, tt.grade, tt.repair, tt.lost)
			}
			if again.Todo() {
				t.Errorf("again: %+v", again)
			}
			if tt.after != nil {
				tt.after(t, b, was)
			}
		})
	}
}

func (b *bench) wantFenced(t failer) {
	t.Helper()
	in, err := nvm.Inspect(bg, b.chip)
	if err != nil {
		t.Fatal(err)
	}
	k := readBook(live(in))
	for _, h := range b.hosts {
		if !k.hosts[h].Fenced || k.hosts[h].Epoch < LostGap {
			t.Errorf("%s: %+v; want fenced, above all old fences", h, k.hosts[h])
		}
	}
	if !k.roll.Complete(k.hosts) {
		t.Error("the roll is not complete")
	}
}

func TestCheckMedium(t *testing.T) {
	b := newBench(t, 10, 1)
	text := make([]byte, 96*64)
	for i := range text {
		text[i] = byte(i)
	}
	for _, tt := range []struct {
		name   string
		in     func() CheckInput
		state  string
		what   string
		format bool
	}{
		{"can not be read", func() CheckInput { return CheckInput{StoreErr: nvm.ErrAbsent} }, "unreadable", "no chip answers", false},
		{"blank", func() CheckInput { return (&bench{chip: chip(1)}).input(t) }, "blank", "is blank", true},
		{"foreign", func() CheckInput {
			c := chip(1)
			c.Load(text)
			return (&bench{chip: c}).input(t)
		}, "foreign", "is foreign", true},
		{"half formatted", func() CheckInput {
			c := chip(1)
			c.Cut(4, nvmtest.Tears[0].Tear)
			nvm.Format(bg, c, 1, nvm.Options{})
			c.PowerOn()
			return (&bench{chip: c}).input(t)
		}, "half formatted", "is half formatted", true},
		{"of another medium", func() CheckInput {
			m, err := nvm.Section(b.chip, 0, 80*64)
			if err != nil {
				t.Fatal(err)
			}
			in := CheckInput{}
			in.Store, in.StoreErr = nvm.Inspect(bg, m)
			return in
		}, "formatted", "another medium", true},
		{"full", func() CheckInput {
			in := b.input(t)
			in.Known, in.Free = live(in.Store), 0
			return in
		}, "formatted", "is full", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Check(tt.in())
			if c.State != tt.state || find(c, tt.what) == nil || c.Format != tt.format || c.Todo() {
				t.Errorf("Check = %+v; want state %q, %q, format %v", c, tt.state, tt.what, tt.format)
			}
		})
	}
}

// TestCheckAnew: after a format slots with a damaged block are free, of the
// others the blocks are left to speak.
func TestCheckAnew(t *testing.T) {
	b := newBench(t, 10, 1)
	b.chip.Load(make([]byte, 96*64)) // foreign
	b.blocks["gpu1"][40] ^= 1
	c := Check(b.input(t))
	if !c.Format || c.Todo() {
		t.Fatalf("Check = %+v; want format only", c)
	}
	if _, _, err := nvm.Mend(bg, b.chip, c.Anew(99), nvm.Options{ReservePages: -1}); err != nil {
		t.Fatal(err)
	}
	if a, ok := b.slot(t, "gpu1"); !ok || a.To != ee.GroupFree || !a.VM.IsZero() {
		t.Errorf("gpu1 = %+v, %v; want free", a, ok)
	}
	for _, n := range []string{"gpu0", "nic0"} {
		if a, ok := b.slot(t, n); ok {
			t.Errorf("%s = %+v; want nothing on record: its block says whom it is held for", n, a)
		}
	}
	if again := Check(b.input(t)); again.Todo() || again.Format {
		t.Errorf("again: %+v", again)
	}
}

// TestCheckProperty damages 1 to 3 pages of a store and some blocks in any way
// and repairs, with the power cut in the middle now and then. The store mounts
// clean and a second check finds nothing to do; no slot comes back under an old
// generation, or with an owner that neither its block nor its newest record
// names; slots whose block is whole keep their assignment.
func TestCheckProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64Range(0, 1000).Draw(rt, "seed")
		b := newBench(t, rapid.IntRange(1, 60).Draw(rt, "changes"), seed)
		r := rand.New(rand.NewPCG(seed, 99))
		img := b.chip.Image()
		for range rapid.IntRange(1, 3).Draw(rt, "pages") {
			p := rapid.IntRange(0, 95).Draw(rt, "page")
			page := img[p*64 : (p+1)*64]
			switch rapid.IntRange(0, 4).Draw(rt, "how") {
			case 0:
				page[r.IntN(64)] ^= 1 << r.IntN(8)
			case 1:
				for i := range page {
					page[i] = byte(r.Uint32())
				}
			case 2:
				clear(page)
			case 3:
				copy(page[r.IntN(64):], []byte("U-Boot"))
			case 4: // half of another page
				copy(page[:32], img[r.IntN(96)*64:])
			}
		}
		b.chip.Load(img)
		torn := false
		whole := map[string]bool{}
		for i, n := range b.slots {
			whole[n] = true
			if b.now[n].Kind != 0 && rapid.IntRange(0, 3).Draw(rt, fmt.Sprint("block", i)) == 0 {
				whole[n] = false
				b.blocks[n] = slices.Clone(b.blocks[n])
				switch rapid.IntRange(0, 2).Draw(rt, "way") {
				case 0:
					b.blocks[n][r.IntN(60)+4] ^= byte(1 + r.IntN(255))
				case 1:
					b.blocks[n] = slices.Repeat([]byte{0xff}, 64)
				case 2:
					b.blocks[n] = []byte(strings.Repeat("serial #", 8))
				}
			}
		}
		c := Check(b.input(t))
		if c.State != "formatted" && !c.Repair.Salvage {
			rt.Fatalf("state %s: %+v", c.State, c.Findings)
		}
		if cut := rapid.IntRange(-1, 20).Draw(rt, "cut"); cut >= 0 {
			b.chip.Cut(cut, nvmtest.Tears[rapid.IntRange(0, len(nvmtest.Tears)-1).Draw(rt, "tear")].Tear)
			nvm.Mend(bg, b.chip, c.Repair, nvm.Options{ReservePages: -1})
			b.chip.PowerOn()
			torn = true
			// What was torn reads differently each time, until it is written again.
			var err error
			for range 50 {
				if _, _, err = nvm.Mend(bg, b.chip, Check(b.input(rt)).Repair, nvm.Options{Suspect: true, ReservePages: -1}); err == nil {
					break
				}
			}
			if err != nil {
				rt.Fatalf("Mend after a power cut: %v", err)
			}
		}
		first, again := b.repair(rt)
		// A page that was torn while it was made good may read well now and not
		// later: then it is made good later.
		for try := 0; torn && try < 200 && (again.Todo() || len(b.chip.Readings()) > 0); try++ {
			_, again = b.repair(rt)
		}
		if again.Todo() {
			rt.Fatalf("again: %+v\nfirst: %+v", again, first)
		}
		_, rep, err := nvm.Mount(bg, b.chip, nvm.Options{ReservePages: -1})
		if err != nil || len(rep.Damaged) > 0 || rep.Incomplete > 0 {
			rt.Fatalf("mount: %v, %+v", err, rep)
		}
		for _, n := range b.slots {
			want := b.now[n]
			if want.Kind == 0 {
				continue
			}
			got, ok := b.slot(rt, n)
			switch {
			case whole[n] && (!ok || got.Gen != want.Gen || got.To != want.To || got.VM != want.VM):
				rt.Fatalf("%s: %+v, %v; want group %d of generation %d\n%+v", n, got, ok, want.To, want.Gen, first)
			case !whole[n] && ok && got.Gen < want.Gen:
				rt.Fatalf("%s: an old generation: %+v; it had %d\n%+v", n, got, want.Gen, first)
			case !whole[n] && ok && got.To != ee.GroupFree && (got.To != want.To || got.VM != want.VM):
				rt.Fatalf("%s: %+v; an owner that it did not have", n, got)
			}
		}
	})
}

// FuzzCheck checks anything that a store may hold.
func FuzzCheck(f *testing.F) {
	f.Add([]byte("a\x00\x00\x00\x01"), []byte("x"), make([]byte, 64), []byte("n\x05"))
	f.Add([]byte(Assignment{Gen: 1<<32 - 1}.Key()), Assignment{Kind: KindMove, To: 100, Slots: 3}.Encode(), Slot{Now: Assignment{To: 16, Gen: 5}}.Block(testInc).Encode(), []byte("h"))
	f.Fuzz(func(t *testing.T, key, value, page, name []byte) {
		b := newBench(t, 3, 1)
		if len(key) == 0 || len(key) > 255 || len(value) > 500 || len(name) == 0 || len(name) > 255 || string(name) == string(key) {
			return
		}
		b.put(t, nvm.Record{Key: string(key), Value: value}, nvm.Record{Key: string(name), Value: []byte("gpu1")})
		if len(page) == ee.BlockSize {
			sealBlock(page)
			b.blocks["gpu0"] = page
		}
		if _, again := b.repair(t); again.Todo() {
			t.Fatalf("again: %+v", again)
		}
	})
}

// sealBlock makes the checksum of a config block's page right.
func sealBlock(page []byte) {
	at := page[ee.DigestOffset:][:ee.DigestSize]
	clear(at)
	binary.LittleEndian.PutUint32(at, crc32.Checksum(page, castagnoli))
}

// TestCheckLostNewest: where the newest record of a slot and its block are both
// lost, the generation that it gets is above the lost one, whatever that was.
func TestCheckLostNewest(t *testing.T) {
	b := newBench(t, 20, 3)
	a := b.now["gpu1"]
	in := b.input(t)
	img := b.chip.Image()
	for _, k := range in.Store.Batches {
		if k.Records != nil && k.Records[0].Key == a.Key() {
			clear(img[k.Pages[0]*64:][:40])
		}
	}
	b.chip.Load(img)
	b.blocks["gpu1"][40] ^= 1
	if _, again := b.repair(t); again.Todo() {
		t.Errorf("again: %+v", again)
	}
	if now, ok := b.slot(t, "gpu1"); !ok || now.To != ee.GroupFree || !now.VM.IsZero() || now.Gen < LostGap {
		t.Errorf("gpu1 = %+v, %v; want free, and well above all that are known", now, ok)
	}
}

// TestCheckFencesStepByStep: a repair that is cut short between the records of
// hosts is noticed: the roll is complete with the last of them only.
func TestCheckFencesStepByStep(t *testing.T) {
	for _, lost := range []nvm.Record{
		{Key: PrefixHost + "b", Value: Host{Epoch: 1, Serial: 1}.Encode()},
		{Key: PrefixHost + "b"},
		{Key: KeyRoll},
	} {
		b := newBench(t, 20, 3)
		b.put(t, lost)
		in := b.input(t)
		c := Check(in)
		recs := live(in.Store)
		todo := slices.Concat(c.Repair.Batches...)
		for i, r := range todo {
			recs = slices.DeleteFunc(recs, func(o nvm.Record) bool { return o.Key == r.Key })
			recs = append(recs, r)
			k := readBook(recs)
			if done := i == len(todo)-1; k.roll.Complete(k.hosts) != done {
				t.Errorf("%q: after record %d of %d the roll is complete: %v", lost.Key, i+1, len(todo), !done)
			}
		}
	}
}

// TestCheckFullOffline: an image tells that it is full although nobody runs it.
func TestCheckFullOffline(t *testing.T) {
	b := newBench(t, 3, 1)
	if find(Check(b.input(t)), "is full") != nil {
		t.Error("a store that is not full is said to be")
	}
	s, _, err := nvm.Mount(bg, b.chip, nvm.Options{ReservePages: -1})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		if err := s.Put(bg, nvm.Normal, nvm.Record{Key: fmt.Sprintf("l%03d", i), Value: make([]byte, 40)}); err != nil {
			break
		}
	}
	if f := find(Check(b.input(t)), "is full"); f == nil || f.Grade != Damage || f.Repair != "" {
		t.Errorf("finding = %+v; want that it is full", f)
	}
}

// cutRepair does the first n records of a repair, as if the store had room for
// few in a batch and power was lost between two, and then what is decided anew.
func (b *bench) cutRepair(t failer, n int) (first Checked, more bool) {
	t.Helper()
	first = Check(b.input(t))
	recs := slices.Concat(first.Repair.Batches...)
	if n >= len(recs) {
		return first, false
	}
	for _, r := range recs[:n] {
		b.put(t, r)
	}
	b.repair(t)
	return first, true
}

// TestCheckOlderImageCut: fences that an older image lacks are made up for, also
// where the repair is cut short when the slots' records are written.
func TestCheckOlderImageCut(t *testing.T) {
	for n := 0; ; n++ {
		b := newBench(t, 20, 3)
		for i, s := range b.slots {
			a := Assignment{Kind: KindMove, To: 100, VM: vmID(1), ID: vmID(9), Gen: b.top + 1, Slots: 7}
			b.blocks[s] = Slot{Index: i, Now: a}.Block(testInc).Encode()
		}
		if _, more := b.cutRepair(t, n); !more {
			break
		}
		b.wantFenced(t)
	}
}

// TestCheckTwoNumbersCut: a slot with two numbers, of which its block confirms
// none, comes back free, wherever the repair is cut short.
func TestCheckTwoNumbersCut(t *testing.T) {
	for n := 0; ; n++ {
		b := newBench(t, 20, 3)
		b.put(t, nvm.Record{Key: SlotKey(PrefixName, 0), Value: []byte("gpu1")})
		b.blocks["gpu1"][40] ^= 1
		if _, more := b.cutRepair(t, n); !more {
			break
		}
		if a, ok := b.slot(t, "gpu1"); !ok || a.To != ee.GroupFree || !a.VM.IsZero() {
			t.Errorf("cut after %d: gpu1 = %+v, %v; want free", n, a, ok)
		}
	}
}

// TestCheckNamesCut: where it is not known which of two slots of a set had a
// number, neither keeps what is recorded of its memory, wherever the repair is
// cut short.
func TestCheckNamesCut(t *testing.T) {
	for n := 0; ; n++ {
		b := newBench(t, 20, 3)
		a := Assignment{Kind: KindMove, To: 100, VM: vmID(1), ID: vmID(9), Gen: b.top + 1, Slots: 7}
		b.put(t, nvm.Record{Key: a.Key(), Value: a.Encode()})
		for i, s := range b.slots {
			b.blocks[s] = Slot{Index: i, Now: a}.Block(testInc).Encode()
			b.put(t, nvm.Record{Key: SlotKey(PrefixEvidence, i), Value: Evidence{Flag: Spent, Gen: a.Gen, Acked: true}.Encode()})
			b.put(t, nvm.Record{Key: SlotKey(PrefixReleased, i), Value: []byte{byte(a.Gen), 0, 0, 0}})
		}
		b.put(t, nvm.Record{Key: SlotKey(PrefixName, 0)}, nvm.Record{Key: SlotKey(PrefixName, 1)})
		if _, more := b.cutRepair(t, n); !more {
			break
		}
		for _, l := range live(b.input(t).Store) {
			i, isSlot := slotOf(l.Key)
			if !isSlot || i > 1 {
				continue
			}
			switch l.Key[:1] {
			case PrefixEvidence:
				if ev, err := DecodeEvidence(l.Value); err != nil || ev.Flag != Void {
					t.Errorf("cut after %d: number %d has evidence %+v, %v; want void", n, i, ev, err)
				}
			case PrefixReleased:
				t.Errorf("cut after %d: number %d is released", n, i)
			}
		}
	}
}
