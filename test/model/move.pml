/*
 * Moves, fences and recovery (docs/design.md, "A move" and "Fence"): one VM's
 * set of two slots, hosts A and B, a client whose messages are late, repeated
 * or lost, and faults at every step. docs/protocol.md ties each label to the
 * tables and the code.
 *
 * What survives what: the store and the pages survive everything. Links and
 * registers of the engines survive the agent. What the agent remembers ends
 * with it. Bus faults end by themselves (Chaos); a fault budget of 0 means
 * that nothing of that kind happens.
 *
 * Each atomic step is one thing that a kill or a power cut can come before or
 * after: a store write (durable or not, nothing between), half a page write,
 * a reload, a link. A mutant is a step changed by -DM_...; a trace, or a
 * step, is reachable if its REACH says so.
 */
#ifndef KILLS
#define KILLS 1
#endif
#ifndef CUTS
#define CUTS 0
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#ifndef FAULTS
#define FAULTS 0
#endif
#ifndef FENCES
#define FENCES 0
#endif
#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef MOVES
#define MOVES 1
#endif

#define FREE 0
#define A 1
#define B 2
#define ALL 3
#define IN(i) ((set >> (i)) & 1)

/* Which assertion failed says which invariant: its name is all it compares. */
#define CLAIM(name, cond) name = (cond); assert(name)
hidden byte oneOwner, together, generationForward, fenceHolds, fenceMeetsMove, staleRefused, onceOnly, undoneStays, lateUnfenceRefused, fencedRefused, reloadUnlinked, unreached;

#define REACH(name) unreached = 0; assert(unreached)

mtype = { ADOPT, MOVE, UNDO, HOLD };

/* The store. */
mtype kind[2] = ADOPT;
byte to[2] = A;
byte gen[2] = 1;
byte id[2];
byte prior[2];       /* the group of the assignment before */
bit acked[2];        /* a VM was seen to use it under this assignment */
byte top = 1;        /* no generation above it was given out */
bit fenced[3];
byte epoch[3];
byte intent[4];      /* of each move ID: the generation of its intent, 0 = not known */

/* The pages. A bad one fails its CRC. */
byte pageGroup[2] = A;
byte pageGen[2] = 1;
bit pageBad[2];

/* The engines. */
bit link[2] = 1;
byte live[2] = A;    /* the group it runs with */
byte expect[2] = A;  /* whom it lets connect */
bit loaded[2] = 1;
bit dead[2];         /* its bus does not answer */

/* The agent's memory. */
bit up, kill;
bit blocked[2];
bit cutSeen[2];      /* a cut was confirmed and no link came since */
bit wanted[3];       /* a fence waits for the slots */
bit pending[3];      /* a cut of it is not confirmed yet */
byte set, bound;
bit atIdle;

/* The world. */
byte kills = KILLS, cuts = CUTS, restarts = RESTARTS, faults = FAULTS, fences = FENCES;
byte requests[4];
byte looked[4];      /* the generation that the client saw before it asked */
bit finale;          /* faults are over: the VM is brought to a host again */

/* The truth, for the assertions only. */
byte effects[4];
bit outdated[4];     /* somebody made an assignment since the client looked */
bit answered[3];     /* the fence was answered: cut and confirmed */
byte barred[2];      /* the host that an undone move was to */
bit late[3];         /* its fence was recorded before the commit point */

#define TARGET(m) ((m == 1 || (m == 3 && fenced[A])) -> B : A)
#ifdef SINGLE
#define SETOF(m) (m == 2 -> 1 : ALL)
#else
#define SETOF(m) ALL
#endif

