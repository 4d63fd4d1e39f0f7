package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"baton/images/bank"
	"baton/images/bootloader"
	"baton/images/fit/mkfit"
	"baton/images/uboot"
	"baton/nvm"
	"baton/nvm/nvmtest"
)

const (
	flashBank = 64 << 10
	flashEnv  = 8 << 10
)

// imaged is a controller with banks in a flash that is modelled.
type imaging struct {
	t        *testing.T
	flash    *nvmtest.NOR
	cmdline  string
	keys     map[string]*mkfit.Key
	dir      string
	restarts int
	busy     string // partition that another process has
}

type part struct{ bootloader.Partition }

func (part) Close() error { return nil }

func newImaging(t *testing.T) *imaging {
	t.Helper()
	i := &imaging{
		t: t, dir: t.TempDir(), cmdline: "console=ttyS0 baton.bank=a", keys: map[string]*mkfit.Key{},
		flash: nvmtest.NewNOR(nvm.Geometry{Size: flashEnv + 2*flashBank, Page: 256, Erase: 4096, Erased: 0xff}, 1),
	}
	before := images
	t.Cleanup(func() { images = before })
	images = controller{
		open: func() (*bank.Flash, error) {
			return bank.New(i.cmdline, func(name string) (bank.Part, error) {
				if name == i.busy {
					return nil, nvm.ErrInUse
				}
				return part{i.part(name)}, nil
			}), nil
		},
		key: filepath.Join(i.dir, "image-key.pem"), board: i.file("board", []byte("ast2600-evb\n")),
		restart: func() error { i.restarts++; return nil },
	}
	for _, name := range []string{"ours", "theirs"} {
		private, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})
		if i.keys[name], err = mkfit.ReadKey(i.file(name+".pem", text)); err != nil {
			t.Fatal(err)
		}
	}
	public, err := x509.MarshalPKIXPublicKey(i.keys["ours"].Public)
	if err != nil {
		t.Fatal(err)
	}
	i.file("image-key.pem", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	script := uboot.Env{"bootcmd": "run x", "altbootcmd": "run y", "ethaddr": "c0:ff:ee:00:00:01"}
	if err := bank.Provision(t.Context(), i.part("u-boot-env"), i.part("bank-a"), script, i.image("1", "ast2600-evb", "ours", 9000), func(string, int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *imaging) part(name string) bootloader.Partition {
	switch name {
	case "u-boot-env":
		return bootloader.Partition{Flash: i.flash, Off: 0, Size: flashEnv}
	case "bank-a":
		return bootloader.Partition{Flash: i.flash, Off: flashEnv, Size: flashBank}
	}
	return bootloader.Partition{Flash: i.flash, Off: flashEnv + flashBank, Size: flashBank}
}

func (i *imaging) file(name string, data []byte) string {
	i.t.Helper()
	name = filepath.Join(i.dir, name)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		i.t.Fatal(err)
	}
	return name
}

func (i *imaging) image(version, board, key string, size int) []byte {
	i.t.Helper()
	image, err := mkfit.Make(i.t.Context(), mkfit.Spec{
		Board: board, Version: version, Arch: "arm", Kernel: bytes.Repeat([]byte(version), size), Load: 0x80008000,
		FDT: []byte("a device tree"), Ramdisk: []byte("a root file system"), Time: time.Unix(1700000000, 0), Key: i.keys[key],
	})
	if err != nil {
		i.t.Fatal(err)
	}
	return image
}

// baton runs the tool and returns what it prints, and its exit code.
func (i *imaging) baton(stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = exitCode(run(i.t.Context(), args, stdin, &out, &errs))
	return out.String(), errs.String(), code
}

// starts plays the bootloader.
func (i *imaging) starts() bootloader.Choice {
	i.t.Helper()
	v, err := images.verifier()
	if err != nil {
		i.t.Fatal(err)
	}
	c, err := bootloader.Loader{
		Env: i.part("u-boot-env"), Banks: map[string]nvm.Medium{"a": i.part("bank-a"), "b": i.part("bank-b")},
		Check: v.check, Say: i.t.Logf,
	}.Start(i.t.Context())
	if err != nil {
		i.t.Fatal(err)
	}
	i.cmdline = strings.Join(c.Words(), " ")
	return c
}

func TestImageInstall(t *testing.T) {
	i := newImaging(t)
	good := i.image("2", "ast2600-evb", "ours", 20000)
	file := i.file("good.fit", good)
	out, errs, code := i.baton(nil, "image", "install", file)
	if code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	for _, want := range []string{
		"baton 2 for ast2600-evb, signature ok", "Installed in bank b", "tried once", "Next: reboot",
	} {
		if !strings.Contains(flat(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, want := range []string{"bank b: erase", "bank b: write", "bank b: compare"} {
		if !strings.Contains(errs, want) {
			t.Errorf("no progress %q in\n%s", want, errs)
		}
	}
	if i.restarts != 0 {
		t.Error("restarted")
	}
	if out, _, _ := i.baton(nil, "image", "status"); !strings.Contains(out, "bank b is tried once at the next start") {
		t.Errorf("status before the start:\n%s", out)
	}
	if c := i.starts(); c.Bank != "b" || !c.Trial || !bytes.Equal(c.Image, good) {
		t.Fatalf("booted bank %s, trial %v", c.Bank, c.Trial)
	}
	if out, _, _ := i.baton(nil, "image", "status"); !strings.Contains(out, "ON TRIAL") {
		t.Errorf("status on trial:\n%s", out)
	}
	// Not while it is on trial, and that may be over soon.
	if _, errs, code := i.baton(nil, "image", "install", file); code != exitRetry || !strings.Contains(flat(errs), "is on trial and not confirmed yet") {
		t.Errorf("install on trial: exit %d\n%s", code, errs)
	}
	f, err := images.open()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, _, code = i.baton(nil, "image", "status", "--json")
	var s imageStatus
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
		t.Fatalf("%v, exit %d: %s", err, code, out)
	}
	if s.State != "steady" || s.Runs != "b" || !s.Key || s.Outcome != "bank b was tried and confirmed" || len(s.Banks) != 2 ||
		s.Banks[1].Image == nil || s.Banks[1].Image.Version != "2" || s.Banks[1].Image.Signed != "yes" || !s.Banks[1].Confirmed || s.Banks[0].Confirmed || s.Banks[0].Size != flashBank {
		t.Errorf("status %+v", s)
	}
	vars, err := bank.LoadEnv(t.Context(), i.part("u-boot-env"))
	if err != nil || vars["ethaddr"] != "c0:ff:ee:00:00:01" {
		t.Errorf("ethaddr %q, %v", vars["ethaddr"], err)
	}
}

// TestImageBad: what may not be installed changes nothing.
func TestImageBad(t *testing.T) {
	i := newImaging(t)
	good := i.image("2", "ast2600-evb", "ours", 20000)
	damaged := bytes.Clone(good)
	damaged[5000] ^= 4
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/short":
			w.Header().Set("Content-Length", "50000")
			w.(http.Flusher).Flush()
			_, _ = w.Write(good[:100])
		case "/large":
			_, _ = w.Write(make([]byte, flashBank+1))
		case "/huge":
			w.Header().Set("Content-Length", "1000000000")
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	before := i.flash.Image()
	for _, tt := range []struct {
		name string
		args []string
		want string
		code int
	}{
		{"unsigned", []string{i.file("u", i.image("2", "ast2600-evb", "", 20000))}, "image is not signed", 1},
		{"of another key", []string{i.file("k", i.image("2", "ast2600-evb", "theirs", 20000))}, "not by a known key", 1},
		{"for another board", []string{i.file("b", i.image("2", "sabrelite", "ours", 20000))}, "for another board", 1},
		{"truncated", []string{i.file("t", good[:len(good)-1])}, "truncated", 1},
		{"damaged", []string{i.file("d", damaged)}, "hash does not match", 1},
		{"too large", []string{i.file("l", i.image("2", "ast2600-evb", "ours", flashBank))}, "too large", 1},
		{"empty", []string{i.file("e", nil)}, "not a FIT image", 1},
		{"a text", []string{i.file("x", []byte("hello, this is no image at all"))}, "not a FIT image", 1},
		{"absent", []string{filepath.Join(i.dir, "absent")}, "no such file", 1},
		{"a folder", []string{i.dir}, "is a directory", 1},
		{"not there by HTTP", []string{server.URL + "/absent"}, "404", 1},
		{"HTTP cut short", []string{server.URL + "/short"}, "connection ended", 1},
		{"HTTP too large", []string{server.URL + "/large"}, "too large", 1},
		{"HTTP says it is too large", []string{server.URL + "/huge"}, "has 1000000000 bytes", 1},
		{"HTTP with a password", []string{strings.Replace(server.URL, "://", "://me:hunter2@", 1) + "/absent"}, "404", 1},
		{"HTTPS with a password", []string{"https://me:hunter2@127.0.0.1/x"}, "only http:// is known", 2},
		{"HTTPS", []string{"https://127.0.0.1/x"}, "only http:// is known", 2},
		{"unsigned where there is a key", []string{i.file("g", good), "--unsigned"}, "has a key", 1},
	} {
		out, errs, code := i.baton(nil, append([]string{"image", "install"}, tt.args...)...)
		if code != tt.code || !strings.Contains(flat(errs), tt.want) {
			t.Errorf("%s: exit %d; want %d and %q\n%s%s", tt.name, code, tt.code, tt.want, out, errs)
		}
		if strings.Contains(out+errs, "hunter2") {
			t.Errorf("%s: shows the password:\n%s%s", tt.name, out, errs)
		}
		if tt.code == 1 && !strings.Contains(flat(errs), "state: nothing was changed") {
			t.Errorf("%s: does not say that nothing was changed:\n%s", tt.name, errs)
		}
		if !bytes.Equal(before, i.flash.Image()) {
			t.Fatalf("%s: the flash has changed", tt.name)
		}
	}
}

// TestImageKey: without a key --unsigned is needed; a key that can not be read
// is no leave to go without.
func TestImageKey(t *testing.T) {
	i := newImaging(t)
	unsigned := i.file("u", i.image("2", "ast2600-evb", "", 20000))
	before := i.flash.Image()
	i.file("image-key.pem", []byte("junk"))
	for _, args := range [][]string{{"image", "install", unsigned}, {"image", "install", unsigned, "--unsigned"}, {"image", "status"}, {"image", "rollback"}} {
		if _, errs, code := i.baton(nil, args...); code != 1 || !strings.Contains(errs, "not a public key") {
			t.Errorf("%q with a key that is junk: exit %d\n%s", args, code, errs)
		}
	}
	if err := os.Remove(images.key); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := i.baton(nil, "image", "install", unsigned); code != 1 || !strings.Contains(errs, "say --unsigned") {
		t.Errorf("without a key: exit %d\n%s", code, errs)
	}
	if !bytes.Equal(before, i.flash.Image()) {
		t.Error("the flash has changed")
	}
	if out, errs, code := i.baton(nil, "image", "install", unsigned, "--unsigned", "--reboot"); code != 0 || i.restarts != 1 {
		t.Errorf("--unsigned --reboot: exit %d, %d restarts\n%s%s", code, i.restarts, out, errs)
	}
}

func TestImageFrom(t *testing.T) {
	i := newImaging(t)
	good := i.image("2", "ast2600-evb", "ours", 20000)
	if out, errs, code := i.baton(bytes.NewReader(good), "image", "install", "-", "--json"); code != 0 || !strings.Contains(out, `"bank": "b"`) || errs != "" {
		t.Errorf("from stdin: exit %d\n%s%s", code, out, errs)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good) }))
	defer server.Close()
	// The one that waits for its trial is replaced.
	if out, errs, code := i.baton(nil, "image", "install", server.URL); code != 0 {
		t.Errorf("over HTTP: exit %d\n%s%s", code, out, errs)
	}
	if c := i.starts(); c.Bank != "b" || !c.Trial {
		t.Errorf("booted bank %s, trial %v", c.Bank, c.Trial)
	}
}

