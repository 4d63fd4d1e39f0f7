package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/mgmt"
	"baton/mgmt/config"
	"baton/nvm/image"
)

// imageFlags name the image of a chip.
type imageFlags struct {
	file, part   string
	page, offset int64
	blocks       []string // SLOT=FILE
}

func (i *imageFlags) flags(fs *flag.FlagSet) {
	fs.StringVar(&i.file, "file", "", "the `image` of a chip, instead of the agent's")
	fs.StringVar(&i.part, "part", "", "`part` that the image is of, as 24c256; else by its size")
	fs.Int64Var(&i.page, "page", 0, "`bytes` of a page, where it is no part but a store's file; 0 = 64")
	fs.Int64Var(&i.offset, "offset", 0, "where in the image the store begins; 0 = where one is found")
}

// blockFlag is for what compares a store with config blocks.
func (i *imageFlags) blockFlag(fs *flag.FlagSet) {
	fs.Func("block", "`SLOT=IMG`: the image of that slot's chip, to compare; may be repeated", func(s string) error {
		if slot, file, ok := strings.Cut(s, "="); !ok || slot == "" || file == "" {
			return errors.New("want SLOT=IMG, as gpu0=gpu0.img")
		}
		i.blocks = append(i.blocks, s)
		return nil
	})
}

// check also says that nothing of an image is given without one.
func (i *imageFlags) check() error {
	switch {
	case i.part != "" && i.page != 0:
		return &usageError{"--part says what --page is: say one"}
	case i.page < 0 || i.page > 4096 || i.offset < 0:
		return &usageError{fmt.Sprintf("--page %d --offset %d: there is no such image", i.page, i.offset)}
	case i.file == "" && (i.part != "" || i.page != 0 || i.offset != 0 || len(i.blocks) > 0):
		return &usageError{"--part, --page, --offset and --block are of an image: name it by --file"}
	}
	return nil
}

// imaged answers the nvm verbs for an image.
type imaged struct {
	File   string `json:"file"`
	Part   string `json:"part,omitempty"`
	Bytes  int64  `json:"bytes"`
	Store  *span  `json:"store,omitempty"` // where it is in the image; absent = there is none
	Block  string `json:"block,omitempty"` // the config block in it, in words
	Output string `json:"output,omitempty"`
	mgmt.NVMReport
}

type span struct {
	Offset int64 `json:"offset"`
	Size   int64 `json:"size"`
}

// opened is an image and what is known of it.
type opened struct {
	im     *image.Image
	blocks []plan.BlockRead // of this image and others
	alone  bool             // the chip of an engine, without a store
}

func (i *imageFlags) open() (opened, error) {
	o := image.Options{Part: i.part, Page: int(i.page), Offset: i.offset}
	im, err := image.Open(i.file, o)
	if err != nil {
		return opened{}, err
	}
	var out opened
	own := im.Block(0, ee.BlockSize)
	_, err = ee.DecodeBlock(own)
	isBlock := own != nil && !errors.Is(err, ee.ErrBlockBlank) && !errors.Is(err, ee.ErrBlockForeign)
	if at, _ := im.StoreAt(); at == 0 && isBlock {
		// No store begins where a config block is.
		o.Offset = -1
		if im, err = image.Open(i.file, o); err != nil {
			return opened{}, err
		}
		out.alone = true
	}
	if isBlock {
		out.blocks = append(out.blocks, plan.BlockRead{Where: i.file, Page: own})
	}
	out.im = im
	for _, b := range i.blocks {
		slot, file, _ := strings.Cut(b, "=")
		other, err := image.Open(file, image.Options{Offset: -1})
		if err != nil {
			return opened{}, err
		}
		out.blocks = append(out.blocks, plan.BlockRead{Slot: slot, Where: file, Page: other.Block(0, ee.BlockSize)})
	}
	return out, nil
}