#define WANTLINK(i) (to[i] != FREE && !fenced[to[i]])
#define SEEN(i) (acked[i] || (gen[0] == gen[1] && (acked[0] || acked[1])))
#define JOINT(i) ((kind[i] == MOVE || kind[i] == UNDO) && !SEEN(i))
#define TOGETHER (JOINT(0) && JOINT(1) && gen[0] == gen[1])
#define BEFORE(i) (IN(i) && !dead[i] && !pageBad[i] && (pageGen[i] < gen[i] || pageGroup[i] != to[i]))
#define UNCUT(i, h) (!cutSeen[i] && to[i] != (h) && ((to[i] == FREE && prior[i] == (h)) || (!pageBad[i] && pageGroup[i] == (h))))
#define SAME(i) (!pageBad[i] && pageGroup[i] == to[i] && pageGen[i] == gen[i])
#define AGREES(i) (SAME(i) && loaded[i] && live[i] == to[i] && (link[i] == WANTLINK(i)) && (!link[i] || expect[i] == to[i]))

/* A new assignment of one slot; what it was is the prior one. */
inline assign(slot, what, group, move) {
	prior[slot] = to[slot]; kind[slot] = what; to[slot] = group; gen[slot] = top; acked[slot] = 0; id[slot] = move
}

inline outdate(move) {
	outdated[1] = outdated[1] || move != 1;
	outdated[2] = outdated[2] || move != 2;
	outdated[3] = outdated[3] || move != 3
}

mtype = { NOTHING, MOVING, UNDOING, HOLDING, RECOVERING, RETRYING, SETTLING };
mtype = { FINE, HARDWARE, FENCED, UNREAD };

