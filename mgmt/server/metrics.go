package server

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt"
)

// metrics answers in the Prometheus text format, version 0.0.4
// (docs/metrics.md). Every series that can be is there from the start, with
// zero, so that a rate or an alert needs no first occurrence.
func (s *Server) metrics(c *call) (any, error) {
	var e exposition
	e.status(s.backend.Status(c.ctx), s.opt.Agent)
	e.counters(s.backend.Counters())
	s.write(c.w, 200, mgmt.MediaMetrics, e.Bytes())
	return streamed{}, nil
}

// exposition is a text of metrics in the making.
type exposition struct{ bytes.Buffer }

// family begins a metric; its samples follow.
func (e *exposition) family(name, kind, help string) {
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// labels escapes what stands between the quotes of a label's value.
var labels = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// sample adds one value; labels come in pairs of name and value.
func (e *exposition) sample(name string, v float64, pairs ...string) {
	e.WriteString(name)
	for i := 0; i < len(pairs); i += 2 {
		e.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(e, `%s="%s"`, pairs[i], labels.Replace(strings.ToValidUTF8(pairs[i+1], "\ufffd")))
	}
	if len(pairs) > 0 {
		e.WriteByte('}')
	}
	e.WriteByte(' ')
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		e.WriteString(strconv.FormatInt(int64(v), 10)) // not 1.2e+06
	} else {
		e.WriteString(strconv.FormatFloat(v, 'g', -1, 64))
	}
	e.WriteByte('\n')
}

// one adds a family of a single sample.
func (e *exposition) one(name, kind, help string, v float64, pairs ...string) {
	e.family(name, kind, help)
	e.sample(name, v, pairs...)
}

func yes(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// States that a slot is counted in, the first that is true.
const (
	slotBlocked = "blocked"
	slotFault   = "fault" // it does not answer, or not as it should
	slotHeld    = "held"
	slotInUse   = "assigned"
	slotFree    = "free"
)

func slotState(s enclosure.SlotStatus) string {
	switch {
	case s.Blocked != "":
		return slotBlocked
	case s.Problem != "":
		return slotFault
	case s.Held:
		return slotHeld
	case s.Host != "":
		return slotInUse
	}
	return slotFree
}

func (e *exposition) status(st enclosure.Status, agent string) {
	e.one("baton_info", "gauge", "Always 1; who this is.", 1, "enclosure", st.Name, "version", agent, "simulated", strconv.FormatBool(st.Simulated))
	e.one("baton_uptime_seconds", "gauge", "Since the agent started.", st.Uptime.Seconds())

	e.one("baton_store_ok", "gauge", "Whether the agent's store can be used; without it every change is refused.", yes(st.Store.OK))
	e.one("baton_store_free_pages", "gauge", "Pages of the store that are free.", float64(st.Store.Free))
	e.one("baton_store_damaged_pages", "gauge", "Pages of the store that were found damaged at the start.", float64(st.Store.Damaged))

	const slots = "baton_slots"
	e.family(slots, "gauge", "Slots by state, each in one.")
	count := map[string]int{}
	for _, s := range st.Slots {
		count[slotState(s)]++
	}
	for _, state := range []string{slotInUse, slotBlocked, slotFault, slotFree, slotHeld} {
		e.sample(slots, float64(count[state]), "state", state)
	}
	e.slots("baton_slot_link_up", "Whether the slot's link is up.", st.Slots, func(s enclosure.SlotStatus) float64 { return yes(s.Link == "up") })
	e.slots("baton_slot_guard_on", "Whether the engine swallows resets from the host's side.", st.Slots, func(s enclosure.SlotStatus) float64 { return yes(s.Guard) })
	e.slots("baton_slot_blocked", "Whether the slot is in a move that could be neither done nor undone.", st.Slots, func(s enclosure.SlotStatus) float64 { return yes(s.Blocked != "") })
	e.slots("baton_slot_fault", "Whether the slot's hardware does not answer as it should.", st.Slots, func(s enclosure.SlotStatus) float64 { return yes(s.Problem != "") })
	e.slots("baton_slot_read_age_seconds", "Since the slot's hardware was last read.", st.Slots, func(s enclosure.SlotStatus) float64 { return s.ReadAge.Seconds() })
	e.slots("baton_slot_generation", "Second half of the slot's generation; it rises with every assignment.", st.Slots, func(s enclosure.SlotStatus) float64 { return float64(s.Generation.Counter) })
	e.slots("baton_slot_device_resets", "Resets that reached the device, as its engine counts them.", st.Slots, func(s enclosure.SlotStatus) float64 { return float64(s.Values.Resets) })
	const memory = "baton_slot_memory_preserved"
	e.family(memory, "gauge", "1 at what a verdict would say now: yes, no or unknown.")
	for _, s := range st.Slots {
		for _, a := range []plan.Answer{plan.Yes, plan.No, plan.Unknown} {
			e.sample(memory, yes(s.Memory.Preserved == a), "slot", s.Name, "answer", string(a))
		}
	}

	const fenced = "baton_host_fenced"
	e.family(fenced, "gauge", "Whether the host is fenced.")
	for _, h := range st.Hosts {
		e.sample(fenced, yes(h.Fenced), "host", h.Name)
	}
	e.one("baton_warnings", "gauge", "Things that a person should do something about.", float64(len(st.Warnings)))
}

func (e *exposition) slots(name, help string, slots []enclosure.SlotStatus, value func(enclosure.SlotStatus) float64) {
	e.family(name, "gauge", help)
	for _, s := range slots {
		e.sample(name, value(s), "slot", s.Name)
	}
}

// ended are the states that moves end in.
var ended = []enclosure.MoveState{enclosure.MoveDone, enclosure.MoveWaiting, enclosure.MoveUndone, enclosure.MoveHeld, enclosure.MoveRefused, enclosure.MoveBlocked}

func (e *exposition) counters(c enclosure.Counters) {
	const moves = "baton_moves_total"
	e.family(moves, "counter", "Moves that ended, by how.")
	for _, m := range ended {
		e.sample(moves, float64(c.Moves[m]), "state", string(m))
	}
	e.one("baton_fences_total", "counter", "Fences.", float64(c.Fences))
	e.one("baton_voids_total", "counter", "Times that a slot's flag became void, so its memory counts as lost.", float64(c.Voids))
	e.one("baton_events_total", "counter", "Events.", float64(c.Events))
	e.one("baton_store_page_writes_total", "counter", "Pages written to the store.", float64(c.PageWrites))
	const refusals = "baton_refusals_total"
	e.family(refusals, "counter", "Requests that were refused or failed, by code (docs/errors.md).")
	for _, code := range slices.Sorted(maps.Keys(meanings)) {
		e.sample(refusals, float64(c.Refusals[enclosure.Code(code)]), "code", code)
	}
	const errs = "baton_bus_errors_total"
	e.family(errs, "counter", "Transactions that failed, by bus.")
	for _, bus := range slices.Sorted(maps.Keys(c.BusErrors)) {
		e.sample(errs, float64(c.BusErrors[bus]), "bus", bus)
	}
}
