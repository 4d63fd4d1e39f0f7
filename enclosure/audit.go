package enclosure

import "time"

// AuditRecord is what the store keeps of something that changed assignments,
// fences, parts or configuration, or was refused.
type AuditRecord struct {
	Seq    uint32 // of all that were ever kept in this store
	Run    uint32 // which start of the agent
	Uptime time.Duration
	Wall   time.Time // zero where the clock was not set
	Kind   string    // as of Event
	Slots  []string
	Host   string
	VM     string
	Move   string
	Code   string
	Count  uint32 // of equal refusals that this stands for; 0 = one
	By     string
	Text   string
}

// Audit returns the records that are kept, oldest first, and how many older
// ones no longer are.
func (e *Enclosure) Audit() (kept []AuditRecord, lost uint32) { return nil, 0 }

// Note records an event of the agent itself, of configuration for example; it
// goes into the audit.
func (e *Enclosure) Note(ev Event) { e.emit(ev) }

// Refuse records that something was refused before it got here. Equal
// refusals, by caller and code, are counted, not repeated.
func (e *Enclosure) Refuse(by string, code Code, text string) {}

// Counters count since the agent started.
type Counters struct {
	Moves      map[MoveState]uint64
	Fences     uint64
	Refusals   map[Code]uint64
	Voids      uint64
	Events     uint64
	PageWrites uint64            // of the store
	BusErrors  map[string]uint64 // by bus
}

// Counters returns them.
func (e *Enclosure) Counters() Counters { return Counters{} }