active proctype Agent() {
	mtype op = NOTHING, why = FINE;
	bit doCut[2], doWrite[2], doLoad[2], doLink[2];
	bit committed, back, open;
	byte i, m, h, starting, first;
	atomic {
#ifdef APART
		/* Slot 2 joined the VM later; with HELD, it is held. */
		gen[1] = 2; pageGen[1] = 2; top = 2;
#ifdef HELD
		kind[1] = HOLD; prior[1] = A; to[1] = FREE; pageGroup[1] = FREE; live[1] = FREE; link[1] = 0; expect[1] = FREE;
#endif
#endif
		skip
	}
Start:
	{
	/* ---- recovery, at every start: fences first, then the sets ---- */
	starting = 1;
RecoverFences:
	if
	:: atomic { starting == 1 && fenced[A] && (to[0] == A || to[1] == A) -> h = A; goto FenceCut }
	:: atomic { starting == 1 && fenced[B] && (to[0] == B || to[1] == B) && !(fenced[A] && (to[0] == A || to[1] == A)) -> h = B; goto FenceCut }
	:: atomic { else -> starting = 2 }
	fi;
RecoverSet:
	atomic {
		if
		:: starting == 2 && TOGETHER -> set = ALL; starting = 4
		:: starting == 2 && !TOGETHER -> set = 1; starting = 3
		:: starting == 3 -> set = 2; starting = 4
		:: starting == 4 ->
			starting = 0; set = 0; up = 1;
			pending[A] = fenced[A] && (UNCUT(0, A) || UNCUT(1, A));
			pending[B] = fenced[B] && (UNCUT(0, B) || UNCUT(1, B));
			goto Idle
		fi;
		op = RECOVERING;
		first = ((set & 1) -> 0 : 1);
		back = kind[first] == MOVE && !SEEN(first) && (BEFORE(0) || BEFORE(1));
#ifdef M_RECOVERY_TRUSTS
		if
		:: !pageBad[first] && link[first] == 0 && WANTLINK(first) -> why = FINE; committed = 0; doCut[0] = 0; doCut[1] = 0; doWrite[0] = 0; doWrite[1] = 0; doLoad[0] = 0; doLoad[1] = 0; doLink[0] = IN(0); doLink[1] = IN(1); goto Cut
		:: else
		fi;
#endif
		goto Compare
	}

	/* ---- nobody has a lock ---- */
Idle:
	atomic { op = NOTHING; set = 0; bound = 0; why = FINE; committed = 0; back = 0; open = 0; h = 0; m = 0; i = 0; first = 0;
		doCut[0] = 0; doCut[1] = 0; doWrite[0] = 0; doWrite[1] = 0; doLoad[0] = 0; doLoad[1] = 0; doLink[0] = 0; doLink[1] = 0; atIdle = 1 }
endIdle:
	if
	:: atomic { requests[1] && looked[1] -> atIdle = 0; requests[1]--; m = 1; goto Validate }
	:: atomic { requests[2] && looked[2] -> atIdle = 0; requests[2]--; m = 2; goto Validate }
	:: atomic { requests[3] && looked[3] -> atIdle = 0; requests[3]--; m = 3; goto Validate }
	:: atomic { wanted[A] -> atIdle = 0; wanted[A] = 0; h = A; goto FenceCut }
	:: atomic { wanted[B] -> atIdle = 0; wanted[B] = 0; h = B; goto FenceCut }
	:: atomic { pending[A] && !wanted[A] -> atIdle = 0; h = A; goto FenceCut }
	:: atomic { pending[B] && !wanted[B] -> atIdle = 0; h = B; goto FenceCut }
#ifdef M_RETRY_NOT_AGAIN
	:: atomic { false ->
#else
	:: atomic { blocked[0] || blocked[1] ->
#endif
Retry:		atIdle = 0; op = RETRYING; set = ((blocked[0] && blocked[1] && TOGETHER) -> ALL : (blocked[0] -> 1 : 2)); goto Compare }
	:: atomic { !blocked[0] && !blocked[1] && !pending[A] && !pending[B] && !wanted[A] && !wanted[B] && (!AGREES(0) || !AGREES(1)) && !((dead[0] || dead[1])) ->
Poll:		atIdle = 0; starting = 2; goto RecoverSet }
	:: atomic { !acked[0] && !acked[1] && to[0] != FREE && to[0] == to[1] && gen[0] == gen[1] && link[0] && link[1] && !dead[0] && !dead[1] && !fenced[to[0]] ->
Ack:		atIdle = 0; acked[0] = 1; acked[1] = 1; goto Idle }
	fi;

	/* ---- a move: what refuses it has changed nothing ---- */
Validate:
	atomic {
#ifndef M_ONCE
		if
		:: intent[m] ->
			/* A repeat is told how it ended. */
#ifdef T25
			if :: m == 1 && intent[2] -> REACH(T25) :: else fi;
#endif
			goto Idle
		:: else
		fi;
#endif
		set = SETOF(m); bound = TARGET(m);
		if
		:: fenced[bound] ->
#ifdef T33
			if :: answered[bound] && !outdated[m] -> REACH(T33) :: else fi;
#endif
#ifndef M_FENCED_NOT_REFUSED
			goto Idle
#endif
		:: else
		fi;
#if !defined(M_GENERATION_UNCHECKED) && !defined(UNQUOTED)
		if
		:: (IN(0) && gen[0] != looked[m]) || (IN(1) && gen[1] != looked[m]) -> goto Idle
		:: else
		fi;
#endif
		if
		:: (IN(0) && (blocked[0] || dead[0] || (!cutSeen[0] && to[0] == FREE))) || (IN(1) && (blocked[1] || dead[1] || (!cutSeen[1] && to[1] == FREE))) -> goto Idle
		:: else
		fi;
		if
		:: (IN(0) && !SAME(0)) || (IN(1) && !SAME(1)) || (IN(0) && !loaded[0]) || (IN(1) && !loaded[1]) -> goto Idle
		:: set == ALL && to[0] != to[1] && to[0] != FREE && to[1] != FREE -> goto Idle
		:: set == ALL && to[0] == bound && to[1] == bound -> goto Idle
		:: set == 1 && to[0] == bound -> goto Idle
		:: else
		fi;
		CLAIM(fencedRefused, !fenced[bound])
	}
Intent:
	atomic {
#ifndef UNQUOTED
		CLAIM(staleRefused, !outdated[m]);
#endif
		top++;
		if :: IN(0) -> assign(0, MOVE, bound, m); barred[0] = 0 :: else fi;
		if :: IN(1) -> assign(1, MOVE, bound, m); barred[1] = 0 :: else fi;
		intent[m] = top; outdate(m);
		effects[m]++;
		CLAIM(onceOnly, effects[m] == 1);
		op = MOVING; why = FINE; committed = 0;
		doCut[0] = IN(0); doWrite[0] = IN(0); doLoad[0] = IN(0); doLink[0] = IN(0);
		doCut[1] = IN(1); doWrite[1] = IN(1); doLoad[1] = IN(1); doLink[1] = IN(1);
#ifdef M_WRITE_BEFORE_CUT
		goto Write
#endif
#ifdef M_LINK_BEFORE_WRITE
		goto Commit
#endif
	}

	/* ---- break, assign, make: all slots through each before the next ---- */
Cut:
	i = 0;
	do
	:: atomic { i < 2 && doCut[i] ->
		if
		:: dead[i] -> why = HARDWARE; cutSeen[i] = 0
		:: else -> link[i] = 0; cutSeen[i] = 1
		fi;
		i++ }
	:: atomic { i < 2 && !doCut[i] -> i++ }
	:: atomic { i == 2 -> break }
	od;
	if
	:: atomic { why != FINE -> goto Failed }
	:: atomic { else }
	fi;
#ifdef M_WRITE_BEFORE_CUT
	if :: op == MOVING -> goto Reload :: else fi;
#endif
Write:
	i = 0;
WriteNext:
	do
	:: atomic { i < 2 && doWrite[i] ->
Tear:		if
		:: dead[i] -> why = HARDWARE; i++; goto WriteNext
		:: else -> pageBad[i] = 1
		fi }
		if
		:: atomic { !dead[i] ->
Written:		CLAIM(oneOwner, !link[i] || live[i] == to[i]);
			CLAIM(generationForward, pageGen[i] <= gen[i]);
			pageGroup[i] = to[i]; pageGen[i] = gen[i]; pageBad[i] = 0;
			i++ }
		:: atomic { dead[i] -> why = HARDWARE; i++ }
		fi
	:: atomic { i < 2 && !doWrite[i] -> i++ }
	:: atomic { i == 2 -> break }
	od;
	if
	:: atomic { why != FINE -> goto Failed }
	:: atomic { else }
	fi;
#ifdef M_WRITE_BEFORE_CUT
	if :: op == MOVING && (link[0] || link[1]) -> goto Cut :: else fi;
#endif
Reload:
	i = 0;
	do
	:: atomic { i < 2 && doLoad[i] ->
		if
		:: dead[i] -> why = HARDWARE
		:: else ->
			CLAIM(reloadUnlinked, !link[i]);
			if :: pageBad[i] -> why = HARDWARE :: else -> live[i] = pageGroup[i]; loaded[i] = 1 fi
		fi;
#ifdef M_SLOT_BY_SLOT
		if :: !dead[i] && doLink[i] && to[i] != FREE && !fenced[to[i]] -> CLAIM(together, !(gen[0] == gen[1] && JOINT(0) && JOINT(1)) || (SAME(0) && SAME(1) && live[0] == to[0] && live[1] == to[1])); link[i] = 1; expect[i] = to[i] :: else fi;
#endif
		i++ }
	:: atomic { i < 2 && !doLoad[i] -> i++ }
	:: atomic { i == 2 -> break }
	od;
	if
	:: atomic { why != FINE -> goto Failed }
	:: atomic { else }
	fi;
Commit:
	atomic {
		first = ((set & 1) -> 0 : 1);
		late[A] = fenced[A]; late[B] = fenced[B];
		if
		:: to[first] != FREE && (doLink[0] || doLink[1]) && fenced[to[first]] ->
#ifdef T3
			if :: kind[first] == UNDO && to[first] == A -> REACH(T3) :: else fi;
#endif
#ifdef T6
			if :: op == MOVING -> REACH(T6) :: else fi;
#endif
#ifndef M_FENCE_LOOKED_UP_ONCE
			why = FENCED; goto Failed
#endif
		:: else
		fi;
	}
	i = 0;
Link:
	do
	:: atomic { i < 2 && doLink[i] && to[i] != FREE ->
		if
		:: dead[i] -> why = HARDWARE; committed = 1
		:: else ->
			committed = 1;
#ifdef M_NO_EXPECT
			expect[i] = FREE;
#else
			expect[i] = to[i];
#endif
			link[i] = 1; cutSeen[i] = 0;
			CLAIM(fenceMeetsMove, !late[to[i]]);
			CLAIM(fenceHolds, !(fenced[to[i]] && answered[to[i]]));
			CLAIM(undoneStays, barred[i] != to[i]);
			CLAIM(together, !(JOINT(i) && gen[0] == gen[1]) || (SAME(0) && SAME(1) && live[0] == to[0] && live[1] == to[1]));
			CLAIM(oneOwner, live[i] == to[i] && expect[i] == to[i]);
			CLAIM(oneOwner, !(gen[0] == gen[1] && link[0] && link[1]) || live[0] == live[1])
		fi;
		i++ }
	:: atomic { i < 2 && !(doLink[i] && to[i] != FREE) -> i++ }
	:: atomic { i == 2 -> break }
	od;
#ifdef M_LINK_BEFORE_WRITE
	if :: op == MOVING && !(SAME(first)) -> goto Write :: else fi;
#endif
	if
	:: atomic { why != FINE -> goto Failed }
	:: atomic { else }
	fi;

	/* ---- it came through ---- */
Done:
	atomic {
		if :: op == RETRYING || op == SETTLING || op == UNDOING || op == HOLDING || op == RECOVERING ->
			blocked[0] = blocked[0] && !IN(0); blocked[1] = blocked[1] && !IN(1)
		:: else
		fi;
#ifdef T16
		if :: op == MOVING && set == ALL && to[0] == B && to[1] == B -> REACH(T16) :: else fi;
#endif
#ifdef T17
		if :: op == MOVING && set == ALL && to[0] == B && to[1] == B -> REACH(T17) :: else fi;
#endif
#ifdef T24
		if :: op == RETRYING && kind[first] == UNDO -> REACH(T24) :: else fi;
#endif
#ifdef T23
		if :: op == RECOVERING && kind[first] == UNDO && doWrite[0] && kills == 0 && cuts == 0 -> REACH(T23) :: else fi;
#endif
#ifdef T28
		if :: starting == 4 && !back && op == RECOVERING && up && (doLink[0] || doLink[1]) -> REACH(T28) :: else fi;
#endif
		if
		:: op == SETTLING && set == 1 && !open && back == 0 -> goto FenceSettled
		:: op == SETTLING -> goto FenceSettled
		:: op != SETTLING && starting -> goto RecoverSet
		:: else -> goto Idle
		fi
	}

	/* ---- it did not ---- */
Failed:
	atomic {
		if
		:: op == MOVING && committed && !fenced[to[first]] -> goto PushOn
		:: op == MOVING && committed && fenced[to[first]] -> goto Block
		:: !committed && why == FENCED && (op == MOVING || op == UNDOING || op == RECOVERING || op == RETRYING) -> goto Hold
		:: op == MOVING && !committed && why != FENCED -> goto Undo
		:: op == RECOVERING && why == UNREAD ->
			if :: starting -> goto RecoverSet :: else -> goto Idle fi
		:: op == RECOVERING && back && !committed && why == HARDWARE -> goto Undo
		:: else -> goto Block
		fi
	}
PushOn:
	if
	:: atomic { why = FINE; i = 0; goto Link }
	:: atomic { true ->
#ifdef T12
		if :: (link[0] && dead[1]) -> REACH(T12) :: else fi;
#endif
		goto Block }
	fi;
Undo:
	atomic {
		bound = 0;
#ifndef M_NO_ABORT_RECORD
		top++;
		if :: IN(0) -> m = prior[0]; if :: m != FREE && fenced[m] -> m = FREE :: else fi; assign(0, UNDO, m, id[0]) :: else fi;
		if :: IN(1) -> m = prior[1]; if :: m != FREE && fenced[m] -> m = FREE :: else fi;
			if :: IN(0) && m != to[0] -> top++ :: else fi; assign(1, UNDO, m, id[1]) :: else fi;
		barred[0] = (IN(0) && prior[0] != to[0] -> prior[0] : barred[0]);
		barred[1] = (IN(1) && prior[1] != to[1] -> prior[1] : barred[1]);
		outdate(0);
#else
		/* Only the hardware goes back; nothing in the store says so. */
		if :: IN(0) && !dead[0] && !link[0] -> pageGroup[0] = prior[0]; live[0] = prior[0]; pageBad[0] = 0; barred[0] = to[0] :: else fi;
		if :: IN(1) && !dead[1] && !link[1] -> pageGroup[1] = prior[1]; live[1] = prior[1]; pageBad[1] = 0; barred[1] = to[1] :: else fi;
		goto Idle;
#endif
		op = UNDOING; m = 0
	}
#ifdef M_UNDO_CARRIED_FORWARD
	/* The record is taken for that of the move. */
	atomic { first = ((set & 1) -> 0 : 1); if :: IN(0) && kind[0] == UNDO -> to[0] = prior[0] :: else fi; if :: IN(1) && kind[1] == UNDO -> to[1] = prior[1] :: else fi }
#endif
	goto Compare;
Hold:
	atomic {
#ifdef T4
		if :: op == RECOVERING && why == FENCED && kind[first] == MOVE -> REACH(T4) :: else fi;
#endif
#ifdef T5
		if :: op == RETRYING && why == FENCED -> REACH(T5) :: else fi;
#endif
		top++;
		if :: IN(0) -> assign(0, HOLD, FREE, id[0]) :: else fi;
		if :: IN(1) -> assign(1, HOLD, FREE, id[1]) :: else fi;
		outdate(0);
		op = HOLDING
	}
	goto Compare;
Block:
	i = 0;
	do
	:: atomic { i < 2 && IN(i) ->
		if :: dead[i] -> cutSeen[i] = 0 :: else -> link[i] = 0; cutSeen[i] = 1 fi;
		blocked[i] = 1; i++ }
	:: atomic { i < 2 && !IN(i) -> i++ }
	:: atomic { i == 2 -> break }
	od;
	if
	:: atomic { op == SETTLING -> goto FenceSettled }
	:: atomic { op != SETTLING && starting -> goto RecoverSet }
	:: atomic { else -> goto Idle }
	fi;

	/* ---- the table of recovery ---- */
Compare:
	atomic {
		why = FINE; committed = 0; i = 0; m = 0;
		doCut[0] = 0; doCut[1] = 0; doWrite[0] = 0; doWrite[1] = 0; doLoad[0] = 0; doLoad[1] = 0; doLink[0] = 0; doLink[1] = 0;
		do
		:: i < 2 && IN(i) ->
			cutSeen[i] = cutSeen[i] || (!WANTLINK(i) && !dead[i] && !link[i]);
			doWrite[i] = !SAME(i);
			doLoad[i] = !SAME(i) || !loaded[i] || live[i] != to[i];
			doCut[i] = doLoad[i] || (link[i] && (!WANTLINK(i) || expect[i] != to[i]));
			doLink[i] = WANTLINK(i) && (!link[i] || doCut[i]);
			i++
		:: i < 2 && !IN(i) -> i++
		:: i == 2 -> break
		od;
		i = 0;
		first = ((set & 1) -> 0 : 1);
		if
		:: (IN(0) && to[0] != FREE && fenced[to[0]]) || (IN(1) && to[1] != FREE && fenced[to[1]]) -> why = FENCED; goto Failed
		:: else
		fi;
		if
		:: (IN(0) && dead[0]) || (IN(1) && dead[1]) ->
			/* One that can not be read says nothing: if nothing else has to be
			   done, all is left as it is. */
			if
			:: (!IN(0) || dead[0] || !(doCut[0] || doWrite[0] || doLink[0])) && (!IN(1) || dead[1] || !(doCut[1] || doWrite[1] || doLink[1])) -> why = UNREAD
			:: else -> why = HARDWARE
			fi;
			goto Failed
		:: else
		fi;
		if
		:: !(doCut[0] || doCut[1] || doWrite[0] || doWrite[1] || doLink[0] || doLink[1]) ->
#ifdef T29
			if :: starting == 4 && kills < KILLS && WANTLINK(0) -> REACH(T29) :: else fi;
#endif
#ifdef T22
			if :: starting == 4 && kills < KILLS && intent[1] && intent[2] && gen[0] > gen[1] -> REACH(T22) :: else fi;
#endif
			goto Done
		:: else
		fi;
		if
		:: set == ALL && (doLink[0] || doLink[1]) && (doLoad[0] || doLoad[1]) ->
			doCut[0] = 1; doCut[1] = 1; doLink[0] = WANTLINK(0); doLink[1] = WANTLINK(1)
		:: else
		fi;
		goto Cut
	}

	/* ---- a fence: it is recorded already ---- */
FenceCut:
	atomic { set = ((to[0] == h || UNCUT(0, h)) -> 1 : 0) + ((to[1] == h || UNCUT(1, h)) -> 2 : 0); open = 0; i = 0 }
	do
	:: atomic { i < 2 && IN(i) ->
		if
		:: dead[i] -> open = 1; cutSeen[i] = 0
		:: else -> link[i] = 0; cutSeen[i] = 1
		fi;
		i++ }
	:: atomic { i < 2 && !IN(i) -> i++ }
	:: atomic { i == 2 -> break }
	od;
FenceHold:
	atomic {
		if
		:: to[0] == h || to[1] == h ->
			top++;
			if :: to[0] == h -> assign(0, HOLD, FREE, id[0]) :: else fi;
			if :: to[1] == h -> assign(1, HOLD, FREE, id[1]) :: else fi;
			outdate(0)
		:: else
		fi;
		pending[h] = open;
		back = 0
	}
FenceSettle:
	/* Each slot on its own; back says which were. */
	atomic {
		op = SETTLING; bound = set;
#ifndef M_FENCE_SETTLES_ALONE
		/* Only what nobody has: a slot that a blocked undo gives back to its
		   source comes on with its set, when that is tried again. */
		if :: to[0] != FREE -> bound = bound & 2 :: else fi;
		if :: to[1] != FREE -> bound = bound & 1 :: else fi;
#endif
		if
		:: (bound & 1) && !back -> set = 1; back = 1; goto Compare
		:: else
		fi
	}
FenceSettle2:
	atomic { op = SETTLING;
		if
		:: bound & 2 -> set = 2; bound = 0; goto Compare
		:: else -> goto FenceAnswer
		fi
	}
FenceSettled:
	atomic {
		if
		:: set == 1 -> goto FenceSettle2
		:: else
		fi
	}
FenceAnswer:
	atomic {
		if
		:: !open ->
			answered[h] = 1
#ifdef T13
		:: open && link[0] && live[0] == h -> REACH(T13)
#endif
#ifdef M_FENCE_UNCONFIRMED
		:: open -> answered[h] = 1; pending[h] = 0
#endif
		:: else
		fi;
		CLAIM(fenceHolds, !answered[h] || !((link[0] && live[0] == h) || (link[1] && live[1] == h)));
		bound = 0; set = 0; open = 0; back = 0; op = NOTHING; why = FINE;
		if :: starting -> goto RecoverFences :: else -> goto Idle fi
	}
	} unless {
		atomic { kill ->
			kill = 0; up = 0; atIdle = 0;
			blocked[0] = 0; blocked[1] = 0; cutSeen[0] = 0; cutSeen[1] = 0;
			wanted[A] = 0; wanted[B] = 0; pending[A] = 0; pending[B] = 0;
			set = 0; bound = 0; op = NOTHING; why = FINE; committed = 0; back = 0; open = 0;
			doCut[0] = 0; doCut[1] = 0; doWrite[0] = 0; doWrite[1] = 0; doLoad[0] = 0; doLoad[1] = 0; doLink[0] = 0; doLink[1] = 0;
			i = 0; m = 0; h = 0; first = 0; starting = 0;
			goto Start
		}
	}
}

/* Clients: each looks, asks, and asks again; a request may wait for ever. A
   fence is in the store before its slots are looked for. */
active proctype Clients() {
	byte h, q;
	requests[1] = REQUESTS;
	requests[2] = (MOVES > 1 -> 1 : 0);
endClients:
	do
	:: atomic { !looked[1] -> looked[1] = gen[0]; outdated[1] = 0 }
	:: atomic { MOVES > 1 && !looked[2] && intent[1] -> looked[2] = gen[0]; outdated[2] = 0 }
	:: atomic { up && fences && !kill -> fences--;
		if :: h = A :: h = B fi;
FenceRecord:	fenced[h] = 1; epoch[h]++; wanted[h] = 1; answered[h] = 0; h = 0 }
	:: atomic { up && !kill && fences == 0 && (fenced[A] && !wanted[A] && !pending[A] && atIdle) ->
		/* Quoting the last fence, or one before. */
		if :: q = epoch[A] :: epoch[A] > 1 -> q = 1 fi;
		if
		:: q == epoch[A] -> fenced[A] = 0; answered[A] = 0; late[A] = 0
		:: else ->
#ifdef T14
			REACH(T14);
#endif
#ifdef M_LATE_UNFENCE
			fenced[A] = 0; answered[A] = 0;
			CLAIM(lateUnfenceRefused, false);
#endif
			skip
		fi;
		q = 0;
Unfence:	skip }
#ifdef T11
	:: atomic { link[0] && live[0] == B && expect[0] == B -> REACH(T11) }
#endif
#ifdef FINALE
	:: atomic { up && !finale && !pending[A] && !pending[B] && !wanted[A] && !wanted[B] && !blocked[0] && !blocked[1] && atIdle && fences == 0 && kills == 0 && cuts == 0 && restarts == 0 && faults == 0 && !dead[0] && !dead[1] && to[0] == FREE && to[1] == FREE && gen[0] == gen[1] && !(fenced[A] && fenced[B]) && AGREES(0) && AGREES(1) ->
		finale = 1; looked[3] = gen[0]; outdated[3] = 0; requests[3] = 1 }
#endif
	od
}

/* Faults: bounded, and a bus that is dead comes back. */
active proctype Chaos() {
endChaos:
	do
	:: atomic { kills && !kill -> kills--; kill = 1 }
	:: atomic { cuts && !kill -> cuts--; kill = 1;
PowerCut:	link[0] = 0; link[1] = 0; expect[0] = FREE; expect[1] = FREE; dead[0] = 0; dead[1] = 0;
		loaded[0] = !pageBad[0]; loaded[1] = !pageBad[1];
		live[0] = (pageBad[0] -> FREE : pageGroup[0]); live[1] = (pageBad[1] -> FREE : pageGroup[1]) }
	:: atomic { restarts && !pageBad[0] -> restarts--;
EngineRestart:	link[0] = 0; expect[0] = FREE; loaded[0] = 1; live[0] = pageGroup[0] }
	:: atomic { faults && !dead[0] && !dead[1] -> faults--; dead[0] = 1 }
	:: atomic { faults && !dead[0] && !dead[1] -> faults--; dead[1] = 1 }
	:: atomic { dead[0] -> dead[0] = 0 }
	:: atomic { dead[1] -> dead[1] = 0 }
	:: atomic { kills -> kills-- }
	:: atomic { cuts -> cuts-- }
	:: atomic { restarts -> restarts-- }
	:: atomic { faults -> faults-- }
	od
}

/* Once faults are over, every set is where its records say, all of it, or cut. */
#define settled (up && !dead[0] && !dead[1] && AGREES(0) && AGREES(1) && !blocked[0] && !blocked[1] && !pending[A] && !pending[B] && !wanted[A] && !wanted[B])
#ifdef LIVE
/* So that standing still for ever is a cycle too. */
active proctype Time() {
	bit tick;
	do
	:: tick = 1 - tick
	od
}

#ifdef FINALE
ltl heldIsAttached { [] (finale -> <> (link[0] && link[1] && to[0] == to[1] && settled)) }
#else
ltl comesToRest { <>[] settled }
#endif
#endif
