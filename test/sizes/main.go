// Command sizes prints which packages take the room in Go binaries that were
// built with symbols, or, of stripped ones, only their size and modules.
package main

import (
	"cmp"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	for _, path := range os.Args[1:] {
		if err := report(path); err != nil {
			fmt.Fprintln(os.Stderr, "sizes:", err)
			os.Exit(1)
		}
	}
}

func report(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes\n", path, st.Size())
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	for _, d := range info.Deps {
		fmt.Printf("  module %s %s\n", d.Path, d.Version)
	}
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, s := range f.Sections {
		if s.Flags&elf.SHF_ALLOC != 0 && s.Type != elf.SHT_NOBITS && s.Size > 16<<10 {
			fmt.Printf("  section %-14s %9d bytes\n", s.Name, s.Size)
		}
	}
	syms, err := f.Symbols()
	if err != nil {
		return nil // stripped
	}
	by := map[string]uint64{}
	for _, s := range syms {
		pkg := s.Name
		if i := strings.LastIndexByte(pkg, '/'); i >= 0 {
			if j := strings.IndexByte(pkg[i:], '.'); j >= 0 {
				pkg = pkg[:i+j]
			}
		} else if j := strings.IndexByte(pkg, '.'); j >= 0 {
			pkg = pkg[:j]
		}
		by[pkg] += s.Size
	}
	pkgs := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Compare(by[b], by[a]) })
	for _, p := range pkgs[:min(20, len(pkgs))] {
		fmt.Printf("  package %-40s %9d bytes\n", p, by[p])
	}
	return nil
}
