package servertest

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// NoLeaks fails t if goroutines of ours, or of net/http for us, are left when
// all of t's other cleanups have run. Call it first.
func NoLeaks(t testing.TB) {
	t.Helper()
	before := ours()
	t.Cleanup(func() {
		var left []string
		for range 200 {
			left = left[:0]
			for id, stack := range ours() {
				if _, ok := before[id]; !ok {
					left = append(left, stack)
				}
			}
			if len(left) == 0 {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%d goroutines left:\n%s", len(left), strings.Join(left, "\n\n"))
	})
}

// ours maps the header of each goroutine that runs code of ours to its stack.
func ours() map[string]string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	out := map[string]string{}
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		head, stack, _ := strings.Cut(g, "\n")
		if strings.Contains(stack, "testing.tRunner") || strings.Contains(stack, "testing.(*M)") {
			continue // a test itself
		}
		if strings.Contains(stack, "baton/") || strings.Contains(stack, "net/http.") {
			id, _, _ := strings.Cut(head, " [")
			out[id] = g
		}
	}
	return out
}
