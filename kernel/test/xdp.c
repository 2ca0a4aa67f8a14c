/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The XDP program against the core in user space: the same drawn histories, frame by frame, must get the same replies and
 * leave the same slots. The kernel runs the program on a frame in memory (BPF_PROG_TEST_RUN), so no interface is needed.
 *
 * usage: xdp OBJECT [HISTORIES]
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <time.h>

#include "user.h"

#define ETHERNET 14

struct locked_slot {
	struct bpf_spin_lock lock;
	sp_u32 unused;
	struct sp_slot slot;
};

struct place {
	sp_u16 ethertype;
	sp_u8 mac[6];
	sp_u8 answers_to[6];
	sp_u8 unused[2];
};

static const sp_u8 MAC[6] = { 2, 0, 0, 0, 0, 1 }, ASKER[6] = { 2, 0, 0, 0, 0, 9 }, LEARNERS[6] = { 3, 0, 0, 0, 0, 7 };

static void fail(const char *why, sp_u64 history, int step)
{
	fprintf(stderr, "xdp: history %llu, step %d: %s\n", history, step, why);
	exit(1);
}

static int map_of(struct bpf_object *object, const char *name)
{
	int fd = bpf_object__find_map_fd_by_name(object, name);

	if (fd < 0) {
		fprintf(stderr, "xdp: the program has no map %s\n", name);
		exit(2);
	}
	return fd;
}

/* One history: an acceptor without memory, and drawn frames. */
static void play(struct bpf_object *object, int program, sp_u64 history)
{
	static struct user user;
	int acceptor_map = map_of(object, "acceptor_map"), slot_map = map_of(object, "slot_map");
	struct place place = { .ethertype = history % 2 ? SP_ETHERTYPE_ONE : 0 };
	struct locked_slot empty = { 0 }, found;
	sp_u64 seed = history;
	sp_u32 zero = 0;

	user_begin(&user, 1, 7, 8 + history % 20);
	memcpy(place.mac, MAC, 6);
	if (history % 3 == 0)
		memcpy(place.answers_to, LEARNERS, 6);
	bpf_map_update_elem(acceptor_map, &zero, &user.acceptor, 0);
	bpf_map_update_elem(map_of(object, "place_map"), &zero, &place, 0);
	for (sp_u32 at = 0; at < user.acceptor.slots; at++)
		bpf_map_update_elem(slot_map, &at, &empty, 0);

	for (int step = 0; step < 200; step++) {
		static sp_u8 in[ETHERNET + sizeof(struct frame)], out[sizeof in];
		struct frame frame, reply;
		struct sp_acceptor now;
		sp_u16 type = SP_ETHERTYPE_ONE;
		enum sp_verdict verdict;

		draw_frame(&seed, &frame);
		if (draw(&seed) % 10 == 0)
			frame.at[draw(&seed) % SP_HEADER] ^= (sp_u8)draw(&seed);
		if (place.ethertype == 0)
			type = (sp_u16)(SP_ETHERTYPE_BASE + frame.at[2] - 1);
		if (place.ethertype == 0 && (frame.at[2] == 0 || frame.at[2] >= SP_TYPES))
			continue;
		memcpy(in, draw(&seed) % 2 ? MAC : LEARNERS, 6);
		memcpy(in + 6, ASKER, 6);
		sp_put16(in + 12, type);
		memcpy(in + ETHERNET, frame.at, frame.bytes);
		LIBBPF_OPTS(bpf_test_run_opts, run, .data_in = in, .data_size_in = ETHERNET + frame.bytes, .data_out = out,
			    .data_size_out = sizeof out, .repeat = 1);
		if (bpf_prog_test_run_opts(program, &run) != 0)
			fail("the kernel does not run it", history, step);
		verdict = user_handle(&user, &frame, &reply);
		if (run.retval != (verdict == SP_OK ? XDP_TX : XDP_DROP))
			fail("one answers, the other one does not", history, step);
		if (verdict == SP_OK) {
			if (run.data_size_out != ETHERNET + reply.bytes ||
			    memcmp(out + ETHERNET, reply.at, reply.bytes) != 0)
				fail("the answers differ", history, step);
			if (memcmp(out, history % 3 == 0 ? LEARNERS : ASKER, 6) != 0 || memcmp(out + 6, MAC, 6) != 0)
				fail("the answer goes to somebody else", history, step);
			if (sp_get16(out + 12) != (place.ethertype ? type : SP_ETHERTYPE_BASE + out[ETHERNET + 2] - 1))
				fail("the answer has another EtherType", history, step);
		}
		bpf_map_lookup_elem(acceptor_map, &zero, &now);
		if (memcmp(&now, &user.acceptor, sizeof now) != 0)
			fail("the acceptors differ", history, step);
	}
	for (sp_u32 at = 0; at < user.acceptor.slots; at++) {
		const struct sp_slot *mine = &user.ring[at];

		bpf_map_lookup_elem(slot_map, &at, &found);
		/* Of a value, only the bytes that it has count. */
		if (memcmp(&found.slot, mine, offsetof(struct sp_slot, value)) != 0 ||
		    memcmp(found.slot.value, mine->value, mine->length) != 0)
			fail("a slot differs at the end", history, (int)at);
	}
}

