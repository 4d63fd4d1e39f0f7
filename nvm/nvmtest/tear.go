package nvmtest

import (
	"bytes"
	"math/rand/v2"
	"slices"
)

// Tear says what a page holds when power was lost while old was being replaced
// by new.
type Tear func(r *rand.Rand, old, new []byte) Torn

// Torn is what a page may read as: one of Alts at each reading, or with PerByte
// each byte of any of them. A single one is stable.
type Torn struct {
	Alts    [][]byte
	PerByte bool
}

// NamedTear is one of Tears.
type NamedTear struct {
	Name string
	Tear Tear
}

// Tears are the ways in which a page is torn: each byte old, new or anything,
// stable or not.
var Tears = []NamedTear{
	{"old", func(_ *rand.Rand, old, _ []byte) Torn { return stable(old) }},
	{"new", func(_ *rand.Rand, _, new []byte) Torn { return stable(new) }},
	{"first bytes", func(r *rand.Rand, old, new []byte) Torn {
		n := r.IntN(len(new) + 1)
		return stable(append(slices.Clone(new[:n]), old[n:]...))
	}},
	{"last bytes", func(r *rand.Rand, old, new []byte) Torn {
		n := r.IntN(len(new) + 1)
		return stable(append(slices.Clone(old[:n]), new[n:]...))
	}},
	{"mixed", func(r *rand.Rand, old, new []byte) Torn { return stable(mix(r, old, new)) }},
	{"random", func(r *rand.Rand, _, new []byte) Torn { return stable(noise(r, len(new))) }},
	{"ones", func(_ *rand.Rand, _, new []byte) Torn { return stable(bytes.Repeat([]byte{0xff}, len(new))) }},
	{"zeros", func(_ *rand.Rand, _, new []byte) Torn { return stable(make([]byte, len(new))) }},
	{"flickers old new", func(_ *rand.Rand, old, new []byte) Torn {
		return Torn{Alts: [][]byte{slices.Clone(old), slices.Clone(new)}}
	}},
	{"flickers old new random", func(r *rand.Rand, old, new []byte) Torn {
		return Torn{Alts: [][]byte{slices.Clone(new), slices.Clone(old), noise(r, len(new))}}
	}},
	{"one byte flickers", func(r *rand.Rand, old, new []byte) Torn {
		a, b := slices.Clone(new), slices.Clone(new)
		i := r.IntN(len(new))
		b[i] = old[i]
		return Torn{Alts: [][]byte{a, b}}
	}},
	{"one byte has changed, flickers", func(r *rand.Rand, old, new []byte) Torn {
		a, b := slices.Clone(old), slices.Clone(old)
		i := r.IntN(len(new))
		b[i] = new[i]
		return Torn{Alts: [][]byte{a, b}}
	}},
	{"bytes flicker old new", func(_ *rand.Rand, old, new []byte) Torn {
		return Torn{Alts: [][]byte{slices.Clone(old), slices.Clone(new)}, PerByte: true}
	}},
	{"bytes flicker", func(r *rand.Rand, old, new []byte) Torn {
		return Torn{Alts: [][]byte{slices.Clone(old), slices.Clone(new), noise(r, len(new)), noise(r, len(new))}, PerByte: true}
	}},
	{"flickers new ones", func(_ *rand.Rand, _, new []byte) Torn {
		return Torn{Alts: [][]byte{bytes.Repeat([]byte{0xff}, len(new)), slices.Clone(new)}}
	}},
}

func stable(p []byte) Torn { return Torn{Alts: [][]byte{slices.Clone(p)}} }

func noise(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func mix(r *rand.Rand, old, new []byte) []byte {
	p := slices.Clone(old)
	for i := range p {
		if r.IntN(2) == 0 {
			p[i] = new[i]
		}
	}
	return p
}
