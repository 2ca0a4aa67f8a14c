// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The acceptor in the driver's path: votes are given where frames arrive, before any socket. The frame that asks becomes
 * the frame that answers.
 *
 * The maps are pinned by who loads the program, so that they, and the votes in them, outlive the process.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The compare-and-exchange of BPF is a full barrier; a few tries are enough for the processors that there are. */
#define RAISE_TRIES 32
static inline __attribute__((always_inline, unused)) int xdp_raise(unsigned long long *at, unsigned long long value)
{
	unsigned long long seen = *(volatile unsigned long long *)at;

	for (int tries = 0; tries < RAISE_TRIES; tries++) {
		unsigned long long found;

		/* Also when nothing is to be raised: a barrier is wanted. */
		found = __sync_val_compare_and_swap(at, seen, seen < value ? value : seen);
		if (found == seen)
			return 1;
		seen = found;
	}
	return 0;
}
#define SP_RAISE(at, value) xdp_raise(at, value)
#define SP_READ(at) (*(volatile unsigned long long *)(at))

#ifndef NULL
#define NULL ((void *)0)
#endif

#include "../core/acceptor.h"

#ifndef SLOTS
#define SLOTS 4096
#endif

struct locked_slot {
	struct bpf_spin_lock lock;
	__u32 unused;
	struct sp_slot slot;
};

/* Where the acceptor is on its segment. */
struct place {
	/* One EtherType for all types, or 0: one a type, from SP_ETHERTYPE_BASE on. */
	__u16 ethertype;
	__u8 mac[ETH_ALEN];
	/* Where answers go, so that leader and learners hear them; zero: to who asked. */
	__u8 answers_to[ETH_ALEN];
	__u8 unused[2];
};

struct buffers {
	__u64 in[SP_FRAME_WORDS];
	__u64 out[SP_FRAME_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sp_acceptor);
} acceptor_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct locked_slot);
} slot_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct place);
} place_map SEC(".maps");

/* Frames by what came of them. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SP_VERDICTS);
	__type(key, __u32);
	__type(value, __u64);
} count_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct buffers);
} buffer_map SEC(".maps");

static __always_inline struct locked_slot *slot_of(const struct sp_acceptor *acceptor, __u64 instance)
{
	__u32 place = acceptor->slots == 0 ? 0 : (__u32)(instance % acceptor->slots);

	return bpf_map_lookup_elem(&slot_map, &place);
}

static __always_inline enum sp_verdict handle(struct sp_acceptor *acceptor, struct buffers *buffers,
					      const struct sp_message *message, struct sp_message *reply)
{
	enum sp_verdict verdict = sp_admit(acceptor, message);
	struct locked_slot *locked;
	__u64 with;

	if (verdict != SP_OK)
		return verdict;
	if (!sp_needs_slot(message))
		return sp_whole(acceptor, message, reply);
	locked = slot_of(acceptor, message->instance);
	if (locked == NULL)
		return SP_NOT_MINE;
	bpf_spin_lock(&locked->lock);
	verdict = sp_vote(acceptor, &locked->slot, message, buffers->in + SP_HEADER / 8, reply,
			  buffers->out + SP_HEADER / 8);
	bpf_spin_unlock(&locked->lock);
	with = verdict == SP_OK ? sp_prepares_with(message, reply) : 0;
	locked = with ? slot_of(acceptor, with) : NULL;
	if (locked != NULL) {
		int prepared;

		bpf_spin_lock(&locked->lock);
		prepared = sp_prepare_with(acceptor, &locked->slot, with, message->ballot);
		bpf_spin_unlock(&locked->lock);
		if (prepared)
			reply->extra = with;
	}
	return verdict;
}

static __always_inline int is_ours(const struct place *place, const struct ethhdr *header)
{
	__u16 type = bpf_ntohs(header->h_proto);

	if (place->ethertype != 0 ? type != place->ethertype
				  : type < SP_ETHERTYPE_BASE || type >= SP_ETHERTYPE_BASE + SP_TYPES - 1)
		return 0;
	/* To a group, or to this interface: a flooded frame may be for another host. */
	if (header->h_dest[0] & 1)
		return 1;
	for (int at = 0; at < ETH_ALEN; at++)
		if (header->h_dest[at] != place->mac[at])
			return 0;
	return 1;
}

SEC("xdp")
int acceptor(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *header = data, answer;
	struct sp_message message = {}, reply = {};
	struct sp_acceptor *acceptor;
	struct buffers *buffers;
	enum sp_verdict verdict;
	struct place *place;
	__u32 zero = 0, bytes, length, key;
	__u64 *counted;

	if (data + sizeof *header > end)
		return XDP_PASS;
	place = bpf_map_lookup_elem(&place_map, &zero);
	acceptor = bpf_map_lookup_elem(&acceptor_map, &zero);
	buffers = bpf_map_lookup_elem(&buffer_map, &zero);
	if (place == NULL || acceptor == NULL || buffers == NULL || !is_ours(place, header))
		return XDP_PASS;
	answer = *header;
	bytes = (__u32)(end - data) - sizeof *header;
	length = bytes;
	if (length > SP_HEADER + SP_VALUE_MAX)
		length = SP_HEADER + SP_VALUE_MAX;
	verdict = SP_SHORT;
	if (length >= SP_HEADER && bpf_xdp_load_bytes(ctx, sizeof *header, buffers->in, length) == 0)
		verdict = sp_parse((const __u8 *)buffers->in, length, &message);
	if (verdict == SP_OK && place->ethertype == 0 && bpf_ntohs(answer.h_proto) != SP_ETHERTYPE_BASE + message.type - 1)
		verdict = SP_BAD_TYPE;
	if (verdict == SP_OK)
		verdict = handle(acceptor, buffers, &message, &reply);
	key = verdict;
	counted = bpf_map_lookup_elem(&count_map, &key);
	if (counted != NULL)
		++*counted;
	if (verdict != SP_OK)
		return XDP_DROP;

	sp_write((__u8 *)buffers->out, &reply);
	length = SP_HEADER + reply.length;
	if (length > SP_HEADER + SP_VALUE_MAX)
		return XDP_DROP;
	if (bpf_xdp_adjust_tail(ctx, (int)length - (int)bytes) != 0)
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	header = data;
	if (data + sizeof *header > end)
		return XDP_DROP;
	if ((place->answers_to[0] | place->answers_to[1] | place->answers_to[2] | place->answers_to[3] |
	     place->answers_to[4] | place->answers_to[5]) != 0)
		__builtin_memcpy(header->h_dest, place->answers_to, ETH_ALEN);
	else
		__builtin_memcpy(header->h_dest, answer.h_source, ETH_ALEN);
	__builtin_memcpy(header->h_source, place->mac, ETH_ALEN);
	header->h_proto = bpf_htons(place->ethertype != 0 ? place->ethertype : SP_ETHERTYPE_BASE + reply.type - 1);
	if (bpf_xdp_store_bytes(ctx, sizeof *header, buffers->out, length) != 0)
		return XDP_DROP;
	return XDP_TX;
}

char _license[] SEC("license") = "Dual MIT/GPL";