/* How long the program takes for a frame. */
static void time_it(struct bpf_object *object, int program)
{
	static sp_u8 in[ETHERNET + SP_FRAME_WORDS * 8], out[sizeof in];
	struct sp_message message = { .type = SP_ACCEPT, .cluster = 0xc1, .epoch = 1, .group = 2, .instance = 1,
				      .ballot = 1, .length = 64 };
	struct place place = { .ethertype = SP_ETHERTYPE_ONE, .mac = { 2, 0, 0, 0, 0, 1 } };
	struct user *user = malloc(sizeof *user);
	struct locked_slot empty = { 0 };
	sp_u32 zero = 0, one = 1;

	user_begin(user, 1, 7, RING);
	bpf_map_update_elem(map_of(object, "acceptor_map"), &zero, &user->acceptor, 0);
	bpf_map_update_elem(map_of(object, "place_map"), &zero, &place, 0);
	bpf_map_update_elem(map_of(object, "slot_map"), &one, &empty, 0);
	memcpy(in, MAC, 6);
	memcpy(in + 6, ASKER, 6);
	sp_put16(in + 12, SP_ETHERTYPE_ONE);
	sp_write(in + ETHERNET, &message);
	LIBBPF_OPTS(bpf_test_run_opts, run, .data_in = in, .data_size_in = ETHERNET + SP_HEADER + message.length,
		    .data_out = out, .data_size_out = sizeof out, .repeat = 1);
	bpf_prog_test_run_opts(program, &run);
	printf("xdp: an accept of %u bytes takes about %u ns\n", message.length, run.duration);
	free(user);
}

static int quiet(enum libbpf_print_level level, const char *format, va_list arguments)
{
	return level == LIBBPF_WARN ? vfprintf(stderr, format, arguments) : 0;
}

int main(int count, char **arguments)
{
	sp_u64 histories = count > 2 ? strtoull(arguments[2], NULL, 10) : 300;
	struct bpf_object *object;
	int program;

	if (count < 2) {
		fprintf(stderr, "usage: xdp OBJECT [HISTORIES]\n");
		return 2;
	}
	libbpf_set_print(quiet);
	object = bpf_object__open_file(arguments[1], NULL);
	if (object == NULL || bpf_object__load(object) != 0) {
		fprintf(stderr, "xdp: the kernel does not load %s\n", arguments[1]);
		return 2;
	}
	program = bpf_program__fd(bpf_object__find_program_by_name(object, "acceptor"));
	for (sp_u64 history = 0; history < histories; history++)
		play(object, program, history);
	printf("xdp: ok, %llu histories as in the core\n", histories);
	time_it(object, program);
	bpf_object__close(object);
	return 0;
}