func TestImageRollback(t *testing.T) {
	i := newImaging(t)
	if _, errs, code := i.baton(nil, "image", "rollback"); code != 1 || !strings.Contains(errs, "no image") || !strings.Contains(errs, "nothing was changed") {
		t.Errorf("to an empty bank: exit %d\n%s", code, errs)
	}
	file := i.file("good.fit", i.image("2", "ast2600-evb", "ours", 20000))
	step := func(want string, args ...string) {
		t.Helper()
		if out, errs, code := i.baton(nil, args...); code != 0 || !strings.Contains(flat(out), want) {
			t.Fatalf("%q: exit %d; want %q\n%s%s", args, code, want, out, errs)
		}
	}
	step("Installed", "image", "install", file)
	step("Bank b is not tried", "image", "rollback", "--reboot")
	if i.restarts != 0 {
		t.Error("restarted where nothing needs it")
	}
	if c := i.starts(); c.Bank != "a" || c.Trial {
		t.Fatalf("booted bank %s, trial %v", c.Bank, c.Trial)
	}
	step("Bank b is tried once", "image", "rollback")
	if c := i.starts(); c.Bank != "b" || !c.Trial {
		t.Fatalf("booted bank %s, trial %v", c.Bank, c.Trial)
	}
	step("Bank b is given up. The next start boots bank a", "image", "rollback")
	step("bank b was GIVEN UP: the next start boots bank a last trial: the trial of bank b was given up by hand Next: reboot", "image", "status")
	step("Bank b is given up. The next start boots bank a", "image", "rollback", "--reboot")
	if c := i.starts(); c.Bank != "a" || c.Trial || i.restarts != 1 {
		t.Fatalf("booted bank %s, trial %v, %d restarts", c.Bank, c.Trial, i.restarts)
	}
	step("ROLLED BACK to bank a", "image", "status")
}

