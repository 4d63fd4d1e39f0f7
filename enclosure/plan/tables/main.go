// Command tables writes docs/state-tables.md from package plan.
package main

import (
	"bytes"
	"log"
	"os"

	"baton/enclosure/plan"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: tables FILE")
	}
	var b bytes.Buffer
	if err := plan.WriteTables(&b); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], b.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}
