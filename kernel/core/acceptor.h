/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The acceptor of Kernel Paxos: state and a message give at most one reply. Its memory is a ring of slots.
 *
 * Several processors may handle frames at once, XDP programs too (E6). Who calls these functions holds the lock of the
 * slot that they are given, and of no other slot. What concerns all slots, the promise of a new leader and what is
 * trimmed, has no lock: it only grows, by SP_RAISE, which is a full barrier. So an accept that compares with that
 * promise inside the lock of its slot either finds the promise, and is refused, or was done before the leader reads
 * that slot; and since it raises `touched` before it looks at the promise, the leader learns how far it must read.
 *
 *   accept, in its lock    raise touched    read promised_all    write the slot
 *   prepare all                             raise promised_all   read touched      then each slot, in its lock
 */
#ifndef SP_ACCEPTOR_H
#define SP_ACCEPTOR_H

#include "frame.h"

/* Raises *at to `value` if that is larger, as a full barrier; 0 if too many others do the same at once. */
#ifndef SP_RAISE
SP_INLINE int sp_raise(sp_u64 *at, sp_u64 value)
{
	sp_u64 seen = __atomic_load_n(at, __ATOMIC_SEQ_CST);
	while (seen < value && !__atomic_compare_exchange_n(at, &seen, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
	return 1;
}
#define SP_RAISE(at, value) sp_raise(at, value)
#endif

/* Reads *at, after everything that came before. */
#ifndef SP_READ
#define SP_READ(at) __atomic_load_n(at, __ATOMIC_SEQ_CST)
#endif

/* What holds for all slots. Zeroed memory with its identity filled in is an acceptor that has said nothing: another
 * life than any earlier one, which is what `boot` tells (E3, K35, K36). */
struct sp_acceptor {
	sp_u32 cluster;
	sp_u32 epoch;
	sp_u32 boot;
	sp_u16 group;
	sp_u16 id;
	/* How many slots the ring has. */
	sp_u64 slots;
	/* The ballot that is promised for all instances, 0 if none is. */
	sp_u64 promised_all;
	/* Instances through this one are forgotten. */
	sp_u64 trimmed;
	/* The highest instance of which something was promised or accepted by itself. */
	sp_u64 touched;
};

struct sp_slot {
	/* Whose slot it is now, 0 if no instance's. */
	sp_u64 instance;
	sp_u64 promised;
	/* The ballot of the value, 0 if none was accepted: never a length tells that (E13). */
	sp_u64 value_ballot;
	sp_u32 length;
	sp_u32 no_op;
	sp_u64 value[SP_VALUE_WORDS];
};

/* Where the slot of an instance is. */
SP_INLINE sp_u64 sp_place(const struct sp_acceptor *acceptor, sp_u64 instance)
{
	return instance % acceptor->slots;
}

/* Whether a frame is for this acceptor as it is now. */
SP_INLINE enum sp_verdict sp_admit(const struct sp_acceptor *acceptor, const struct sp_message *message)
{
	if (message->cluster != acceptor->cluster)
		return SP_OTHER_CLUSTER;
	if (message->group != acceptor->group)
		return SP_OTHER_GROUP;
	if (message->epoch != acceptor->epoch)
		return SP_OTHER_EPOCH;
	return SP_OK;
}

/* Whether a message is about one instance, so that its slot is needed. */
SP_INLINE int sp_needs_slot(const struct sp_message *message)
{
	return message->type == SP_PREPARE || message->type == SP_ACCEPT || message->type == SP_REPEAT;
}

SP_INLINE void sp_reply(const struct sp_acceptor *acceptor, const struct sp_message *message, sp_u8 type,
			struct sp_message *reply)
{
	reply->type = type;
	reply->flags = 0;
	reply->sender = acceptor->id;
	reply->group = acceptor->group;
	reply->length = 0;
	reply->cluster = acceptor->cluster;
	reply->boot = acceptor->boot;
	reply->epoch = acceptor->epoch;
	reply->instance = message->instance;
	reply->ballot = 0;
	reply->value_ballot = 0;
	reply->extra = 0;
}

SP_INLINE void sp_copy(sp_u64 *to, const sp_u64 *from, sp_u32 length)
{
	for (sp_u32 word = 0; word < SP_VALUE_WORDS; word++) {
		if (word * 8 >= length)
			break;
		to[word] = from[word];
	}
}

/* What the slot has accepted goes into a reply. */
SP_INLINE void sp_tell(const struct sp_slot *slot, int brief, struct sp_message *reply, sp_u64 *value)
{
	reply->value_ballot = slot->value_ballot;
	if (slot->value_ballot == 0)
		return;
	if (slot->no_op)
		reply->flags |= SP_NO_OP;
	else if (brief)
		reply->flags |= SP_BRIEF;
	else {
		reply->length = (sp_u16)slot->length;
		sp_copy(value, slot->value, slot->length);
	}
}

/*
 * Makes the slot that of this instance. 0 if the instance is trimmed, or so far ahead that the slot may still be needed
 * by an earlier one (E11): instances from trimmed + 1 through trimmed + slots have a slot each.
 */
SP_INLINE int sp_occupy(struct sp_acceptor *acceptor, struct sp_slot *slot, sp_u64 instance)
{
	sp_u64 trimmed = SP_READ(&acceptor->trimmed);

	if (instance <= trimmed || instance - trimmed > acceptor->slots || slot->instance > instance)
		return 0;
	if (slot->instance != instance) {
		slot->instance = instance;
		slot->promised = 0;
		slot->value_ballot = 0;
		slot->length = 0;
		slot->no_op = 0;
	}
	return 1;
}

SP_INLINE enum sp_verdict sp_outside(struct sp_acceptor *acceptor, const struct sp_message *message,
				     struct sp_message *reply)
{
	sp_u64 trimmed = SP_READ(&acceptor->trimmed);

	sp_reply(acceptor, message, SP_OUTSIDE, reply);
	reply->value_ballot = trimmed;
	reply->extra = trimmed + acceptor->slots;
	return SP_OK;
}

/* The ballot that is promised in an instance. */
SP_INLINE sp_u64 sp_promised(struct sp_acceptor *acceptor, const struct sp_slot *slot)
{
	sp_u64 all = SP_READ(&acceptor->promised_all);

	return all > slot->promised ? all : slot->promised;
}

/* Phase 1 of one instance: promises the ballot unless a larger one is promised, and tells what was accepted. */
SP_INLINE enum sp_verdict sp_prepare(struct sp_acceptor *acceptor, struct sp_slot *slot,
				     const struct sp_message *message, struct sp_message *reply, sp_u64 *value)
{
	sp_u64 promised;

	if (message->ballot == 0 || message->instance == 0)
		return SP_UNSOUND;
	if (!sp_occupy(acceptor, slot, message->instance))
		return sp_outside(acceptor, message, reply);
	if (!SP_RAISE(&acceptor->touched, message->instance))
		return SP_BUSY;
	promised = sp_promised(acceptor, slot);
	if (message->ballot >= promised) {
		slot->promised = message->ballot;
		promised = message->ballot;
	}
	sp_reply(acceptor, message, SP_PROMISE, reply);
	reply->ballot = promised;
	sp_tell(slot, message->flags & SP_BRIEF, reply, value);
	return SP_OK;
}

/*
 * Phase 2: accepts the value unless a larger ballot is promised. The value that was accepted in this very ballot
 * stays: it is the same one, unless somebody uses a ballot twice, and that must not be hidden.
 */
SP_INLINE enum sp_verdict sp_accept(struct sp_acceptor *acceptor, struct sp_slot *slot,
				    const struct sp_message *message, const sp_u64 *proposed,
				    struct sp_message *reply, sp_u64 *value)
{
	sp_u64 promised;

	if (message->ballot == 0 || message->instance == 0)
		return SP_UNSOUND;
	if (!sp_occupy(acceptor, slot, message->instance))
		return sp_outside(acceptor, message, reply);
	if (!SP_RAISE(&acceptor->touched, message->instance))
		return SP_BUSY;
	promised = sp_promised(acceptor, slot);
	if (message->ballot < promised) {
		sp_reply(acceptor, message, SP_PREEMPTED, reply);
		reply->ballot = promised;
		return SP_OK;
	}
	if (slot->value_ballot == message->ballot) {
		if (slot->length != message->length || slot->no_op != (message->flags & SP_NO_OP))
			return SP_UNSOUND;
	} else {
		slot->promised = message->ballot;
		slot->value_ballot = message->ballot;
		slot->length = message->length;
		slot->no_op = message->flags & SP_NO_OP;
		sp_copy(slot->value, proposed, message->length);
	}
	sp_reply(acceptor, message, SP_ACCEPTED, reply);
	reply->ballot = message->ballot;
	sp_tell(slot, message->flags & SP_BRIEF, reply, value);
	return SP_OK;
}

/*
 * Phase 1 of the instance that an accept names in `extra`, with that instance's slot: 1 if it is promised and nothing
 * was accepted there, so that the reply can say so without another frame (K4).
 */
SP_INLINE int sp_prepare_with(struct sp_acceptor *acceptor, struct sp_slot *slot, sp_u64 instance, sp_u64 ballot)
{
	if (!sp_occupy(acceptor, slot, instance) || !SP_RAISE(&acceptor->touched, instance))
		return 0;
	if (ballot < sp_promised(acceptor, slot))
		return 0;
	slot->promised = ballot;
	return slot->value_ballot == 0;
}

/* A learner asks again for what was accepted: it is told with the ballot of the value, never with a promised one (E12). */
SP_INLINE enum sp_verdict sp_repeat(struct sp_acceptor *acceptor, struct sp_slot *slot,
				    const struct sp_message *message, struct sp_message *reply, sp_u64 *value)
{
	sp_u64 trimmed = SP_READ(&acceptor->trimmed);

	if (message->instance == 0)
		return SP_UNSOUND;
	if (message->instance <= trimmed || slot->instance > message->instance)
		return sp_outside(acceptor, message, reply);
	if (slot->instance != message->instance || slot->value_ballot == 0)
		return SP_NOT_MINE;
	sp_reply(acceptor, message, SP_ACCEPTED, reply);
	reply->ballot = sp_promised(acceptor, slot);
	sp_tell(slot, message->flags & SP_BRIEF, reply, value);
	return SP_OK;
}

/* How the acceptor stands, as a reply of this type. */
SP_INLINE void sp_state(struct sp_acceptor *acceptor, const struct sp_message *message, sp_u8 type,
			struct sp_message *reply)
{
	sp_reply(acceptor, message, type, reply);
	reply->ballot = SP_READ(&acceptor->promised_all);
	reply->instance = SP_READ(&acceptor->trimmed);
	reply->extra = SP_READ(&acceptor->touched);
}

/* A message that is about no instance. */
SP_INLINE enum sp_verdict sp_whole(struct sp_acceptor *acceptor, const struct sp_message *message,
				   struct sp_message *reply)
{
	switch (message->type) {
	case SP_PREPARE_ALL:
		if (message->ballot == 0)
			return SP_UNSOUND;
		if (!SP_RAISE(&acceptor->promised_all, message->ballot))
			return SP_BUSY;
		sp_state(acceptor, message, SP_PROMISE_ALL, reply);
		return SP_OK;
	case SP_TRIM:
		if (!SP_RAISE(&acceptor->trimmed, message->instance))
			return SP_BUSY;
		sp_state(acceptor, message, SP_STATE, reply);
		return SP_OK;
	case SP_LEARNER_HI:
		sp_state(acceptor, message, SP_ACCEPTOR_OK, reply);
		return SP_OK;
	default:
		return SP_NOT_MINE;
	}
}

/* A message about one instance, in the lock of that instance's slot. */
SP_INLINE enum sp_verdict sp_vote(struct sp_acceptor *acceptor, struct sp_slot *slot, const struct sp_message *message,
				  const sp_u64 *proposed, struct sp_message *reply, sp_u64 *value)
{
	switch (message->type) {
	case SP_PREPARE:
		return sp_prepare(acceptor, slot, message, reply, value);
	case SP_ACCEPT:
		return sp_accept(acceptor, slot, message, proposed, reply, value);
	default:
		return sp_repeat(acceptor, slot, message, reply, value);
	}
}

/* The instance that is to be prepared with the accept that this replies to, or 0. */
SP_INLINE sp_u64 sp_prepares_with(const struct sp_message *message, const struct sp_message *reply)
{
	return message->type == SP_ACCEPT && reply->type == SP_ACCEPTED ? message->extra : 0;
}

#endif
