package mgmt

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
)

// Checksum is what Sum of an unchanged backup is: CRC-32C, in hex, over its
// JSON without white space and with an empty Sum. It finds what was cut short
// or edited, not what was forged.
func (b Backup) Checksum() string {
	b.Sum = ""
	if b.Slots == nil {
		b.Slots = []BackupSlot{}
	}
	if b.Hosts == nil {
		b.Hosts = []BackupHost{}
	}
	text, err := json.Marshal(b)
	if err != nil {
		return "" // a year of more than four digits: nobody's sum
	}
	return fmt.Sprintf("%08x", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}
