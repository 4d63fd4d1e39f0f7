// Package password encodes and checks the console's password.
//
// What is kept is "pbkdf2-sha256$ROUNDS$SALT$HASH": PBKDF2 with HMAC-SHA-256
// (RFC 8018 section 5.2), salt and hash in base64 without padding.
package password

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Scheme is what an encoded password begins with.
const Scheme = "pbkdf2-sha256"

// DefaultRounds is what New takes. One round is two compressions of SHA-256, of
// some 2.5 us each without special instructions at 1.2 GHz: an estimate for the
// Cortex-A7 of an AST2600, which then takes about 0.3 s.
const DefaultRounds = 60_000

// Bounds of what is read: fewer rounds protect nothing, more would hold up
// whoever stands at the console.
const (
	minRounds, maxRounds = 1_000, 1_000_000
	minSalt, maxSalt     = 8, 64 // bytes
	hashSize             = sha256.Size
	// Longest is how many bytes a password may have.
	Longest = 128
	// Shortest is how many it must have.
	Shortest = 4
)

// Errors of Check, all of them about a new password.
var (
	ErrShort = fmt.Errorf("a password has at least %d characters", Shortest)
	ErrLong  = fmt.Errorf("a password has at most %d characters", Longest)
	ErrChars = errors.New("a password is of printable ASCII: a serial terminal can not be relied on for more")
)

// errForm does not quote what it is about: it is nobody's to read.
var errForm = fmt.Errorf("is not of the form %s$ROUNDS$SALT$HASH that 'baton console password' writes", Scheme)

// Hash is an encoded password, taken apart.
type Hash struct {
	rounds     int
	salt, hash []byte
}

// Check tells whether text can be a password.
func Check(text string) error {
	switch {
	case len(text) < Shortest:
		return ErrShort
	case len(text) > Longest:
		return ErrLong
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }):
		return ErrChars
	}
	return nil
}

// New encodes text under a salt of its own.
func New(text string) (string, error) {
	if err := Check(text); err != nil {
		return "", err
	}
	salt := make([]byte, 16)
	rand.Read(salt) // never fails (crypto/rand)
	key, err := pbkdf2.Key(sha256.New, text, salt, DefaultRounds, hashSize)
	if err != nil {
		return "", err
	}
	enc := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("%s$%d$%s$%s", Scheme, DefaultRounds, enc(salt), enc(key)), nil
}

// Parse reads an encoded password. Its error does not quote it.
func Parse(encoded string) (Hash, error) {
	part := strings.Split(encoded, "$")
	if len(part) != 4 || part[0] != Scheme {
		return Hash{}, errForm
	}
	rounds, err := strconv.ParseUint(part[1], 10, 32)
	if err != nil || rounds < minRounds || rounds > maxRounds {
		return Hash{}, fmt.Errorf("has a number of rounds outside %d..%d", minRounds, maxRounds)
	}
	salt, err := base64.RawStdEncoding.Strict().DecodeString(part[2])
	if err != nil || len(salt) < minSalt || len(salt) > maxSalt {
		return Hash{}, errForm
	}
	hash, err := base64.RawStdEncoding.Strict().DecodeString(part[3])
	if err != nil || len(hash) != hashSize {
		return Hash{}, errForm
	}
	return Hash{int(rounds), salt, hash}, nil
}

// Is tells whether text is the password. It takes as long for a wrong one.
func (h Hash) Is(text string) bool {
	if len(h.hash) != hashSize || len(text) > Longest {
		return false
	}
	key, err := pbkdf2.Key(sha256.New, text, h.salt, h.rounds, hashSize)
	return err == nil && subtle.ConstantTimeCompare(key, h.hash) == 1
}
