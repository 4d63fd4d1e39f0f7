package nvm

import "context"

// layout decides where pages go: ring on media that are overwritten in place,
// erasable on media with erase blocks. Its methods are called with the I/O
// lock held; room and hottest with s.mu.
type layout interface {
	// format makes the medium an empty store.
	format(ctx context.Context) error
	// findFormat reads the format records.
	findFormat(sc *scan, rep *Report) error
	// mount finds the store in what was read, and recovers it if asked to.
	mount(ctx context.Context, sc *scan, rep *Report) error
	// room is how many pages can be written before housekeeping must run.
	room() int
	// maxParts is how many pages a batch may have.
	maxParts() int
	// prepare makes sure that a batch can start.
	prepare(ctx context.Context) error
	// target is where the next page goes, and the link to put into it.
	target() (page int, next uint16, err error)
	// wrote is told that the page at target has been read back.
	wrote(page int)
	// failed is told that the page at target cannot be used.
	failed(ctx context.Context, page int) error
	// commit is told of a batch that is complete, with its last page.
	commit(b *batch, img []byte)
	// abandon is told that a batch will not be completed; page is one that may
	// have been handed over, or -1.
	abandon(ctx context.Context, page int) error
	// clear makes a page that holds nothing needed unreadable for ever.
	clear(ctx context.Context, page int) error
	// repair makes good a page that Mount found damaged, if that still is due.
	repair(ctx context.Context, page int) (did bool, err error)
	// clean makes a page good that does not verify, or of a batch that is not
	// complete, whatever else is known of it; nothing that is needed is on it.
	clean(ctx context.Context, page int) error
	// salvage writes format records for what is on the medium.
	salvage(ctx context.Context) error
	// tend takes one step of housekeeping, if any is due.
	tend(ctx context.Context) (did bool, err error)
	hottest() uint64
}
