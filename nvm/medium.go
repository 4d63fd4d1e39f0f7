package nvm

import (
	"context"
	"errors"
	"time"
)

// Medium is a non-volatile memory that is written in pages.
//
// A Medium is used by one goroutine at a time; its owner serialises calls.
type Medium interface {
	// Geometry does not change while the Medium is open and costs nothing.
	Geometry() Geometry
	// ReadAt fills p from byte off. It waits, within WriteMax, for a write
	// cycle that is under way.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Program hands over p to be written at off; p must not cross a page
	// (ErrPage) nor the end (ErrRange). It returns when the medium has the
	// bytes, which may be before they are written: Settle waits for that.
	// Between the two the caller may use other media on the same bus.
	Program(ctx context.Context, p []byte, off int64) error
	// Settle waits until the last Program or Erase has ended, within WriteMax
	// (ErrTimeout). It proves that the write cycle is over, not what is in the
	// cells: only reading back does.
	Settle(ctx context.Context) error
}

// Eraser is a Medium whose bits can only be programmed one way (NOR flash): a
// block is erased as a whole before it is programmed again.
type Eraser interface {
	Medium
	// Erase starts erasing the block at off, a multiple of Geometry().Erase.
	// Settle waits for its end, within EraseMax.
	Erase(ctx context.Context, off int64) error
}

// Geometry is what a caller must know of a Medium's shape.
type Geometry struct {
	Size     int64         // bytes
	Page     int           // bytes that one write cycle can take, aligned
	Erase    int           // bytes of an erase block; 0 = pages are overwritten in place
	Erased   byte          // what an erased byte reads as
	WriteMax time.Duration // longest write cycle of a page
	EraseMax time.Duration // longest erase of a block; 0 where Erase is 0
}

// Errors that errors.Is finds in what a Medium or Store returns.
var (
	ErrRange    = errors.New("outside the medium")
	ErrPage     = errors.New("crosses a page boundary")
	ErrTimeout  = errors.New("write cycle did not end in time")
	ErrReadBack = errors.New("read back differs from what was written")
	ErrAbsent   = errors.New("no chip answers")
	ErrSize     = errors.New("medium has the wrong size")
)
