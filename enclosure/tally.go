package enclosure

import (
	"slices"
	"time"
)

// tallies count what is equal to something that was told of a short time ago,
// so that a thousand of it are told of as two. Enclosure.mu guards them.
type tallies[K comparable, V any] struct {
	// most bounds how many keys are counted apart. What is strange beyond them
	// is counted together, under the zero key.
	most int
	open []*tally[K, V] // in the order in which they were first told of
}

// tally is one key that has been told of, and what came since.
type tally[K comparable, V any] struct {
	key   K
	until time.Time // when what came since is told of
	n     uint32
	last  V
}

// tallyTime is how long equal ones are only counted.
const tallyTime = time.Minute

// repeated returns the tally that one of key adds to; nil means that it is to be
// told of at once.
func (t *tallies[K, V]) repeated(key K, now time.Time) *tally[K, V] {
	find := func() *tally[K, V] {
		i := slices.IndexFunc(t.open, func(w *tally[K, V]) bool { return w.key == key })
		if i < 0 {
			return nil
		}
		return t.open[i]
	}
	w := find()
	if w == nil && len(t.open) >= t.most {
		t.open = slices.DeleteFunc(t.open, func(w *tally[K, V]) bool { return w.n == 0 && !now.Before(w.until) })
		if len(t.open) >= t.most {
			key = *new(K)
			w = find()
		}
	}
	switch {
	case w == nil:
		t.open = append(t.open, &tally[K, V]{key: key, until: now.Add(tallyTime)})
	case w.n == 0 && !now.Before(w.until):
		w.until = now.Add(tallyTime)
		return nil
	}
	return w
}

// due takes out what is to be told of now, or, with all, whatever was counted.
// What goes on being counted is told of again only tallyTime later.
func (t *tallies[K, V]) due(now time.Time, all bool) (told []tally[K, V]) {
	t.open = slices.DeleteFunc(t.open, func(w *tally[K, V]) bool {
		if !all && now.Before(w.until) {
			return false
		}
		if w.n == 0 {
			return true
		}
		told = append(told, *w)
		w.n, w.until = 0, now.Add(tallyTime)
		return all
	})
	return told
}
