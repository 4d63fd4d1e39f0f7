package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"baton/mgmt"
)

var backupCommand = command{
	name: "backup", args: "[-o FILE]", short: "what is needed to set up a new controller",
	about: `Configuration, generations and fences, as one JSON document, on stdout or in
FILE, which is replaced as a whole and readable by its owner only. It has no
assignments: those are in the config blocks of the slots.`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		out := fs.String("o", "", "write it to `FILE`")
		return func(ctx context.Context, _ []string) error {
			b, err := t.agent.Backup(ctx)
			if err != nil {
				return err
			}
			if *out == "" {
				return t.printJSON(b)
			}
			var text bytes.Buffer
			e := json.NewEncoder(&text)
			e.SetEscapeHTML(false)
			e.SetIndent("", "  ")
			if err := e.Encode(b); err != nil {
				return err
			}
			if err := writeFile(*out, text.Bytes()); err != nil {
				return err
			}
			return t.written(*out, text.Len(), fmt.Sprintf("%s: configuration %d, %s, %s", b.Enclosure, b.Version, count(len(b.Slots), "slot"), count(len(b.Hosts), "host")), "baton restore "+*out+" --dry-run")
		}
	},
}

// written says what is in a file now.
func (t *tool) written(file string, size int, what, next string) error {
	if t.json {
		return t.printJSON(struct {
			File  string `json:"file"`
			Bytes int    `json:"bytes"`
		}{file, size})
	}
	t.say("%s: %d bytes. %s", file, size, what)
	if next != "" {
		t.next(next)
	}
	return nil
}

// writeFile puts data into a file as a whole or not at all; only its owner may
// read it.
func writeFile(name string, data []byte) (err error) {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, ".baton-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	// The name has to be on the disk as well.
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

var restoreCommand = command{
	name: "restore", args: "FILE [--dry-run] [--yes]", short: "take a backup over",
	about: `Shows what would change, asks, then puts the backup's configuration in force and
sees to it that no generation and no fence of before comes again. It moves
nothing: who has which slot is read from the slots.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		dry := fs.Bool("dry-run", false, "only show what would change")
		yes := fs.Bool("yes", false, "do not ask")
		return func(ctx context.Context, args []string) error {
			b, err := readBackup(args[0])
			if err != nil {
				return err
			}
			would, err := t.agent.Restore(ctx, mgmt.RestoreRequest{Backup: b, DryRun: true})
			if err != nil {
				return err
			}
			if *dry && t.json {
				return t.printJSON(would)
			}
			if !t.json {
				t.restoration(args[0], b, would)
			}
			if *dry && len(would.Changes) == 0 {
				t.next("baton status")
				return nil
			}
			if *dry {
				t.next("baton restore " + args[0])
				return nil
			}
			if len(would.Changes) == 0 { // nothing to ask, and nothing to do
				if t.json {
					would.DryRun = false
					return t.printJSON(would)
				}
				t.next("baton status")
				return nil
			}
			if err := t.confirm(ctx, *yes, "%s of %s is restored", args[0], b.Enclosure); err != nil {
				return err
			}
			return t.restore(ctx, b)
		}
	},
}

// maxBackup is more than an agent takes.
const maxBackup = 8 << 20

func readBackup(file string) (b mgmt.Backup, err error) {
	f, err := os.Open(file)
	if err != nil {
		return b, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBackup))
	if err == nil {
		err = json.Unmarshal(data, &b)
	}
	if err == nil && b.Format == 0 {
		err = errors.New("it has no format")
	}
	if err != nil {
		return b, &mgmt.Problem{Code: "bad-backup", Detail: fmt.Sprintf("%s is not what 'baton backup' writes: %v", file, err), State: "nothing was changed"}
	}
	return b, nil
}

func (t *tool) restoration(file string, b mgmt.Backup, would mgmt.Restored) {
	when := "at a time that is not known"
	if b.ClockSet {
		when = b.Time.Local().Format("2006-01-02 15:04")
	}
	t.say("%s: enclosure %s, configuration %d, made %s", file, b.Enclosure, b.Version, when)
	if len(would.Changes) == 0 {
		t.say("Nothing would change.")
		return
	}
	t.say("What changes:")
	t.bullets(would.Changes)
}

func (t *tool) restore(ctx context.Context, b mgmt.Backup) error {
	mark := t.mark(ctx)
	var r mgmt.Restored
	err := t.wait(ctx, "restoring", func(ctx context.Context) (err error) {
		r, err = t.agent.Restore(ctx, mgmt.RestoreRequest{Backup: b})
		return err
	})
	if err == nil && r.Restarting {
		err = t.restarted(ctx, mark)
	}
	if err != nil {
		return err
	}
	if t.json {
		return t.printJSON(r)
	}
	t.say("Restored.")
	t.next("baton status", "baton nvm check")
	return nil
}
