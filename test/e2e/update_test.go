//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"baton/images/bootloader"
	"baton/images/fit"
	"baton/images/fit/mkfit"
	"baton/images/qemu"
	"baton/images/rootfs"
)

// shortTrial shortens the time that an image on trial has to be well in, which
// is 3 minutes.
const shortTrial = "baton.trial_within=25s"

// TestUpdate takes a board through its images: what may not be installed, an
// image whose writing and whose trial the power cut, one that is confirmed, and
// one whose agent does not run.
func TestUpdate(t *testing.T) {
	u := newUpdate(t)
	b := u.board

	// Bank a: the first image, as the factory leaves it.
	u.boot()
	u.state("steady", "a")
	before := u.bank("b")
	u.network()
	for _, bad := range []struct{ file, want string }{
		{"unsigned.fit", "image is not signed"},
		{"foreign.fit", "signature is not by a known key"},
		{"otherboard.fit", "image is for another board"},
		{"truncated.fit", "image is truncated"},
		{"damaged.fit", "hash does not match"},
		{"large.fit", "image is too large"},
		{"empty.fit", "not a FIT image"},
		{"absent.fit", "404"},
	} {
		output, status := u.run("baton image install " + u.url(bad.file))
		if flat := strings.Join(strings.Fields(output), " "); status != 1 || !strings.Contains(flat, bad.want) || !strings.Contains(flat, "state: nothing was changed") {
			t.Errorf("install of %s: status %d; want 1 and %q:\n%s", bad.file, status, bad.want, output)
		}
	}
	if !bytes.Equal(before, u.bank("b")) {
		t.Error("bank b has changed by what was refused")
	}
	u.state("steady", "a")

	// The power fails while bank b is written.
	if err := b.vm.Console.Send("baton image install " + u.url("good.fit")); err != nil {
		t.Fatal(err)
	}
	u.until("bank b is written", func() bool { return !bytes.Equal(before[1<<20:2<<20], u.bank("b")[1<<20:2<<20]) })
	b.vm.Kill()
	u.boot()
	u.state("steady", "a")

	// Its trial is cut short, and counts.
	u.network()
	start := time.Now()
	output := b.must("baton image install " + u.url("good.fit"))
	t.Logf("installed %d bytes in %v:\n%s", len(u.images["good.fit"]), time.Since(start).Round(time.Second), output)
	u.state("pending", "a")
	u.reboot()
	u.load("b", true)
	ctx, cancel := context.WithTimeout(b.ctx, bootMax)
	b.power(ctx)
	if _, err := b.vm.Console.Expect(ctx, regexp.MustCompile(`init: `)); err != nil {
		t.Fatal(err)
	}
	cancel()
	b.vm.Kill()
	u.boot()
	if s := u.untilState("steady", "a"); !strings.Contains(s.Outcome, "bank b was started and not confirmed") {
		t.Errorf("outcome after a trial that was cut short: %q", s.Outcome)
	}

	// The same image is still there: tried again, and confirmed.
	b.must("baton image rollback")
	u.reboot()
	u.boot()
	u.untilState("steady", "b")

	// An image whose agent does not run comes back by itself.
	u.network()
	b.must("baton image install " + u.url("broken.fit"))
	u.reboot()
	u.loader.Words = []string{shortTrial}
	u.load("a", true)
	ctx, cancel = context.WithTimeout(b.ctx, bootMax)
	b.power(ctx)
	start = time.Now()
	how := b.wait(4 * time.Minute)
	cancel()
	t.Logf("the broken image was up for %v; it ended by %s", time.Since(start).Round(time.Second), how)
	if how != qemu.EndReset && how != qemu.EndWatchdog {
		t.Fatalf("the broken image ended by %s; want a restart", how)
	}
	u.boot()
	if s := u.untilState("steady", "b"); !strings.Contains(s.Outcome, "given up") {
		t.Errorf("outcome of the broken image: %q", s.Outcome)
	}
	t.Logf("boots: %d, in %v", len(b.boots), b.boots)
}

