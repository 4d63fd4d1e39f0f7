package sim

// rng is splitmix64 (Steele, Lea, Flood 2014): a copy goes on by itself, which
// a copied World needs.
type rng struct{ state uint64 }

func newRNG(seed uint64) rng { return rng{seed} }

func (r *rng) next() uint64 {
	r.state += 0x9E3779B97F4A7C15
	z := r.state
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// below returns a number in 0..n-1; the bias is below n in 2^64.
func (r *rng) below(n int) int { return int(r.next() % uint64(n)) }
