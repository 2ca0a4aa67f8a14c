/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The frames of Kernel Paxos: one message a frame, a fixed header and a value.
 *
 *   offset  bytes  field
 *        0      1  magic, 0x4b ('K')
 *        1      1  version, 1
 *        2      1  type, enum sp_type
 *        3      1  flags, enum sp_flag
 *        4      4  cluster
 *        8      4  boot: the life of the sender's memory
 *       12      2  sender
 *       14      2  group
 *       16      8  instance
 *       24      8  ballot
 *       32      8  value_ballot: the ballot in which the value was accepted, 0 if nothing was
 *       40      8  extra: its meaning depends on the type
 *       48      4  epoch
 *       52      2  length of the value
 *       54      2  zero
 *       56         the value
 *
 * Integers are big-endian. A frame on the wire may be longer than header and value, since Ethernet pads: the length is
 * the header's, never the frame's (Kernel Paxos 2019, extract section 4.3). Instances and ballots have 64 bits: 32 bits
 * of instances last for nine hours at 130,000 a second (E22).
 *
 * No other header is needed here: the same file is compiled into user space, an XDP program and a kernel module.
 */
#ifndef SP_FRAME_H
#define SP_FRAME_H

typedef unsigned char sp_u8;
typedef unsigned short sp_u16;
typedef unsigned int sp_u32;
typedef unsigned long long sp_u64;

#ifndef SP_INLINE
#define SP_INLINE static inline __attribute__((always_inline, unused))
#endif

/* The payload of the largest frame: jumbo frames are a matter of this figure. */
#ifndef SP_MTU
#define SP_MTU 1500
#endif

#define SP_MAGIC 0x4b
#define SP_VERSION 1
#define SP_HEADER 56
#define SP_VALUE_MAX (SP_MTU - SP_HEADER)
/* Values are kept and copied in whole words. */
#define SP_VALUE_WORDS ((SP_VALUE_MAX + 7) / 8)
#define SP_FRAME_WORDS (SP_HEADER / 8 + SP_VALUE_WORDS)

/* With an EtherType a message, type t has SP_ETHERTYPE_BASE + t - 1; the other way is one EtherType for all, of those
 * that IEEE 802 leaves to experiments. */
#define SP_ETHERTYPE_BASE 0xcafa
#define SP_ETHERTYPE_ONE 0x88b5

enum sp_type {
	/* proposer to acceptors: instance, ballot */
	SP_PREPARE = 1,
	/* acceptor to proposer: instance, ballot that is promised, value_ballot, value; a larger ballot is a refusal */
	SP_PROMISE = 2,
	/* proposer to acceptors: instance, ballot, value; extra: an instance that is prepared with it, or 0 */
	SP_ACCEPT = 3,
	/* acceptor to proposers and learners: instance, ballot that is promised, value_ballot, value; extra: see
	 * SP_ACCEPT, 0 if that instance needs a phase 1 of its own */
	SP_ACCEPTED = 4,
	/* acceptor to proposer: instance, ballot that is promised */
	SP_PREEMPTED = 5,
	/* learner to acceptors: instance; answered by SP_ACCEPTED with what was accepted, or not at all */
	SP_REPEAT = 6,
	/* to acceptors: instances through this one are not needed any more */
	SP_TRIM = 7,
	/* acceptor to all: instance through which it is trimmed, ballot that is promised for all instances; extra: the
	 * highest instance that was touched */
	SP_STATE = 8,
	/* client to proposer: value */
	SP_CLIENT_VALUE = 9,
	/* learner to acceptors, until it is answered by SP_ACCEPTOR_OK */
	SP_LEARNER_HI = 10,
	SP_LEARNER_DEL = 11,
	/* acceptor to learner: as SP_STATE */
	SP_ACCEPTOR_OK = 12,
	/* new leader to acceptors: ballot, for all instances; answered by SP_PROMISE_ALL, which is as SP_STATE */
	SP_PREPARE_ALL = 13,
	SP_PROMISE_ALL = 14,
	/* acceptor to sender: the instance is trimmed, or beyond the ring; value_ballot: the instance through which it is
	 * trimmed; extra: the last instance for which there is room */
	SP_OUTSIDE = 15,
	SP_TYPES = 16,
};

enum sp_flag {
	/* The value is the one that fills a gap, and is never delivered. It has no bytes; a value without bytes and without
	 * this flag is a command (E13). */
	SP_NO_OP = 1,
	/* The answer need not carry the value. */
	SP_BRIEF = 2,
	SP_FLAGS = SP_NO_OP | SP_BRIEF,
};

/* A message without its value. */
struct sp_message {
	sp_u8 type;
	sp_u8 flags;
	sp_u16 sender;
	sp_u16 group;
	sp_u16 length;
	sp_u32 cluster;
	sp_u32 boot;
	sp_u32 epoch;
	sp_u64 instance;
	sp_u64 ballot;
	sp_u64 value_ballot;
	sp_u64 extra;
};

