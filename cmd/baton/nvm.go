package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"baton/mgmt"
)

var nvmCheckCommand = command{
	name: "nvm check", args: "[--file IMG [flags]]", short: "what is wrong with the store and the config blocks",
	about: `Asks the agent, or with --file looks at an image that a programmer has read from
a chip. Nothing is written. Exit code 1 says that there is damage.`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		var img imageFlags
		img.flags(fs)
		img.blockFlag(fs)
		return func(ctx context.Context, _ []string) error {
			if err := img.check(); err != nil {
				return err
			}
			if img.file != "" {
				return t.checkImage(ctx, img)
			}
			r, err := t.checkNVM(ctx)
			if err != nil {
				return err
			}
			if t.json {
				if err := t.printJSON(r); err != nil {
					return err
				}
				return nvmOutcome(r)
			}
			t.findings(r)
			switch {
			case slices.ContainsFunc(r.Findings, func(f mgmt.NVMFinding) bool { return f.Grade == "unusable" && f.Repair != "" }):
				t.next("baton nvm repair --format  # if all that the store held may be lost")
			case mends(r):
				t.next("baton nvm repair")
			case damaged(r):
				t.next("baton status")
			}
			return nvmOutcome(r)
		}
	},
}

func (t *tool) checkNVM(ctx context.Context) (r mgmt.NVMReport, err error) {
	err = t.wait(ctx, "reading the store and the config blocks", func(ctx context.Context) (err error) {
		r, err = t.agent.CheckNVM(ctx)
		return err
	})
	return r, err
}

// damaged says that something is not as it should be.
func damaged(r mgmt.NVMReport) bool {
	return r.State != "formatted" || slices.ContainsFunc(r.Findings, func(f mgmt.NVMFinding) bool { return f.Grade != "note" })
}

// mends says that a repair would do something.
func mends(r mgmt.NVMReport) bool {
	return slices.ContainsFunc(r.Findings, func(f mgmt.NVMFinding) bool { return f.Repair != "" })
}

func nvmOutcome(r mgmt.NVMReport) error {
	if damaged(r) {
		return &outcome{exitFailed}
	}
	return nil
}

// findings prints where, what, what a repair does and what is lost.
func (t *tool) findings(r mgmt.NVMReport) {
	t.line("store", r.State)
	grades := map[string]int{}
	for _, f := range r.Findings {
		grades[f.Grade]++
		grade := f.Grade + ": "
		if f.Grade == "note" {
			grade = ""
		}
		t.line(f.Where, grade+f.What)
		t.sub("repair", f.Repair)
		t.sub("lost", f.Lost)
	}
	if len(r.Findings) == 0 {
		t.say("Nothing is wrong.")
		return
	}
	var parts []string
	for _, g := range []string{"unusable", "damage", "note"} {
		if n := grades[g]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, g))
		}
	}
	t.say("%s: %s.", count(len(r.Findings), "finding"), strings.Join(parts, ", "))
}

// sub is an indented line below another one.
func (t *tool) sub(label, text string) {
	if text != "" {
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("  %-7s %s", label+":", text), 10))
	}
}

var nvmRepairCommand = command{
	name: "nvm repair", args: "[--format] [--yes] [--file IMG -o OUT [flags]]", short: "mend what nvm check found",
	about: `Shows the findings, asks, and does what they say. It never guesses an owner: a
slot whose owner can not be known comes back free, and its memory counts as
lost. --format makes the store anew where it is none, or not to be mended: all
that it held is lost, and the enclosure's name has to be typed.

With --file, a repaired copy of the image is written to OUT.`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		var img imageFlags
		img.flags(fs)
		img.blockFlag(fs)
		out := fs.String("o", "", "with --file: write the repaired image to `FILE`")
		inPlace := fs.Bool("in-place", false, "with --file: write it over the image")
		format := fs.Bool("format", false, "the store may be made anew: all it held is lost")
		yes := fs.Bool("yes", false, "do not ask")
		typed := fs.String("typed", "", "with --format and --yes where nobody can type: the `name` of the enclosure")
		return func(ctx context.Context, _ []string) error {
			if err := img.check(); err != nil {
				return err
			}
			if img.file != "" {
				return t.repairImage(ctx, img, *out, *inPlace, *format, *yes)
			}
			if *out != "" || *inPlace {
				return &usageError{"-o and --in-place are for an image: name it by --file"}
			}
			return t.repairNVM(ctx, *format, *yes, *typed)
		}
	},
}

