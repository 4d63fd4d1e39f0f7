package nvm

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// The bytes of a page. docs/nvm-format.md gives the reason of each.
//
//	offset    size
//	0         1     kind
//	1         4     sequence number of the batch, little endian
//	5         1     part of the batch that this page carries, from 0
//	6         1     parts of the batch, 1..255
//	7         2     page that the next write goes to, little endian; 0xffff none
//	9         n-13  payload: a slice of the batch's records
//	n-4       4     CRC-32C over all before it, little endian
const (
	minPage  = 64 // smallest logical page
	maxPage  = 32768
	headLen  = 9
	crcLen   = 4
	overhead = headLen + crcLen
	noPage   = 0xffff // largest page number is one below
	maxPages = 0xfffe
	maxParts = 255
)

// Kinds differ from each other, from 0x00 and from 0xff in four bits or more.
const (
	kindData    = 0x2d // a page of a batch
	kindSpare   = 0x4b // a copy of the newest batch's last page, at a fixed place
	kindFormed  = 0xb2 // format record of a store that is in use
	kindForming = 0xd4 // format record while Format is at work
	kindSector  = 0x8e // format record at the head of an erase block
)

// crcSeed is what the CRC of a format record starts from. It is a constant of
// the format's version: another version's pages never verify.
const crcSeed = 0x42617431 // "Bat1"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// dataSeed is what the CRC of a store's pages starts from. For two different
// incarnations it differs, and then so do the CRCs of any equal pages: a page
// of an older store cannot verify in a newer one.
func dataSeed(incarnation uint32) uint32 {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], incarnation)
	return crc32.Update(crcSeed, castagnoli, b[:])
}

// pageHead is a page without its payload.
type pageHead struct {
	seq   uint32
	next  uint16
	kind  byte
	part  uint8
	parts uint8
}

// encodePage fills dst, one logical page. What payload leaves of it is zero.
func encodePage(dst []byte, h pageHead, payload []byte, seed uint32) {
	dst[0] = h.kind
	binary.LittleEndian.PutUint32(dst[1:], h.seq)
	dst[5] = h.part
	dst[6] = h.parts
	binary.LittleEndian.PutUint16(dst[7:], h.next)
	body := dst[headLen : len(dst)-crcLen]
	clear(body[copy(body, payload):])
	sealPage(dst, seed)
}

func sealPage(page []byte, seed uint32) {
	at := len(page) - crcLen
	binary.LittleEndian.PutUint32(page[at:], crc32.Update(seed, castagnoli, page[:at]))
}

func sealed(page []byte, seed uint32) bool {
	at := len(page) - crcLen
	return binary.LittleEndian.Uint32(page[at:]) == crc32.Update(seed, castagnoli, page[:at])
}

// decodePage reads the head of a data or spare page. Whatever does not verify
// is not ok, and nothing of it may be used.
func decodePage(page []byte, seed uint32) (h pageHead, ok bool) {
	if page[0] != kindData && page[0] != kindSpare || !sealed(page, seed) {
		return pageHead{}, false
	}
	h = pageHead{
		kind:  page[0],
		seq:   binary.LittleEndian.Uint32(page[1:]),
		part:  page[5],
		parts: page[6],
		next:  binary.LittleEndian.Uint16(page[7:]),
	}
	// Sequence 0 is before the first batch: only a spare page carries it.
	return h, h.part < h.parts && (h.seq != 0 || h.kind == kindSpare)
}

func pagePayload(page []byte) []byte { return page[headLen : len(page)-crcLen] }

// formatRecord is what makes a medium a store: two copies at the start of a
// medium that is overwritten in place, one at the head of every erase block.
//
//	offset  size
//	0       1     kind
//	1       8     "BatonNVM"
//	9       1     version
//	10      1     1 = Format had ended when this was written (erase blocks only)
//	11      2     bytes of a logical page
//	13      4     logical pages of the store
//	17      4     bytes of an erase block, or 0
//	21      4     incarnation
//	25      4     erases of this block, this one included (erase blocks only)
//	29      4     erases of all blocks when this one was erased: its turn (erase blocks only)
//	33      n-37  zero
//	n-4     4     CRC-32C
type formatRecord struct {
	kind        byte
	version     byte
	formed      bool
	page        int
	pages       int
	erase       int
	incarnation uint32
	erases      uint32
	turn        uint32
}

const (
	formatMagic   = "BatonNVM"
	formatVersion = 1
	formatLen     = 33
)

func encodeFormat(dst []byte, f formatRecord) {
	clear(dst)
	dst[0] = f.kind
	copy(dst[1:], formatMagic)
	dst[9] = f.version
	if f.formed {
		dst[10] = 1
	}
	binary.LittleEndian.PutUint16(dst[11:], uint16(f.page))
	binary.LittleEndian.PutUint32(dst[13:], uint32(f.pages))
	binary.LittleEndian.PutUint32(dst[17:], uint32(f.erase))
	binary.LittleEndian.PutUint32(dst[21:], f.incarnation)
	binary.LittleEndian.PutUint32(dst[25:], f.erases)
	binary.LittleEndian.PutUint32(dst[29:], f.turn)
	sealPage(dst, crcSeed)
}

// decodeFormat reads a format record, also one of another version: of that
// only kind and version mean anything.
func decodeFormat(page []byte) (f formatRecord, ok bool) {
	switch page[0] {
	case kindFormed, kindForming, kindSector:
	default:
		return formatRecord{}, false
	}
	if !bytes.Equal(page[1:9], []byte(formatMagic)) || !sealed(page, crcSeed) {
		return formatRecord{}, false
	}
	f = formatRecord{
		kind:        page[0],
		version:     page[9],
		formed:      page[10] == 1,
		page:        int(binary.LittleEndian.Uint16(page[11:])),
		pages:       int(binary.LittleEndian.Uint32(page[13:])),
		erase:       int(binary.LittleEndian.Uint32(page[17:])),
		incarnation: binary.LittleEndian.Uint32(page[21:]),
		erases:      binary.LittleEndian.Uint32(page[25:]),
		turn:        binary.LittleEndian.Uint32(page[29:]),
	}
	if f.version == formatVersion && (page[10] > 1 || !allZero(page[formatLen:len(page)-crcLen])) {
		return formatRecord{}, false
	}
	return f, true
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