// update is a board that boots from its flash, and images for it.
type update struct {
	t      *testing.T
	board  *board
	loader *bootloader.Board
	images map[string][]byte
	port   int
}

type imageStatus struct {
	State, Runs, Outcome string
}

func newUpdate(t *testing.T) *update {
	t.Helper()
	u := &update{t: t, images: map[string][]byte{}}
	u.board = newBoardWith(t, "ast2600-evb", options{})
	m := u.board.machine
	key, other := u.key("key"), u.key("other")
	public, err := x509.MarshalPKIXPublicKey(key.Public)
	if err != nil {
		t.Fatal(err)
	}
	pub := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})

	data, err := os.ReadFile(filepath.Join(m.Image, "image.fit"))
	if err != nil {
		t.Fatal(err)
	}
	built, err := fit.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	// What is refused is so for other reasons than what is booted.
	small := func(s mkfit.Spec) mkfit.Spec {
		s.Kernel, s.Ramdisk = s.Kernel[:10000], s.Ramdisk[:10000]
		return s
	}
	spec := func(version, board string, key *mkfit.Key, files map[string]string) mkfit.Spec {
		overlay := filepath.Join(t.TempDir(), "overlay.cpio")
		if err := rootfs.WriteOverlay(overlay, files); err != nil {
			t.Fatal(err)
		}
		more, err := os.ReadFile(overlay)
		if err != nil {
			t.Fatal(err)
		}
		var ramdisk bytes.Buffer
		if err := rootfs.Concat(&ramdisk, built.Ramdisk.Data, more); err != nil {
			t.Fatal(err)
		}
		return mkfit.Spec{
			Board: board, Version: version, Arch: built.Kernel.Arch, Kernel: built.Kernel.Data, Load: built.Kernel.Load,
			FDT: built.FDT.Data, Ramdisk: ramdisk.Bytes(), Time: time.Unix(1700000000, 0), Key: key,
		}
	}
	add := func(name string, s mkfit.Spec) []byte {
		image, err := mkfit.Make(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		u.images[name] = image
		return image
	}
	keyed := map[string]string{"etc/baton/image-key.pem": u.file("public.pem", pub)}
	broken := map[string]string{"etc/baton/batond.json": u.file("batond.json", []byte("{}"))}
	for k, v := range keyed {
		broken[k] = v
	}
	first := add("first.fit", spec("1", "ast2600-evb", key, keyed))
	good := add("good.fit", spec("2", "ast2600-evb", key, keyed))
	add("broken.fit", spec("3", "ast2600-evb", key, broken))
	add("unsigned.fit", small(spec("2", "ast2600-evb", nil, keyed)))
	add("foreign.fit", small(spec("2", "ast2600-evb", other, keyed)))
	add("otherboard.fit", small(spec("2", "ast2500-evb", key, keyed)))
	tiny := add("tiny.fit", small(spec("2", "ast2600-evb", key, keyed)))
	u.images["truncated.fit"] = tiny[:len(tiny)-1000]
	damaged := bytes.Clone(tiny)
	damaged[len(damaged)/2] ^= 1 // of the device tree
	u.images["damaged.fit"] = damaged
	u.images["large.fit"] = append(bytes.Clone(good), make([]byte, 16<<20)...)
	u.images["empty.fit"] = []byte{}

	u.loader = &bootloader.Board{Machine: m, Key: key.Public, Say: func(format string, args ...any) {
		fmt.Fprintf(u.board.console, "bootloader: "+format+"\n", args...)
	}}
	if err := u.loader.Provision(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	u.serve()
	return u
}

func (u *update) file(name string, data []byte) string {
	u.t.Helper()
	name = filepath.Join(u.t.TempDir(), name)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		u.t.Fatal(err)
	}
	return name
}

