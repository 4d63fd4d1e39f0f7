package nvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
)

// writing is a batch on its way to the medium.
type writing struct {
	recs  []Record
	b     *batch
	parts int
	part  int // the one being written
	page  int // where it was handed over, or -1
	tries int
	doubt bool // a page was given up that could not be read
	moved bool // a relocation: a key forgotten meanwhile stays forgotten
}

const maxTries = 3 // pages tried for one batch beyond the first of each part

// start writes all parts of a batch but hands over the last one only.
func (s *Store) start(ctx context.Context, reserve int, recs []Record, moved bool) (*writing, error) {
	if err := s.resolve(ctx); err != nil {
		return nil, err
	}
	s.stream = s.stream[:0]
	for _, r := range recs {
		s.stream = appendRecord(s.stream, r)
	}
	room := s.page - overhead
	w := &writing{recs: recs, parts: max(1, (len(s.stream)+room-1)/room), page: -1, moved: moved}
	if w.parts > s.lay.maxParts() {
		return nil, fmt.Errorf("%w: %d pages, at most %d", ErrTooLarge, w.parts, s.lay.maxParts())
	}
	s.mu.RLock()
	free := s.lay.room()
	s.mu.RUnlock()
	if free < w.parts+reserve {
		return nil, fmt.Errorf("%w: %d pages free, %d reserved, %d wanted", ErrFull, free, reserve, w.parts)
	}
	if s.seq == math.MaxUint32 {
		return nil, ErrWorn
	}
	if err := s.lay.prepare(ctx); err != nil {
		return nil, err
	}
	s.seq++
	w.b = &batch{seq: s.seq}
	w.b.pages = w.b.one[:0]
	s.mu.Lock()
	s.x.hold(w.b)
	s.mu.Unlock()
	for {
		if err := s.handOver(ctx, w); err != nil {
			return nil, s.giveUp(ctx, w, err)
		}
		if w.part == w.parts-1 {
			return w, nil
		}
		if err := s.check(ctx, w); err != nil {
			return nil, s.giveUp(ctx, w, err)
		}
		w.part, w.page = w.part+1, -1
	}
}

// finish reads the last part back and publishes the batch.
func (s *Store) finish(ctx context.Context, w *writing) error {
	if bugged("nvm-early-ack") {
		s.mu.Lock()
		s.x.claim(w.b, w.page)
		s.mu.Unlock()
		s.lay.wrote(w.page)
	} else if err := s.check(ctx, w); err != nil {
		return s.giveUp(ctx, w, err)
	}
	s.publish(w)
	return nil
}

// handOver gives the current part to the medium, at another page if one fails.
func (s *Store) handOver(ctx context.Context, w *writing) error {
	for {
		page, next, err := s.lay.target()
		if err != nil {
			return err
		}
		room := s.page - overhead
		from := w.part * room
		to := min(from+room, len(s.stream))
		encodePage(s.img, pageHead{
			kind: kindData, seq: w.b.seq, part: uint8(w.part), parts: uint8(w.parts), next: next,
		}, s.stream[from:to], s.seed)
		begun, err := s.program(ctx, page, s.img)
		if begun {
			w.page = page
		}
		if err == nil || !fatal(ctx, err) && begun && s.verify(ctx, page, s.img) == nil {
			return nil // in the second case, written in spite of the error
		}
		if err = s.elsewhere(ctx, w, err); err != nil {
			return err
		}
	}
}

// check reads the current part back, and writes it elsewhere if it is wrong.
func (s *Store) check(ctx context.Context, w *writing) error {
	for {
		err := s.verify(ctx, w.page, s.img)
		if err == nil {
			s.mu.Lock()
			s.x.claim(w.b, w.page)
			s.mu.Unlock()
			s.lay.wrote(w.page)
			return nil
		}
		if err = s.elsewhere(ctx, w, err); err != nil {
			return err
		}
		if err = s.handOver(ctx, w); err != nil {
			return err
		}
	}
}

// elsewhere gives up the page that the current part was handed to, unless cause
// says that another page cannot help or the batch has used up its tries.
func (s *Store) elsewhere(ctx context.Context, w *writing, cause error) error {
	page := w.page
	if page < 0 || fatal(ctx, cause) {
		return cause
	}
	if err := s.lay.failed(ctx, page); err != nil {
		if !fatal(ctx, err) {
			w.page = -1
		}
		return errors.Join(cause, err)
	}
	w.page = -1
	w.doubt = w.doubt || !errors.Is(cause, ErrReadBack)
	s.mu.Lock()
	s.stats.Retries++
	s.mu.Unlock()
	if w.tries++; w.tries > maxTries {
		return cause
	}
	return nil
}

