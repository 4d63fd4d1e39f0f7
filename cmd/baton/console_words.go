package main

import "errors"

// Errors of split.
var (
	errQuote = errors.New("a quote is not closed")
	errPipe  = errors.New("there are no pipes and no redirections here: 'shell' has them")
)

// split takes a line apart as a shell does: words between spaces, '...' as it
// stands, "..." and what follows \ with their meaning taken away; # at the
// beginning of a word begins a comment, as suggestions have them.
func split(line string) (words []string, err error) {
	var word []byte
	in := false // a word has begun
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == ' ' || c == '\t':
			if in {
				words, word, in = append(words, string(word)), nil, false
			}
		case c == '#' && !in:
			return words, nil
		case (c == '|' || c == '>' || c == '<' || c == '&' || c == ';' || c == '`') && !in:
			return nil, errPipe
		case c == '\\':
			if i++; i == len(line) {
				return nil, errQuote
			}
			word, in = append(word, line[i]), true
		case c == '\'' || c == '"':
			in = true
			for i++; ; i++ {
				if i >= len(line) {
					return nil, errQuote
				}
				if line[i] == c {
					break
				}
				if c == '"' && line[i] == '\\' && i+1 < len(line) && (line[i+1] == '"' || line[i+1] == '\\') {
					i++
				}
				word = append(word, line[i])
			}
		default:
			word, in = append(word, c), true
		}
	}
	if in {
		words = append(words, string(word))
	}
	return words, nil
}
