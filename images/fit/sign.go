package fit

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// Verify checks that one of the keys has signed the configuration, and with it
// the hashes of all that it boots. The error holds ErrUnsigned or ErrSignature.
func (i *Image) Verify(keys ...*rsa.PublicKey) error {
	signed := false
	var why error
	for _, s := range i.config.children {
		if !isNamed(s.name, "signature") {
			continue
		}
		signed = true
		digest, err := i.digest(s)
		if err != nil {
			why = err
			continue
		}
		for _, k := range keys {
			if rsa.VerifyPKCS1v15(k, crypto.SHA256, digest, s.properties["value"].value) == nil {
				return nil
			}
		}
	}
	if !signed {
		return ErrUnsigned
	}
	if why != nil {
		return fmt.Errorf("%w: %w", ErrSignature, why)
	}
	return ErrSignature
}

// digest is the hash that the signature s is of. What is hashed is said by s
// itself, which nobody has signed; so it has to say what is expected.
//
// Of each node that is listed the tags and properties are hashed, but no
// property with data; of each node right inside of one the tags only; then the
// tag at the end, and the strings (U-Boot, boot/fdt_region.c,
// fdt_find_regions, and boot/image-fit-sig.c, fit_config_check_sig).
func (i *Image) digest(s *node) ([]byte, error) {
	if p, err := s.text("padding"); err != nil || p != "" && p != "pkcs-1.5" {
		return nil, malformed("%s: padding is not pkcs-1.5", s.path)
	}
	listed := map[string]bool{}
	for _, path := range i.used {
		listed[path] = true
	}
	var nodes []string
	for p := range bytes.SplitSeq(bytes.TrimSuffix(s.properties["hashed-nodes"].value, []byte{0}), []byte{0}) {
		nodes = append(nodes, string(p))
	}
	slices.Sort(nodes)
	want := slices.Sorted(slices.Values(i.used))
	if !slices.Equal(nodes, want) {
		return nil, malformed("%s: it covers %q, want %q", s.path, nodes, want)
	}
	h := sha256.New()
	end := uint32(0) // of the names of what is hashed, in the strings block
	hash := func(g tag) { h.Write(i.tree.block[g.start:g.end]) }
	inside := 0 // of a listed node: 2 right in it, 1 in a child of it that is not listed
	var outer []int
	for _, g := range i.tree.tags {
		switch g.kind {
		case tagBegin:
			outer = append(outer, inside)
			if listed[g.node.path] {
				inside = 2
			} else {
				inside = max(inside-1, 0)
			}
			if inside > 0 {
				hash(g)
			}
		case tagEnd:
			if inside > 0 {
				hash(g)
			}
			inside, outer = outer[len(outer)-1], outer[:len(outer)-1]
		case tagProperty:
			if inside == 2 && g.property.name != "data" {
				hash(g)
				end = max(end, g.property.nameOff+uint32(len(g.property.name))+1)
			}
		case tagNop:
			if inside == 2 {
				hash(g)
			}
		case tagStop:
			hash(g)
		}
	}
	texts := s.properties["hashed-strings"].value
	if len(texts) != 8 || binary.BigEndian.Uint32(texts) != 0 {
		return nil, malformed("%s: hashed-strings does not start at 0", s.path)
	}
	n := binary.BigEndian.Uint32(texts[4:])
	if n < end || uint64(n) > uint64(len(i.tree.strings)) {
		return nil, malformed("%s: %d bytes of strings are covered, want %d to %d", s.path, n, end, len(i.tree.strings))
	}
	h.Write(i.tree.strings[:n])
	return h.Sum(nil), nil
}

// minKey is the shortest RSA key that is accepted, in bits.
const minKey = 2048

// ParseKey reads an RSA public key: PEM of kind PUBLIC KEY, or its DER.
func ParseKey(text []byte) (*rsa.PublicKey, error) {
	der := text
	if block, _ := pem.Decode(text); block != nil {
		if block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("a %s, want a PUBLIC KEY: openssl pkey -in KEY.pem -pubout", block.Type)
		}
		der = block.Bytes
	}
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("not a public key in PEM or DER: %w", err)
	}
	k, ok := key.(*rsa.PublicKey)
	if !ok {
		return nil, errors.New("not an RSA key")
	}
	if k.N.BitLen() < minKey {
		return nil, fmt.Errorf("an RSA key of %d bits, want at least %d", k.N.BitLen(), minKey)
	}
	return k, nil
}
