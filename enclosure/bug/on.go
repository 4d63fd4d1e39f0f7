//go:build batonbug

package bug

import "os"

var active = Bug(os.Getenv("BATON_BUG"))

// Is tells whether b was put in, by the environment variable BATON_BUG.
func Is(b Bug) bool { return b == active }