// check finds out what is wrong.
func (o opened) check(ctx context.Context) (imaged, plan.Checked) {
	r := imaged{File: o.im.Name(), Part: o.im.Part(), Bytes: o.im.Geometry().Size}
	if o.alone {
		r.State = "no store, a config block alone"
		r.Findings = []mgmt.NVMFinding{}
		block, err := ee.DecodeBlock(o.blocks[0].Page)
		r.Block = blockText(block)
		if err != nil {
			r.Block = ""
			r.Findings = append(r.Findings, mgmt.NVMFinding{
				Where: "config block", What: err.Error(), Grade: string(plan.Damage),
				Lost: "nothing, where the agent's store is whole: it writes the block anew from its record",
			})
		}
		return r, plan.Checked{}
	}
	if at, size := o.im.StoreAt(); size > 0 {
		r.Store = &span{at, size}
	}
	in := plan.CheckInput{Free: -1, Blocks: o.blocks}
	in.Store, in.StoreErr = o.im.Store(ctx)
	if in.Store != nil && in.Store.Err != nil {
		var known []uint32
		for _, b := range o.blocks {
			if block, err := ee.DecodeBlock(b.Page); err == nil {
				known = append(known, block.Generation.Incarnation)
			}
		}
		in.Salvage = o.im.Salvageable(ctx, known...)
	}
	c := plan.Check(in)
	r.State = c.State
	r.Findings = make([]mgmt.NVMFinding, 0, len(c.Findings))
	for _, f := range c.Findings {
		r.Findings = append(r.Findings, mgmt.NVMFinding{Where: f.Where, What: f.What, Grade: string(f.Grade), Repair: f.Repair, Lost: f.Lost})
	}
	return r, c
}

// damaged is that of an image: an engine's chip has no store, and is none the
// worse for it.
func (r imaged) damaged() bool {
	if r.Block != "" || r.Store == nil {
		return slices.ContainsFunc(r.Findings, func(f mgmt.NVMFinding) bool { return f.Grade != string(plan.Note) })
	}
	return damaged(r.NVMReport)
}

func (r imaged) outcome() error {
	if r.damaged() {
		return &outcome{exitFailed}
	}
	return nil
}

// imageHead says what an image is.
func (t *tool) imageHead(r imaged) {
	what := "no known part"
	if r.Part != "" {
		what = r.Part
	}
	if r.Store != nil {
		what += fmt.Sprintf(", store at %d..%d", r.Store.Offset, r.Store.Offset+r.Store.Size-1)
	}
	t.line(r.File, fmt.Sprintf("%d bytes, %s", r.Bytes, what))
	t.line("config block", r.Block)
}

func (t *tool) checkImage(ctx context.Context, i imageFlags) error {
	o, err := i.open()
	if err != nil {
		return err
	}
	r, c := o.check(ctx)
	if t.json {
		if err := t.printJSON(r); err != nil {
			return err
		}
		return r.outcome()
	}
	t.imageHead(r)
	t.findings(r.NVMReport)
	switch {
	case c.Format && c.Repair.None():
		t.next("baton nvm repair --file " + i.file + " -o OUT --format")
	case !c.Repair.None():
		t.next("baton nvm repair --file " + i.file + " -o OUT")
	}
	return r.outcome()
}

// repairImage writes a repaired copy.
func (t *tool) repairImage(ctx context.Context, i imageFlags, out string, inPlace, format, yes bool) error {
	if (out == "") == !inPlace {
		return &usageError{"say one of -o FILE, for a repaired copy, and --in-place"}
	}
	o, err := i.open()
	if err != nil {
		return err
	}
	r, c := o.check(ctx)
	if !t.json {
		t.imageHead(r)
		t.findings(r.NVMReport)
	}
	todo := c.Repair
	if todo.None() && c.Format {
		if !format {
			return &mgmt.Problem{
				Code: "wrong-state", Detail: fmt.Sprintf("%s: only making the store anew helps", i.file), State: "nothing was written",
				Next: "say --format, if what it held may be lost",
			}
		}
		todo = c.Anew(newIncarnation())
	}
	if todo.None() {
		if t.json {
			err = t.printJSON(r)
		} else {
			t.say("There is nothing that a repair of the image does.")
		}
		if err == nil {
			err = r.outcome()
		}
		return err
	}
	if inPlace {
		out = i.file
		if err := t.confirm(ctx, yes, "%s itself is changed: keep a copy", i.file); err != nil {
			return err
		}
	}
	if err := o.im.Repair(ctx, todo); err != nil {
		return err
	}
	if err := o.im.Save(out, inPlace); err != nil {
		return err
	}
	after, _ := o.check(ctx)
	after.Output, after.Repaired = out, true
	if t.json {
		if err := t.printJSON(after); err != nil {
			return err
		}
		return after.outcome()
	}
	t.say("Repaired, in %s. What is left:", out)
	t.findings(after.NVMReport)
	t.say("Write it to the chip, or as the store's file, while no agent runs. Then start the agent.")
	t.next("baton nvm check")
	return after.outcome()
}

