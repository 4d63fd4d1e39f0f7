package config

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// checker collects what is wrong with the values of a configuration.
type checker struct {
	c      *Config
	lookup func(string) (Profile, error)
	errs   Errors
	unread map[string]bool // keys whose value could not be read
}

// bad notes an error. Where a value could not be read, what follows from its
// absence is not told as well.
func (v *checker) bad(key, format string, args ...any) {
	for k := key; k != ""; k = k[:max(0, strings.LastIndexAny(k, ".["))] {
		if v.unread[k] {
			return
		}
	}
	v.errs = append(v.errs, v.c.Errorf(key, format, args...))
}

// sorted puts the errors into the order of the file.
func (v *checker) sorted() Errors {
	slices.SortStableFunc(v.errs, func(a, b Error) int { return a.Line - b.Line })
	return v.errs
}

func (v *checker) all() {
	c := v.c
	v.name("enclosure", c.Enclosure)
	v.absolute("run_dir", c.RunDir)
	v.absolute("socket", c.Socket)
	if len(c.Socket) > 100 {
		v.bad("socket", "%d bytes, and a Unix socket's path may have 100", len(c.Socket))
	}
	v.buses()
	v.slots()
	v.store()
	v.addresses()
	v.hosts()
	v.macs()
	v.vms()
	v.network()
	v.switching()
}

// part is what the checks need of a 24Cxx; nvm.Parts has the rest, and a test
// of batond compares.
type part struct {
	size int64
	page int64
}

var parts = map[string]part{
	"24c02":  {256, 8},
	"24c16":  {2048, 16},
	"24c32":  {4096, 32},
	"24c64":  {8192, 32},
	"24c128": {16384, 64},
	"24c256": {32768, 64},
	"24c512": {65536, 128},
}

// Part tells size and page, in bytes, of an EEPROM that can be named.
func Part(name string) (size, page int64, ok bool) {
	p, ok := parts[name]
	return p.size, p.page, ok
}

// addresses that a chip answers to: parts with one address byte take the upper
// bits of the byte address in the device address.
func (p part) addresses() int {
	if p.size > 256 && p.size <= 2048 {
		return int(p.size / 256)
	}
	return 1
}

func (v *checker) buses() {
	targets := map[string]string{}
	for _, name := range sortedKeys(v.c.Buses) {
		key := "buses." + name
		v.name(key, name)
		target := v.c.Buses[name]
		network, addr, remote := strings.Cut(target, ":")
		switch {
		case remote && (network == "unix" || network == "tcp"):
			if !v.c.Simulated {
				v.bad(key, "%s is a bus of the simulator, and the configuration does not say \"simulated\": true", target)
			}
			if addr == "" || (network == "tcp" && !strings.Contains(addr, ":")) {
				v.bad(key, "%q: want unix:PATH or tcp:HOST:PORT", target)
			}
		case !strings.HasPrefix(target, "/dev/i2c-"):
			v.bad(key, "%q: want /dev/i2c-N, unix:PATH or tcp:HOST:PORT", target)
		default:
			target = path.Clean(target)
		}
		if other, ok := targets[target]; ok {
			v.bad(key, "%s is already bus %s: one bus has one owner", target, other)
		}
		targets[target] = name
	}
}

