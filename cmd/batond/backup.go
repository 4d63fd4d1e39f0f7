package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/config"
)

// Backup is that of server.Keeper: the configuration as it is kept, and what no
// generation and no fence may ever fall below again.
func (k *keeper) Backup(ctx context.Context) (mgmt.Backup, error) {
	st := k.enc.Status(ctx)
	if !st.Store.OK {
		return mgmt.Backup{}, &enclosure.Error{
			Code: enclosure.CodeStore, What: "generations and fences can not be read: " + st.Store.Problem, State: unchanged,
			Next: "'baton config show' gives the configuration alone",
		}
	}
	now := k.now()
	t := time.Now().UTC()
	b := mgmt.Backup{
		Format: mgmt.BackupFormat, Enclosure: now.config.Enclosure, Agent: mgmt.Version, Time: t, ClockSet: t.Year() >= 2026,
		Incarnation: ee.Generation{Incarnation: st.Store.Incarnation}.String()[:8],
		Version:     now.version, Config: string(now.text), Slots: []mgmt.BackupSlot{}, Hosts: []mgmt.BackupHost{},
	}
	floor := k.enc.Floor()
	for _, name := range sorted(floor.Slots) {
		b.Slots = append(b.Slots, mgmt.BackupSlot{Name: name, Generation: floor.Slots[name].String()})
	}
	for _, name := range sorted(floor.Hosts) {
		b.Hosts = append(b.Hosts, mgmt.BackupHost{Name: name, Epoch: floor.Hosts[name]})
	}
	b.Sum = b.Checksum()
	return b, nil
}

// Restore is that of server.Keeper: the backup's configuration is applied, and
// generations and fences raised above the backup's. Assignments are none of it.
func (k *keeper) Restore(ctx context.Context, r mgmt.RestoreRequest, by string) (mgmt.Restored, error) {
	floor, err := k.readBackup(r.Backup)
	if err != nil {
		return mgmt.Restored{}, k.refused(by, err)
	}
	// What will refuse the configuration has to refuse it before a host is fenced.
	if err := k.onTrial(); err != nil && !r.DryRun {
		return mgmt.Restored{}, k.refused(by, err)
	}
	q := mgmt.ConfigRequest{Text: r.Backup.Config, DryRun: true, Restart: true}
	applied, err := k.Apply(ctx, q, by)
	if err != nil {
		return mgmt.Restored{}, err
	}
	// The floor first: should the rest fail, it does no harm.
	raised, err := k.enc.Raise(ctx, floor, r.DryRun, by)
	if err != nil {
		return mgmt.Restored{}, err
	}
	out := mgmt.Restored{Changes: append(applied.Changes, raised...), DryRun: r.DryRun}
	if r.DryRun {
		return out, nil
	}
	q.DryRun = false
	if applied, err = k.Apply(ctx, q, by); err != nil {
		return mgmt.Restored{}, afterRaise(err, raised)
	}
	out.Restarting = applied.Restarting
	if len(out.Changes) == 0 {
		return out, nil // a repeat: there is nothing to tell
	}
	k.enc.Note(enclosure.Event{Kind: "restore", Text: fmt.Sprintf("backup of configuration %d restored as %d: %s", r.Backup.Version, applied.Version, few(out.Changes)), By: by})
	return out, nil
}

// afterRaise corrects what a refusal of the configuration says of the state,
// where the floor has been raised before it.
func afterRaise(err error, raised []string) error {
	const state = "generations and fences are raised as the backup says; the configuration is as before"
	if len(raised) == 0 {
		return err
	}
	if e, ok := errors.AsType[*enclosure.Error](err); ok && e.State == unchanged {
		told := *e
		told.State = state
		return &told
	}
	if p, ok := errors.AsType[*mgmt.Problem](err); ok && p.State == unchanged {
		told := *p
		told.State = state
		return &told
	}
	return err
}

// readBackup checks a backup before anything of it is used.
func (k *keeper) readBackup(b mgmt.Backup) (enclosure.Floor, error) {
	floor := enclosure.Floor{Slots: map[string]ee.Generation{}, Hosts: map[string]uint32{}}
	bad := func(format string, args ...any) error {
		return &enclosure.Error{Code: enclosure.CodeBadBackup, What: fmt.Sprintf(format, args...), State: unchanged, Next: "use a backup as 'baton backup' has written it, of this enclosure"}
	}
	own := k.now().config.Enclosure // by the configuration that is kept, as in Backup
	switch sum := b.Checksum(); {
	case b.Format != mgmt.BackupFormat:
		return floor, bad("the backup has format %d, and this agent reads %d", b.Format, mgmt.BackupFormat)
	case b.Sum != sum:
		return floor, bad("the backup was changed or cut short: its sum is %q, of what is there %s", clip(b.Sum), sum)
	case b.Enclosure != own:
		return floor, bad("the backup is of enclosure %s, and this is %s", clip(b.Enclosure), own)
	}
	c, err := config.Parse([]byte(b.Config), findProfile)
	if err != nil {
		return floor, badConfig(err)
	}
	if c.Enclosure != b.Enclosure {
		return floor, bad("the backup is of enclosure %s, and its configuration of %s", b.Enclosure, c.Enclosure)
	}
	for _, s := range b.Slots {
		gen, err := ee.ParseGeneration(s.Generation)
		if _, twice := floor.Slots[s.Name]; err != nil || twice || s.Name == "" {
			return floor, bad("slot %q with generation %q: %v", clip(s.Name), clip(s.Generation), orTwice(err))
		}
		floor.Slots[s.Name] = gen
	}
	for _, h := range b.Hosts {
		if _, twice := floor.Hosts[h.Name]; twice || h.Name == "" {
			return floor, bad("host %q: %v", clip(h.Name), errTwice)
		}
		floor.Hosts[h.Name] = h.Epoch
	}
	return floor, nil
}

var errTwice = errors.New("has no name, or is there twice")

func orTwice(err error) error {
	if err == nil {
		return errTwice
	}
	return err
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}