// giveUp ends a batch that err has stopped, and returns err, with ErrUnknown
// if the batch may be there all the same.
func (s *Store) giveUp(ctx context.Context, w *writing, err error) error {
	if w.page >= 0 && w.part == w.parts-1 {
		w.recs = cloneRecords(w.recs) // the caller's from now on
		s.open = w
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if w.doubt {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return errors.Join(err, s.drop(ctx, w))
}

func (s *Store) drop(ctx context.Context, w *writing) error {
	s.mu.Lock()
	s.x.abandon(w.b)
	s.mu.Unlock()
	return s.lay.abandon(ctx, w.page)
}

// resolve finds out what became of a batch whose Finish was cut short.
func (s *Store) resolve(ctx context.Context) error {
	w := s.open
	if w == nil {
		return nil
	}
	// s.img still is its last page: whatever else writes pages resolves first.
	err := s.verify(ctx, w.page, s.img)
	switch {
	case err == nil:
		s.mu.Lock()
		s.x.claim(w.b, w.page)
		s.mu.Unlock()
		s.lay.wrote(w.page)
		s.publish(w)
	case errors.Is(err, ErrReadBack):
		if err := s.drop(ctx, w); err != nil {
			return err
		}
	default:
		return fmt.Errorf("resolving the batch before: %w", err)
	}
	s.open = nil
	return nil
}

// publish makes a complete batch the truth in RAM.
func (s *Store) publish(w *writing) {
	s.mu.Lock()
	w.b.recs = make([]*entry, 0, len(w.recs))
	for _, r := range w.recs {
		e := s.x.keys[r.Key]
		if e == nil {
			e = &entry{key: r.Key}
			s.x.keys[r.Key] = e
		}
		var val []byte
		if r.Value != nil {
			val = append(make([]byte, 0, len(r.Value)), r.Value...)
		}
		forgotten := w.moved && e.state == entryForgotten
		s.x.add(w.b, e, val, r.Value == nil)
		if forgotten {
			s.x.forget(e)
		}
	}
	s.x.release(w.b)
	s.stats.Sequence = w.b.seq
	s.mu.Unlock()
	s.lay.commit(w.b, s.img)
}

// program writes one logical page. On a chip with smaller pages that is
// several write cycles; all but the last have ended on return. begun says that
// the medium may have got something of it.
func (s *Store) program(ctx context.Context, page int, img []byte) (begun bool, err error) {
	off := int64(page) * int64(s.page)
	step := min(s.geom.Page, s.page)
	for i := 0; i < len(img); i += step {
		if s.opt.Gate != nil {
			if err := s.opt.Gate(ctx); err != nil {
				return begun, fmt.Errorf("%w: %w", errGate, err)
			}
		}
		if err := ctx.Err(); err != nil {
			return begun, err
		}
		begun = true
		s.mu.Lock()
		s.stats.PageWrites++
		if i == 0 {
			s.wear[page]++
		}
		s.mu.Unlock()
		if err := s.m.Program(ctx, img[i:i+step], off+int64(i)); err != nil {
			return begun, fmt.Errorf("writing page %d at %#x: %w", page, off, err)
		}
	}
	return begun, nil
}

// verify waits for the write cycle and compares what is in the cells.
func (s *Store) verify(ctx context.Context, page int, img []byte) error {
	off := int64(page) * int64(s.page)
	if err := s.m.ReadAt(ctx, s.back, off); err != nil {
		return fmt.Errorf("reading page %d back at %#x: %w", page, off, err)
	}
	if bytes.Equal(s.back, img) {
		return nil
	}
	i := 0
	for s.back[i] == img[i] {
		i++
	}
	return fmt.Errorf("page %d: %w: %#02x at %#x, wrote %#02x", page, ErrReadBack, s.back[i], off+int64(i), img[i])
}

// set writes a page that is at a fixed place, or cleared, and reads it back.
func (s *Store) set(ctx context.Context, page int, img []byte) error {
	if _, err := s.program(ctx, page, img); err != nil {
		return err
	}
	return s.verify(ctx, page, img)
}

var errGate = errors.New("not let through to write")

// fatal says that an error is about the medium or ctx, not about one page.
func fatal(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, errGate) || errors.Is(err, ErrAbsent) || errors.Is(err, ErrRange) || errors.Is(err, ErrPage) ||
		errors.Is(err, ErrWedged) || errors.Is(err, ErrReadOnly) || errors.Is(err, os.ErrClosed)
}

func (s *Store) markBad(page int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.bad[page] {
		s.bad[page] = true
		if page >= s.first {
			s.nbad++
		}
	}
}

func cloneRecords(recs []Record) []Record {
	out := make([]Record, len(recs))
	for i, r := range recs {
		out[i] = Record{r.Key, bytes.Clone(r.Value)}
		if r.Value != nil && out[i].Value == nil {
			out[i].Value = []byte{}
		}
	}
	return out
}
