package kernel

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Module is a kernel module as the kernel takes it: not compressed.
type Module struct {
	Name string // as the file is called: i2c-dev
	Data []byte
}

// Modules reads the modules named and all that they depend on, each after
// what it depends on and otherwise in the order named. What is built into the
// kernel is left out. Everything that is missing is reported at once.
func (p *Package) Modules(ctx context.Context, names []string) ([]Module, error) {
	dir := filepath.Join(p.Dir, "lib", "modules", p.Release)
	files, err := moduleFiles(dir)
	if err != nil {
		return nil, err
	}
	builtin, err := builtinModules(dir)
	if err != nil {
		return nil, err
	}
	var out []Module
	var errs []error
	done := map[string]bool{}
	var add func(name, why string)
	add = func(name, why string) {
		key := moduleKey(name)
		if done[key] || builtin[key] {
			return
		}
		done[key] = true // before its dependencies: a circle must end
		file, ok := files[key]
		if !ok {
			errs = append(errs, fmt.Errorf("kernel %s has no module %s%s", p.Release, name, why))
			return
		}
		data, err := readModule(ctx, file)
		if err != nil {
			errs = append(errs, err)
			return
		}
		deps, err := dependencies(data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			return
		}
		for _, d := range deps {
			add(d, ", which "+name+" depends on")
		}
		base, _, _ := strings.Cut(filepath.Base(file), ".ko")
		out = append(out, Module{Name: base, Data: data})
	}
	for _, n := range names {
		add(n, "")
	}
	return out, errors.Join(errs...)
}

// moduleKey is the name under which the kernel knows a module: a file may be
// called i2c-dev, its module is i2c_dev.
func moduleKey(name string) string { return strings.ReplaceAll(name, "-", "_") }

func moduleFiles(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base, _, ok := strings.Cut(d.Name(), ".ko"); ok && d.Type().IsRegular() {
			files[moduleKey(base)] = path
		}
		return nil
	})
	return files, err
}

func builtinModules(dir string) (map[string]bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		base, _, _ := strings.Cut(filepath.Base(line), ".ko")
		names[moduleKey(base)] = true
	}
	return names, nil
}

func readModule(ctx context.Context, file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(file) {
	case ".ko":
		return data, nil
	case ".xz": // Debian 13 and later
		data, err = unxz(ctx, data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return data, nil
	default:
		return nil, fmt.Errorf("%s: compressed in a way this builder does not know", file)
	}
}

// dependencies reads them from the module itself, where the kernel's build
// has noted them; so no depmod(8) is needed.
func dependencies(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("not a kernel module: no section .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
