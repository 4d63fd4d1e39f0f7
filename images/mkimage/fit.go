package main

import (
	"bytes"
	"compress/gzip"
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

	"baton/images/boards"
	"baton/images/fit"
	"baton/mgmt"
)

// fitFile is the name of the FIT image: what is written into a bank of flash.
const fitFile = "image.fit"

// fit makes the FIT image of what is in dir, signed where there is a key, and
// reads it back as the board will.
func (b *builder) fit(ctx context.Context, dir string) error {
	sources, err := os.MkdirTemp(dir, ".fit-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(sources) }()
	packed, compression, err := b.fitKernel()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(sources, "kernel"), packed, 0o644); err != nil {
		return err
	}
	version, err := buildVersion(ctx)
	if err != nil {
		return err
	}
	stamp, err := buildTime(ctx, b.pkg)
	if err != nil {
		return err
	}
	const its = "image.its"
	if err := os.WriteFile(filepath.Join(sources, its), b.fitSource(compression, version), 0o644); err != nil {
		return err
	}
	args := []string{"-f", its}
	if b.key != nil {
		// mkimage(1) takes a folder, and a name in it. The key stays where it is.
		if err := os.Symlink(b.key.file, filepath.Join(sources, keyName+".key")); err != nil {
			return err
		}
		args = append(args, "-k", ".")
	}
	c := exec.CommandContext(ctx, "mkimage", append(args, "../"+fitFile)...)
	c.Dir = sources
	c.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", stamp.Unix()))
	if text, err := c.CombinedOutput(); err != nil {
		complaint, _, _ := bytes.Cut(text, []byte("\nUsage:"))
		return fmt.Errorf("mkimage: %w\n%s", err, bytes.TrimSpace(complaint))
	}
	return b.checkFIT(filepath.Join(dir, fitFile))
}

// keyName is what a signature calls the key that it is by: what U-Boot's own
// device tree calls the public key, too.
const keyName = "baton"

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

// fitSource is the FIT image as a source that mkimage(1) reads, for a folder in
// that of the image's files.
func (b *builder) fitSource(compression, version string) []byte {
	arch := map[string]string{"amd64": "x86_64"}[b.board.GOARCH]
	if arch == "" {
		arch = b.board.GOARCH
	}
	var s bytes.Buffer
	part := func(name, file, kind, compression, more string) {
		fmt.Fprintf(&s, "\t\t%s {\n\t\t\tdata = /incbin/(\"%s\");\n\t\t\ttype = \"%s\";\n\t\t\tarch = \"%s\";\n\t\t\tcompression = \"%s\";\n%s\t\t\thash-1 { algo = \"sha256\"; };\n\t\t};\n",
			name, file, kind, arch, compression, more)
	}
	fmt.Fprintf(&s, "/dts-v1/;\n/ {\n\tdescription = \"Baton %s for %s\";\n\t#address-cells = <1>;\n\timages {\n", version, b.board.Name)
	part("kernel-1", "kernel", "kernel", compression,
		fmt.Sprintf("\t\t\tos = \"linux\";\n\t\t\tload = <%#x>;\n\t\t\tentry = <%#x>;\n", uint64(b.board.Kernel.Load), uint64(b.board.Kernel.Load)))
	names := []string{"kernel"}
	if b.board.Kernel.DTB != "" {
		part("fdt-1", "../"+boards.DTBFile, "flat_dt", "none", "")
		names = append(names, "fdt")
	}
	// The kernel unpacks it, so to the boot loader it is not compressed.
	part("ramdisk-1", "../"+boards.InitrdFile, "ramdisk", "none", "\t\t\tos = \"linux\";\n")
	names = append(names, "ramdisk")
	fmt.Fprintf(&s, "\t};\n\tconfigurations {\n\t\tdefault = \"conf-1\";\n\t\tconf-1 {\n\t\t\tdescription = \"Baton %s for %s\";\n\t\t\tbaton,board = \"%s\";\n\t\t\tbaton,version = \"%s\";\n",
		version, b.board.Name, b.board.Name, version)
	for _, n := range names {
		fmt.Fprintf(&s, "\t\t\t%s = \"%s-1\";\n", n, n)
	}
	if b.key != nil {
		fmt.Fprintf(&s, "\t\t\tsignature-1 {\n\t\t\t\talgo = \"sha256,rsa%d\";\n\t\t\t\tkey-name-hint = \"%s\";\n\t\t\t\tsign-images = \"%s\";\n\t\t\t};\n",
			b.key.public.N.BitLen(), keyName, strings.Join(names, `", "`))
	}
	s.WriteString("\t\t};\n\t};\n};\n")
	return s.Bytes()
}

// checkFIT reads the image as the board will. mkimage(1) is known to end well
// where it could not sign.
func (b *builder) checkFIT(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	i, err := fit.Parse(data)
	if err != nil {
		return fmt.Errorf("%s as mkimage made it: %w", fitFile, err)
	}
	if err := i.CheckBoard(b.board.Name); err != nil {
		return fmt.Errorf("%s as mkimage made it: %w", fitFile, err)
	}
	if b.key != nil {
		if err := i.Verify(b.key.public); err != nil {
			return fmt.Errorf("%s as mkimage made it: %w", fitFile, err)
		}
	}
	return checkBank(b.board, int64(len(data)))
}

// checkBank tells whether a FIT image of so many bytes fits into each bank.
func checkBank(b *boards.Board, size int64) error {
	if bank := b.BankSize(); bank != 0 && size > bank {
		return fmt.Errorf("%s has %d bytes, %s of the flash of %s has %d: %d too many",
			fitFile, size, boards.BankA, b.Name, bank, size-bank)
	}
	return nil
}

// signingKey is the user's.
type signingKey struct {
	file   string // absolute
	public *rsa.PublicKey
}

// readKey reads the private key that BATON_SIGN_KEY names.
func readKey(file string) (*signingKey, error) {
	fail := func(err error) (*signingKey, error) {
		return nil, fmt.Errorf("signing key %s: %w", file, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return fail(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return fail(errors.New("not PEM; make one: openssl genrsa -out KEY.pem 4096"))
	}
	var key any
	switch block.Type {
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	default:
		err = fmt.Errorf("a %s, want a PRIVATE KEY that no passphrase protects", block.Type)
	}
	if err != nil {
		return fail(err)
	}
	private, ok := key.(*rsa.PrivateKey)
	if !ok {
		return fail(errors.New("not an RSA key"))
	}
	switch bits := private.N.BitLen(); bits {
	case 2048, 3072, 4096:
	default:
		return fail(fmt.Errorf("%d bits, want 2048, 3072 or 4096", bits))
	}
	return &signingKey{abs, &private.PublicKey}, nil
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
