package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
)

// ErrZImage is found in the error when a file is not a zImage this package
// can take apart.
var ErrZImage = errors.New("not an ARM zImage with an xz kernel inside")

// Image is the kernel as it runs: what a zImage unpacks itself to.
type Image struct {
	Data []byte
	// TextOffset is where it wants to be, counted from the start of RAM.
	TextOffset uint32
}

// UnpackZImage takes the kernel out of an ARM zImage. Under an emulator the
// zImage would take up to ten seconds to do so itself.
//
// The layout is Linux's, arch/arm/boot/compressed/{head.S,vmlinux.lds.S}: a
// table names the place of the word behind the compressed kernel that holds
// its unpacked size.
func UnpackZImage(ctx context.Context, z []byte) (*Image, error) {
	const (
		magicAt     = 0x24
		magic       = 0x016f2818
		extraAt     = 0x34 // a second magic, then the offset of the table
		extra       = 0x45454545
		tagSize     = 0x5a534c4b // "KLSZ": offset of the size, BSS, text offset, heap
		tagSizeLong = 5          // words, at least, with this and the tag
	)
	word := func(at uint32) (uint32, bool) {
		if uint64(at)+4 > uint64(len(z)) {
			return 0, false
		}
		return binary.LittleEndian.Uint32(z[at:]), true
	}
	if m, ok := word(magicAt); !ok || m != magic {
		return nil, fmt.Errorf("%w: no magic at %#x", ErrZImage, magicAt)
	}
	if m, ok := word(extraAt); !ok || m != extra {
		return nil, fmt.Errorf("%w: no table (kernel before 4.16)", ErrZImage)
	}
	at, _ := word(extraAt + 4)
	for {
		words, ok1 := word(at)
		tag, ok2 := word(at + 4)
		if !ok1 || !ok2 || words == 0 || words > 64 {
			return nil, fmt.Errorf("%w: its table has no size of the kernel", ErrZImage)
		}
		if tag == tagSize && words >= tagSizeLong {
			break
		}
		at += 4 * words
	}
	sizeAt, _ := word(at + 8)
	textOffset, _ := word(at + 16)
	size, ok := word(sizeAt)
	if !ok {
		return nil, fmt.Errorf("%w: its table points behind its end", ErrZImage)
	}
	// The magic of xz is also a constant of the code that unpacks it.
	for start := 0; ; start++ {
		next := bytes.Index(z[start:sizeAt], []byte("\xfd7zXZ\x00"))
		if next < 0 {
			return nil, fmt.Errorf("%w: no xz stream of %d bytes", ErrZImage, size)
		}
		start += next
		if data, err := unxz(ctx, z[start:sizeAt]); err == nil && len(data) == int(size) {
			return &Image{Data: data, TextOffset: textOffset}, nil
		} else if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// unxz unpacks by xz(1): no Go package knows the filter for ARM code.
func unxz(ctx context.Context, p []byte) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	// A zImage pads the stream, which xz would take for a broken second one.
	c := exec.CommandContext(ctx, "xz", "--decompress", "--stdout", "--single-stream")
	c.Stdin = bytes.NewReader(p)
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("xz: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// WriteUImage writes the kernel uncompressed, with the header that U-Boot and
// QEMU want (U-Boot, include/image.h, "legacy image format"), to be loaded at
// ram plus the kernel's own offset. The header's time is zero, so that the
// same kernel gives the same bytes.
func (i *Image) WriteUImage(name string, ram uint32) error {
	const (
		magic     = 0x27051956
		osLinux   = 5
		archARM   = 2
		kindImage = 2 // kernel
		plain     = 0 // not compressed
	)
	load := ram + i.TextOffset
	h := make([]byte, 64)
	be := binary.BigEndian
	be.PutUint32(h[0:], magic)
	be.PutUint32(h[12:], uint32(len(i.Data)))
	be.PutUint32(h[16:], load)
	be.PutUint32(h[20:], load) // entry
	be.PutUint32(h[24:], crc32.ChecksumIEEE(i.Data))
	h[28], h[29], h[30], h[31] = osLinux, archARM, kindImage, plain
	copy(h[32:], "linux")
	be.PutUint32(h[4:], crc32.ChecksumIEEE(h)) // over the header with this field zero
	return os.WriteFile(name, append(h, i.Data...), 0o644)
}
