package main

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"baton/images/bank"
	"baton/images/fit"
	"baton/mgmt"
	"baton/nvm"
)

// images is the controller that image verbs are about, replaced by tests.
var images = controller{
	open:    bank.Open,
	key:     "/etc/baton/image-key.pem",
	board:   "/etc/board",
	restart: func() error { return syscall.Kill(1, syscall.SIGTERM) }, // images/init takes the system down
}

type controller struct {
	open       func() (*bank.Flash, error)
	key, board string // files
	restart    func() error
}

// imageInfo is an image as its header tells.
type imageInfo struct {
	Version string `json:"version"`
	Board   string `json:"board"`
	Bytes   int    `json:"bytes"`
	SHA256  string `json:"sha256"`
	// Signed: "yes", by this controller's key; "no"; "unchecked" where there is
	// no key.
	Signed string `json:"signed"`
}

// verifier judges images.
type verifier struct {
	key   *rsa.PublicKey // nil = there is none
	board string
}

// flash opens the banks, and what checks the images in them.
func (c controller) flash() (*bank.Flash, verifier, error) {
	f, err := c.open()
	if err != nil {
		return nil, verifier{}, err
	}
	v, err := c.verifier()
	return f, v, err
}

func (c controller) verifier() (verifier, error) {
	board, err := os.ReadFile(c.board)
	if err != nil {
		return verifier{}, err
	}
	v := verifier{board: strings.TrimSpace(string(board))}
	text, err := os.ReadFile(c.key)
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err != nil {
		return verifier{}, err
	}
	if v.key, err = fit.ParseKey(text); err != nil {
		// A key that can not be read is no leave to do without.
		return verifier{}, fmt.Errorf("%s: %w", c.key, err)
	}
	return v, nil
}

// look reads an image and says what is wrong with it.
func (v verifier) look(image []byte) (imageInfo, error) {
	im, err := fit.Parse(image)
	if err != nil {
		return imageInfo{}, err
	}
	i := imageInfo{Version: im.Version, Board: im.Board, Bytes: im.Size, SHA256: fmt.Sprintf("%x", sha256.Sum256(image[:im.Size])), Signed: "unchecked"}
	if v.key != nil {
		i.Signed = "yes"
		if err := im.Verify(v.key); err != nil {
			i.Signed = "no"
			return i, err
		}
	} else if errors.Is(im.Verify(), fit.ErrUnsigned) {
		i.Signed = "no"
	}
	return i, im.CheckBoard(v.board)
}

func (v verifier) check(image []byte) error {
	_, err := v.look(image)
	return err
}

var imageStatusCommand = command{
	name: "image status", short: "which image runs, and what is in the other bank",
	about: `Reads both banks of this controller's flash and checks what is in them: hashes,
signature, board. It needs no agent.`,
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, _ []string) error { return imageError(t.imageStatus(ctx)) }
	},
}

