package enclosure

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"baton/ee"
	"baton/ee/bus"
	"baton/enclosure/bug"
	"baton/enclosure/plan"
	"baton/nvm"
)

// slot is one slot at run time. What the hardware told last, and the records,
// are guarded by Enclosure.mu; only who holds the slot's lock changes them.
type slot struct {
	cfg     SlotConfig
	index   int  // in the records
	unnamed bool // the store does not know the index yet
	engine  *ee.Engine

	lock   chan struct{} // full = held
	holder string        // who holds it: "" = nobody, "poll" = the poller, for a moment

	st   plan.Slot
	hist []plan.Assignment // by generation; the last two are st.Now and st.Prior

	rootBefore uint32 // st.Root before the assignment that raised it

	adopted *plan.Adopted // parts taken in place of the configured ones; nil = none
	took    *plan.Uncut   // from whom the slot was taken by hand, and not cut; nil = nobody

	identity  ee.Identity
	fault     *Error    // the slot can not be used: nothing is written to it
	trusted   bool      // the engine is the configured one, whatever the fault: it can be cut
	block     *ee.Block // the page as last read; nil = not readable as a block
	live      ee.Observation
	peer      ee.Peer
	readAt    time.Time // zero = the engine was not read
	readErr   error
	pageErr   error  // why block is nil
	cut       string // "confirmed", "unconfirmed", ""
	blocked   *blockage
	leaseEnd  time.Time            // of an arming
	suspect   bool                 // power may have been lost inside a write cycle of the page, and it was not written since
	stale     bool                 // page, shown flag and guard have not followed the records yet
	late      bool                 // its policy has changed, and the engine has not followed
	portLate  bool                 // the switch could not be read when its port's VLAN was to be looked at
	loading   bool                 // the engine may be reading its chip
	busErrors atomic.Uint64        // transfers that failed
	touched   mark                 // when the last access to engine or chip ended
	leader    atomic.Pointer[slot] // a loop has it for what it does with that slot
	refusedAt time.Time            // when a look at it refused a request; zero = the last did not
	bound     uint16               // group that an operation under way brings the slot to; 0 = none
	left      bool                 // that operation has cut the slot from where it was
}

func newSlot(i int, c SlotConfig) *slot {
	s := &slot{cfg: c, index: i, lock: make(chan struct{}, 1)}
	s.touched.begin()
	s.st = plan.Slot{Index: i, Caps: c.Profile.Caps}
	bus := c.Bus
	if bus != nil {
		bus = countedBus{bus, &s.busErrors, &s.touched}
	}
	s.engine = ee.New(bus, c.Addr, c.Profile, c.Reload)
	return s
}

// caps of the slot's engine.
func (s *slot) can(c ee.Caps) bool { return s.cfg.Profile.Caps.Has(c) }

// where names the engine for messages.
func (s *slot) where() string {
	if !s.can(ee.CapStatus) {
		return s.cfg.Page
	}
	return fmt.Sprintf("engine at %s/0x%02x", s.cfg.BusName, s.cfg.Addr)
}

// hardware wraps what an engine or a chip said.
func (s *slot) hardware(what string, err error) *Error {
	next := "check the part, its power and its bus; what can be mended is mended by itself once it answers"
	if errors.Is(err, bus.ErrStuck) || errors.Is(err, bus.ErrWedged) {
		next = "some chip may hold the bus: clocking it free is its kernel driver's work, at each transfer; where it stays so, pull the cards of the bus one by one, or switch the enclosure off and on. It is tried again by itself"
	}
	return &Error{
		Code: CodeHardware, Slot: s.cfg.Name, Where: s.where(), What: what, Err: err, Retry: true,
		Next: next,
	}
}

// eeprom is hardware for what the EEPROM with the config block said.
func (s *slot) eeprom(what string, err error) *Error {
	known := s.hardware(what, err)
	known.Where = "EEPROM at " + s.cfg.Page
	return known
}

// pollHolder marks a lock that is about to be free again, so that a request
// waits for it where it would else be refused as busy.
const pollHolder = "poll"

// acquire takes the locks of slots, in the order of their indexes, or none. A
// slot that another operation has is refused with CodeBusy; with wait it is
// waited for.
func (e *Enclosure) acquire(ctx context.Context, who string, wait bool, slots ...*slot) error {
	for i, s := range slots {
		if err := e.acquireOne(ctx, who, wait, s); err != nil {
			e.release(slots[:i]...)
			return err
		}
	}
	return nil
}

