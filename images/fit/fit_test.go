package fit_test

import (
	"bytes"
	"context"
	"crypto/rsa"
	"encoding/binary"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"baton/images/fit"
	"baton/images/fit/mkfit"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata anew with a new key")

// spec is a small image.
func spec() mkfit.Spec {
	return mkfit.Spec{
		Board: "ast2600-evb", Version: "0.1.0", Arch: "arm",
		Kernel: []byte("a kernel"), Load: 0x80001000,
		FDT: []byte("a device tree"), Ramdisk: []byte("a root file system"),
		Time: time.Unix(1_000_000_000, 0),
	}
}

func makeFIT(t *testing.T, s mkfit.Spec) []byte {
	t.Helper()
	data, err := mkfit.Make(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// newKey makes a key as docs/board.md says.
func newKey(t *testing.T, bits string) *mkfit.Key {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key.pem")
	if out, err := exec.Command("openssl", "genrsa", "-out", file, bits).CombinedOutput(); err != nil {
		t.Fatalf("openssl: %v\n%s\non Debian: apt-get install --no-install-recommends openssl", err, out)
	}
	k, err := mkfit.ReadKey(file)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// golden is an image that mkimage 2023.01 has signed, and the public key.
func golden(t testing.TB) ([]byte, *rsa.PublicKey) {
	t.Helper()
	data, err := os.ReadFile("testdata/signed.fit")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/public.pem")
	if err != nil {
		t.Fatal(err)
	}
	key, err := fit.ParseKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return data, key
}

func TestUpdateGolden(t *testing.T) {
	if !*update {
		if _, err := os.Stat("testdata/signed.fit"); err != nil {
			t.Error(err)
		}
		return
	}
	file := filepath.Join(t.TempDir(), "key.pem")
	for _, args := range [][]string{{"genrsa", "-out", file, "2048"}, {"pkey", "-in", file, "-pubout", "-out", "testdata/public.pem"}} {
		if out, err := exec.Command("openssl", args...).CombinedOutput(); err != nil {
			t.Fatalf("openssl: %v\n%s", err, out)
		}
	}
	key, err := mkfit.ReadKey(file)
	if err != nil {
		t.Fatal(err)
	}
	s := spec()
	s.Key = key
	if err := os.WriteFile("testdata/signed.fit", makeFIT(t, s), 0o644); err != nil {
		t.Fatal(err)
	}
}

// content is what can be taken from an image.
type content struct {
	Board, Version, Description string
	Kernel, FDT, Ramdisk        fit.Part
}

func contentOf(i *fit.Image) content {
	c := content{Board: i.Board, Version: i.Version, Description: i.Description, Kernel: *i.Kernel, Ramdisk: *i.Ramdisk}
	if i.FDT != nil {
		c.FDT = *i.FDT
	}
	return c
}

func TestGolden(t *testing.T) {
	data, key := golden(t)
	behind := bytes.Repeat([]byte{0xff}, 100) // as in a bank of flash
	i, err := fit.Parse(append(data, behind...))
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Verify(key); err != nil {
		t.Error(err)
	}
	if i.Size != len(data) {
		t.Errorf("size = %d; want %d", i.Size, len(data))
	}
	want := content{
		Board: "ast2600-evb", Version: "0.1.0", Description: "Baton 0.1.0 for ast2600-evb",
		Kernel:  fit.Part{Name: "kernel-1", Type: "kernel", Arch: "arm", Compression: "none", Load: 0x80001000, Entry: 0x80001000, Data: []byte("a kernel")},
		FDT:     fit.Part{Name: "fdt-1", Type: "flat_dt", Arch: "arm", Compression: "none", Data: []byte("a device tree")},
		Ramdisk: fit.Part{Name: "ramdisk-1", Type: "ramdisk", Arch: "arm", Compression: "none", Data: []byte("a root file system")},
	}
	if diff := cmp.Diff(want, contentOf(i)); diff != "" {
		t.Errorf("image, -want +got:\n%s", diff)
	}
}

// TestMkimage: what the mkimage of this machine makes is read, in all kinds.
func TestMkimage(t *testing.T) {
	key, long, other := newKey(t, "2048"), newKey(t, "4096"), newKey(t, "2048")
	for _, tt := range []struct {
		name   string
		change func(*mkfit.Spec)
		keys   []*rsa.PublicKey
		want   error
	}{
		{"not signed", func(*mkfit.Spec) {}, []*rsa.PublicKey{key.Public}, fit.ErrUnsigned},
		{"signed", func(s *mkfit.Spec) { s.Key = key }, []*rsa.PublicKey{key.Public}, nil},
		{"signed, 4096 bits", func(s *mkfit.Spec) { s.Key = long }, []*rsa.PublicKey{long.Public}, nil},
		{"one of two keys", func(s *mkfit.Spec) { s.Key = key }, []*rsa.PublicKey{other.Public, key.Public}, nil},
		{"another key", func(s *mkfit.Spec) { s.Key = key }, []*rsa.PublicKey{other.Public, long.Public}, fit.ErrSignature},
		{"no key", func(s *mkfit.Spec) { s.Key = key }, nil, fit.ErrSignature},
		{"no device tree", func(s *mkfit.Spec) { s.Key, s.FDT = key, nil }, []*rsa.PublicKey{key.Public}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := spec()
			tt.change(&s)
			data := makeFIT(t, s)
			if !bytes.Equal(data, makeFIT(t, s)) {
				t.Error("made twice, the image has two contents")
			}
			i, err := fit.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			if (s.FDT == nil) != (i.FDT == nil) {
				t.Errorf("FDT = %v", i.FDT)
			}
			if err := i.Verify(tt.keys...); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("Verify = %v; want %v", err, tt.want)
			}
		})
	}
}

// TestUBootKey does what docs/board.md says of U-Boot's own device tree. An
// image that has been signed again like this is still one.
func TestUBootKey(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		c := exec.Command(args[0], args[1:]...)
		c.Dir = dir
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s\non Debian: apt-get install --no-install-recommends openssl u-boot-tools device-tree-compiler", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("mkdir", "keys")
	run("openssl", "genrsa", "-out", "keys/baton.key", "2048")
	run("openssl", "req", "-new", "-x509", "-key", "keys/baton.key", "-subj", "/CN=baton", "-out", "keys/baton.crt")
	key, err := mkfit.ReadKey(filepath.Join(dir, "keys/baton.key"))
	if err != nil {
		t.Fatal(err)
	}
	s := spec()
	s.Key = key
	file := filepath.Join(dir, "image.fit")
	if err := os.WriteFile(file, makeFIT(t, s), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "u-boot.dts"), []byte("/dts-v1/;\n/ { };\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run("dtc", "-O", "dtb", "-o", "u-boot.dtb", "u-boot.dts")
	run("mkimage", "-F", "-k", "keys", "-K", "u-boot.dtb", "-r", "image.fit")
	if got := run("fdtget", "u-boot.dtb", "/signature/key-baton", "required"); got != "conf\n" {
		t.Errorf("the key in U-Boot's device tree is required for %q; want conf", got)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	i, err := fit.Parse(data)
	if err == nil {
		err = i.Verify(key.Public)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestEveryBit flips each bit of a signed image: it is refused, or nothing that
// is taken from it has changed.
func TestEveryBit(t *testing.T) {
	data, key := golden(t)
	i, err := fit.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	want := contentOf(i)
	refused, same := 0, 0
	for at := range data {
		for bit := range 8 {
			bad := bytes.Clone(data)
			bad[at] ^= 1 << bit
			i, err := fit.Parse(bad)
			if err == nil {
				err = i.Verify(key)
			}
			if err != nil {
				refused++
				continue
			}
			same++
			if diff := cmp.Diff(want, contentOf(i)); diff != "" {
				t.Fatalf("bit %d of byte %d of %d: accepted, -want +got:\n%s", bit, at, len(data), diff)
			}
		}
	}
	// What is not covered are mostly the properties of the signature itself.
	if same > refused/3 {
		t.Errorf("%d flips refused, %d without effect", refused, same)
	}
	t.Logf("%d flips refused, %d without effect", refused, same)
}

// TestEveryLength: a truncated image is named so, at any length.
func TestEveryLength(t *testing.T) {
	data, _ := golden(t)
	for n := range data {
		want := fit.ErrTruncated
		if n < 8 {
			want = fit.ErrNotFIT
		}
		if _, err := fit.Parse(data[:n]); !errors.Is(err, want) {
			t.Fatalf("Parse of %d bytes of %d: %v; want %v", n, len(data), err, want)
		}
	}
}

// nodeAt is where the node called name begins in data.
func nodeAt(data []byte, name string) int {
	at := bytes.Index(data, append(cells(1), name+"\x00"...))
	if at < 0 {
		panic(name)
	}
	return at
}

// nodeOf is the node called name.
func nodeOf(data []byte, name string) []byte {
	at, depth := nodeAt(data, name), 0
	for end := at; ; {
		switch binary.BigEndian.Uint32(data[end:]) {
		case 1:
			depth++
			end += 4 + (bytes.IndexByte(data[end+4:], 0)+4)&^3
		case 2:
			end += 4
			if depth--; depth == 0 {
				return bytes.Clone(data[at:end])
			}
		case 3:
			end += 12 + (int(binary.BigEndian.Uint32(data[end+4:]))+3)&^3
		}
	}
}

func cells(c ...uint32) (p []byte) {
	for _, v := range c {
		p = binary.BigEndian.AppendUint32(p, v)
	}
	return p
}

// numbered are n nodes.
func numbered(n uint32) (p []byte) {
	for i := range n {
		p = append(p, cells(1, 'a'<<24|('a'+i/26)<<16|('a'+i%26)<<8, 2)...)
	}
	return p
}

// insert puts tags into the structure block.
func insert(data []byte, at int, tags []byte) []byte {
	out := slices.Concat(data[:at], tags, data[at:])
	for _, field := range []int{4, 12, 36} { // size, start of strings, size of structure
		binary.BigEndian.PutUint32(out[field:], binary.BigEndian.Uint32(out[field:])+uint32(len(tags)))
	}
	return out
}

func TestBadImages(t *testing.T) {
	data, key := golden(t)
	change := func(old, new string) []byte {
		if len(old) != len(new) || bytes.Count(data, []byte(old)) == 0 {
			t.Fatalf("%q cannot be changed to %q", old, new)
		}
		return bytes.ReplaceAll(data, []byte(old), []byte(new))
	}
	word := func(at int, v uint32) []byte {
		bad := bytes.Clone(data)
		binary.BigEndian.PutUint32(bad[at:], v)
		return bad
	}
	for _, tt := range []struct {
		name string
		data []byte
		want error
		text string
	}{
		{"nothing", nil, fit.ErrNotFIT, ""},
		{"blank flash", bytes.Repeat([]byte{0xff}, 4096), fit.ErrNotFIT, ""},
		{"a kernel", append([]byte("\x00\x00\xa0\xe1"), make([]byte, 60)...), fit.ErrNotFIT, ""},
		{"a device tree", change("configurations\x00", "configuratiows\x00"), fit.ErrNotFIT, "without /images and"},
		{"huge", word(4, 0xffffffff), fit.ErrNotFIT, "size of 4294967295"},
		{"tiny", word(4, 12), fit.ErrNotFIT, "size of 12"},
		{"longer than it is", word(4, uint32(len(data)+1)), fit.ErrTruncated, ""},
		{"another format", word(24, 18), fit.ErrMalformed, "readable as 18"},
		{"structure outside", word(8, 0xfffffff0), fit.ErrMalformed, "structure"},
		{"strings outside", word(32, 0xfffffff0), fit.ErrMalformed, "strings"},
		{"structure in the header", word(8, 4), fit.ErrMalformed, "structure"},
		{"kernel changed", change("a kernel", "a Kernel"), fit.ErrHash, "kernel-1"},
		{"device tree changed", change("a device tree", "A device tree"), fit.ErrHash, "fdt-1"},
		{"root file system changed", change("a root file", "a Root file"), fit.ErrHash, "ramdisk-1"},
		{"board changed", change("ast2600-evb\x00", "ast2500-evb\x00"), fit.ErrSignature, ""},
		{"property twice", change("load\x00", "type\x00"), fit.ErrMalformed, "two properties type"},
		{"node twice", insert(data, nodeAt(data, "fdt-1"), nodeOf(data, "fdt-1")), fit.ErrMalformed, "two nodes fdt-1"},
		{"configuration twice", insert(data, nodeAt(data, "conf-1"), bytes.Replace(nodeOf(data, "conf-1"), []byte("conf-1"), []byte("conf-2"), 1)), fit.ErrMalformed, "2 configurations"},
		{"node more", insert(data, nodeAt(data, "fdt-1"), bytes.Replace(nodeOf(data, "fdt-1"), []byte("fdt-1"), []byte("fdt-2"), 1)), nil, ""},
		{"node more in what is signed", insert(data, nodeAt(data, "signature-1"), cells(1, 'x'<<24, 2)), fit.ErrSignature, ""},
		{"NOP in what is signed", insert(data, nodeAt(data, "signature-1"), cells(4)), fit.ErrSignature, ""},
		{"deep", insert(data, nodeAt(data, "fdt-1"), slices.Concat(bytes.Repeat(cells(1, 'x'<<24), 20), bytes.Repeat(cells(2), 20))), fit.ErrMalformed, "deep"},
		{"many nodes", insert(data, nodeAt(data, "fdt-1"), numbered(200)), fit.ErrMalformed, "over 128 nodes"},
		{"many NOPs", insert(data, nodeAt(data, "fdt-1"), bytes.Repeat(cells(4), 10000)), fit.ErrMalformed, "tags"},
		{"end without a node", insert(data, nodeAt(data, "images"), cells(2, 2)), fit.ErrMalformed, ""},
		{"tag unknown", insert(data, nodeAt(data, "images"), cells(7)), fit.ErrMalformed, "tag 0x7"},
		{"name with an @", change("fdt-1", "fdt@1"), fit.ErrMalformed, "fdt@1"},
		{"weaker hash", change("sha256\x00", "sha1\x00\x00\x00"), fit.ErrMalformed, ""},
		{"hashes another node", change("/images/fdt-1\x00/images", "/images/fdt-2\x00/images"), fit.ErrSignature, "it covers"},
		{"not signed", change("signature-1", "sygnature-1"), fit.ErrUnsigned, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i, err := fit.Parse(tt.data)
			if err == nil {
				err = i.Verify(key)
			}
			if tt.want == nil && err == nil {
				return
			}
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %v; want %v, %q", err, tt.want, tt.text)
			}
		})
	}
}

func TestCheckBoard(t *testing.T) {
	data, _ := golden(t)
	i, err := fit.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.CheckBoard("ast2600-evb"); err != nil {
		t.Error(err)
	}
	if err := i.CheckBoard("arm64-virt"); !errors.Is(err, fit.ErrBoard) || !strings.Contains(err.Error(), "built for ast2600-evb, this is arm64-virt") {
		t.Errorf("error %v; want both boards named", err)
	}
}

func TestParseKey(t *testing.T) {
	good, err := os.ReadFile("testdata/public.pem")
	if err != nil {
		t.Fatal(err)
	}
	openssl := func(args ...string) []byte {
		out, err := exec.Command("openssl", args...).Output()
		if err != nil {
			t.Fatalf("openssl %s: %v; on Debian: apt-get install --no-install-recommends openssl", strings.Join(args, " "), err)
		}
		return out
	}
	ec := filepath.Join(t.TempDir(), "ec.pem")
	openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", ec)
	short := filepath.Join(t.TempDir(), "short.pem")
	openssl("genrsa", "-out", short, "1024")
	for _, tt := range []struct {
		name string
		text []byte
		want string
	}{
		{"PEM", good, ""},
		{"DER", openssl("pkey", "-pubin", "-in", "testdata/public.pem", "-outform", "DER"), ""},
		{"nothing", nil, "not a public key"},
		{"text", []byte("ssh-rsa AAAA"), "not a public key"},
		{"private", openssl("genrsa", "2048"), "want a PUBLIC KEY"},
		{"another kind", openssl("pkey", "-in", ec, "-pubout"), "not an RSA key"},
		{"short", openssl("pkey", "-in", short, "-pubout"), "1024 bits, want at least 2048"},
	} {
		k, err := fit.ParseKey(tt.text)
		if tt.want == "" && (err != nil || k == nil) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: ParseKey = %v; want %q", tt.name, err, tt.want)
		}
	}
}

// FuzzParse: whatever comes, reading it ends, and nothing is accepted that the
// key has not signed.
func FuzzParse(f *testing.F) {
	data, key := golden(f)
	i, err := fit.Parse(data)
	if err != nil {
		f.Fatal(err)
	}
	want := contentOf(i)
	f.Add(data)
	f.Add(data[:100])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		i, err := fit.Parse(p)
		if err != nil {
			return
		}
		if i.Size > len(p) {
			t.Errorf("size %d of %d bytes", i.Size, len(p))
		}
		if i.Verify(key) == nil {
			if diff := cmp.Diff(want, contentOf(i)); diff != "" {
				t.Errorf("accepted, -want +got:\n%s", diff)
			}
		}
	})
}