func newIncarnation() uint32 {
	var p [4]byte
	rand.Read(p[:]) // never fails
	return binary.LittleEndian.Uint32(p[:])
}

// record is one of a store, in words.
type record struct {
	Sequence uint32 `json:"sequence"`
	Key      []byte `json:"key"` // base64
	Kind     string `json:"kind"`
	Text     string `json:"text"`
	Value    []byte `json:"value"` // base64
}

// recorded answers nvm dump --records.
type recorded struct {
	Of      string   `json:"of"`
	State   string   `json:"state"`
	Block   string   `json:"block,omitempty"`
	Records []record `json:"records"`
}

// recordsOf reads the records of a store, and a config block.
func recordsOf(ctx context.Context, of string, o opened) (recorded, error) {
	out := recorded{Of: of, State: "no store", Records: []record{}}
	for _, b := range o.blocks {
		block, err := ee.DecodeBlock(b.Page)
		if out.Block = blockText(block); err != nil {
			out.Block = err.Error()
		}
	}
	if o.alone {
		return out, nil
	}
	in, err := o.im.Store(ctx)
	if err != nil {
		return out, err
	}
	out.State = in.State.String()
	if in.Err != nil {
		if in = o.im.Salvageable(ctx); in == nil {
			return out, nil
		}
		out.State = fmt.Sprintf("without format records, of store %08x", in.Incarnation)
	}
	for _, l := range in.Live {
		kind, text := recordText(l.Key, l.Value)
		out.Records = append(out.Records, record{l.Sequence, []byte(l.Key), kind, text, l.Value})
	}
	return out, nil
}

func (t *tool) records(r recorded) error {
	if t.json {
		return t.printJSON(r)
	}
	t.line(r.Of, r.State)
	t.line("config block", r.Block)
	for _, x := range r.Records {
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%8d  %-10s  %s", x.Sequence, x.Kind, x.Text), 22))
	}
	t.say("%s.", count(len(r.Records), "record"))
	return nil
}

func blockText(b ee.Block) string {
	text := fmt.Sprintf("generation %s, %s, before %s, %s", b.Generation, groupText(b.Group), groupText(b.From), vmText(b.VM))
	if b.Flags&ee.FlagTarget != 0 {
		text += ", target"
	}
	if b.Flags&ee.FlagHeld != 0 {
		text += ", held"
	}
	return text
}

func groupText(g uint16) string {
	if g == ee.GroupFree {
		return "free"
	}
	return fmt.Sprintf("group %d", g)
}

func vmText(u ee.UUID) string {
	if u.IsZero() {
		return "no VM"
	}
	return "VM " + u.String()
}

