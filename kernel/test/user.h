/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The acceptor in user space: its ring in ordinary memory, frames in buffers. */
#ifndef SP_USER_H
#define SP_USER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/acceptor.h"

#define RING 64

struct user {
	struct sp_acceptor acceptor;
	struct sp_slot ring[RING];
	unsigned long counts[SP_VERDICTS];
};

struct frame {
	sp_u32 bytes;
	union {
		sp_u8 at[SP_FRAME_WORDS * 8];
		sp_u64 words[SP_FRAME_WORDS];
	};
};

static inline void user_begin(struct user *user, sp_u16 id, sp_u32 boot, sp_u64 slots)
{
	memset(user, 0, sizeof *user);
	user->acceptor.cluster = 0xc1;
	user->acceptor.epoch = 1;
	user->acceptor.group = 2;
	user->acceptor.id = id;
	user->acceptor.boot = boot;
	user->acceptor.slots = slots;
}

/* Handles a frame; `reply` has no bytes if there is no reply. */
static inline enum sp_verdict user_handle(struct user *user, const struct frame *frame, struct frame *reply)
{
	struct sp_acceptor *acceptor = &user->acceptor;
	struct sp_message message, answer;
	enum sp_verdict verdict = sp_parse(frame->at, frame->bytes, &message);
	sp_u64 with;

	reply->bytes = 0;
	if (verdict == SP_OK)
		verdict = sp_admit(acceptor, &message);
	if (verdict == SP_OK) {
		if (sp_needs_slot(&message))
			verdict = sp_vote(acceptor, &user->ring[sp_place(acceptor, message.instance)], &message,
					  frame->words + SP_HEADER / 8, &answer, reply->words + SP_HEADER / 8);
		else
			verdict = sp_whole(acceptor, &message, &answer);
	}
	user->counts[verdict]++;
	if (verdict != SP_OK)
		return verdict;
	with = sp_prepares_with(&message, &answer);
	if (with != 0 && sp_prepare_with(acceptor, &user->ring[sp_place(acceptor, with)], with, message.ballot))
		answer.extra = with;
	sp_write(reply->at, &answer);
	reply->bytes = SP_HEADER + answer.length;
	return SP_OK;
}

/* The next of a sequence of numbers that a seed fixes (splitmix64). */
static inline sp_u64 draw(sp_u64 *seed)
{
	sp_u64 z = *seed += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static inline void fill(sp_u8 *value, sp_u32 length)
{
	for (sp_u32 at = 0; at < length; at++)
		value[at] = (sp_u8)(at * 31 + 7);
}

/* A frame that a history could contain: few instances and ballots, so that they meet. */
static inline void draw_frame(sp_u64 *seed, struct frame *frame)
{
	static const sp_u8 types[] = { SP_PREPARE, SP_PREPARE, SP_ACCEPT, SP_ACCEPT, SP_ACCEPT, SP_REPEAT,
				       SP_PREPARE_ALL, SP_TRIM, SP_LEARNER_HI };
	struct sp_message message = { .cluster = 0xc1, .epoch = 1, .group = 2, .sender = 9, .boot = 5 };

	message.type = types[draw(seed) % sizeof types];
	message.instance = draw(seed) % (message.type == SP_TRIM ? 12 : 40);
	message.ballot = draw(seed) % 9;
	if (message.type == SP_PREPARE_ALL && draw(seed) % 4)
		message.ballot %= 3;
	if (draw(seed) % 8 == 0)
		message.flags = SP_BRIEF;
	if (message.type == SP_ACCEPT) {
		if (draw(seed) % 4 == 0)
			message.extra = draw(seed) % 40;
		/* One value a ballot and instance, as a proposer that never uses a ballot twice has it. */
		message.length = (sp_u16)((message.instance * 97 + message.ballot * 1301) % (SP_VALUE_MAX + 1));
		if ((message.instance + message.ballot) % 5 == 0) {
			message.flags |= SP_NO_OP;
			message.length = 0;
		}
	}
	sp_write(frame->at, &message);
	fill(frame->at + SP_HEADER, message.length);
	frame->bytes = SP_HEADER + message.length;
	/* Ethernet pads. */
	if (frame->bytes < 60)
		frame->bytes = 60;
}

#endif