func (e *Enclosure) acquireOne(ctx context.Context, who string, wait bool, s *slot) error {
	for {
		select {
		case s.lock <- struct{}{}:
			e.nowHeld(s, who)
			return nil
		default:
		}
		e.mu.Lock()
		holder := s.holder
		e.mu.Unlock()
		if !wait && holder != pollHolder && holder != "" {
			return &Error{
				Code: CodeBusy, Slot: s.cfg.Name, What: "another operation is under way: " + holder,
				State: "nothing was changed", Next: "wait for it ('baton watch') and try again", Retry: true,
			}
		}
		// Either it is waited for, or the poller has it for the time of a few
		// transfers.
		t := time.NewTimer(lockPoll)
		select {
		case s.lock <- struct{}{}:
			t.Stop()
			e.nowHeld(s, who)
			return nil
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return &Error{
				Code: CodeBusy, Slot: s.cfg.Name, What: "waited for another operation to end", Err: ctx.Err(),
				State: "nothing was changed", Next: "look with 'baton status' and try again", Retry: true,
			}
		}
	}
}

// lockPoll is how often a waiter looks who holds a lock.
const lockPoll = 50 * time.Millisecond

func (e *Enclosure) release(slots ...*slot) {
	for _, s := range slots {
		s.leader.Store(nil)
		e.nowHeld(s, "")
		<-s.lock
	}
}

// nowHeld notes who has a slot's lock.
func (e *Enclosure) nowHeld(s *slot, who string) {
	e.mu.Lock()
	s.holder = who
	e.mu.Unlock()
}

// state returns what the records say of s.
func (e *Enclosure) state(s *slot) plan.Slot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.st
}

// generation is that of s, as requests quote it.
func (e *Enclosure) generation(s *slot) ee.Generation {
	return ee.Generation{Incarnation: e.inc, Counter: e.state(s).Now.Gen}
}

// desire says what s should look like by its records and who may have it now.
func (e *Enclosure) desire(s *slot) plan.Want {
	st := e.state(s)
	return plan.Desire(st, e.inc, e.policyOf(st), e.peerOf(st.Now.To))
}

// observe reads the engine's live registers, and remembers them for status.
func (e *Enclosure) observe(ctx context.Context, s *slot) (ee.Observation, error) {
	o, err := s.engine.Observe(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	s.readErr = err
	if err == nil {
		s.live = o
		s.readAt = time.Now()
		s.loading = s.loading && o.Status&ee.StatLoaded == 0
	}
	return o, err
}

// page counts an access to the slot's chip that failed, and notes that one ended.
func (s *slot) page(err error) error {
	s.touched.set()
	if err != nil {
		s.busErrors.Add(1)
	}
	return err
}

// readBlock reads and decodes the whole config block. A page that is no good
// block comes back as nil and the decoder's error; a chip that does not answer
// as any other error.
func (s *slot) readBlock(ctx context.Context) (*ee.Block, error) {
	p := make([]byte, ee.BlockSize)
	if err := s.page(s.cfg.Medium.ReadAt(ctx, p, s.cfg.Profile.BlockOffset)); err != nil {
		return nil, err
	}
	b, err := ee.DecodeBlock(p)
	if err != nil {
		return nil, err
	}
	return &b, nil
}

// isBlockError tells a bad page from a bad chip.
func isBlockError(err error) bool {
	for _, e := range []error{ee.ErrBlockBlank, ee.ErrBlockForeign, ee.ErrBlockVersion, ee.ErrBlockCRC, ee.ErrBlockField} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// sameBlock reads the CRC of the page and compares it with that of the block
// that was last read or written: it stands for the whole page, and the engine
// has checked it against the bytes when it loaded them. Where no block is
// known, or no engine checks, the whole page is read.
func (s *slot) sameBlock(ctx context.Context) error {
	if s.block == nil || !s.can(ee.CapStatus) {
		b, err := s.readBlock(ctx)
		if err != nil {
			return err
		}
		if s.block == nil || *b != *s.block {
			return errBlockChanged
		}
		return nil
	}
	p := make([]byte, ee.DigestSize)
	if err := s.page(s.cfg.Medium.ReadAt(ctx, p, s.cfg.Profile.BlockOffset+ee.DigestOffset)); err != nil {
		return err
	}
	if [ee.DigestSize]byte(p) != s.block.Digest() {
		return errBlockChanged
	}
	return nil
}

var errBlockChanged = errors.New("the config block is not the one that was written: somebody else writes this chip, or it is damaged")

// writeBlock hands b to the chip; readBack waits for the write cycle and
// compares. Between the two other slots of the bus are served.
func (s *slot) writeBlock(ctx context.Context, b ee.Block) error {
	return s.page(s.cfg.Medium.Program(ctx, b.Encode(), s.cfg.Profile.BlockOffset))
}

func (s *slot) readBack(ctx context.Context, b ee.Block) error {
	p := make([]byte, ee.BlockSize)
	if err := s.page(s.cfg.Medium.ReadAt(ctx, p, s.cfg.Profile.BlockOffset)); err != nil {
		return err
	}
	if string(p) != string(b.Encode()) && !bug.Is(bug.ReadBack) {
		return fmt.Errorf("config block: %w", nvm.ErrReadBack)
	}
	return nil
}
