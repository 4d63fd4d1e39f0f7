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

// readings is how often the copies are read before one is erased. A page
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

// surveyed is what many readings of both copies have in common.
type surveyed struct {
	base int       // the copy to build on
	vars uboot.Env // of it
	// sure: each reading makes the same copy count, and no copy could come to
	// count by a bit that reads differently.
	sure bool
}

// survey reads both copies again and again. Where none is good the error is
// ErrLost.
func (c copies) survey(ctx context.Context) (surveyed, error) {
	var first [2]envCopy
	var good [2]*envCopy // the last reading that was
	same := [2]bool{true, true}
	chosen, sure := -1, true
	for n := range readings {
		var now [2]envCopy
		for i := range now {
			var err error
			if now[i], err = c.read(ctx, i); err != nil {
				return surveyed{}, err
			}
			if now[i].ok {
				good[i] = &now[i]
			}
			if n == 0 {
				first[i] = now[i]
			}
			same[i] = same[i] && now[i].ok && bytes.Equal(now[i].raw, first[i].raw)
		}
		i := choose(now)
		if n == 0 {
			chosen = i
		}
		sure = sure && i == chosen && !(now[0].ok && now[1].ok && now[0].flag == now[1].flag)
	}
	base := chosen
	switch {
	case base >= 0 && same[base]:
	case same[0]:
		base, sure = 0, false
	case same[1]:
		base, sure = 1, false
	case good[0] != nil:
		base, sure = 0, false
	case good[1] != nil:
		base, sure = 1, false
	default:
		return surveyed{}, ErrLost
	}
	return surveyed{base, good[base].vars, sure}, nil
}

func choose(c [2]envCopy) int {
	return uboot.Choose([2]bool{c[0].ok, c[1].ok}, [2]byte{c[0].flag, c[1].flag})
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
	i := choose(got)
	if i < 0 {
		return nil, -1, ErrLost
	}
	return got[i].vars, i, nil
}

// update changes the variables and is sure of it when it returns. A power cut
// at any instant leaves those of before or those of after. Where change makes
// no difference, and no power cut has left a doubt, nothing is written, unless
// force asks for it.
//
// It is more careful than U-Boot's own saveenv: it does not build on a copy
// that reads differently each time, and it spoils a copy's CRC before it erases
// it, since half an erase can make an obsolete copy look active.
func (c copies) update(ctx context.Context, force bool, change func(uboot.Env) error) error {
	was, err := c.survey(ctx)
	if err != nil {
		return err
	}
	base := was.base
	after := maps.Clone(was.vars)
	if err := change(after); err != nil {
		return err
	}
	if !force && was.sure && maps.Equal(was.vars, after) {
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
	if got, err := c.read(ctx, spare); err != nil {
		return envError(err)
	} else if !bytes.Equal(got.raw, p) {
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

// EnvError is returned when the environment could not be written for sure: the
// variables are those of before or those of after.
type EnvError struct{ Err error }

func (e *EnvError) Error() string { return fmt.Sprintf("u-boot-env: %v", e.Err) }

func (e *EnvError) Unwrap() error { return e.Err }

func envError(err error) error { return &EnvError{err} }

// writer is a medium that takes many pages at once, as *nvm.MTD.
type writer interface {
	Write(ctx context.Context, p []byte, off int64) error
}

// Program writes p at off, page by page, and waits for each. Erased bytes at
// the end are left out, and so are pages of them.
func Program(ctx context.Context, m nvm.Medium, p []byte, off int64) error {
	g := m.Geometry()
	for len(p) > 0 && p[len(p)-1] == g.Erased {
		p = p[:len(p)-1]
	}
	if w, ok := m.(writer); ok {
		return w.Write(ctx, p, off)
	}
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
