package main

import (
	"strings"

	"baton/mgmt/config"
	"baton/mgmt/password"
)

// secretKeys are keys of JSON whose value nobody but an admin may read, and
// names before a '=' in a log. Keys that later versions may have are among them.
var secretKeys = []string{"password", "passphrase", "secret", "private_key", "psk", "token_secret", "invite"}

// scrub takes out of a text what looks like a secret: encoded passwords, private
// keys, values of secretKeys. It is for what is pasted into tickets, and the last
// of two nets: what is known to have secrets is asked for without.
func scrub(text string) string {
	var out strings.Builder
	inKey := false
	for l := range strings.Lines(text) {
		switch {
		case strings.Contains(l, "-----BEGIN ") && strings.Contains(l, "PRIVATE KEY-----"):
			inKey = !strings.Contains(l, "-----END ")
			out.WriteString(config.Hidden + "\n")
			continue
		case inKey:
			inKey = !strings.Contains(l, "-----END ")
			continue
		}
		l = cutTokens(l)
		for _, k := range secretKeys {
			l = cutValue(l, k)
		}
		out.WriteString(l)
	}
	return out.String()
}

// cutTokens replaces encoded passwords, wherever they stand; also where a JSON
// text, or one in a JSON text, writes their '$' as \u0024.
func cutTokens(l string) string {
	from := 0
	for {
		i := strings.Index(l[from:], password.Scheme)
		if i < 0 {
			return l
		}
		i += from
		end := i + len(password.Scheme)
		for end < len(l) && (isAlnum(l[end]) || strings.IndexByte("$+/=\\-_", l[end]) >= 0) {
			end++
		}
		from = i + len(password.Scheme)
		if end > from {
			l = l[:i] + config.Hidden + l[end:]
			from = i + len(config.Hidden)
		}
	}
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// cutValue replaces the string after "key": and after key=, quoted with " or
// with \" (a JSON text inside another).
func cutValue(l, key string) string {
	from := 0
	for {
		i := strings.Index(strings.ToLower(l[from:]), key)
		if i < 0 {
			return l
		}
		at := from + i + len(key)
		from = at
		rest := l[at:]
		trimmed := strings.TrimLeft(rest, `\"`)
		quoted := len(trimmed) < len(rest)
		trimmed = strings.TrimLeft(trimmed, " ")
		if trimmed == "" || trimmed[0] != ':' && trimmed[0] != '=' || trimmed[0] == ':' && !quoted {
			continue
		}
		trimmed = strings.TrimLeft(trimmed[1:], " ")
		value := strings.TrimLeft(trimmed, `\"`)
		start := len(l) - len(value)
		if len(value) == len(trimmed) { // not quoted: a word
			end := strings.IndexAny(value, " ,}]\n")
			if end < 0 {
				end = len(value)
			}
			if end == 0 || value[0] == '{' || value[0] == '[' {
				continue
			}
			l, from = l[:start]+config.Hidden+value[end:], start+len(config.Hidden)
			continue
		}
		if strings.HasPrefix(trimmed, `""`) || strings.HasPrefix(trimmed, `\"\"`) {
			continue // empty: no secret, and worth to know
		}
		end := 0
		for end < len(value) && value[end] != '"' && value[end] != '\n' {
			if value[end] == '\\' && end+1 < len(value) && strings.HasPrefix(trimmed, `"`) {
				end++ // escaped
			}
			end++
		}
		end = min(end, len(value))
		tail := value[end:]
		if strings.HasSuffix(value[:end], `\`) {
			tail = `\` + tail
		}
		l, from = l[:start]+config.Hidden+tail, start+len(config.Hidden)
	}
}
