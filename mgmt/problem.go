package mgmt

// Problem is an RFC 9457 problem document, the answer to every request that
// was refused or failed. It is the error of the client's methods.
type Problem struct {
	Type    string        `json:"type"` // where it is explained
	Title   string        `json:"title"`
	Status  int           `json:"status"`
	Detail  string        `json:"detail"`
	Code    string        `json:"code"`              // stable; docs/errors.md
	Retry   bool          `json:"retry"`             // the same request may succeed later
	Slot    string        `json:"slot,omitempty"`    // that it is about
	State   string        `json:"state,omitempty"`   // of things now, as "nothing was changed"
	Next    string        `json:"next,omitempty"`    // what to do
	Current string        `json:"current,omitempty"` // generation, where another one was expected
	Errors  []ConfigError `json:"errors,omitempty"`  // of a configuration
}

// ConfigError is one thing that is wrong with a configuration.
type ConfigError struct {
	Line int    `json:"line"`
	Key  string `json:"key"`
	Text string `json:"text"`
}

// Error gives slot and detail.
func (p *Problem) Error() string {
	s := p.Detail
	if s == "" {
		s = p.Title
	}
	if p.Slot != "" {
		s = p.Slot + ": " + s
	}
	return s
}

// Codes of the interface itself; those of the enclosure are beside them in
// docs/errors.md.
const (
	CodeNoRoute     = "no-such-route"
	CodeMethod      = "method-not-allowed"
	CodeMediaType   = "not-json"
	CodeTooLarge    = "body-too-large"
	CodePermission  = "not-permitted"
	CodeOverloaded  = "overloaded"
	CodeTimeout     = "timeout"
	MediaTypeJSON   = "application/json"
	MediaTypeStream = "text/event-stream"
	MediaProblem    = "application/problem+json"
	MediaMetrics    = "text/plain; version=0.0.4; charset=utf-8"
)