var imageInstallCommand = command{
	name: "image install", args: "FILE [--reboot] [--unsigned]", short: "write a new image to the other bank, to be tried once",
	about: `FILE is an image.fit, - for stdin, or an http:// URL: what is trusted is the
signature, not the way. It is checked as a whole before anything is erased, and
compared after it is written. The next start tries it once: where batond is not
healthy within 3 minutes, or the power fails before, the image that runs now
comes back by itself. --reboot restarts the controller afterwards; that changes
no link and no slot. --unsigned is for a controller without a key.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		reboot := fs.Bool("reboot", false, "restart the controller when it is installed")
		unsigned := fs.Bool("unsigned", false, "take an image whose signature nobody can check; only where there is no key")
		return func(ctx context.Context, args []string) error {
			return imageError(t.imageInstall(ctx, args[0], *unsigned, *reboot))
		}
	},
}

var imageRollbackCommand = command{
	name: "image rollback", args: "[--reboot]", short: "go back to the other image, or end a trial",
	about: `Where no image is on trial the other one is tried at the next start, as one that
is installed is. Where one waits for its trial it is not tried. Where the one
that runs is on trial it is given up: restart to get the other one.`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		reboot := fs.Bool("reboot", false, "restart the controller afterwards")
		return func(ctx context.Context, _ []string) error { return imageError(t.imageRollback(ctx, *reboot)) }
	},
}

type bankStatus struct {
	Name      string     `json:"name"`
	Size      int64      `json:"size"` // bytes
	Runs      bool       `json:"runs"`
	Confirmed bool       `json:"confirmed"`
	Next      bool       `json:"next"` // the next start boots it
	Image     *imageInfo `json:"image,omitempty"`
	Problem   string     `json:"problem,omitempty"`
}

type imageStatus struct {
	State      string       `json:"state"`
	Runs       string       `json:"runs,omitempty"`
	Trial      bool         `json:"trial"`       // what runs is on trial
	RolledBack bool         `json:"rolled_back"` // a trial failed, and was not settled yet
	Outcome    string       `json:"outcome,omitempty"`
	Key        bool         `json:"key"` // whether signatures are checked
	Banks      []bankStatus `json:"banks"`
}

func (t *tool) imageStatus(ctx context.Context) error {
	f, v, err := images.flash()
	if err != nil {
		return err
	}
	b, err := f.Boot(ctx)
	if err != nil {
		return err
	}
	s := imageStatus{State: b.State.String(), Runs: b.Bank, Trial: b.Trial, RolledBack: b.RolledBack, Outcome: b.Outcome, Key: v.key != nil}
	next := b.Confirmed
	if b.State == bank.Pending {
		next = bank.Other(b.Confirmed)
	}
	err = t.wait(ctx, "reading both banks", func(ctx context.Context) error {
		for _, name := range bank.Names {
			n := bankStatus{Name: name, Runs: name == b.Bank, Confirmed: name == b.Confirmed, Next: name == next}
			image, size, err := f.Image(ctx, name)
			n.Size = size
			switch {
			case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
				return err
			case err == nil:
				var i imageInfo
				if i, err = v.look(image); i.Bytes > 0 {
					n.Image = &i
				}
			}
			if err != nil {
				n.Problem = err.Error()
			}
			s.Banks = append(s.Banks, n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if t.json {
		return t.printJSON(s)
	}
	for _, n := range s.Banks {
		t.line("bank "+n.Name, n.text())
	}
	t.line("state", stateText(b))
	t.line("last trial", s.Outcome)
	if !s.Key {
		t.say("There is no %s: signatures are not checked.", images.key)
	}
	switch b.State {
	case bank.Pending:
		t.next("reboot", "baton image rollback")
	case bank.Trying:
		t.next("baton image status", "baton image rollback --reboot")
	case bank.GivenUp:
		t.next("reboot")
	case bank.Steady:
		t.next("baton image install FILE")
	}
	return nil
}

func (n bankStatus) text() string {
	var words []string
	if n.Runs {
		words = append(words, "runs")
	}
	if n.Confirmed {
		words = append(words, "confirmed")
	}
	if n.Next {
		words = append(words, "booted next")
	}
	if i := n.Image; i != nil {
		words = append(words, i.text(), fmt.Sprintf("%d of %d bytes", i.Bytes, n.Size))
	}
	if n.Problem != "" {
		words = append(words, n.Problem)
	}
	return strings.Join(words, ", ")
}

func (i imageInfo) text() string {
	signed := map[string]string{"yes": "signature ok", "no": "not signed by our key", "unchecked": "signature not checked"}[i.Signed]
	return fmt.Sprintf("baton %s for %s, %s", orDash(i.Version), orDash(i.Board), signed)
}

func stateText(b bank.Boot) string {
	switch b.State {
	case bank.Direct:
		return "the kernel was not booted from a bank"
	case bank.Lost:
		return "LOST: " + bank.ErrLost.Error() + "; U-Boot goes by its built-in one"
	case bank.Steady:
		return fmt.Sprintf("steady, bank %s is booted each time", b.Bank)
	case bank.Pending:
		return fmt.Sprintf("bank %s is tried once at the next start", bank.Other(b.Bank))
	case bank.Trying:
		return fmt.Sprintf("bank %s is ON TRIAL: the next start goes back to bank %s, unless init confirms it first", b.Bank, b.Confirmed)
	case bank.GivenUp:
		return fmt.Sprintf("bank %s was GIVEN UP: the next start boots bank %s", b.Bank, b.Confirmed)
	case bank.Failed:
		return fmt.Sprintf("ROLLED BACK to bank %s", b.Bank)
	}
	return fmt.Sprintf("bank %s, which was confirmed, could not be booted", b.Confirmed)
}

func (t *tool) imageInstall(ctx context.Context, from string, unsigned, reboot bool) error {
	f, v, err := images.flash()
	if err != nil {
		return err
	}
	switch {
	case v.key != nil && unsigned:
		return &mgmt.Problem{
			Code: "bad-image", Detail: "--unsigned: this controller has a key, and takes only what is signed with it",
			State: "nothing was changed", Next: "leave --unsigned out",
		}
	case v.key == nil && !unsigned:
		return &mgmt.Problem{
			Code: "bad-image", Detail: "the image that runs has no " + images.key + ": nobody can say whose image this is",
			State: "nothing was changed", Next: "say --unsigned, if you know; docs/update.md says how to sign",
		}
	}
	name, room, err := f.Room(ctx)
	if err != nil {
		return err
	}
	image, err := t.fetchImage(ctx, from, room)
	if err != nil {
		return err
	}
	var info imageInfo
	check := func(p []byte) error {
		var err error
		if info, err = v.look(p); err == nil && !t.json {
			t.say("%s: %s, %d bytes", shown(from), info.text(), info.Bytes)
		}
		return err
	}
	told := newTold(t, name)
	err = f.Install(ctx, image, check, told.progress)
	told.end()
	if err != nil {
		return err
	}
	if t.json {
		err = t.printJSON(struct {
			Bank  string    `json:"bank"`
			Image imageInfo `json:"image"`
		}{name, info})
	} else {
		t.say("Installed in bank %s, read back and compared. It is tried once, at the next start: where it is not healthy within 3 minutes, or the power fails before, bank %s comes back by itself. A restart of the controller changes no link and no slot.", name, bank.Other(name))
	}
	if err != nil || reboot {
		return errors.Join(err, t.reboot(reboot))
	}
	if !t.json {
		t.next("reboot", "baton image status")
	}
	return nil
}

func (t *tool) reboot(wanted bool) error {
	if !wanted {
		return nil
	}
	if !t.json {
		t.say("Restarting the controller now.")
	}
	return images.restart()
}

func (t *tool) imageRollback(ctx context.Context, reboot bool) error {
	f, v, err := images.flash()
	if err != nil {
		return err
	}
	b, err := f.Boot(ctx)
	if err != nil {
		return err
	}
	err = t.wait(ctx, "checking the other image", func(ctx context.Context) error {
		b.State, err = f.Rollback(ctx, v.check)
		return err
	})
	if err != nil {
		return err
	}
	restart := true
	text := fmt.Sprintf("Bank %s is tried once at the next start, as a new image is.", bank.Other(b.Bank))
	switch b.State {
	case bank.Pending:
		restart = false
		text = fmt.Sprintf("Bank %s is not tried. Bank %s is booted as before.", bank.Other(b.Bank), b.Bank)
	case bank.Trying, bank.GivenUp:
		text = fmt.Sprintf("Bank %s is given up. The next start boots bank %s.", b.Bank, bank.Other(b.Bank))
	}
	if t.json {
		err = t.printJSON(struct {
			Before string `json:"state_before"`
			Text   string `json:"text"`
		}{b.State.String(), text})
	} else {
		t.say("%s", text)
		if restart && !reboot {
			t.next("reboot")
		}
	}
	return errors.Join(err, t.reboot(reboot && restart))
}

// told says how far a bank is written: each step, and every ten seconds.
type told struct {
	t    *tool
	bank string
	step string
	last time.Time
}

func newTold(t *tool, name string) *told { return &told{t: t, bank: name} }

func (d *told) progress(step string, done, total int64) {
	if d.t.json {
		return
	}
	again := liveAgain
	if d.t.live.rewrite {
		again = 200 * time.Millisecond
	}
	if step == d.step && time.Since(d.last) < again {
		return
	}
	d.step, d.last = step, time.Now()
	d.t.live.show(fmt.Sprintf("bank %s: %s, %d %%", d.bank, step, 100*done/max(total, 1)))
}

func (d *told) end() {
	_, _ = d.t.live.around(func() (int, error) { return 0, nil })
}

// imageError says of an error what state things are in and what to do.
func imageError(err error) error {
	var done *mgmt.Problem
	var use *usageError
	if err == nil || errors.As(err, &done) || errors.As(err, &use) {
		return err
	}
	p := &mgmt.Problem{Title: "baton failed", Code: "failed", Detail: err.Error(), State: "nothing was changed", Next: "baton image status"}
	if errors.As(err, new(*bank.EnvError)) {
		p.State = "the bootloader's variables are those of before or those of after; a whole image is booted either way"
	}
	if w, ok := errors.AsType[*bank.WriteError](err); ok && w.Whole {
		p.State = fmt.Sprintf("bank %s holds the new image; whether the next start tries it 'baton image status' says", w.Bank)
	} else if ok {
		p.State = fmt.Sprintf("bank %s holds no image now and is not booted; what runs is booted as before", w.Bank)
		p.Next = "the same again; where it fails again the flash is worn or in use"
	}
	refused, isRefusal := errors.AsType[*bank.RefusedError](err)
	switch {
	case isRefusal:
		p.Code, p.Next, p.Retry = "image-refused", refused.Next, refused.State == bank.Trying || refused.State == bank.GivenUp
	case errors.Is(err, bank.ErrNone):
		p.Code, p.Next = "image-refused", "images are installed on a controller that boots from banks (docs/update.md)"
	case errors.Is(err, nvm.ErrInUse):
		p.Code, p.Retry, p.Next = "image-refused", true, "another 'baton image' is at it; wait for it"
	case errors.Is(err, bank.ErrTooLarge):
		p.Code, p.Next = "bad-image", "build a smaller image; docs/board.md says what is in it"
	case errors.Is(err, fit.ErrUnsigned), errors.Is(err, fit.ErrSignature):
		p.Code, p.Next = "bad-image", "take an image that is signed with this controller's key (docs/update.md)"
	case errors.Is(err, fit.ErrBoard):
		p.Code, p.Next = "bad-image", "take the image.fit of this board"
	case errors.Is(err, fit.ErrNotFIT), errors.Is(err, fit.ErrTruncated), errors.Is(err, fit.ErrMalformed), errors.Is(err, fit.ErrHash), errors.Is(err, bank.ErrEmpty):
		p.Code, p.Next = "bad-image", "take the whole image.fit again, and compare its SHA-256"
	}
	return p
}