func (v *checker) slots() {
	if len(v.c.Slots) == 0 {
		v.bad("slots", "none: an enclosure has at least one")
	}
	if len(v.c.Slots) > maxSlots {
		v.bad("slots", "%d slots, at most %d", len(v.c.Slots), maxSlots)
	}
	names, ports, lines := uniq{}, uniq{}, map[Line]string{}
	for i, s := range v.c.Slots {
		key := fmt.Sprintf("slots[%d].", i)
		v.name(key+"name", s.Name)
		v.once(names, key+"name", s.Name, "slot")
		v.once(ports, key+"port", s.Port, "port")
		v.bus(key+"bus", s.Bus)
		p, ok := v.part(key+"eeprom.part", s.EEPROM.Part)
		if s.Profile == "" {
			v.bad(key+"profile", "empty: name an embedded profile, or the path of a file")
			continue
		}
		if s.Reload != nil && !s.Reload.None {
			at := key + "reload.gpio"
			if other, ok := lines[s.Reload.GPIO]; ok {
				v.bad(at, "line %d of %s already reloads slot %s", s.Reload.GPIO.Number, s.Reload.GPIO.Chip, other)
			}
			lines[s.Reload.GPIO] = s.Name
		}
		if v.lookup == nil {
			continue
		}
		prof, err := v.lookup(s.Profile)
		if err != nil {
			v.bad(key+"profile", "%v", err)
			continue
		}
		if prof.Registers && s.Address == 0 {
			v.bad(key+"address", "missing: profile %s has registers", s.Profile)
		}
		if !prof.Registers && s.Address != 0 {
			v.bad(key+"address", "profile %s has no registers, so there is no address", s.Profile)
		}
		if !prof.Registers && s.MAC != (MAC{}) {
			v.bad(key+"mac", "profile %s has no registers, so the engine's MAC can not be checked", s.Profile)
		}
		if !prof.Registers && s.Serial != 0 {
			v.bad(key+"serial", "profile %s has no registers, so the device's serial can not be checked", s.Profile)
		}
		if !prof.LinkControl && s.Reload == nil {
			v.bad(key+"reload", "missing: profile %s can not reload by register; name a GPIO line, or \"none\" if the engine loads at power-up only", s.Profile)
		}
		if prof.LinkControl && s.Reload != nil {
			v.bad(key+"reload", "profile %s reloads by register, so there is no reload line", s.Profile)
		}
		if ok && prof.BlockOffset+blockSize > p.size {
			v.bad(key+"eeprom.part", "%s has %d bytes, and the config block of profile %s ends at %d", s.EEPROM.Part, p.size, s.Profile, prof.BlockOffset+blockSize)
		}
	}
}

func (v *checker) store() {
	s := v.c.Store
	given := []string{}
	for _, k := range []struct{ name, val string }{{"bus", s.Bus}, {"file", s.File}, {"slot", s.Slot}} {
		if k.val != "" {
			given = append(given, k.name)
		}
	}
	if len(given) != 1 {
		v.bad("store", "want one of bus, file and slot, found %s", orNone(strings.Join(given, ", ")))
		return
	}
	// forbid reports keys of another kind of store.
	forbid := func(keys map[string]bool) {
		for _, k := range sortedKeys(keys) {
			if keys[k] {
				v.bad("store."+k, "has no meaning beside %q", given[0])
			}
		}
	}
	switch given[0] {
	case "bus":
		v.bus("store.bus", s.Bus)
		if p, ok := v.part("store.part", s.Part); ok {
			v.room("store.part", p.size, p.page)
		}
		if s.Address == 0 {
			v.bad("store.address", "missing")
		}
		forbid(map[string]bool{"size": s.Size != 0, "page": s.Page != 0, "offset": s.Offset != 0})
	case "file":
		v.absolute("store.file", s.File)
		if s.Page < 8 || s.Page > 4096 || s.Page&(s.Page-1) != 0 {
			v.bad("store.page", "%d is not a power of two from 8 to 4096", s.Page)
		} else if s.Size < minSize || s.Size > maxSize || s.Size%int64(s.Page) != 0 {
			v.bad("store.size", "%d bytes: want %d to %d, in whole pages of %d", s.Size, minSize, maxSize, s.Page)
		} else {
			v.room("store.size", s.Size, int64(s.Page))
		}
		forbid(map[string]bool{"address": s.Address != 0, "part": s.Part != "", "offset": s.Offset != 0})
	case "slot":
		v.section()
		forbid(map[string]bool{"address": s.Address != 0, "part": s.Part != "", "page": s.Page != 0})
	}
}

