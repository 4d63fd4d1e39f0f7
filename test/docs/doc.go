// Package docs tests that what the pages tell people to type works as written:
// README.md and all of docs/.
//
// A fenced block has one of these info strings; any other fails the test.
//
//	console   commands after "$ " are run through sh, each page in an enclosure
//	          of its own (below). Where output follows, it is compared, word by
//	          word; "..." stands for any words, and for any part of one.
//	          Durations, times, UUIDs, incarnations, versions and the tool's
//	          "so far" are not compared. Every command must end with 0, and the last one with N
//	          where the info string says exit=N. With interrupt, the last one
//	          gets SIGINT after a second (for what follows until then).
//	sh        commands for a developer's machine or a real controller: not run;
//	          make's targets, go's packages, and flags and verbs of our programs
//	          must exist
//	json      one or more JSON documents
//	ini       a unit or drop-in of systemd
//	text      anything; so is a block without info string, and an indented one
//
// Lines of text that begin with "$ ", lines of an indented block that begin with
// one of our programs, make or go, and inline code that begins with one of our
// programs are commands that must at least parse: verb, flags and the number of
// arguments. Words in capitals, [..] and a|b stand for what they stand for on a
// manual page.
//
// The enclosure of a page is the one that the pages speak of: rack7-io2 with the
// slots gpu0 gpu1 nic0 gpu2, server1 to server3, and the VMs train1 (gpu0 gpu1
// nic0, runs on server1) and train2 (gpu2, stopped); a real batond against a
// real batonsim. /etc/baton, /run/baton, /var/lib/baton and /tmp/sim are
// directories of the test, in commands and in their output. The working
// directory has copies of batond.json and world.json, and a job.json for train2.
//
// What readers need not see stands in a comment of its own line ("example"
// comments are of mgmt/server's test of the API's examples):
//
//	<!-- test: fresh -->               a new enclosure from here on
//	<!-- test: new -->                 one whose store is blank and whose hosts are fenced
//	<!-- test: empty -->               one without simulator and agent
//	<!-- test: sim PATH BODY -->       POST to the simulator's control socket
//	<!-- test: agent start|stop|kill --> the agent
//	<!-- test: run COMMAND -->         must succeed
//	<!-- test: until TEXT -->          until 'baton status' shows TEXT
package docs
