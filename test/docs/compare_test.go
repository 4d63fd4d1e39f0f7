package docs

import (
	"regexp"
	"strings"
)

// unsteady is what differs from run to run, and what it becomes before output
// is compared.
var unsteady = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`(?m)^baton: .* so far$`), ""}, // of what takes longer than a second
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "UUID"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-(\d+)\b`), "INCARNATION-$1"},
	{regexp.MustCompile(`\b0x[0-9a-f]{8}\b`), "0xWORD"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?\b`), "DATE"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d\b`), "DATE"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d(\.\d+)?\b`), "TIME"},
	{regexp.MustCompile(`\b\d+d\d+h(\d+m)?\b`), "TIME"},
	{regexp.MustCompile(`\b\d+h\d+m(\d+s)?\b`), "TIME"},
	{regexp.MustCompile(`\b\d+m\d+s\b`), "TIME"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?(ns|us|ms|s|min|m|h|d)\b`), "TIME"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\b`), "VERSION"},
	{regexp.MustCompile(`\b\d{6,}\.\d+\b`), "EVENT"},
}

// words of a text in which what is unsteady was replaced. Layout is not
// compared: columns and line ends move with it.
func words(text string) []string {
	for _, u := range unsteady {
		text = u.re.ReplaceAllString(text, u.to)
	}
	return strings.Fields(text)
}

// matches tells whether got is what a page shows: "..." stands for any words.
// Where it is not, far is how many words of want fit at most.
func matches(want, got []string) (ok bool, far int) {
	if len(want) == 0 {
		return len(got) == 0, 0
	}
	if want[0] == "..." {
		for i := range len(got) + 1 {
			ok, n := matches(want[1:], got[i:])
			if ok {
				return true, len(want)
			}
			far = max(far, 1+n)
		}
		return false, far
	}
	if len(got) == 0 || !wordMatches(want[0], got[0]) {
		return false, 0
	}
	ok, far = matches(want[1:], got[1:])
	return ok, 1 + far
}

// wordMatches is for one word, of which "..." stands for any part.
func wordMatches(want, got string) bool {
	parts := strings.Split(want, "...")
	if len(parts) == 1 {
		return want == got
	}
	rest, ok := strings.CutPrefix(got, parts[0])
	if !ok {
		return false
	}
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}
