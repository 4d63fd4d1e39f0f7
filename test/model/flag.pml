/*
 * The flag's life (docs/design.md): one slot, one VM, hosts A and B, proofs of
 * life, arm, ack, starts, moves and fences; messages that are late, repeated or
 * lost; kills, power cuts and restarts of the engine between any two steps.
 * docs/protocol.md ties each label to the tables and the code.
 *
 * The truth is kept apart from all that: dirty says that a reset or power loss
 * reached the device since the VM that used it last ran. The verdict is held
 * against it wherever a host acts on one.
 *
 * Resets count up to the number of HITS and of assignments, far below where
 * the byte would wrap; a restart of the engine begins the count again at 1, so
 * that it can come back to an old value.
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
#ifndef HITS
#define HITS 2
#endif
#ifndef MOVES
#define MOVES 1
#endif
#ifndef FENCES
#define FENCES 0
#endif
#ifndef STARTS
#define STARTS 1
#endif
#ifdef ALWAYS
#define POLICY 1
#else
#define POLICY 0
#endif

#define FREE 0
#define A 1
#define B 2

#define CLAIM(name, cond) name = (cond); assert(name)
hidden byte flagNeverLies, notShy, guardHolds, shownBeforeLink, sameArming, unreached;

#define REACH(name) unreached = 0; assert(unreached)

mtype = { ARMED, TARGET, SPENT, VOID };
mtype = { GONE, OPEN, RUN };

/* The store: the newest assignment, the last evidence, the latest start. */
byte to = A, gen = 1;
mtype flag = SPENT;  /* of the evidence */
byte flagGen = 1, base = 1, baseEpoch = 1, flagStart = 1;
byte start = 1, startGen = 1;

/* The engine and its device. */
bit link = 1, guard = POLICY, latch, shown;
byte resets = 1, epoch = 1, proven = 1;
byte boot = 1;       /* which start of the engine the count is of: docs/protocol.md, open points */

/* Messages on their way: what the host saw, of which generation. */
byte readCount, readEpoch, readGen;             /* the timer has read, not yet posted */
byte aliveCount, aliveEpoch, aliveGen;          /* 0 = none */
byte armCount, armEpoch, armGen;
byte ackCount, ackEpoch, ackGen, ackNonce;

/* The host that has the slot. */
mtype qemu = RUN;
byte opened = 1;     /* the start that its QEMU is of */
byte quotedCount, quotedEpoch, quotedBoot; /* what the last verdict that was acted on said */

bit atIdle, kill, doubt;
byte kills = KILLS, cuts = CUTS, restarts = RESTARTS, hits = HITS, moves = MOVES, fences = FENCES, starts = STARTS;

/* The truth. */
bit dirty;           /* the memory is not what the VM left */
bit clouded;         /* the engine did not see all the time */
bit moved;           /* something reached the device that no baseline has yet */

/* The fold of the records (plan.Slot.Flag). */
#define FLAG (flagGen == gen -> flag : (flag == VOID -> VOID : (to == FREE -> ARMED : TARGET)))
#define FIXED (flag == ARMED || flag == TARGET)
#ifdef M_LATCH_IGNORED
#define DOWN false
#else
#define DOWN latch   /* the engine went down since the last ack, which clears it */
#endif
#define CLEAN (proven != 0 && !DOWN && resets == proven && epoch == baseEpoch && (!FIXED || resets == base))
#ifdef M_RESTART_KEEPS_PROOF
#define YES (FLAG != VOID && resets == proven && epoch == baseEpoch)
#else
#define YES (FLAG != VOID && CLEAN)
#endif
#define AWAITED (startGen == gen && flagStart < start)
#define ACKED (startGen == gen || flagGen == gen)
#define GUARDED (POLICY || to == FREE || FLAG == ARMED || FLAG == TARGET)

/* A reset from the host's side. */
inline hostReset() {
	if
#ifdef NOGUARD
	/* A profile whose engine has none; it can not be armed. */
	:: link ->
#else
	:: link && !guard ->
		CLAIM(guardHolds, clouded || !(FLAG == ARMED && flagGen == gen));
#endif
		resets++; moved = 1;
		if :: qemu != RUN -> dirty = 1 :: else fi
	:: else
	fi
}

