package config

import "reflect"

// Where the configuration is kept in the store, the file is only the seed. It
// says where the store is, and with that what the agent can not find out from
// the store: these keys of the seed always count.

// SeedErrors are where c, which is to be kept in the store, differs from the
// seed in what only the seed may say.
func (c *Config) SeedErrors(seed *Config) Errors {
	v := checker{c: c, unread: map[string]bool{}}
	same := func(key string, mine, its any) {
		if !reflect.DeepEqual(mine, its) {
			v.bad(key, "differs from the seed, the file that the agent was started with, and only the seed says what it is")
		}
	}
	same("simulated", c.Simulated, seed.Simulated)
	same("run_dir", c.RunDir, seed.RunDir)
	same("socket", c.Socket, seed.Socket)
	for _, name := range sortedKeys(c.Buses) {
		if seed.Buses[name] != c.Buses[name] {
			same("buses."+name, c.Buses[name], seed.Buses[name])
		}
	}
	for _, name := range sortedKeys(seed.Buses) {
		if _, ok := c.Buses[name]; !ok {
			v.bad("buses", "%s is missing, and the seed, the file that the agent was started with, has it", name)
		}
	}
	same("store", c.Store, seed.Store)
	if name := seed.Store.Slot; name != "" && c.Store.Slot == name {
		// The store is on that slot's chip.
		mine, its := c.slot(name), seed.slot(name)
		if mine != nil && its != nil && (mine.Bus != its.Bus || mine.EEPROM != its.EEPROM) {
			v.bad("slots", "bus and EEPROM of slot %s differ from the seed, and the store is on that chip", name)
		}
	}
	return v.sorted()
}

// WithSeed is c with what only the seed may say taken from there, validated as
// a whole. The error is Errors. Lines are those of c's text.
func (c *Config) WithSeed(seed *Config, lookup func(name string) (Profile, error)) (*Config, error) {
	out := *c
	out.Simulated, out.RunDir, out.Socket, out.Buses, out.Store = seed.Simulated, seed.RunDir, seed.Socket, seed.Buses, seed.Store
	v := checker{c: &out, lookup: lookup, unread: map[string]bool{}}
	v.all()
	if len(v.errs) > 0 {
		return nil, v.sorted()
	}
	return &out, nil
}

func (c *Config) slot(name string) *Slot {
	for i := range c.Slots {
		if c.Slots[i].Name == name {
			return &c.Slots[i]
		}
	}
	return nil
}