/* What came of a frame; all but SP_OK are reasons to drop it, which are counted. */
enum sp_verdict {
	SP_OK = 0,
	SP_SHORT,
	SP_BAD_MAGIC,
	SP_BAD_VERSION,
	SP_BAD_TYPE,
	SP_BAD_FLAGS,
	/* The value is longer than the frame, or than any value. */
	SP_BAD_LENGTH,
	SP_OTHER_CLUSTER,
	SP_OTHER_GROUP,
	SP_OTHER_EPOCH,
	/* Of a type that an acceptor does not take, or nothing to answer. */
	SP_NOT_MINE,
	/* Ballot 0 or instance 0, or a second value in one ballot. */
	SP_UNSOUND,
	/* Too many processors at once: the sender asks again. */
	SP_BUSY,
	SP_VERDICTS,
};

SP_INLINE sp_u16 sp_get16(const sp_u8 *at)
{
	return (sp_u16)(at[0] << 8 | at[1]);
}

SP_INLINE sp_u32 sp_get32(const sp_u8 *at)
{
	return (sp_u32)sp_get16(at) << 16 | sp_get16(at + 2);
}

SP_INLINE sp_u64 sp_get64(const sp_u8 *at)
{
	return (sp_u64)sp_get32(at) << 32 | sp_get32(at + 4);
}

SP_INLINE void sp_put16(sp_u8 *at, sp_u16 value)
{
	at[0] = (sp_u8)(value >> 8);
	at[1] = (sp_u8)value;
}

SP_INLINE void sp_put32(sp_u8 *at, sp_u32 value)
{
	sp_put16(at, (sp_u16)(value >> 16));
	sp_put16(at + 2, (sp_u16)value);
}

SP_INLINE void sp_put64(sp_u8 *at, sp_u64 value)
{
	sp_put32(at, (sp_u32)(value >> 32));
	sp_put32(at + 4, (sp_u32)value);
}

/* Whether messages of a type carry a value. */
SP_INLINE int sp_has_value(sp_u8 type)
{
	return type == SP_PROMISE || type == SP_ACCEPT || type == SP_ACCEPTED || type == SP_CLIENT_VALUE;
}

/*
 * Reads the header of a frame of `bytes` bytes. Nothing of the value is looked at; that its length fits both the frame
 * and a slot is certain after SP_OK.
 */
SP_INLINE enum sp_verdict sp_parse(const sp_u8 *frame, sp_u32 bytes, struct sp_message *message)
{
	if (bytes < SP_HEADER)
		return SP_SHORT;
	if (frame[0] != SP_MAGIC)
		return SP_BAD_MAGIC;
	if (frame[1] != SP_VERSION || sp_get16(frame + 54) != 0)
		return SP_BAD_VERSION;
	message->type = frame[2];
	if (message->type == 0 || message->type >= SP_TYPES)
		return SP_BAD_TYPE;
	message->flags = frame[3];
	message->length = sp_get16(frame + 52);
	if ((message->flags & ~SP_FLAGS) != 0 || ((message->flags & SP_NO_OP) && message->length != 0))
		return SP_BAD_FLAGS;
	if (message->length > SP_VALUE_MAX || message->length > bytes - SP_HEADER)
		return SP_BAD_LENGTH;
	if (message->length != 0 && !sp_has_value(message->type))
		return SP_BAD_LENGTH;
	message->cluster = sp_get32(frame + 4);
	message->boot = sp_get32(frame + 8);
	message->sender = sp_get16(frame + 12);
	message->group = sp_get16(frame + 14);
	message->instance = sp_get64(frame + 16);
	message->ballot = sp_get64(frame + 24);
	message->value_ballot = sp_get64(frame + 32);
	message->extra = sp_get64(frame + 40);
	message->epoch = sp_get32(frame + 48);
	return SP_OK;
}

/* Writes the header of a frame; the value is written by who has it. */
SP_INLINE void sp_write(sp_u8 *frame, const struct sp_message *message)
{
	frame[0] = SP_MAGIC;
	frame[1] = SP_VERSION;
	frame[2] = message->type;
	frame[3] = message->flags;
	sp_put32(frame + 4, message->cluster);
	sp_put32(frame + 8, message->boot);
	sp_put16(frame + 12, message->sender);
	sp_put16(frame + 14, message->group);
	sp_put64(frame + 16, message->instance);
	sp_put64(frame + 24, message->ballot);
	sp_put64(frame + 32, message->value_ballot);
	sp_put64(frame + 40, message->extra);
	sp_put32(frame + 48, message->epoch);
	sp_put16(frame + 52, message->length);
	sp_put16(frame + 54, 0);
}

#endif
