package bug

// Bugs in what is made of failing hardware. Each is caught by the tests of
// test/busfaults, not by those of the invariants.
const (
	UnreadCut      Bug = "unread-cut"      // an engine that can not be read is taken as cut
	UnreadSame     Bug = "unread-same"     // a reset count that can not be read is taken as unchanged
	UnreadDamaged  Bug = "unread-damaged"  // an EEPROM that does not answer is taken as damaged
	NeighboursCut  Bug = "neighbours-cut"  // who is on the bus of a blocked set is cut as well
	BlockedForever Bug = "blocked-forever" // a blocked set is not tried again
	SuspectTrusted Bug = "suspect-trusted" // a suspect page that could not be rewritten is trusted
	DeafUnseen     Bug = "deaf-unseen"     // link on is taken as done when it was acknowledged
)

// Faults lists them.
var Faults = []Bug{UnreadCut, UnreadSame, UnreadDamaged, NeighboursCut, BlockedForever, SuspectTrusted, DeafUnseen}
