package config

import (
	"strings"
	"testing"
	"time"
)

const (
	hash1 = "pbkdf2-sha256$4096$c2FsdHNhbHRzYWx0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	hash2 = "pbkdf2-sha256$4096$c2FsdHNhbHRzYWx0$BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

// withConsole is base with a console.
func withConsole(console string) string {
	return strings.TrimSuffix(base, "\n}") + ",\n\"console\": " + console + "\n}"
}

func TestConsole(t *testing.T) {
	for _, tt := range []struct{ console, want string }{
		{`{}`, ""},
		{`{"password": ""}`, ""},
		{`{"password": "` + hash1 + `", "lock_after": "30s"}`, ""},
		{`{"password": "letmein"}`, "line 12: console.password: is not of the form pbkdf2-sha256$ROUNDS$SALT$HASH that 'baton console password' writes"},
		{`{"lock_after": "9s"}`, `line 12: console.lock_after: "9s" is not a duration of 10s to 24h0m0s`},
		{`{"lock_after": "never"}`, `line 12: console.lock_after: "never" is not a duration of 10s to 24h0m0s`},
		{`{"Password": ""}`, `line 12: console.Password: unknown key; known here: lock_after, password`},
	} {
		got := ""
		if _, err := Parse([]byte(withConsole(tt.console)), lookup); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q; want %q", tt.console, got, tt.want)
		}
	}
	if encoded, after := parse(t, withConsole(`{"password": "`+hash1+`"}`)).Locked(); encoded != hash1 || after != 10*time.Minute {
		t.Errorf("Locked() = %q, %v", encoded, after)
	}
	if encoded, _ := parse(t, base).Locked(); encoded != "" {
		t.Errorf("Locked() = %q without a console", encoded)
	}
}

// TestConsoleDiff: a change is told, a password is not.
func TestConsoleDiff(t *testing.T) {
	one, two := `{"password": "`+hash1+`"}`, `{"password": "`+hash2+`"}`
	for _, tt := range []struct{ was, now, want string }{
		{base, withConsole(one), "console: a password is set"},
		{withConsole(one), withConsole(two), "console: another password"},
		{withConsole(one), base, "console: the password is taken away"},
		{base, withConsole(`{"lock_after": "1m"}`), "console: lock_after none given -> 1m0s"},
		{withConsole(one), withConsole(`{"password": "` + hash1 + `", "lock_after": "1m"}`), "console: lock_after 10m0s -> 1m0s"},
		{withConsole(one), withConsole(one), ""},
	} {
		changes := Diff(parse(t, tt.was), parse(t, tt.now))
		got := strings.Join(Texts(changes), "\n")
		if got != tt.want || strings.Contains(got, "pbkdf2") || len(Texts(changes, Live)) != len(changes) {
			t.Errorf("Diff = %q; want %q, at once", got, tt.want)
		}
	}
}

func TestMasked(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`{"a": 1}`, `{"a": 1}`},
		{`{"console": {"lock_after": "1m"}}`, `{"console": {"lock_after": "1m"}}`},
		{`{"console": {"password": ""}}`, `{"console": {"password": ""}}`},
		{`{ "a": 1, "console":  {"lock_after": "1m", "password" : "pbkdf2\u0024x"} , "b": 2}`, `{ "a": 1, "console":  {"lock_after": "1m", "password" : "(hidden)"} , "b": 2}`},
		{`{"b": {"password": "x"}, "console": {"password": {"x": ["y"]}}}`, `{"b": {"password": "x"}, "console": {"password": "(hidden)"}}`},
	} {
		got, err := Masked([]byte(tt.text))
		if err != nil || string(got) != tt.want {
			t.Errorf("Masked(%s) = %s, %v; want %s", tt.text, got, err, tt.want)
		}
	}
	for _, bad := range []string{"", "[]", `{"console": 5}`, `{"console": {"password": `, "pbkdf2-sha256$"} {
		if got, err := Masked([]byte(bad)); err == nil {
			t.Errorf("Masked(%s) = %s", bad, got)
		}
	}
}

// FuzzMasked: no text that is a configuration shows its password.
func FuzzMasked(f *testing.F) {
	f.Add([]byte(withConsole(`{"password": "` + hash1 + `"}`)))
	f.Add([]byte(withConsole(`{"password": "pbkdf2-sha256\u00244096$c2FsdHNhbHRzYWx0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse(text, nil)
		if err != nil || c.Console == nil || c.Console.Password == "" {
			return
		}
		masked, err := Masked(text)
		if err != nil {
			return // then nothing is shown
		}
		salt := strings.Split(c.Console.Password, "$")[2]
		if strings.Contains(string(masked), salt) && strings.Count(string(text), salt) == 1 {
			t.Errorf("%s\nbecomes\n%s", text, masked)
		}
	})
}
