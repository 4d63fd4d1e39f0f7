package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"baton/images/boards"
	"baton/images/fit/mkfit"
	"baton/images/kernel"
	"baton/images/rootfs"
)

// builder makes the files of one board.
type builder struct {
	board   *boards.Board
	kernels string // folder
	update  bool
	key     *mkfit.Key // nil = the FIT image is not signed

	pkg     *kernel.Package
	modules []kernel.Module
}

// build leaves everything in out, or nothing new: the files are made beside it
// and move in when all of them are there.
func (b *builder) build(ctx context.Context, out string, report io.Writer) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), ".mkimage-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}

	k := b.board.Kernel
	if b.pkg, err = kernel.Fetch(ctx, b.kernels, k.Arch, k.Package, b.update); err != nil {
		return err
	}
	fmt.Fprintf(report, "%s: kernel %s %s\n", b.board.Name, b.pkg.Name, b.pkg.Version)
	if err := b.kernel(ctx, filepath.Join(work, b.board.KernelFile())); err != nil {
		return err
	}
	if k.DTB != "" {
		if err := b.dtb(ctx, filepath.Join(work, boards.DTBFile)); err != nil {
			return err
		}
	}
	bb := filepath.Join(work, "bb")
	if err := b.busybox().Build(ctx, bb); err != nil {
		return err
	}
	initramfs := filepath.Join(work, "initramfs.cpio")
	if err := b.initramfs(ctx, initramfs, bb); err != nil {
		return err
	}
	if err := rootfs.Compress(ctx, initramfs, b.board.XZ); err != nil {
		return err
	}
	if err := b.fit(ctx, work); err != nil {
		return err
	}
	if err := b.manifest(work); err != nil {
		return err
	}
	if err := b.sizes(work, report); err != nil {
		return err
	}
	return replace(out, work)
}

// replace puts the folder work in the place of the folder out.
func replace(out, work string) error {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	return os.Rename(work, out)
}

// kernel writes the kernel as QEMU takes it.
func (b *builder) kernel(ctx context.Context, file string) error {
	packed, err := b.pkg.Kernel()
	if err != nil {
		return err
	}
	if b.board.GOARCH != "arm" {
		return os.WriteFile(file, packed, 0o644)
	}
	image, err := kernel.UnpackZImage(ctx, packed)
	if err != nil {
		return err
	}
	return image.WriteUImage(file, uint32(b.board.Kernel.RAM))
}

func (b *builder) dtb(ctx context.Context, file string) error {
	data, err := b.pkg.DTB(b.board.Kernel.DTB)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return err
	}
	for _, e := range append(b.board.Kernel.DTBEdits, b.board.FlashEdits()...) {
		if e.Remove {
			if err := kernel.RemoveNode(ctx, file, e.Node); err != nil {
				return err
			}
		}
		if e.Create {
			if err := kernel.CreateNode(ctx, file, e.Node); err != nil {
				return err
			}
		}
		if e.Property != "" {
			if err := kernel.SetProperty(ctx, file, e.Node, e.Property, e.Type, e.Values...); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *builder) busybox() rootfs.Busybox {
	return rootfs.Busybox{
		GOARCH:   b.board.GOARCH,
		GOARM:    b.board.GOARM,
		Tags:     b.board.Tags,
		Commands: b.board.Commands,
	}
}

// initramfs writes the root file system. init (images/init) knows the names
// used here.
func (b *builder) initramfs(ctx context.Context, file, bb string) error {
	a := rootfs.New()

	data, err := os.ReadFile(bb)
	if err != nil {
		return err
	}
	a.AddFile("bbin/bb", data, 0o755)
	for _, name := range b.busybox().Names() {
		a.AddSymlink("bbin/"+name, "bb")
	}
	a.AddSymlink("init", "bbin/init")
	a.AddSymlink("bin/sh", "/bbin/gosh")

	if err := b.addModules(ctx, a); err != nil {
		return err
	}

	floor, err := buildTime(ctx, b.pkg)
	if err != nil {
		return err
	}
	a.AddFile("etc/clock-floor", fmt.Appendln(nil, floor.Unix()), 0o644)
	a.AddFile("etc/board", fmt.Appendln(nil, b.board.Name), 0o644)

	for to, from := range b.board.Files {
		data, err := b.board.ReadFile(from)
		if err != nil {
			return err
		}
		a.AddFile(to, data, 0o644)
	}

	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := a.WriteTo(f); err != nil {
		return err
	}
	return f.Close()
}

// addModules adds the modules, and the lists that say in which order they are
// loaded: /etc/modules before batond is started, /etc/modules.late after.
func (b *builder) addModules(ctx context.Context, a *rootfs.Archive) error {
	var names []string
	params := map[string]string{}
	for _, late := range []bool{false, true} {
		for _, m := range b.board.Modules {
			if m.Late == late {
				names = append(names, m.Name)
				params[m.Name] = m.Params
			}
		}
		modules, err := b.pkg.Modules(ctx, names)
		if err != nil {
			return err
		}
		var list strings.Builder
		for _, m := range modules[len(b.modules):] {
			a.AddFile("lib/modules/"+m.Name+".ko", m.Data, 0o644)
			fmt.Fprintln(&list, strings.TrimSpace(m.Name+" "+params[m.Name]))
		}
		file := "etc/modules"
		if late {
			file = "etc/modules.late"
		}
		a.AddFile(file, []byte(list.String()), 0o644)
		b.modules = modules
	}
	return nil
}

// manifest notes what the image was made of, and the sums of its files.
func (b *builder) manifest(dir string) error {
	m := struct {
		Board   string            `json:"board"`
		Kernel  *kernel.Package   `json:"kernel"`
		Modules []string          `json:"modules"`
		Cmdline string            `json:"cmdline"`
		SHA256  map[string]string `json:"sha256"`
	}{b.board.Name, b.pkg, nil, b.board.KernelCmdline(), map[string]string{}}
	for _, mod := range b.modules {
		m.Modules = append(m.Modules, mod.Name)
	}
	for _, name := range append(b.board.BootFiles(), fitFile) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		m.SHA256[name] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	text, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), append(text, '\n'), 0o644)
}

func (b *builder) sizes(dir string, report io.Writer) error {
	modules := 0
	for _, m := range b.modules {
		modules += len(m.Data)
	}
	fmt.Fprintf(report, "  %-18s %10d bytes, %d of them\n", "(modules)", modules, len(b.modules))
	for _, name := range append([]string{"bb", "initramfs.cpio"}, b.board.BootFiles()...) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(report, "  %-18s %10d bytes\n", name, info.Size())
	}
	info, err := os.Stat(filepath.Join(dir, fitFile))
	if err != nil {
		return err
	}
	room := ""
	if bank := b.board.BankSize(); bank != 0 {
		room = fmt.Sprintf(", %d%% of a bank of %d", 100*info.Size()/bank, bank)
	}
	signed := "NOT SIGNED: BATON_SIGN_KEY=KEY.pem signs it"
	if b.key != nil {
		signed = "signed"
	}
	fmt.Fprintf(report, "  %-18s %10d bytes%s; %s\n", fitFile, info.Size(), room, signed)
	return nil
}
