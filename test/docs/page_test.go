package docs

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// block is a piece of a page that has commands in it: a fenced or indented
// block, a span of inline code, or a directive.
type block struct {
	line  int // of its first line of content
	kind  string
	exit  int  // console: of the last command
	stop  bool // console: the last command is interrupted
	lines []string
}

const (
	kindIndented  = "indented"
	kindInline    = "inline"
	kindDirective = "directive"
)

var fences = []string{"console", "sh", "json", "ini", "text", ""}

var (
	inlineCode = regexp.MustCompile("`([^`]+)`")
	directive  = regexp.MustCompile(`^<!-- test: (.*) -->$`)
	exitCode   = regexp.MustCompile(`^exit=(\d+)$`)
)

// readPage cuts a page into its blocks, and says what is wrong with its fences.
func readPage(path string) (blocks []block, errs []error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, []error{err}
	}
	return parsePage(string(text))
}

func parsePage(text string) (blocks []block, errs []error) {
	var fence *block
	var para []string // of prose, for inline code that goes over lines
	paraLine := 0
	endPara := func() {
		joined := strings.Join(para, "\n")
		for _, m := range inlineCode.FindAllStringSubmatchIndex(joined, -1) {
			code := strings.Join(strings.Fields(joined[m[2]:m[3]]), " ")
			blocks = append(blocks, block{line: paraLine + strings.Count(joined[:m[2]], "\n"), kind: kindInline, lines: []string{code}})
		}
		para = nil
	}
	blank := true // what is indented begins a block only after a blank line
	for i, line := range strings.Split(text, "\n") {
		n := i + 1
		bare := strings.TrimSpace(line)
		switch {
		case fence != nil && bare == "```":
			blocks = append(blocks, *fence)
			fence = nil
		case fence != nil:
			fence.lines = append(fence.lines, line)
		case strings.HasPrefix(bare, "```"):
			endPara()
			info := strings.Fields(strings.TrimPrefix(bare, "```"))
			fence = &block{line: n + 1}
			if len(info) > 0 {
				fence.kind = info[0]
				for _, w := range info[1:] {
					switch m := exitCode.FindStringSubmatch(w); {
					case fence.kind == "console" && m != nil:
						_, _ = fmt.Sscan(m[1], &fence.exit) // digits
					case fence.kind == "console" && w == "interrupt":
						fence.stop = true
					default:
						errs = append(errs, fmt.Errorf("%d: what is %q behind ```%s?", n, w, fence.kind))
					}
				}
			}
			if !slices.Contains(fences, fence.kind) {
				errs = append(errs, fmt.Errorf("%d: a block of kind %q: want one of %q", n, fence.kind, fences))
			}
		case directive.MatchString(bare):
			endPara()
			blocks = append(blocks, block{line: n, kind: kindDirective, lines: directive.FindStringSubmatch(bare)[1:]})
		case strings.HasPrefix(bare, "<!-- example "): // names one of the API's, for its own test
			endPara()
		case strings.HasPrefix(bare, "<!--"):
			errs = append(errs, fmt.Errorf("%d: a comment that is no directive of the test: %s", n, bare))
		case strings.HasPrefix(line, "    ") && (blank || len(blocks) > 0 && blocks[len(blocks)-1].kind == kindIndented && blocks[len(blocks)-1].line+len(blocks[len(blocks)-1].lines) == n):
			endPara()
			if last := len(blocks) - 1; last >= 0 && blocks[last].kind == kindIndented && blocks[last].line+len(blocks[last].lines) == n {
				blocks[last].lines = append(blocks[last].lines, line[4:])
			} else {
				blocks = append(blocks, block{line: n, kind: kindIndented, lines: []string{line[4:]}})
			}
		case bare == "":
			endPara()
		default:
			if len(para) == 0 {
				paraLine = n
			}
			para = append(para, line)
		}
		blank = bare == ""
	}
	endPara()
	if fence != nil {
		errs = append(errs, fmt.Errorf("%d: a block without an end", fence.line-1))
	}
	return blocks, errs
}

// command is a command of a console block, with the output that the page shows.
type command struct {
	line int
	text string
	want []string // nil = not shown
}

// commands of a console block.
func (b block) commands() (out []command, err error) {
	for i := 0; i < len(b.lines); i++ {
		line := b.lines[i]
		if text, ok := strings.CutPrefix(line, "$ "); ok {
			c := command{line: b.line + i, text: text}
			for strings.HasSuffix(c.text, "\\") && i+1 < len(b.lines) {
				i++
				c.text += "\n" + b.lines[i]
			}
			out = append(out, c)
			continue
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("%d: output before the first command (\"$ \")", b.line+i)
		}
		last := &out[len(out)-1]
		last.want = append(last.want, line)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%d: a console block without a command (\"$ \")", b.line)
	}
	return out, nil
}