// section checks, and fills in, the part of an engine's EEPROM that is the
// store: by default all that is behind the config block.
func (v *checker) section() {
	s := &v.c.Store
	i := slices.IndexFunc(v.c.Slots, func(sl Slot) bool { return sl.Name == s.Slot })
	if i < 0 {
		v.bad("store.slot", "there is no slot %q", s.Slot)
		return
	}
	if len(v.c.Slots) > 1 {
		v.bad("store.slot", "an enclosure of %d slots needs a store on a medium of its own: one engine's load would hold up the moves of all", len(v.c.Slots))
	}
	p, ok := parts[v.c.Slots[i].EEPROM.Part]
	if !ok {
		return // said at the slot
	}
	var block int64
	if v.lookup != nil {
		if prof, err := v.lookup(v.c.Slots[i].Profile); err == nil {
			block = prof.BlockOffset
		}
	}
	page := max(blockSize, p.page)
	if s.Offset == 0 {
		s.Offset = (block + blockSize + page - 1) / page * page
	}
	if s.Size == 0 {
		s.Size = max(0, (p.size-s.Offset)/page*page)
	}
	before := len(v.errs)
	switch {
	case s.Offset < 0 || s.Offset%page != 0:
		v.bad("store.offset", "%d is not a multiple of %d, so pages would be torn together", s.Offset, page)
	case s.Size < minSize || s.Size%page != 0:
		v.bad("store.size", "%d bytes: want at least %d, in whole pages of %d", s.Size, minSize, page)
	case s.Offset > p.size || s.Size > p.size-s.Offset: // the sum could overflow
		v.bad("store.size", "%d bytes at %d, and a %s has %d", s.Size, s.Offset, v.c.Slots[i].EEPROM.Part, p.size)
	case s.Offset < block+blockSize && block < s.Offset+s.Size:
		v.bad("store.offset", "the config block of slot %s is at %d..%d", s.Slot, block, block+blockSize-1)
	}
	if len(v.errs) == before {
		v.room("store.slot", s.Size, page)
	}
}

// room checks that the store can hold what it may have to: a record takes a
// page, of at least 64 bytes, and that of the configuration several.
func (v *checker) room(key string, size, page int64) {
	const (
		moves   = 64 // outcomes that are kept
		perSlot = 3  // assignment, evidence, release
		audit   = 16 // of what happened, the four records that are kept in any store
		spare   = 40 // what only intents may use, and the format's own
		version = 2  // of the configuration, while it is replaced
	)
	have := size / max(blockSize, page)
	config := pagesOf(v.c.size, max(blockSize, page))
	if v.c.size > maxRecord {
		v.bad(key, "the configuration takes %d bytes when packed, and a record of the store at most %d", v.c.size, maxRecord)
		return
	}
	if most := min(maxBatch, (have-ringFirst)/4); config > most {
		v.bad(key, "the configuration takes %d pages when packed, and a store of %d bytes takes at most %d at a time", config, size, most)
		return
	}
	need := moves + perSlot*int64(len(v.c.Slots)) + int64(len(v.c.Hosts)+len(v.c.VMs)) + audit + spare + version
	need += 2 * config // the old one is there until the new one is
	if have < need {
		v.bad(key, "a store of %d bytes has %d pages; %d slots, %d hosts and %d VMs can need %d", size, have, len(v.c.Slots), len(v.c.Hosts), len(v.c.VMs), need)
	}
}

// addresses finds chips that would answer together.
func (v *checker) addresses() {
	type at struct {
		bus  string
		addr Address
	}
	taken := map[at]string{}
	take := func(key, bus string, addr Address, n int, what string) {
		if bus == "" || addr == 0 {
			return
		}
		if n > 1 && int(addr)%n != 0 {
			v.bad(key, "%s takes %d addresses, so the first is a multiple of %d", what, n, n)
			return
		}
		for i := range n {
			a := at{bus, addr + Address(i)}
			if other, ok := taken[a]; ok {
				v.bad(key, "%s would answer at %s of bus %s together with %s", what, a.addr, bus, other)
				return
			}
		}
		for i := range n {
			taken[at{bus, addr + Address(i)}] = what
		}
	}
	chip := func(key, bus string, addr Address, name, what string) {
		if p, ok := parts[name]; ok {
			take(key, bus, addr, p.addresses(), what)
		}
	}
	if v.c.Store.Bus != "" {
		chip("store.address", v.c.Store.Bus, v.c.Store.Address, v.c.Store.Part, "the store's "+v.c.Store.Part)
	}
	for i, s := range v.c.Slots {
		key := fmt.Sprintf("slots[%d].", i)
		take(key+"address", s.Bus, s.Address, 1, fmt.Sprintf("the engine of slot %s", s.Name))
		chip(key+"eeprom.address", s.Bus, s.EEPROM.Address, s.EEPROM.Part, fmt.Sprintf("the %s of slot %s", s.EEPROM.Part, s.Name))
	}
}

