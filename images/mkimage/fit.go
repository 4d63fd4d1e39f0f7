package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"baton/images/boards"
	"baton/images/fit/mkfit"
	"baton/mgmt"
)

// fitFile is the name of the FIT image: what is written into a bank of flash.
const fitFile = "image.fit"

// fit makes the FIT image of what is in dir, signed where there is a key.
func (b *builder) fit(ctx context.Context, dir string) error {
	s := mkfit.Spec{
		Board: b.board.Name,
		Arch:  b.board.GOARCH,
		Load:  uint32(b.board.Kernel.Load),
		Key:   b.key,
	}
	if s.Arch == "amd64" {
		s.Arch = "x86_64"
	}
	var err error
	if s.Version, err = buildVersion(ctx); err != nil {
		return err
	}
	if s.Time, err = buildTime(ctx, b.pkg); err != nil {
		return err
	}
	if s.Kernel, s.Compression, err = b.fitKernel(); err != nil {
		return err
	}
	if b.board.Kernel.DTB != "" {
		if s.FDT, err = os.ReadFile(filepath.Join(dir, boards.DTBFile)); err != nil {
			return err
		}
	}
	if s.Ramdisk, err = os.ReadFile(filepath.Join(dir, boards.InitrdFile)); err != nil {
		return err
	}
	data, err := mkfit.Make(ctx, s)
	if err != nil {
		return fmt.Errorf("%s: %w", fitFile, err)
	}
	if err := checkBank(b.board, int64(len(data))); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, fitFile), data, 0o644)
}

// fitKernel is the kernel as the boot loader takes it, and how it is compressed.
// What unpacks itself is left as it is.
func (b *builder) fitKernel() (data []byte, compression string, err error) {
	data, err = b.pkg.Kernel()
	if err != nil || b.board.GOARCH != "arm64" {
		return data, "none", err
	}
	var z bytes.Buffer
	w, err := gzip.NewWriterLevel(&z, gzip.BestCompression)
	if err != nil {
		return nil, "", err
	}
	if _, err := w.Write(data); err != nil {
		return nil, "", err
	}
	return z.Bytes(), "gzip", w.Close()
}

// checkBank tells whether a FIT image of so many bytes fits into each bank.
func checkBank(b *boards.Board, size int64) error {
	if bank := b.BankSize(); bank != 0 && size > bank {
		return fmt.Errorf("%s has %d bytes, %s of the flash of %s has %d: %d too many",
			fitFile, size, boards.BankA, b.Name, bank, size-bank)
	}
	return nil
}

// buildVersion is the version of the source: that of the agent, and the commit
// where there is one.
func buildVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return mgmt.Version, nil // a source tree without git
	}
	return mgmt.Version + "-g" + strings.TrimSpace(string(out)), nil
}
