package bank

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"

	"baton/images/uboot"
	"baton/nvm"
)

// ErrLost is returned when no copy of the bootloader's environment is good. Who
// has only our variables may not write a new one: U-Boot would take it for all
// there is, and no longer know how to boot.
var ErrLost = errors.New("no copy of the bootloader's environment is good")

// readings is how often a copy is read before the other one is erased. A page
// in whose write the power was cut may read right once and wrong the next time.
const readings = 16

// copies is the environment in flash: the first half of the partition is one
// copy, the second the other.
type copies struct{ m nvm.Eraser }

// CopySize is how many bytes a copy has in a partition of this shape.
func CopySize(g nvm.Geometry) (int, error) {
	half := g.Size / 2
	if g.Erase <= 0 || g.Size%2 != 0 || half%int64(g.Erase) != 0 || half < 256 || half > 1<<20 {
		return 0, fmt.Errorf("u-boot-env: %d bytes in erase blocks of %d are not two copies: %w", g.Size, g.Erase, nvm.ErrSize)
	}
	return int(half), nil
}

// copy is one as read.
type envCopy struct {
	raw  []byte
	vars uboot.Env
	flag byte
	ok   bool
}

func (c copies) read(ctx context.Context, i int) (envCopy, error) {
	size, err := CopySize(c.m.Geometry())
	if err != nil {
		return envCopy{}, err
	}
	p := make([]byte, size)
	if err := c.m.ReadAt(ctx, p, int64(i*size)); err != nil {
		return envCopy{}, fmt.Errorf("u-boot-env: %w", err)
	}
	vars, flag, err := uboot.Decode(p)
	return envCopy{p, vars, flag, err == nil}, nil
}

// steady reads a copy again and again and says whether it is good each time.
func (c copies) steady(ctx context.Context, i int) (envCopy, bool, error) {
	first, err := c.read(ctx, i)
	for range readings - 1 {
		if err != nil || !first.ok {
			return first, false, err
		}
		var again envCopy
		if again, err = c.read(ctx, i); err == nil && !bytes.Equal(again.raw, first.raw) {
			return first, false, nil
		}
	}
	return first, err == nil && first.ok, err
}

// LoadEnv is the environment as U-Boot sees it. Where no copy is good the error
// is ErrLost.
func LoadEnv(ctx context.Context, m nvm.Eraser) (uboot.Env, error) {
	vars, _, err := copies{m}.load(ctx)
	return vars, err
}

func (c copies) load(ctx context.Context) (uboot.Env, int, error) {
	var got [2]envCopy
	for i := range got {
		var err error
		if got[i], err = c.read(ctx, i); err != nil {
			return nil, -1, err
		}
	}
	i := uboot.Choose([2]bool{got[0].ok, got[1].ok}, [2]byte{got[0].flag, got[1].flag})
	if i < 0 {
		return nil, -1, ErrLost
	}
	return got[i].vars, i, nil
}

// update changes the variables and is sure of it when it returns. A power cut
// at any instant leaves those of before or those of after. Where change makes
// no difference nothing is written.
//
// It is more careful than U-Boot's own saveenv: it does not build on a copy
// that reads differently each time, and it spoils a copy's CRC before it erases
// it, since half an erase can make an obsolete copy look active.
func (c copies) update(ctx context.Context, change func(uboot.Env) error) error {
	seen, base, err := c.load(ctx)
	if err != nil {
		return err
	}
	before := seen
	if was, sure, err := c.steady(ctx, base); err != nil {
		return err
	} else if !sure {
		if other, sure, err := c.steady(ctx, 1-base); err != nil {
			return err
		} else if sure {
			before, base = other.vars, 1-base
		} else if was.ok {
			before = was.vars
		}
	}
	after := maps.Clone(before)
	if err := change(after); err != nil {
		return err
	}
	if maps.Equal(before, after) && maps.Equal(before, seen) {
		return nil
	}
	size, err := CopySize(c.m.Geometry())
	if err != nil {
		return err
	}
	p, err := uboot.Encode(after, uboot.Active, size)
	if err != nil {
		return fmt.Errorf("u-boot-env: %w", err)
	}
	spare := 1 - base
	at := int64(spare * size)
	if err := Program(ctx, c.m, make([]byte, uboot.FlagOffset), at); err != nil {
		return envError(err)
	}
	if err := Erase(ctx, c.m, at, int64(size), nil); err != nil {
		return envError(err)
	}
	// The page with CRC and flag comes last.
	page := min(c.m.Geometry().Page, size)
	if err := Program(ctx, c.m, p[page:], at+int64(page)); err != nil {
		return envError(err)
	}
	if err := Program(ctx, c.m, p[:page], at); err != nil {
		return envError(err)
	}
	if got, sure, err := c.steady(ctx, spare); err != nil {
		return envError(err)
	} else if !sure || !bytes.Equal(got.raw, p) {
		return envError(nvm.ErrReadBack)
	}
	if err := Program(ctx, c.m, []byte{uboot.Obsolete}, int64(base*size)+uboot.FlagOffset); err != nil {
		return envError(err)
	}
	if got, i, err := c.load(ctx); err != nil || i != spare || !maps.Equal(got, after) {
		return envError(errors.Join(nvm.ErrReadBack, err))
	}
	return nil
}

func envError(err error) error {
	return fmt.Errorf("u-boot-env: not changed for sure, what the bootloader does next is what it did before or what was wanted: %w", err)
}

// Program writes p at off, page by page, and waits for each. Pages of erased
// bytes are left out.
func Program(ctx context.Context, m nvm.Medium, p []byte, off int64) error {
	g := m.Geometry()
	for len(p) > 0 {
		n := min(len(p), g.Page-int(off%int64(g.Page)))
		if !blank(p[:n], g.Erased) {
			if err := m.Program(ctx, p[:n], off); err != nil {
				return err
			}
			if err := m.Settle(ctx); err != nil {
				return err
			}
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Erase erases the blocks of n bytes from off, and tells done after each how
// many bytes are.
func Erase(ctx context.Context, m nvm.Eraser, off, n int64, done func(int64)) error {
	block := int64(m.Geometry().Erase)
	for at := off; at < off+n; at += block {
		if err := m.Erase(ctx, at); err != nil {
			return err
		}
		if err := m.Settle(ctx); err != nil {
			return err
		}
		if done != nil {
			done(min(at+block-off, n))
		}
	}
	return nil
}

func blank(p []byte, erased byte) bool {
	for _, b := range p {
		if b != erased {
			return false
		}
	}
	return true
}