// TestImageRefused is where a controller can not be updated at all.
func TestImageRefused(t *testing.T) {
	i := newImaging(t)
	file := i.file("good.fit", i.image("2", "ast2600-evb", "ours", 20000))
	refused := func(what, want string, code int) {
		t.Helper()
		before := i.flash.Image()
		for _, args := range [][]string{{"image", "install", file}, {"image", "rollback"}} {
			if _, errs, got := i.baton(nil, args...); got != code || !strings.Contains(flat(errs), want) {
				t.Errorf("%s: %q: exit %d; want %d and %q\n%s", what, args, got, code, want, errs)
			}
		}
		if !bytes.Equal(before, i.flash.Image()) {
			t.Errorf("%s: the flash has changed", what)
		}
	}
	i.cmdline = "console=ttyS0"
	refused("booted by hand", "not booted from a bank", 1)
	i.cmdline = "baton.bank=a"
	i.busy = "bank-b"
	refused("another install", "another 'baton image' is at it", exitRetry)
	i.busy = ""

	env := i.part("u-boot-env")
	copies := make([]byte, env.Size)
	if err := env.ReadAt(t.Context(), copies, 0); err != nil {
		t.Fatal(err)
	}
	vars, _, err := uboot.Decode(copies[:flashEnv/2])
	if err != nil {
		t.Fatal(err)
	}
	write := func(e uboot.Env) {
		t.Helper()
		p, err := uboot.Encode(e, uboot.Active, flashEnv/2)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(bank.Erase(t.Context(), env, 0, flashEnv, nil), bank.Program(t.Context(), env, p, 0)); err != nil {
			t.Fatal(err)
		}
	}
	without := maps.Clone(vars)
	delete(without, "altbootcmd")
	if _, _, code := i.baton(nil, "image", "install", file); code != 0 {
		t.Fatal("the image is no good")
	}
	write(without)
	refused("a bootloader without altbootcmd", "has no altbootcmd: it would not roll back", 1)
	if err := bank.Erase(t.Context(), env, 0, flashEnv, nil); err != nil {
		t.Fatal(err)
	}
	refused("a lost environment", "no copy of the bootloader's environment is good", 1)
	if out, _, code := i.baton(nil, "image", "status"); code != 0 || !strings.Contains(out, "LOST") {
		t.Errorf("status with a lost environment: exit %d\n%s", code, out)
	}
	images.open = func() (*bank.Flash, error) { return nil, bank.ErrNone }
	refused("no banks", "has no banks of images", 1)
}