func (u *update) key(name string) *mkfit.Key {
	u.t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		u.t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})
	key, err := mkfit.ReadKey(u.file(name+".pem", text))
	if err != nil {
		u.t.Fatal(err)
	}
	return key
}

// serve offers the images over HTTP, where QEMU's user network has the host.
func (u *update) serve() {
	u.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		u.t.Fatal(err)
	}
	u.port = l.Addr().(*net.TCPAddr).Port
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		image, ok := u.images[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(image)))
		_, _ = w.Write(image)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	u.t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
}

func (u *update) url(file string) string { return fmt.Sprintf("http://10.0.2.2:%d/%s", u.port, file) }

// network gives the board an address in QEMU's user network. Its driver is one
// of those that are loaded late.
func (u *update) network() {
	u.t.Helper()
	u.until("the board has eth0", func() bool {
		_, status := u.run("ip addr add 10.0.2.15/24 dev eth0")
		return status == 0
	})
	u.board.must("ip link set eth0 up")
	u.until("the network is there", func() bool {
		output, _ := u.run("baton image install " + u.url("absent.fit"))
		return strings.Contains(output, "404")
	})
}

// run runs what may take long.
func (u *update) run(command string) (output string, status int) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.board.ctx, 3*time.Minute)
	defer cancel()
	output, status, err := u.board.vm.Console.Run(ctx, command)
	if err != nil {
		u.t.Fatal(err)
	}
	return output, status
}

// load has the bootloader choose, which has to be as wanted.
func (u *update) load(bank string, trial bool) {
	u.t.Helper()
	c, err := u.loader.Load(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	if c.Bank != bank || c.Trial != trial {
		u.t.Fatalf("the bootloader boots bank %s, trial %v; want %s, %v", c.Bank, c.Trial, bank, trial)
	}
}

// boot switches the board on and waits until its agent answers.
func (u *update) boot() {
	u.t.Helper()
	if _, err := u.loader.Load(u.t.Context()); err != nil {
		u.t.Fatal(err)
	}
	u.board.boot()
}

func (u *update) reboot() {
	u.t.Helper()
	if err := u.board.vm.Console.Send("reboot"); err != nil {
		u.t.Fatal(err)
	}
	if how := u.board.wait(time.Minute); how != qemu.EndReset && how != qemu.EndWatchdog {
		u.t.Fatalf("reboot ended by %s", how)
	}
}

func (u *update) status() imageStatus {
	u.t.Helper()
	output := u.board.must("baton image status --json")
	// Init says things on the console when it likes to.
	output = regexp.MustCompile(`(?m)^init: \[.*\n`).ReplaceAllString(output, "")
	var s imageStatus
	if err := json.Unmarshal([]byte(output), &s); err != nil {
		u.t.Fatalf("%v:\n%s", err, output)
	}
	return s
}

func (u *update) state(state, runs string) imageStatus {
	u.t.Helper()
	s := u.status()
	if s.State != state || s.Runs != runs {
		u.t.Fatalf("state %s, bank %s runs; want %s, %s", s.State, s.Runs, state, runs)
	}
	return s
}

// untilState waits for what init does at a start.
func (u *update) untilState(state, runs string) (s imageStatus) {
	u.t.Helper()
	u.until("bank "+runs+" is "+state, func() bool {
		s = u.status()
		return s.State == state && s.Runs == runs
	})
	return s
}

func (u *update) until(what string, is func() bool) {
	u.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			u.t.Fatalf("%s: not within a minute", what)
		}
	}
}

// bank is the content of a bank, read from outside the board.
func (u *update) bank(name string) []byte {
	u.t.Helper()
	m := u.board.machine
	p, chip, _ := m.Board.Partition("bank-" + name)
	data, err := os.ReadFile(m.Flash(chip.Name))
	if err != nil {
		u.t.Fatal(err)
	}
	return data[p.Offset : p.Offset+p.Size]
}
