package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const testTextOffset = 0x208000

// zImage wraps a kernel as Linux's build does.
func zImage(t *testing.T, kernel []byte) []byte {
	t.Helper()
	c := exec.Command("xz", "--check=crc32", "--arm", "--lzma2=dict=1MiB", "--stdout")
	c.Stdin = bytes.NewReader(kernel)
	packed, err := c.Output()
	if err != nil {
		t.Fatalf("xz: %v; on Debian: apt-get install xz-utils", err)
	}
	const tableAt = 0x100
	z := make([]byte, 0x200)
	put := binary.LittleEndian.PutUint32
	put(z[0x24:], 0x016f2818)
	put(z[0x34:], 0x45454545)
	put(z[0x38:], tableAt)
	copy(z[0x180:], "\xfd7zXZ\x00") // the constant in the code that unpacks
	z = append(z, packed...)
	z = append(z, make([]byte, 3)...)
	sizeAt := len(z)
	z = binary.LittleEndian.AppendUint32(z, uint32(len(kernel)))
	for i, w := range []uint32{3, 0x11111111, 0, 6, 0x5a534c4b, uint32(sizeAt), 0x1000, testTextOffset, 0x10000, 0} {
		put(z[tableAt+4*i:], w)
	}
	return append(z, make([]byte, 100)...)
}

func TestUnpackZImage(t *testing.T) {
	kernel := bytes.Repeat([]byte("this is a kernel. "), 10000)
	z := zImage(t, kernel)
	image, err := UnpackZImage(context.Background(), z)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(image.Data, kernel) || image.TextOffset != testTextOffset {
		t.Errorf("unpacked %d bytes for %#x; want %d for %#x", len(image.Data), image.TextOffset, len(kernel), testTextOffset)
	}
}

func TestUnpackZImageRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(z []byte) []byte
	}{
		{"empty", func([]byte) []byte { return nil }},
		{"no magic", func(z []byte) []byte { z[0x24]++; return z }},
		{"no table", func(z []byte) []byte { z[0x34]++; return z }},
		{"table outside", func(z []byte) []byte { z[0x3b] = 0xff; return z }},
		{"table without end", func(z []byte) []byte { z[0x100] = 0xff; return z }},
		{"empty entry", func(z []byte) []byte { z[0x100] = 0; return z }},
		{"size outside", func(z []byte) []byte { z[0x100+20+3] = 0xff; return z }},
		{"cut short", func(z []byte) []byte { return z[:0x220] }},
		{"another size", func(z []byte) []byte { z[len(z)-104]++; return z }},
		{"damaged", func(z []byte) []byte { z[0x210] ^= 1; return z }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			z := tt.spoil(zImage(t, bytes.Repeat([]byte("0123456789abcdef!"), 5000)))
			if _, err := UnpackZImage(context.Background(), z); !errors.Is(err, ErrZImage) {
				t.Errorf("error %v; want ErrZImage", err)
			}
		})
	}
}

func TestWriteUImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "uImage")
	image := &Image{Data: []byte("kernel"), TextOffset: testTextOffset}
	if err := image.WriteUImage(file, 0x80000000); err != nil {
		t.Fatal(err)
	}
	u, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(u[64:]); got != "kernel" {
		t.Errorf("data = %q", got)
	}
	h := bytes.Clone(u[:64])
	sum := binary.BigEndian.Uint32(h[4:])
	clear(h[4:8])
	if want := crc32.ChecksumIEEE(h); sum != want {
		t.Errorf("sum of the header = %#x; want %#x", sum, want)
	}
	for _, f := range []struct {
		name string
		at   int
		want uint32
	}{
		{"magic", 0, 0x27051956},
		{"time", 8, 0},
		{"size", 12, 6},
		{"load", 16, 0x80208000},
		{"entry", 20, 0x80208000},
		{"sum of the data", 24, crc32.ChecksumIEEE([]byte("kernel"))},
		{"Linux, ARM, kernel, not compressed", 28, 0x05020200},
	} {
		if got := binary.BigEndian.Uint32(u[f.at:]); got != f.want {
			t.Errorf("%s = %#x; want %#x", f.name, got, f.want)
		}
	}
}
