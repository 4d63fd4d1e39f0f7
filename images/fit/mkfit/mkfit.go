// Package mkfit makes FIT images by mkimage(1) of U-Boot's tools.
package mkfit

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"baton/images/fit"
)

// Spec says what goes into a FIT image.
type Spec struct {
	Board, Version string
	Arch           string // as U-Boot calls it: arm, arm64, x86_64
	Kernel         []byte
	Compression    string // of the kernel, that U-Boot is to unpack: none, gzip
	Load           uint32 // where U-Boot puts the kernel and starts it
	FDT            []byte // nil = none
	Ramdisk        []byte
	Time           time.Time // shows in the image
	Key            *Key      // nil = not signed
}

// KeyName is what a signature calls the key that it is by, and what the node
// of the public key in U-Boot's own device tree is called: key-baton.
const KeyName = "baton"

// Make makes the image, and reads it as the board will. The same Spec gives the
// same bytes.
func Make(ctx context.Context, s Spec) ([]byte, error) {
	dir, err := os.MkdirTemp("", "baton-fit-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if s.Compression == "" {
		s.Compression = "none"
	}
	for name, data := range map[string][]byte{"kernel": s.Kernel, "fdt": s.FDT, "ramdisk": s.Ramdisk, "image.its": s.source()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	args := []string{"-f", "image.its"}
	if s.Key != nil {
		// mkimage takes a folder, and a name in it. The key stays where it is.
		if err := os.Symlink(s.Key.file, filepath.Join(dir, KeyName+".key")); err != nil {
			return nil, err
		}
		args = append(args, "-k", ".")
	}
	c := exec.CommandContext(ctx, "mkimage", append(args, "image.fit")...)
	c.Dir = dir
	c.Env = append(os.Environ(), "LC_ALL=C", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", s.Time.Unix()))
	text, err := c.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("mkimage not found; on Debian: apt-get install --no-install-recommends u-boot-tools device-tree-compiler")
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(filepath.Join(dir, "image.fit"))
	}
	if err == nil {
		// mkimage ends well also where it could not sign.
		err = s.check(data)
	}
	if err != nil {
		complaint, _, _ := bytes.Cut(text, []byte("\nUsage:"))
		return nil, fmt.Errorf("mkimage: %w; it said:\n%s", err, bytes.TrimSpace(complaint))
	}
	return data, nil
}

// check tells whether data is what was asked for.
func (s Spec) check(data []byte) error {
	i, err := fit.Parse(data)
	if err != nil {
		return err
	}
	if err := i.CheckBoard(s.Board); err != nil {
		return err
	}
	if s.Key == nil {
		return nil
	}
	return i.Verify(s.Key.Public)
}

// source is the image as a source that mkimage reads.
func (s Spec) source() []byte {
	var b bytes.Buffer
	names := []string{}
	part := func(name, kind, compression string, more ...string) {
		names = append(names, name)
		fmt.Fprintf(&b, "\t\t%s-1 {\n\t\t\tdata = /incbin/(\"%s\");\n", name, name)
		for _, p := range append([]string{
			fmt.Sprintf("type = %q", kind),
			fmt.Sprintf("arch = %q", s.Arch),
			fmt.Sprintf("compression = %q", compression),
		}, more...) {
			fmt.Fprintf(&b, "\t\t\t%s;\n", p)
		}
		b.WriteString("\t\t\thash-1 { algo = \"sha256\"; };\n\t\t};\n")
	}
	description := fmt.Sprintf("description = %q;\n", fmt.Sprintf("Baton %s for %s", s.Version, s.Board))
	b.WriteString("/dts-v1/;\n/ {\n\t" + description + "\t#address-cells = <1>;\n\timages {\n")
	part("kernel", "kernel", s.Compression, `os = "linux"`, fmt.Sprintf("load = <%#x>", s.Load), fmt.Sprintf("entry = <%#x>", s.Load))
	if s.FDT != nil {
		part("fdt", "flat_dt", "none")
	}
	// The kernel unpacks it, so to the boot loader it is not compressed.
	part("ramdisk", "ramdisk", "none", `os = "linux"`)
	b.WriteString("\t};\n\tconfigurations {\n\t\tdefault = \"conf-1\";\n\t\tconf-1 {\n\t\t\t" + description)
	fmt.Fprintf(&b, "\t\t\tbaton,board = %q;\n\t\t\tbaton,version = %q;\n", s.Board, s.Version)
	for _, n := range names {
		fmt.Fprintf(&b, "\t\t\t%s = \"%s-1\";\n", n, n)
	}
	if s.Key != nil {
		fmt.Fprintf(&b, "\t\t\tsignature-1 {\n\t\t\t\talgo = \"sha256,rsa%d\";\n\t\t\t\tkey-name-hint = %q;\n\t\t\t\tsign-images = \"%s\";\n\t\t\t};\n",
			s.Key.Public.N.BitLen(), KeyName, strings.Join(names, `", "`))
	}
	b.WriteString("\t\t};\n\t};\n};\n")
	return b.Bytes()
}

// Key is a key that signs.
type Key struct {
	Public *rsa.PublicKey
	file   string // absolute
}

// ReadKey reads a private RSA key in PEM. The file is what mkimage will read.
func ReadKey(file string) (*Key, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	public, err := publicOf(text)
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w", file, err)
	}
	file, err = filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	return &Key{public, file}, nil
}

func publicOf(text []byte) (*rsa.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("not PEM; make one: openssl genrsa -out KEY.pem 4096")
	}
	var key any
	var err error
	switch block.Type {
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	default:
		err = fmt.Errorf("a %s, want a PRIVATE KEY that no passphrase protects", block.Type)
	}
	if err != nil {
		return nil, err
	}
	private, ok := key.(*rsa.PrivateKey)
	if !ok {
		return nil, errors.New("not an RSA key")
	}
	switch bits := private.N.BitLen(); bits {
	case 2048, 3072, 4096: // that U-Boot knows and are long enough
		return &private.PublicKey, nil
	default:
		return nil, fmt.Errorf("%d bits, want 2048, 3072 or 4096", bits)
	}
}