// TestImageWriteFails: a flash that does not hold what is written.
func TestImageWriteFails(t *testing.T) {
	i := newImaging(t)
	i.flash.Stick(flashEnv/256+flashBank/256+20, true)
	file := i.file("good.fit", i.image("2", "ast2600-evb", "ours", 20000))
	_, errs, code := i.baton(nil, "image", "install", file)
	if code != 1 || !strings.Contains(flat(errs), "bank b holds no image now and is not booted; what runs is booted as before") {
		t.Errorf("exit %d\n%s", code, errs)
	}
	if c := i.starts(); c.Bank != "a" || c.Trial {
		t.Errorf("booted bank %s, trial %v", c.Bank, c.Trial)
	}
}

// TestImageNotNoted: where the bootloader's variables could not be written
// nobody says that nothing was changed.
func TestImageNotNoted(t *testing.T) {
	i := newImaging(t)
	file := i.file("good.fit", i.image("2", "ast2600-evb", "ours", 20000))
	whole := i.image("2", "ast2600-evb", "ours", 20000)
	full := errors.New("the flash is worn")
	i.flash.EraseHook = func(block int) error {
		got := make([]byte, len(whole))
		if err := i.part("bank-b").ReadAt(t.Context(), got, 0); err != nil {
			return err
		}
		if bytes.Equal(got, whole) && block < flashEnv/4096 {
			return full
		}
		return nil
	}
	_, errs, code := i.baton(nil, "image", "install", file)
	if code != 1 || !strings.Contains(errs, "worn") || strings.Contains(errs, "nothing was changed") || !strings.Contains(flat(errs), "bank b holds the new image") {
		t.Errorf("install: exit %d\n%s", code, errs)
	}
	_, errs, code = i.baton(nil, "image", "rollback")
	if code != 1 || !strings.Contains(errs, "worn") || strings.Contains(errs, "nothing was changed") || !strings.Contains(flat(errs), "variables are those of before or those of after") {
		t.Errorf("rollback: exit %d\n%s", code, errs)
	}
}