func (t *tool) repairNVM(ctx context.Context, format, yes bool, typed string) error {
	r, err := t.checkNVM(ctx)
	if err != nil {
		return err
	}
	if !t.json {
		t.findings(r)
	}
	if !mends(r) {
		if t.json {
			if err := t.printJSON(r); err != nil {
				return err
			}
			return nvmOutcome(r)
		}
		if damaged(r) {
			t.complain("nothing of it can be mended by a repair", "state", "nothing was changed")
			return &outcome{exitFailed}
		}
		t.say("There is nothing to repair.")
		return nil
	}
	if format {
		e, err := t.agent.Enclosure(ctx)
		if err != nil {
			return err
		}
		if err := t.retype(ctx, yes, typed, e.Name, "The store of "+e.Name+" is made anew if it has to be: all that it held is lost, and every host starts fenced."); err != nil {
			return err
		}
	} else if err := t.confirm(ctx, yes, "what is said after 'repair' is done"); err != nil {
		return err
	}
	mark := t.mark(ctx)
	err = t.wait(ctx, "repairing", func(ctx context.Context) (err error) {
		r, err = t.agent.RepairNVM(ctx, mgmt.RepairRequest{Token: r.Token, Format: format})
		return err
	})
	if err == nil && r.Restarting {
		err = t.restarted(ctx, mark)
	}
	if err != nil {
		return err
	}
	if t.json {
		if err := t.printJSON(r); err != nil {
			return err
		}
	} else if r.Repaired {
		t.say("Repaired.")
		t.next("baton nvm check", "baton status")
	} else {
		t.complain("not all of it could be repaired", "next", "baton nvm check")
	}
	if !r.Repaired {
		return &outcome{exitFailed}
	}
	return nil
}

var nvmDumpCommand = command{
	name: "nvm dump", args: "store|SLOT | --file IMG [-o FILE | --records]", short: "the bytes of the store's medium, or of a slot's chip",
	about: `In hex on stdout, lines that repeat as *; raw, with -o, as 'nvm check --file'
reads it; or what the records are, with --records.`,
	nargs: [2]int{0, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		var img imageFlags
		img.flags(fs)
		out := fs.String("o", "", "write the raw bytes to `FILE`")
		words := fs.Bool("records", false, "say what the store's records and the config block are")
		return func(ctx context.Context, args []string) error {
			switch err := img.check(); {
			case err != nil:
				return err
			case (len(args) == 1) == (img.file != ""):
				return &usageError{"say one of store, a SLOT and --file IMG"}
			case *out != "" && *words:
				return &usageError{"-o writes bytes, --records words: say one"}
			case img.file != "":
				return t.dumpImage(ctx, img, *out, *words)
			}
			return t.dumpNVM(ctx, args[0], *out, *words)
		}
	},
}

func (t *tool) dumpNVM(ctx context.Context, of, out string, words bool) error {
	var d mgmt.NVMDump
	err := t.wait(ctx, "reading "+of, func(ctx context.Context) (err error) {
		d, err = t.agent.DumpNVM(ctx, of)
		return err
	})
	if err != nil {
		return err
	}
	if words {
		o, err := dumped(d)
		if err != nil {
			return err
		}
		r, err := recordsOf(ctx, d.Of, o)
		if err != nil {
			return err
		}
		return t.records(r)
	}
	if out != "" {
		if err := writeFile(out, d.Image); err != nil {
			return err
		}
		return t.written(out, len(d.Image), fmt.Sprintf("%s, %s", d.Of, d.Part), "baton nvm check --file "+out)
	}
	if t.json {
		return t.printJSON(d)
	}
	t.say("%s: %s, %d bytes from %d", d.Of, d.Part, len(d.Image), d.Offset)
	return hexdump(t.stdout, d.Image, d.Offset)
}

func (t *tool) dumpImage(ctx context.Context, img imageFlags, out string, words bool) error {
	o, err := img.open()
	if err != nil {
		return err
	}
	if words {
		r, err := recordsOf(ctx, img.file, o)
		if err != nil {
			return err
		}
		return t.records(r)
	}
	if out != "" {
		return &usageError{"-o is for what the agent reads: " + img.file + " is a file already"}
	}
	d := mgmt.NVMDump{Of: img.file, Part: o.im.Part(), Image: o.im.Bytes()}
	if t.json {
		return t.printJSON(d)
	}
	t.say("%s: %s, %d bytes", d.Of, orDash(d.Part), len(d.Image))
	return hexdump(t.stdout, d.Image, 0)
}

// hexdump writes lines of 16 bytes; those that repeat the one before become
// one *.
func hexdump(w io.Writer, data []byte, offset int64) error {
	var out bytes.Buffer
	for at, same := 0, false; at < len(data); at += 16 {
		line := data[at:min(at+16, len(data))]
		if at > 0 && at+16 < len(data) && bytes.Equal(line, data[at-16:at]) {
			if !same {
				out.WriteString("*\n")
			}
			same = true
			continue
		}
		same = false
		text := hex.Dump(line)
		fmt.Fprintf(&out, "%08x%s", offset+int64(at), text[8:])
	}
	_, err := w.Write(out.Bytes())
	return err
}
