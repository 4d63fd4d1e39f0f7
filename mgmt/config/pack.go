package config

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
)

// What the store's pages have room for (docs/nvm-format.md): a record of the
// configuration is one batch.
const (
	ringFirst   = 4   // pages with a fixed place
	maxBatch    = 255 // pages of a batch
	pageFrame   = 13  // bytes of a page that are not payload
	maxRecord   = 65535 - 5
	recordFrame = 10 // bytes of the record beside the packed text: lengths, key, form, version
)

// Pack compresses a configuration's text for the store.
func Pack(text []byte) []byte {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		panic(err) // the level is one there is
	}
	_, _ = w.Write(text) // a Buffer takes it all
	_ = w.Close()
	return out.Bytes()
}

// Unpack is the inverse of Pack. What is no packed text, or one that is larger
// than a configuration may be, is an error.
func Unpack(packed []byte) ([]byte, error) {
	in := bytes.NewReader(packed)
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(in), maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("unpacking: %w", err)
	case len(text) > maxFile:
		return nil, fmt.Errorf("unpacking: more than %d bytes", maxFile)
	case in.Len() > 0:
		return nil, errors.New("unpacking: something follows the text")
	}
	return text, nil
}

// pagesOf is how many pages of the store a configuration takes that is packed
// into n bytes; none if it is not kept there.
func pagesOf(n int, page int64) int64 {
	if n == 0 {
		return 0
	}
	payload := page - pageFrame
	return (int64(n) + recordFrame + payload - 1) / payload
}
