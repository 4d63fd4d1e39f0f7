package password

import (
	"errors"
	"strings"
	"testing"
)

// TestVector is PBKDF2-HMAC-SHA-256 of "password" with salt "saltsaltsalt",
// 4096 rounds, as Python's hashlib gives it.
func TestVector(t *testing.T) {
	const encoded = "pbkdf2-sha256$4096$c2FsdHNhbHRzYWx0$13TLRJVFWraUiyDcUioP51itOCxn4RX5s3K0R+uq90s"
	h, err := Parse(encoded)
	if err != nil {
		t.Fatal(err)
	}
	if !h.Is("password") {
		t.Error("Is(password) = false")
	}
	for _, wrong := range []string{"", "Password", "password ", strings.Repeat("x", Longest+1)} {
		if h.Is(wrong) {
			t.Errorf("Is(%q) = true", wrong)
		}
	}
	if (Hash{}).Is("") {
		t.Error("a zero Hash lets in")
	}
}

func TestNew(t *testing.T) {
	one, err := New("over the hills")
	if err != nil {
		t.Fatal(err)
	}
	two, err := New("over the hills")
	if err != nil || one == two {
		t.Errorf("the same password gives %s twice: %v", one, err)
	}
	h, err := Parse(one)
	if err != nil || !h.Is("over the hills") || h.Is("over the hill") {
		t.Errorf("Parse(%s) = %v; it does not tell right from wrong", one, err)
	}
	for text, want := range map[string]error{"abc": ErrShort, strings.Repeat("x", 129): ErrLong, "p\u00e4ssword": ErrChars, "tab\there": ErrChars} {
		if _, err := New(text); !errors.Is(err, want) {
			t.Errorf("New(%q) = %v; want %v", text, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	const salt, hash = "c2FsdHNhbHRzYWx0", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	if _, err := Parse("pbkdf2-sha256$4096$" + salt + "$" + hash); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", "secret", "pbkdf2-sha256$4096$" + salt, "pbkdf2-sha1$4096$" + salt + "$" + hash, "pbkdf2-sha256$999$" + salt + "$" + hash,
		"pbkdf2-sha256$1000001$" + salt + "$" + hash, "pbkdf2-sha256$-4096$" + salt + "$" + hash, "pbkdf2-sha256$4096$c2FsdA$" + hash,
		"pbkdf2-sha256$4096$" + salt + "$AAAA", "pbkdf2-sha256$4096$" + salt + "$" + hash + "=", "pbkdf2-sha256$4096$" + salt + "$" + hash + "$x",
		"pbkdf2-sha256$4096$" + salt + "$" + strings.Replace(hash, "A", "*", 1),
	} {
		h, err := Parse(bad)
		if err == nil {
			t.Errorf("Parse(%q) took it: %+v", bad, h)
		} else if bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("Parse(%q) quotes it: %v", bad, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("pbkdf2-sha256$4096$c2FsdHNhbHRzYWx0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("pbkdf2-sha256$$$")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := Parse(text)
		if err == nil && (h.rounds < minRounds || h.rounds > maxRounds || len(h.salt) < minSalt || len(h.hash) != hashSize) {
			t.Errorf("Parse(%q) = %+v", text, h)
		}
	})
}
