package bootloader

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"baton/images/bank"
	"baton/images/uboot"
	"baton/nvm"
)

// Loader is a bootloader that does what U-Boot does with the variables of
// docs/update.md.
type Loader struct {
	Env      nvm.Eraser
	Banks    map[string]nvm.Medium // "a", "b"
	Defaults uboot.Env             // what it is built with
	Check    bank.Check            // of an image: hashes, signature
	Say      func(format string, args ...any)
}

// Choice is what is booted.
type Choice struct {
	bank.Attempt
	Image []byte
}

// Words are what the bootloader adds to the kernel's command line.
func (c Choice) Words() []string {
	words := []string{"baton.bank=" + c.Bank}
	if c.Trial {
		words = append(words, "baton.trial=1")
	}
	return words
}

// ErrNoImage is returned when no bank holds an image that is whole: U-Boot
// stays at its prompt then.
var ErrNoImage = errors.New("no bank holds an image that can be booted")

// Start decides what is booted, and counts.
func (l Loader) Start(ctx context.Context) (Choice, error) {
	vars, from, err := l.load(ctx)
	if err != nil {
		return Choice{}, err
	}
	if from < 0 {
		l.Say("*** Warning - bad CRC, using default environment")
		vars = maps.Clone(l.Defaults)
		if from, err = l.save(ctx, vars, from); err != nil {
			return Choice{}, err
		}
	}
	try, count, after := bank.Read(vars).Plan()
	if count {
		vars[bank.VarCount] = fmt.Sprint(after.Count)
		if _, err := l.save(ctx, vars, from); err != nil {
			return Choice{}, err
		}
		l.Say("start %d of a trial of at most %d", after.Count, after.Limit)
	}
	var errs []error
	for _, t := range try {
		image, err := bank.Contents(ctx, l.Banks[t.Bank])
		if err == nil {
			err = l.Check(image)
		}
		if err == nil {
			l.Say("booting bank %s", t.Bank)
			return Choice{t, image}, nil
		}
		errs = append(errs, fmt.Errorf("bank %s: %w", t.Bank, err))
		l.Say("bank %s: %v", t.Bank, err)
	}
	return Choice{}, fmt.Errorf("%w: %w", ErrNoImage, errors.Join(errs...))
}

// load is env_sf_load of U-Boot's env/sf.c: each copy is read once. from is the
// copy that counts, -1 = none.
func (l Loader) load(ctx context.Context) (vars uboot.Env, from int, err error) {
	size, err := bank.CopySize(l.Env.Geometry())
	if err != nil {
		return nil, -1, err
	}
	var all [2]uboot.Env
	var ok [2]bool
	var flags [2]byte
	for i := range all {
		p := make([]byte, size)
		if err := l.Env.ReadAt(ctx, p, int64(i*size)); err != nil {
			return nil, -1, err
		}
		all[i], flags[i], err = uboot.Decode(p)
		ok[i] = err == nil
	}
	if from = uboot.Choose(ok, flags); from < 0 {
		return nil, from, nil
	}
	return all[from], from, nil
}

// save is env_sf_save of U-Boot's env/sf.c: the other copy is erased and
// written, then the one that counted becomes obsolete. It returns the copy that
// counts now.
func (l Loader) save(ctx context.Context, vars uboot.Env, from int) (int, error) {
	size, err := bank.CopySize(l.Env.Geometry())
	if err != nil {
		return from, err
	}
	old, to := 0, 1
	if from != 0 {
		old, to = 1, 0
	}
	p, err := uboot.Encode(vars, uboot.Active, size)
	if err != nil {
		return from, err
	}
	if err := bank.Erase(ctx, l.Env, int64(to*size), int64(size), nil); err != nil {
		return from, err
	}
	if err := bank.Program(ctx, l.Env, p, int64(to*size)); err != nil {
		return from, err
	}
	return to, bank.Program(ctx, l.Env, []byte{uboot.Obsolete}, int64(old*size)+uboot.FlagOffset)
}
