package main

import (
	"testing"

	"baton/mgmt"
)

// What was not read is not to be quoted.
func TestSeenText(t *testing.T) {
	read := mgmt.Values{Resets: 4, Epoch: 0x1c2d3e4f, Ident: 0x89ab12cd}
	for _, c := range []struct {
		v    mgmt.Verdict
		want string
	}{
		{mgmt.Verdict{Generation: "9f3c2a10-17", Now: read}, "9f3c2a10-17/4/0x1c2d3e4f/0x89ab12cd"},
		{mgmt.Verdict{Generation: "9f3c2a10-17"}, "-"},
		{mgmt.Verdict{Now: read}, "-"},
	} {
		if got := seenText(c.v); got != c.want {
			t.Errorf("seen of %+v is %q; want %q", c.v, got, c.want)
		}
	}
}
