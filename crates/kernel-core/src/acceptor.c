/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The acceptor in memory that its caller owns. It has no pointers, so a copy of the bytes is a copy of the acceptor.
 *
 * Its values are names of at most 16 bytes: the caller keeps what they name.
 */
#define SP_MTU (56 + 16)
#include "../c/acceptor.h"

_Static_assert(SP_VALUE_MAX == 16, "the binding has room for as much");

struct ring {
	struct sp_acceptor acceptor;
	struct sp_slot slots[];
};

sp_u64 synod_kernel_bytes(sp_u64 slots);
void synod_kernel_begin(struct ring *ring, sp_u64 slots);
unsigned synod_kernel_handle(struct ring *ring, const struct sp_message *message, const sp_u64 *proposed,
			     struct sp_message *reply, sp_u64 *value);

sp_u64 synod_kernel_bytes(sp_u64 slots)
{
	return sizeof(struct ring) + slots * sizeof(struct sp_slot);
}

/* The memory is zeroed, and has as many bytes as synod_kernel_bytes says. */
void synod_kernel_begin(struct ring *ring, sp_u64 slots)
{
	ring->acceptor.slots = slots;
}

/* Handles a message whose length is at most SP_VALUE_MAX; `proposed` and `value` have room for as much. */
unsigned synod_kernel_handle(struct ring *ring, const struct sp_message *message, const sp_u64 *proposed,
			     struct sp_message *reply, sp_u64 *value)
{
	struct sp_acceptor *acceptor = &ring->acceptor;
	enum sp_verdict verdict = sp_admit(acceptor, message);
	sp_u64 with;

	if (verdict == SP_OK) {
		if (sp_needs_slot(message))
			verdict = sp_vote(acceptor, &ring->slots[sp_place(acceptor, message->instance)], message,
					  proposed, reply, value);
		else
			verdict = sp_whole(acceptor, message, reply);
	}
	if (verdict != SP_OK)
		return verdict;
	with = sp_prepares_with(message, reply);
	if (with != 0 && sp_prepare_with(acceptor, &ring->slots[sp_place(acceptor, with)], with, message->ballot))
		reply->extra = with;
	return SP_OK;
}
