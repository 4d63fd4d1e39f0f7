package mkfit

import (
	"context"
	"crypto/rsa"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadKey(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, args := range []string{
		"genrsa -traditional -out " + in("pkcs1") + " 2048",
		"genrsa -out " + in("pkcs8") + " 3072",
		"genrsa -out " + in("short") + " 1024",
		"genrsa -aes128 -passout pass:x -out " + in("locked") + " 2048",
		"genpkey -algorithm ED25519 -out " + in("other"),
		"pkey -in " + in("pkcs8") + " -pubout -out " + in("public"),
	} {
		if out, err := exec.Command("openssl", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("openssl %s: %v\n%s\non Debian: apt-get install --no-install-recommends openssl", args, err, out)
		}
	}
	if err := os.WriteFile(in("text"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		file string
		bits int
		want string
	}{
		{"pkcs1", 2048, ""},
		{"pkcs8", 3072, ""},
		{"short", 0, "1024 bits, want 2048"},
		{"locked", 0, "that no passphrase protects"},
		{"other", 0, "not an RSA key"},
		{"public", 0, "a PUBLIC KEY, want a PRIVATE KEY"},
		{"text", 0, "not PEM"},
		{"absent", 0, "no such file"},
	} {
		k, err := ReadKey(in(tt.file))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("ReadKey(%s): %v", tt.file, err)
		case tt.want == "" && k.Public.N.BitLen() != tt.bits:
			t.Errorf("ReadKey(%s): %d bits; want %d", tt.file, k.Public.N.BitLen(), tt.bits)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.file)):
			t.Errorf("ReadKey(%s): %v; want the file and %q named", tt.file, err, tt.want)
		}
	}
}

// TestMkimageComplains: what mkimage says is kept, its help is not.
func TestMkimageComplains(t *testing.T) {
	public := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2047), E: 65537}
	gone := &Key{public, filepath.Join(t.TempDir(), "gone.pem")}
	_, err := Make(context.Background(), Spec{Board: "x", Version: "1", Arch: "arm", Kernel: []byte("k"), Ramdisk: []byte("r"), Key: gone})
	if err == nil || !strings.Contains(err.Error(), "Couldn't open RSA private key") || strings.Contains(err.Error(), "Usage") {
		t.Errorf("the key has gone: %v; want mkimage's complaint without its help", err)
	}
}

func TestMkimageAbsent(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Make(context.Background(), Spec{Board: "x", Arch: "arm"})
	if err == nil || !strings.Contains(err.Error(), "apt-get install --no-install-recommends u-boot-tools") {
		t.Errorf("error %v; want the command that installs it", err)
	}
}
