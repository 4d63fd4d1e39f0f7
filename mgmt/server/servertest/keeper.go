package servertest

import (
	"context"
	"sync"

	"baton/mgmt"
)

// Keeper is a configuration that nobody uses: what is applied is shown, and
// asked for.
type Keeper struct {
	mu       sync.Mutex
	config   mgmt.Config
	restarts []string
}

// NewKeeper returns one for the VMs of a Fake.
func NewKeeper() *Keeper {
	return &Keeper{config: mgmt.Config{Version: 3, Where: "store", Text: "{}\n"}}
}

// Config is that of server.Keeper.
func (k *Keeper) Config() mgmt.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.config
}

// VMs is that of server.Keeper.
func (k *Keeper) VMs() []mgmt.VM {
	return []mgmt.VM{
		{Name: "train1", Hosts: []string{"server1", "server2"}, Slots: []string{"gpu0", "gpu1", "nic0"}, Policy: "always"},
		{Name: "train2", Hosts: []string{"server1"}, Slots: []string{"gpu2"}, Policy: "on-move"},
	}
}

// Warnings is that of server.Keeper.
func (k *Keeper) Warnings() []string { return nil }

// Apply is that of server.Keeper.
func (k *Keeper) Apply(_ context.Context, r mgmt.ConfigRequest, _ string) (mgmt.ConfigApplied, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := mgmt.ConfigApplied{Version: k.config.Version, Changes: []string{"the text"}, Restart: []string{}, DryRun: r.DryRun}
	if !r.DryRun {
		k.config.Version++
		k.config.Text = r.Text
		a.Version = k.config.Version
	}
	return a, nil
}

// Confirm is that of server.Keeper.
func (k *Keeper) Confirm(context.Context, string) (mgmt.Config, error) { return k.Config(), nil }

// Revert is that of server.Keeper.
func (k *Keeper) Revert(context.Context, string) (mgmt.Config, error) { return k.Config(), nil }

// Backup is that of server.Keeper.
func (k *Keeper) Backup(context.Context) (mgmt.Backup, error) {
	c := k.Config()
	return mgmt.Backup{Format: mgmt.BackupFormat, Enclosure: "rack7-io2", Incarnation: "9f3c2a10", Version: c.Version, Config: c.Text, Slots: []mgmt.BackupSlot{}, Hosts: []mgmt.BackupHost{}}, nil
}

// Restore is that of server.Keeper.
func (k *Keeper) Restore(_ context.Context, r mgmt.RestoreRequest, _ string) (mgmt.Restored, error) {
	return mgmt.Restored{Changes: []string{}, DryRun: r.DryRun}, nil
}

// Restart is that of server.Keeper.
func (k *Keeper) Restart(why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.restarts = append(k.restarts, why)
}
