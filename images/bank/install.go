package bank

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"

	"baton/images/uboot"
	"baton/nvm"
)

// Errors of images, found by errors.Is.
var (
	// ErrTooLarge is returned for an image that a bank has no room for.
	ErrTooLarge = errors.New("image is too large")
	// ErrEmpty is returned for a bank that holds no image.
	ErrEmpty = errors.New("no image")
)

// WriteError is returned when an image could not be installed after its bank
// was erased. Without Whole the bank holds no image that was compared, and the
// environment does not point at it. With it the image is there, and whether it
// is tried is what the environment says.
type WriteError struct {
	Bank  string
	Whole bool
	Err   error
}

func (e *WriteError) Error() string { return fmt.Sprintf("bank %s: %v", e.Bank, e.Err) }

func (e *WriteError) Unwrap() error { return e.Err }

// Check says whether an image may be installed or booted. Its error names what
// is wrong with it.
type Check func(image []byte) error

// Progress is told what goes on: "erase", "write" or "compare", and bytes.
type Progress func(step string, done, total int64)

// Room is the size of the bank that Install would write, in bytes, and whether
// it may be written now. The error says why not, as Install's does.
func (f *Flash) Room(ctx context.Context) (name string, size int64, err error) {
	name = Other(f.running)
	if f.running == "" {
		return "", 0, refusal(Direct, clear)
	}
	err = f.withEnv(func(m nvm.Eraser) error {
		vars, err := LoadEnv(ctx, m)
		if errors.Is(err, ErrLost) {
			return refusal(Lost, clear)
		}
		if err != nil {
			return err
		}
		if err := f.change(vars, clear, ""); err != nil {
			return err
		}
		return f.change(vars, installed, "")
	})
	if err != nil {
		return name, 0, err
	}
	err = f.with("bank-"+name, func(m nvm.Eraser) error {
		size = m.Geometry().Size
		return nil
	})
	return name, size, err
}

// Install writes an image to the bank that does not run, and has it tried once
// at the next start. Nothing is written before check has passed the image, and
// the environment does not point at the bank while that is being written.
//
// After a *WriteError the other bank is not what it was; after an *EnvError it
// is, and a trial that waited may be ended. All other errors have changed
// nothing.
func (f *Flash) Install(ctx context.Context, image []byte, check Check, progress Progress) error {
	name, size, err := f.Room(ctx)
	if err != nil {
		return err
	}
	if int64(len(image)) > size {
		return fmt.Errorf("%w: it has %d bytes, bank %s has room for %d", ErrTooLarge, len(image), name, size)
	}
	if err := check(image); err != nil {
		return err
	}
	// The bank stays locked until the environment points at it, or nobody is
	// at it any more.
	return f.with("bank-"+name, func(m nvm.Eraser) error {
		// Twice: then neither copy of the environment points at the bank.
		for range 2 {
			if err := f.happens(ctx, clear, ""); err != nil {
				return err
			}
		}
		if err := Write(ctx, m, image, progress); err != nil {
			return &WriteError{name, false, err}
		}
		if err := f.happens(ctx, installed, ""); err != nil {
			return &WriteError{name, true, err}
		}
		return nil
	})
}

// Write writes an image to a bank and compares. An image that is cut short
// never begins as one: its first page is written last.
func Write(ctx context.Context, m nvm.Eraser, image []byte, progress Progress) error {
	total := int64(len(image))
	tell := func(step string) func(int64) { return func(done int64) { progress(step, done, total) } }
	if err := Erase(ctx, m, 0, total, tell("erase")); err != nil {
		return err
	}
	page, block := m.Geometry().Page, m.Geometry().Erase
	for at := 0; at < len(image); at += block {
		from, to := max(at, page), min(at+block, len(image))
		if from < to {
			if err := Program(ctx, m, image[from:to], int64(from)); err != nil {
				return err
			}
		}
		progress("write", int64(to), total)
	}
	if err := Program(ctx, m, image[:min(page, len(image))], 0); err != nil {
		return err
	}
	got := make([]byte, block)
	for at := 0; at < len(image); at += block {
		to := min(at+block, len(image))
		if err := m.ReadAt(ctx, got[:to-at], int64(at)); err != nil {
			return err
		}
		if !bytes.Equal(got[:to-at], image[at:to]) {
			return fmt.Errorf("between %#x and %#x: %w", at, to, nvm.ErrReadBack)
		}
		progress("compare", int64(to), total)
	}
	return nil
}

// Rollback has the other image tried at the next start, or ends the trial that
// waits for it or is under way. It says which: the state of before.
func (f *Flash) Rollback(ctx context.Context, check Check) (State, error) {
	b, err := f.Boot(ctx)
	if err != nil {
		return b.State, err
	}
	why := fmt.Sprintf("the trial of bank %s was given up by hand", Other(b.Confirmed))
	if table[b.State][back] != tryOther {
		return b.State, f.happens(ctx, back, why, b.State)
	}
	// Locked, so that nobody is just writing it.
	return b.State, f.with("bank-"+Other(b.Bank), func(m nvm.Eraser) error {
		image, err := Contents(ctx, m)
		if err == nil {
			err = check(image)
		}
		if err != nil {
			return fmt.Errorf("bank %s, the other one: %w", Other(b.Bank), err)
		}
		return f.happens(ctx, back, why, b.State)
	})
}

// Image reads the image of a bank, whole or not; ErrEmpty where there is none.
func (f *Flash) Image(ctx context.Context, name string) (image []byte, size int64, err error) {
	err = f.with("bank-"+name, func(m nvm.Eraser) error {
		size = m.Geometry().Size
		image, err = Contents(ctx, m)
		return err
	})
	return image, size, err
}

// Contents is the image in a bank: as many bytes as its header says, a
// flattened device tree's (Devicetree Specification 0.4, section 5.2).
func Contents(ctx context.Context, m nvm.Medium) ([]byte, error) {
	const magic = 0xd00dfeed
	var header [8]byte
	if err := m.ReadAt(ctx, header[:], 0); err != nil {
		return nil, err
	}
	if binary.BigEndian.Uint32(header[:]) != magic {
		return nil, ErrEmpty
	}
	size := int64(binary.BigEndian.Uint32(header[4:]))
	if size > m.Geometry().Size {
		return nil, fmt.Errorf("its header says %d bytes, the bank has %d: %w", size, m.Geometry().Size, ErrTooLarge)
	}
	image := make([]byte, size)
	return image, m.ReadAt(ctx, image, 0)
}

// Provision gives a flash that was erased its first image and environment, as
// who makes the board does. defaults are the bootloader's own variables.
func Provision(ctx context.Context, env, bankA nvm.Eraser, defaults uboot.Env, image []byte, progress Progress) error {
	if err := Write(ctx, bankA, image, progress); err != nil {
		return fmt.Errorf("bank a: %w", err)
	}
	size, err := CopySize(env.Geometry())
	if err != nil {
		return err
	}
	vars := uboot.Env{}
	maps.Copy(vars, defaults)
	Vars{Bank: "a", Limit: bootLimit}.write(vars)
	p, err := uboot.Encode(vars, uboot.Active, size)
	if err != nil {
		return fmt.Errorf("u-boot-env: %w", err)
	}
	if err := Erase(ctx, env, 0, env.Geometry().Size, nil); err != nil {
		return fmt.Errorf("u-boot-env: %w", err)
	}
	return Program(ctx, env, p, 0)
}