// TestConsoleStdin: the keyboard of a console is no image, and its keys are not
// taken away from it.
func TestConsoleStdin(t *testing.T) {
	keys := strings.NewReader("status\n")
	tl := newTool(keys, io.Discard, io.Discard)
	tl.person = &session{}
	var use *usageError
	if _, err := tl.fetchImage(t.Context(), "-", 1000); !errors.As(err, &use) || keys.Len() != 7 {
		t.Errorf("- at the console: %v, %d keys are left", err, keys.Len())
	}
}

// TestStdinInterrupted: an interrupt ends the wait for a stdin that does not
// end.
func TestStdinInterrupted(t *testing.T) {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tl := &tool{stdin: r}
	if _, err := tl.readStdin(ctx, 100); !errors.Is(err, context.Canceled) {
		t.Errorf("readStdin = %v", err)
	}
	_ = w.Close()
}

// TestDownloadStalls: a server that sends nothing any more is given up.
func TestDownloadStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		timer := time.AfterFunc(fetchStall, func() { stop(errors.New("nothing came")) })
		r, w := io.Pipe()
		context.AfterFunc(ctx, func() { _ = r.CloseWithError(ctx.Err()) })
		go func() {
			for range 3 {
				time.Sleep(fetchStall - time.Second)
				_, _ = w.Write([]byte("x"))
			}
		}()
		start := time.Now()
		_, err := readImage("x", alive{r, timer}, 100)
		if err = causeOf(ctx, err); err == nil || err.Error() != "nothing came" {
			t.Errorf("error %v", err)
		}
		if d := time.Since(start); d != 4*fetchStall-3*time.Second {
			t.Errorf("gave up after %v", d)
		}
	})
}