// recordText says what a record is and what is in it. Of what it does not know
// it gives the bytes.
func recordText(key string, value []byte) (kind, text string) {
	slot := -1
	if len(key) == 2 {
		slot = int(key[1])
	}
	of := fmt.Sprintf("slot number %d: ", slot)
	switch prefix := key[:min(1, len(key))]; {
	case prefix == plan.PrefixAssignment:
		if a, err := plan.DecodeAssignment(key, value); err == nil {
			kept := ", not preserved"
			if a.Preserve {
				kept = ", preserved"
			}
			return "assignment", fmt.Sprintf("generation %d: %s of slot numbers %s to %s, %s, ID %s%s", a.Gen, a.Kind, slotNumbers(a.Slots), groupText(a.To), vmText(a.VM), a.ID, kept)
		}
	case prefix == plan.PrefixEvidence && slot >= 0:
		if e, err := plan.DecodeEvidence(value); err == nil {
			why := ""
			if e.Flag == plan.Void {
				why = " - " + e.Why.String()
			}
			return "evidence", fmt.Sprintf("%sflag %s%s under generation %d, resets %d, power epoch 0x%08x, identity 0x%08x", of, e.Flag, why, e.Gen, e.Base.Resets, e.Base.Epoch, e.Base.Ident)
		}
	case prefix == plan.PrefixName && slot >= 0:
		return "name", of + string(value)
	case prefix == plan.PrefixStart && slot >= 0:
		if s, err := plan.DecodeStart(value); err == nil {
			return "start", fmt.Sprintf("slot numbers %s under generation %d, nonce %s", slotNumbers(s.Slots), s.Gen, s.Nonce)
		}
	case prefix == plan.PrefixReleased && slot >= 0:
		return "released", fmt.Sprintf("%s%x", of, value)
	case prefix == plan.PrefixAdopted && slot >= 0:
		if a, err := plan.DecodeAdopted(value); err == nil {
			return "adopted", fmt.Sprintf("%sengine %s, device 0x%016x", of, a.Found.MAC, a.Found.Serial)
		}
	case prefix == plan.PrefixUncut && slot >= 0:
		if u, err := plan.DecodeUncut(value); err == nil {
			return "uncut", fmt.Sprintf("%sgroups %v may still reach it, under generation %d", of, u.All(), u.Gen)
		}
	case prefix == plan.PrefixHost:
		if h, err := plan.DecodeHost(value); err == nil {
			state := "not fenced"
			if h.Fenced {
				state = "FENCED"
			}
			return "host", fmt.Sprintf("%s: %s, epoch %d", key[1:], state, h.Epoch)
		}
	case key == plan.KeyRoll:
		if r, err := plan.DecodeRoll(value); err == nil {
			return "hosts", fmt.Sprintf("change %d, sum 0x%08x", r.Serial, r.Sum)
		}
	case key == plan.KeyFloor:
		if f, err := plan.DecodeFloor(value); err == nil {
			return "floor", fmt.Sprintf("generations above %d, of store %08x", f.Counter, f.Incarnation)
		}
	case prefix == plan.PrefixAudit:
		if a, err := plan.DecodeAudit(value); err == nil {
			return "audit", fmt.Sprintf("%d, run %d at %s: %s%s", a.Seq, a.Run, age(a.Uptime.Milliseconds()), a.Text, by(a.By))
		}
	case key == plan.KeyConfiguration:
		if c, err := plan.DecodeConfiguration(value); err == nil {
			return "config", configText(c)
		}
	case key == plan.KeyConfigMark && len(value) == 4:
		return "config", fmt.Sprintf("its version is %d", binary.LittleEndian.Uint32(value))
	}
	return "other", fmt.Sprintf("key %q: %d bytes %s", key, len(value), printed(value))
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return " (by " + who + ")"
}

// configText says where the text of a configuration is; 'baton nvm dump
// --records' shows records, not texts of many lines.
func configText(c plan.Configuration) string {
	if c.Packed == nil {
		return fmt.Sprintf("version %d, in a file with SHA-256 %x", c.Version, c.Sum)
	}
	text, err := config.Unpack(c.Packed)
	if err != nil {
		return fmt.Sprintf("version %d, can not be unpacked: %v", c.Version, err)
	}
	return fmt.Sprintf("version %d, %d bytes of text", c.Version, len(text))
}

// printed is what a person can read of bytes, in dots.
func printed(p []byte) string {
	const most = 160
	out := make([]byte, min(len(p), most))
	for i := range out {
		if out[i] = p[i]; p[i] < ' ' || p[i] > '~' {
			out[i] = '.'
		}
	}
	return string(out)
}

func slotNumbers(s plan.SlotSet) string {
	var out []string
	for i := range 64 {
		if s.Has(i) {
			out = append(out, fmt.Sprint(i))
		}
	}
	return strings.Join(out, " ")
}

// dumped is an image that the agent has read.
func dumped(d mgmt.NVMDump) (opened, error) {
	im, err := image.New(d.Of, d.Image, image.Options{})
	if err != nil {
		return opened{}, err
	}
	if d.Of == "store" {
		return opened{im: im}, nil
	}
	out := opened{im: im, alone: true, blocks: []plan.BlockRead{{Slot: d.Of, Page: im.Block(0, ee.BlockSize)}}}
	if at, size := im.StoreAt(); at > 0 && size > 0 {
		out.alone = false
	}
	return out, nil
}