func (v *checker) hosts() {
	if len(v.c.Hosts) > maxHosts {
		v.bad("hosts", "%d hosts, at most %d", len(v.c.Hosts), maxHosts)
	}
	names, groups := uniq{}, uniq{}
	for i, h := range v.c.Hosts {
		key := fmt.Sprintf("hosts[%d].", i)
		v.name(key+"name", h.Name)
		v.once(names, key+"name", h.Name, "host")
		if h.Group < groupMin || h.Group > groupMax {
			v.bad(key+"group", "%d is outside %d..%d", h.Group, groupMin, groupMax)
			continue
		}
		if other, ok := groups[fmt.Sprint(h.Group)]; ok {
			v.bad(key+"group", "%d is already the group of %s: two servers would reach the same devices", h.Group, v.c.Hosts[other].Name)
		}
		groups[fmt.Sprint(h.Group)] = i
	}
}

// macs are of engines and servers alike: the fabric knows only addresses.
func (v *checker) macs() {
	taken := map[MAC]string{}
	take := func(key string, m MAC, what string) {
		if m == (MAC{}) {
			return
		}
		if other, ok := taken[m]; ok {
			v.bad(key, "%s is already the MAC of %s", m, other)
			return
		}
		taken[m] = what
	}
	for i, s := range v.c.Slots {
		take(fmt.Sprintf("slots[%d].mac", i), s.MAC, "slot "+s.Name)
	}
	for i, h := range v.c.Hosts {
		take(fmt.Sprintf("hosts[%d].mac", i), h.MAC, "host "+h.Name)
	}
}

func (v *checker) vms() {
	if len(v.c.VMs) > maxVMs {
		v.bad("vms", "%d VMs, at most %d", len(v.c.VMs), maxVMs)
	}
	hosts, slots := map[string]bool{}, map[string]bool{}
	for _, h := range v.c.Hosts {
		hosts[h.Name] = true
	}
	for _, s := range v.c.Slots {
		slots[s.Name] = true
	}
	names, uuids := uniq{}, uniq{}
	for i, m := range v.c.VMs {
		key := fmt.Sprintf("vms[%d].", i)
		v.name(key+"name", m.Name)
		v.once(names, key+"name", m.Name, "VM")
		if m.UUID != (UUID{}) {
			if other, ok := uuids[m.UUID.String()]; ok {
				v.bad(key+"uuid", "%s is already the UUID of %s", m.UUID, v.c.VMs[other].Name)
			}
			uuids[m.UUID.String()] = i
		}
		v.refs(key+"hosts", m.Hosts, hosts, "host")
		v.refs(key+"slots", m.Slots, slots, "slot")
		if !slices.Contains([]string{"never", "on-move", "always"}, m.Policy) {
			v.bad(key+"policy", "%q is none of never, on-move, always", m.Policy)
		}
	}
}

// refs checks a list of names that must exist, each once.
func (v *checker) refs(key string, list []string, known map[string]bool, what string) {
	if len(list) == 0 {
		v.bad(key, "none: name at least one %s", what)
	}
	seen := uniq{}
	for i, n := range list {
		if len(known) == 0 && what == "slot" {
			return // said where they should be
		}
		at := fmt.Sprintf("%s[%d]", key, i)
		if !known[n] {
			v.bad(at, "there is no %s %q", what, n)
			continue
		}
		v.once(seen, at, n, what)
	}
}

// uniq maps a name to where it was first.
type uniq map[string]int

func (v *checker) once(u uniq, key, name, what string) {
	if name == "" {
		return
	}
	if line, ok := u[name]; ok {
		v.bad(key, "%s %q was already given on line %d", what, name, line)
		return
	}
	u[name] = v.c.doc.Line(key)
}

// name checks that a name can stand in a URL, a table and a shell.
func (v *checker) name(key, s string) {
	const longest = 63
	bad := s == "" || len(s) > longest || strings.Trim(s, ".-") != s
	for _, r := range s {
		bad = bad || !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}
	if bad {
		v.bad(key, "%q is not a name: 1 to %d of a-z A-Z 0-9 . _ -, not starting or ending with . or -", clip(s), longest)
	}
}

func (v *checker) bus(key, name string) {
	if _, ok := v.c.Buses[name]; !ok {
		v.bad(key, "there is no bus %q; there are %s", clip(name), orNone(strings.Join(sortedKeys(v.c.Buses), ", ")))
	}
}

func (v *checker) part(key, name string) (part, bool) {
	p, ok := parts[name]
	if !ok {
		v.bad(key, "%q is not a part that is known: %s", clip(name), strings.Join(sortedKeys(parts), ", "))
	}
	return p, ok
}

func (v *checker) absolute(key, p string) {
	if !path.IsAbs(p) {
		v.bad(key, "%q is not an absolute path", clip(p))
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
