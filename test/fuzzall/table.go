package main

// decoder is a function that makes something of bytes which others wrote, and
// the fuzz target that it is run by.
type decoder struct{ dir, name, target string }

// decoders are all there are: a test fails where a function that decodes is
// not among them.
var decoders = []decoder{
	{"cmd/baton/splice", "parse", "cmd/baton/splice/FuzzSet"},
	{"cmd/baton/splice", "parsePath", "cmd/baton/splice/FuzzSet"},
	{"ee", "DecodeBlock", "ee/FuzzDecodeBlock"},
	{"ee", "ParseGeneration", "ee/FuzzParse"},
	{"ee", "ParseMAC", "ee/FuzzParse"},
	{"ee", "ParseProfile", "ee/FuzzParseProfile"},
	{"ee", "ParseUUID", "ee/FuzzParse"},
	{"enclosure/plan", "DecodeAdopted", "enclosure/plan/FuzzDecodeRecords"},
	{"enclosure/plan", "DecodeAssignment", "enclosure/plan/FuzzDecodeRecords"},
	{"enclosure/plan", "DecodeAudit", "enclosure/plan/FuzzDecodeAudit"},
	{"enclosure/plan", "DecodeConfiguration", "enclosure/plan/FuzzConfiguration"},
	{"enclosure/plan", "DecodeEvidence", "enclosure/plan/FuzzDecodeRecords"},
	{"enclosure/plan", "DecodeFloor", "enclosure/plan/FuzzDecodeRecords"},
	{"enclosure/plan", "DecodeHost", "enclosure/plan/FuzzDecodeRecords"},
	{"enclosure/plan", "DecodeRoll", "enclosure/plan/FuzzDecodeRecords"},
	{"enclosure/plan", "DecodeStart", "enclosure/plan/FuzzDecodeRecords"},
	{"enclosure/plan", "DecodeUncut", "enclosure/plan/FuzzDecodeRecords"},
	{"images/fit", "Parse", "images/fit/FuzzParse"},
	{"images/fit", "parseTree", "images/fit/FuzzParse"},
	{"images/uboot", "Decode", "images/uboot/FuzzDecode"},
	{"mgmt", "ParseSeen", "mgmt/FuzzSeen"},
	{"mgmt/config", "Parse", "mgmt/config/FuzzParse"},
	{"mgmt/server", "decode", "mgmt/internal/strict/FuzzUnmarshal"},
	{"mgmt/internal/strict", "Parse", "mgmt/internal/strict/FuzzUnmarshal"},
	{"mgmt/internal/strict", "Unmarshal", "mgmt/internal/strict/FuzzUnmarshal"},
	{"mgmt/password", "Parse", "mgmt/password/FuzzParse"},
	{"nvm", "decodeFormat", "nvm/FuzzMount"},
	{"nvm", "decodePage", "nvm/FuzzPage"},
	{"pcie", "DecodeDVSEC", "pcie/FuzzDVSEC"},
	{"sim/control", "ParseWorld", "sim/control/FuzzParseWorld"},
	{"vlan", "parseAttrs", "vlan/FuzzAnswer"},
	{"vlan", "parseInfo", "vlan/FuzzAnswer"},
	{"vlan", "parseLink", "vlan/FuzzAnswer"},
	{"vlan", "parseMembers", "vlan/FuzzAnswer"},
	{"vlan", "parsePort", "vlan/FuzzAnswer"},
}