inline record(what, count, when) {
	flag = what; flagGen = gen; base = count; baseEpoch = when
}

active proctype Agent() {
	byte before, saw, next;
	bit assigning, ok, latched;
Begin:
	{
	atIdle = 0;
	/* A start, and the poller: the engine's words first, then the link. */
Doubt:
	atomic {
		if
		:: (FLAG == ARMED || FLAG == TARGET) && !CLEAN -> record(VOID, 0, 0)
		:: FLAG == SPENT && (proven == 0 || DOWN) -> record(VOID, 0, 0)
		:: else
		fi
	}
Recover:
	atomic {
		if
		:: to != FREE && !link && !assigning -> skip
		:: else -> goto Idle
		fi
	}
RecoverReset:
	atomic {
		if
		:: !ACKED && !YES -> resets++; dirty = 1; moved = 1
		:: else
		fi
	}
RecoverLink:
	atomic { guard = GUARDED; shown = (FLAG == TARGET && YES); link = 1 }
RecoverDoubt:
	atomic {
		if
		:: (FLAG == ARMED || FLAG == TARGET) && !CLEAN -> record(VOID, 0, 0)
		:: else
		fi
	}
Idle:
	atomic { before = 0; saw = 0; next = 0; assigning = 0; ok = 0; latched = 0; doubt = 0; atIdle = 1 }
endIdle:
	if
	:: atomic { aliveGen -> atIdle = 0; goto Alive }
	:: atomic { armGen -> atIdle = 0; goto Arm }
	:: atomic { ackGen -> atIdle = 0; goto Ack }
	:: atomic { (to != FREE && !link) || (latch && FLAG == SPENT && (proven == 0 || DOWN)) -> atIdle = 0; goto Doubt }
	:: atomic { moves && to != FREE && link -> moves--; atIdle = 0; next = (to == A -> B : A); goto Move }
	:: atomic { to == FREE && starts -> starts--; atIdle = 0; next = B; goto Move }
	:: atomic { to == FREE && starts -> starts--; atIdle = 0; next = A; goto Move }
	:: atomic { to != FREE && link && starts && qemu == GONE -> starts--; atIdle = 0; goto Start }
	:: atomic { to != FREE && link && qemu == GONE && startGen != gen -> atIdle = 0; goto Start }
	:: atomic { fences && to != FREE -> fences--; atIdle = 0; goto Fence }
	fi;

	/* ---- proof of life ---- */
Alive:
	atomic {
		ok = aliveGen == gen && link;
#ifndef M_LATE_PROOF
		ok = ok && (FLAG == SPENT) && ACKED && !AWAITED && !latch;
#ifdef T1
		if :: aliveGen == gen && link && FLAG == TARGET && aliveCount == resets && aliveCount != base -> REACH(T1) :: else fi;
#endif
#endif
		ok = ok && aliveCount == resets && aliveEpoch == epoch;
		saw = aliveCount; aliveGen = 0; aliveCount = 0; aliveEpoch = 0;
		if :: !ok -> goto Idle :: else fi
	}
AliveProve:
	atomic {
#ifdef M_PROOF_READS_AGAIN
		proven = resets;
#else
		proven = saw;
#endif
		moved = (proven != resets);
		goto Idle
	}

	/* ---- arm ---- */
Arm:
	atomic {
		ok = armGen == gen;
		if
		:: ok && FLAG == ARMED ->
			/* A repeat. */
#ifdef T9
			if :: kills < KILLS -> REACH(T9) :: else fi;
#endif
#ifdef M_ARM_REPEAT_CLEARS
			base = resets; proven = resets;
			CLAIM(sameArming, base == saw && proven == saw);
#endif
			ok = 0
		:: else
		fi;
		ok = ok && (FLAG == SPENT) && link && !AWAITED && !latch;
		saw = armCount; next = armEpoch;
		armGen = 0; armCount = 0; armEpoch = 0;
		if :: !ok -> goto Idle :: else fi
	}
ArmGuard:
#ifdef M_GUARD_DROPPED
	skip;
#else
	atomic { guard = 1 };
#endif
ArmProve:
	atomic {
		ok = (resets == saw && epoch == next && proven != 0) && link;
#ifdef M_ARM_UNCOMPARED
		ok = link; saw = resets; next = epoch;
#endif
#ifdef T2
		if :: resets != saw && qemu == GONE -> REACH(T2) :: else fi;
#endif
		if :: ok -> proven = saw :: else fi
	}
ArmRecord:
	atomic {
		if
		:: ok -> record(ARMED, saw, next); moved = (resets != saw)
		:: else -> record(VOID, 0, 0); moved = 1 /* something came since the host looked */
		fi;
		goto Idle
	}

	/* ---- ack ---- */
Ack:
	atomic {
#ifdef M_ACK_WITHOUT_NONCE
		ok = ackGen == gen && startGen == gen;
#else
		ok = ackGen == gen && startGen == gen && ackNonce == start;
#endif
#ifdef T26
		if :: ackGen == gen && ackNonce != start && FLAG == TARGET -> REACH(T26) :: else fi;
#endif
#ifdef T27
		if :: ackGen == gen && ackNonce == start && !AWAITED && kills < KILLS -> REACH(T27) :: else fi;
#endif
		ok = ok && AWAITED && link && FLAG != ARMED;
#ifndef M_ACK_WITHOUT_VALUES
		ok = ok && ackCount == resets && ackEpoch == epoch;
#ifndef M_ACK_ACROSS_RESTART
		ok = ok && quotedBoot == boot;
#endif
#endif
		saw = ackCount; next = ackEpoch; latched = latch;
#ifdef M_ACK_WITHOUT_VALUES
		saw = resets; next = epoch;
#endif
		ackGen = 0; ackCount = 0; ackEpoch = 0; ackNonce = 0;
		if :: !ok -> goto Idle :: else fi
	}
AckProve:
	atomic { proven = saw }
AckLatch:
	atomic { latch = latch && !latched }
AckAgain:
	atomic {
#ifndef M_ACK_WITHOUT_VALUES
		if :: resets != saw || epoch != next || proven != saw || DOWN -> goto Idle :: else fi
#else
		skip
#endif
	}
AckRecord:
	atomic { record(SPENT, saw, next); flagStart = start; clouded = (proven == 0); moved = (resets != saw) }
AckGuard:
	atomic { guard = POLICY; shown = 0; goto Idle }

	/* ---- a start in place: evidence and nonce in one batch ---- */
Start:
	atomic {
#ifdef T20
		if :: FLAG == ARMED && CLEAN && !dirty -> REACH(T20) :: else fi;
#endif
		if
		:: FLAG == ARMED || FLAG == TARGET ->
			if
#ifdef M_START_KEEPS_OLD_BASE
			:: CLEAN -> record(TARGET, base, baseEpoch)
#else
			/* Of now: a proof of life has replaced the count of the ack. */
			:: CLEAN -> record(TARGET, resets, epoch)
#endif
			:: else -> record(VOID, 0, 0)
			fi
		:: else
		fi;
		start++; startGen = gen
	}
StartFollow:
	atomic { guard = GUARDED || guard; shown = (FLAG == TARGET); goto Idle }

	/* ---- move, and attach of a held slot ---- */
Move:
	atomic { assigning = (to == FREE); doubt = !YES; before = resets }
MoveIntent:
	atomic {
		gen++; to = next;
		if :: assigning -> start++; startGen = gen :: else fi;
		assigning = 1
	}
MoveCut:
	atomic { guard = 1; link = 0; shown = 0; qemu = GONE }
MoveReset:
	atomic { if :: doubt -> resets++; before = resets; dirty = 1; moved = 1 :: else fi }
MoveReload:
	atomic {
		if :: !doubt && resets != before -> doubt = 1; resets++; dirty = 1; moved = 1 :: else fi
	}
MoveLink:
#ifdef M_FLAG_AFTER_LINK
	atomic { link = 1; CLAIM(shownBeforeLink, shown == (FLAG == TARGET && !doubt)) };
	atomic { shown = (FLAG == TARGET && !doubt); guard = GUARDED };
#else
	atomic {
		shown = (FLAG == TARGET && !doubt && proven != 0); guard = GUARDED; link = 1;
		CLAIM(flagNeverLies, !shown || !dirty)
	};
#endif
MoveVoid:
	atomic {
		if :: doubt && FLAG != VOID -> record(VOID, 0, 0) :: else fi;
		goto Idle
	}

	/* ---- fence, after the fact ---- */
Fence:
	atomic { guard = 1; link = 0; shown = 0; qemu = GONE }
FenceRecord:
	atomic { gen++; to = FREE }
FenceDoubt:
	atomic {
		if :: FLAG == ARMED && !CLEAN -> record(VOID, 0, 0) :: else fi;
#ifdef T18
		if :: YES && cuts < CUTS && !dirty && !clouded -> REACH(T18) :: else fi;
#endif
#ifdef T19
		if :: YES && gen == 3 && flag == SPENT -> REACH(T19) :: else fi;
#endif
		goto Idle
	}
	} unless {
		atomic { kill -> kill = 0; atIdle = 0; doubt = 0; before = 0; saw = 0; next = 0; assigning = 0; ok = 0; latched = 0; goto Begin }
	}
}

