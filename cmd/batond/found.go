package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt/config"
)

// seed is the configuration's file, as it was read.
type seed struct {
	file   string
	text   []byte
	config *config.Config
}

func readSeed(file string) (*seed, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c, err := config.Parse(data, findProfile)
	if err != nil {
		return nil, fmt.Errorf("configuration %s can not be used:\n%w", file, err)
	}
	return &seed{file, data, c}, nil
}

// found is the configuration that a run begins with.
type found struct {
	seed    *seed
	config  *config.Config
	text    []byte // that is kept; of another configuration where that could not be used
	version uint32
	edited  bool // the file is not the one that the version was written with
	frozen  error
	base    []byte // the seed's text; where frozen, with the network of now
	unsure  bool   // there may be another network than that of config
	notes   []string
}

func (f found) kept() kept { return kept{f.version, f.text, f.config} }

// find decides between the seed and what the store has. Where there was
// something in the store that can not be used, nobody knows how the enclosure
// should be: the memory is frozen, and the seed's slots are looked at.
func find(s *seed, mem *enclosure.Memory) found {
	f := found{seed: s, config: s.config, text: s.text, base: s.text}
	rec, there, err := mem.Configuration()
	f.version = rec.Version
	if !s.config.Store.Config {
		switch {
		case err == nil && !there:
		case rec.Packed != nil || errors.Is(err, plan.ErrRecord):
			f.version++
			f.notes = append(f.notes, fmt.Sprintf("the store has a configuration, version %d, that is not used, since %s does not say 'store.config'", rec.Version, s.file))
		case err != nil || rec.Sum != sha256.Sum256(s.text):
			f.version++
			f.edited = true
		}
		return f
	}
	if err == nil && (!there || rec.Packed == nil) {
		f.unsure = mem.Problem() != nil
		return f // the store has none yet, or can not be read
	}
	if err == nil {
		err = f.unpack(s, rec)
	}
	if err != nil {
		f.frozen, f.unsure = err, true
		f.takeNetwork(s)
		mem.Freeze(&enclosure.Error{
			Code: enclosure.CodeBadConfig, What: fmt.Sprintf("the configuration in the store, version %d, can not be used", rec.Version), Err: err,
			State: "status is served, every change is refused, links are left as they are",
			Next:  "'baton config show --text' gives what is there; 'baton config apply FILE --restart' keeps another",
		})
	}
	return f
}

// unpack takes over what the store has.
func (f *found) unpack(s *seed, rec plan.Configuration) error {
	text, err := config.Unpack(rec.Packed)
	if err != nil {
		return err
	}
	f.text = text
	c, err := config.Parse(text, findProfile)
	if err != nil {
		return firstOf(err)
	}
	if differ := c.SeedErrors(s.config); len(differ) > 0 {
		f.notes = append(f.notes, fmt.Sprintf("%s has changed where the configuration in the store differs, and counts there: %s", s.file, few(keysOf(differ))))
	}
	if c, err = c.WithSeed(s.config, findProfile); err != nil {
		return fmt.Errorf("with what the seed says: %w", firstOf(err))
	}
	f.config = c
	return nil
}

// takeNetwork takes the network of a text that can not be used as a whole, if
// that can be told: the controller stays where it can be reached.
func (f *found) takeNetwork(s *seed) {
	text, err := config.WithNetwork(s.text, f.text)
	if err != nil {
		return
	}
	if c, err := config.Parse(text, findProfile); err == nil && c.Network != nil {
		f.config, f.base = c, text
	}
}

func keysOf(errs config.Errors) []string {
	var keys []string
	for _, e := range errs {
		keys = append(keys, e.Key)
	}
	return keys
}

// firstOf is one line of many errors.
func firstOf(err error) error {
	if all, ok := errors.AsType[config.Errors](err); ok && len(all) > 1 {
		return fmt.Errorf("%w, and %d more errors", all[0], len(all)-1)
	}
	return err
}

// noteEdit counts a file that somebody has edited.
func (f found) noteEdit(ctx context.Context, e *enclosure.Enclosure) {
	if !f.edited {
		return
	}
	e.Note(enclosure.Event{Kind: "config", Text: fmt.Sprintf("configuration %d: %s is not what the agent had written there", f.version, f.seed.file)})
	_ = e.Keep(ctx, plan.Configuration{Version: f.version, Sum: sha256.Sum256(f.text)}) // it is counted again at the next start
}
