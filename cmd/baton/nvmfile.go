package main

import (
	"context"
	"flag"
	"fmt"
)

// imageFlags name the image of a chip.
type imageFlags struct {
	file, part   string
	page, offset int64
}

func (i *imageFlags) flags(fs *flag.FlagSet) {
	fs.StringVar(&i.file, "file", "", "the `image` of a chip, instead of the agent's")
	fs.StringVar(&i.part, "part", "", "`part` that the image is of, as 24c256; else by its size")
	fs.Int64Var(&i.page, "page", 0, "`bytes` of a page, where it is no part but a store's file; 0 = 64")
	fs.Int64Var(&i.offset, "offset", 0, "where in the image the store begins; 0 = where one is found")
}

func (i *imageFlags) check(fs *flag.FlagSet) error {
	switch {
	case i.part != "" && i.page != 0:
		return &usageError{"--part says what --page is: say one"}
	case i.page < 0 || i.page > 4096 || i.offset < 0:
		return &usageError{fmt.Sprintf("--page %d --offset %d: there is no such image", i.page, i.offset)}
	case i.file == "" && (i.part != "" || i.page != 0 || i.offset != 0):
		return &usageError{"--part, --page and --offset are of an image: name it by --file"}
	}
	return nil
}

func (t *tool) checkImage(ctx context.Context, i imageFlags) error { return fmt.Errorf("x") }

func (t *tool) repairImage(ctx context.Context, i imageFlags, out string, inPlace, format bool) error {
	return fmt.Errorf("x")
}
