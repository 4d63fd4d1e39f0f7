package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/config"
	"baton/mgmt/server"
	"baton/nvm"
)

// serve runs the agent until ctx ends. A bus, a chip or a store that can not
// be used does not end it: its status says so.
func serve(ctx context.Context, c *config.Config, log *slog.Logger) (err error) {
	dir, err := openRunDir(c)
	if err != nil {
		return err
	}
	defer dir.close()

	hw := openHardware(c, log)
	defer func() { err = errors.Join(err, hw.close()) }()

	enc, err := enclosure.Open(ctx, hw.config, enclosure.Options{SameBoot: dir.sameBoot, Log: log})
	if ctx.Err() != nil {
		return nil // stopped before it was ready; recovery is done again at the next start
	}
	if err != nil {
		return fmt.Errorf("open enclosure: %w", err)
	}
	if enc.Status(ctx).Store.OK {
		if err := dir.mark(); err != nil {
			log.Warn("the next start takes this one's power for lost, and rewrites what it reads", "err", err)
		}
	} else {
		hw.explainStore(ctx)
	}

	l, err := listen(c.Socket, log)
	if err != nil {
		return err
	}
	srv := server.New(enc, server.Options{
		Agent: mgmt.Version, Keeper: fixed{c, hw}, AdminUID: uint32(os.Geteuid()), Log: log,
	})
	notifier := startNotifier(enc, log)
	defer notifier.stop()
	log.Info("ready", "enclosure", c.Enclosure, "socket", c.Socket, "version", mgmt.Version, "simulated", c.Simulated, "same_boot", dir.sameBoot)

	// The poller goes on while the server lets operations end; whichever ends
	// by itself ends the other.
	serving, endServing := context.WithCancel(ctx)
	defer endServing()
	polling, endPolling := context.WithCancel(context.WithoutCancel(ctx))
	defer endPolling()
	polled := make(chan error, 1)
	go func() {
		defer endServing()
		polled <- enc.Run(polling)
	}()
	served := srv.Serve(serving, l)
	endPolling()
	ran := <-polled
	if errors.Is(ran, context.Canceled) {
		ran = nil
	}
	log.Info("stopped", "by", stoppedBy(ctx, served, ran))
	return errors.Join(served, ran)
}

func stoppedBy(ctx context.Context, served, ran error) string {
	switch {
	case served != nil || ran != nil:
		return "an error"
	case ctx.Err() != nil:
		return "signal"
	}
	return "nobody"
}

func wireVMs(c *config.Config) []mgmt.VM {
	vms := make([]mgmt.VM, 0, len(c.VMs))
	for _, v := range c.VMs {
		vms = append(vms, mgmt.VM{Name: v.Name, UUID: v.UUID.String(), Hosts: v.Hosts, Slots: v.Slots, Policy: v.Policy})
	}
	return vms
}

// explainStore looks, by reads alone, what chip there is where the store can
// not be used, and warns if it is not the configured one.
func (h *hardware) explainStore(ctx context.Context) {
	chip, ok := h.config.Store.Medium.(*nvm.EEPROM)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if found, err := chip.Identify(ctx); err != nil {
		h.warnings = append(h.warnings, fmt.Sprintf("store: the chip at %s: %v; found %s", h.config.Store.Name, err, found))
	}
}

// fixed is a configuration that is read once.
type fixed struct {
	c  *config.Config
	hw *hardware
}

func (f fixed) Config() mgmt.Config { return mgmt.Config{} }
func (f fixed) VMs() []mgmt.VM      { return wireVMs(f.c) }
func (f fixed) Warnings() []string  { return f.hw.warnings }
func (f fixed) Apply(context.Context, mgmt.ConfigRequest, string) (mgmt.ConfigApplied, error) {
	return mgmt.ConfigApplied{}, errors.ErrUnsupported
}
func (f fixed) Confirm(context.Context, string) (mgmt.Config, error) {
	return mgmt.Config{}, errors.ErrUnsupported
}
func (f fixed) Revert(context.Context, string) (mgmt.Config, error) {
	return mgmt.Config{}, errors.ErrUnsupported
}
func (f fixed) Backup(context.Context) (mgmt.Backup, error) {
	return mgmt.Backup{}, errors.ErrUnsupported
}
func (f fixed) Restore(context.Context, mgmt.RestoreRequest, string) (mgmt.Restored, error) {
	return mgmt.Restored{}, errors.ErrUnsupported
}
func (f fixed) Restart(string) {}