/* The server that has the slot: QEMU opens, closes and resets; the hook takes
   the verdict; the timer reads, looks whether QEMU holds the device, posts. */
active proctype Host() {
endHost:
	do
	:: atomic { qemu == RUN && hits && link -> hits--; hostReset() }
	:: atomic { qemu != GONE -> qemu = GONE }
	:: atomic { qemu != GONE && hits -> hits--;
Close:		qemu = GONE; hostReset() }
	:: atomic { qemu == GONE && to != FREE && link && startGen == gen && opened != start -> qemu = OPEN; opened = start }
	:: atomic { qemu == OPEN && hits -> hits--;
Opening:	hostReset() }
	:: atomic { qemu == OPEN && link && atIdle && !kill && opened == start ->
Started:	CLAIM(flagNeverLies, !YES || !dirty);
		CLAIM(notShy, YES || dirty || clouded || moved);
#ifdef T8
		if :: !YES && kills < KILLS && dirty && proven != resets && flag == SPENT && flagGen == gen && proven > base -> REACH(T8) :: else fi;
#endif
#ifdef T35
		if :: !YES && cuts < CUTS && flag == VOID -> REACH(T35) :: else fi;
#endif
#ifdef T28
		if :: !YES && restarts < RESTARTS && clouded && flag == VOID && link -> REACH(T28) :: else fi;
#endif
		if :: !YES -> moved = 1 :: else fi;
		dirty = 0; qemu = RUN;
		quotedCount = resets; quotedEpoch = epoch; quotedBoot = boot;
		ackCount = resets; ackEpoch = epoch; ackGen = gen; ackNonce = opened }
	:: atomic { qemu == RUN && atIdle && !kill && opened == start && AWAITED && !ackGen ->
Reconcile:	ackGen = gen; ackNonce = opened;
#ifdef M_ACK_OF_VALUES_SEEN_LATER
		ackCount = resets; ackEpoch = epoch; quotedBoot = boot
#else
		/* An ack that was lost is repeated with the values that were acted on. */
		ackCount = quotedCount; ackEpoch = quotedEpoch
#endif
	}
	:: atomic { !readGen && atIdle && !kill && !aliveGen && !armGen && to != FREE ->
Read:		readCount = resets; readEpoch = epoch; readGen = gen }
	:: atomic { readGen && qemu != GONE ->
Post:		if
		:: aliveCount = readCount; aliveEpoch = readEpoch; aliveGen = readGen
#ifndef NOGUARD
		:: qemu == RUN -> armCount = readCount; armEpoch = readEpoch; armGen = readGen
#endif
		fi;
		readCount = 0; readEpoch = 0; readGen = 0 }
	:: atomic { readGen && qemu == GONE -> readCount = 0; readEpoch = 0; readGen = 0 }
	od
}

active proctype Chaos() {
endChaos:
	do
	:: atomic { kills && !kill -> kills--; kill = 1 }
	:: atomic { cuts && !kill -> cuts--; kill = 1;
PowerCut:	boot++; link = 0; shown = 0; guard = 0; latch = 1; proven = 0; resets = 1; epoch++; dirty = 1; moved = 1; clouded = 1 }
	:: atomic { restarts -> restarts--;
EngineRestart:	boot++; link = 0; shown = 0; guard = 0; latch = 1; resets = 1; moved = 1; dirty = 1; clouded = 1;
#ifndef M_RESTART_KEEPS_PROOF
		proven = 0
#else
		skip
#endif
	}
	od
}
