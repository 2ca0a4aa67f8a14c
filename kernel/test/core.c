/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Tests of the core in user space: `core FRAMES` compares with the golden frames, `core --write` prints them. */
#include "user.h"

static int failures;

#define CHECK(what)                                                                    \
	do {                                                                           \
		if (!(what)) {                                                         \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
			failures++;                                                    \
		}                                                                      \
	} while (0)

static struct frame *send(struct user *user, struct sp_message message, const char *value)
{
	static struct frame reply;
	struct frame frame;

	message.cluster = message.cluster ? message.cluster : 0xc1;
	message.epoch = message.epoch ? message.epoch : 1;
	message.group = 2;
	message.length = (sp_u16)strlen(value);
	sp_write(frame.at, &message);
	memcpy(frame.at + SP_HEADER, value, message.length);
	frame.bytes = SP_HEADER + message.length;
	memset(&reply, 0, sizeof reply);
	user_handle(user, &frame, &reply);
	return reply.bytes ? &reply : NULL;
}

static int says(const struct frame *reply, sp_u8 type, sp_u64 instance, sp_u64 ballot, sp_u64 value_ballot,
		const char *value)
{
	struct sp_message message;

	if (reply == NULL || sp_parse(reply->at, reply->bytes, &message) != SP_OK)
		return 0;
	return message.type == type && message.instance == instance && message.ballot == ballot &&
	       message.value_ballot == value_ballot && message.length == strlen(value) &&
	       memcmp(reply->at + SP_HEADER, value, message.length) == 0;
}

static struct sp_message ask(sp_u8 type, sp_u64 instance, sp_u64 ballot)
{
	return (struct sp_message){ .type = type, .instance = instance, .ballot = ballot };
}

static sp_u64 extra_of(const struct frame *reply)
{
	return reply ? sp_get64(reply->at + 40) : ~0ull;
}

static void a_larger_ballot_preempts_and_learns_the_value(void)
{
	struct user user;

	user_begin(&user, 1, 7, RING);
	CHECK(says(send(&user, ask(SP_PREPARE, 3, 5), ""), SP_PROMISE, 3, 5, 0, ""));
	CHECK(says(send(&user, ask(SP_ACCEPT, 3, 5), "a"), SP_ACCEPTED, 3, 5, 5, "a"));
	CHECK(says(send(&user, ask(SP_PREPARE, 3, 4), ""), SP_PROMISE, 3, 5, 5, "a"));
	CHECK(says(send(&user, ask(SP_PREPARE, 3, 6), ""), SP_PROMISE, 3, 6, 5, "a"));
	CHECK(says(send(&user, ask(SP_ACCEPT, 3, 5), "a"), SP_PREEMPTED, 3, 6, 0, ""));
	/* A learner that asks is told the ballot of the value (E12). */
	CHECK(says(send(&user, ask(SP_REPEAT, 3, 0), ""), SP_ACCEPTED, 3, 6, 5, "a"));
	CHECK(says(send(&user, ask(SP_ACCEPT, 3, 6), "a"), SP_ACCEPTED, 3, 6, 6, "a"));
}

static void handlers_are_idempotent(void)
{
	struct user user;

	user_begin(&user, 1, 7, RING);
	for (int twice = 0; twice < 2; twice++) {
		CHECK(says(send(&user, ask(SP_PREPARE, 3, 5), ""), SP_PROMISE, 3, 5, twice ? 5 : 0, twice ? "a" : ""));
		CHECK(says(send(&user, ask(SP_ACCEPT, 3, 5), "a"), SP_ACCEPTED, 3, 5, 5, "a"));
	}
	/* Another value in the same ballot is not accepted, and not passed over. */
	CHECK(send(&user, ask(SP_ACCEPT, 3, 5), "other") == NULL && user.counts[SP_UNSOUND] == 1);
}

static void a_gap_that_is_filled_has_a_value(void)
{
	struct user user;
	struct sp_message no_op = ask(SP_ACCEPT, 3, 5);
	struct frame *reply;

	user_begin(&user, 1, 7, RING);
	no_op.flags = SP_NO_OP;
	send(&user, no_op, "");
	reply = send(&user, ask(SP_PREPARE, 3, 6), "");
	CHECK(says(reply, SP_PROMISE, 3, 6, 5, "") && reply->at[3] == SP_NO_OP);
	/* A command without bytes is another value than that. */
	send(&user, ask(SP_ACCEPT, 4, 5), "");
	reply = send(&user, ask(SP_PREPARE, 4, 6), "");
	CHECK(says(reply, SP_PROMISE, 4, 6, 5, "") && reply->at[3] == 0);
}

static void a_promise_for_all_instances_holds_in_each(void)
{
	struct user user;
	struct frame *reply;

	user_begin(&user, 1, 7, RING);
	send(&user, ask(SP_ACCEPT, 9, 5), "a");
	reply = send(&user, ask(SP_PREPARE_ALL, 0, 8), "");
	CHECK(says(reply, SP_PROMISE_ALL, 0, 8, 0, "") && extra_of(reply) == 9);
	CHECK(says(send(&user, ask(SP_ACCEPT, 9, 7), "a"), SP_PREEMPTED, 9, 8, 0, ""));
	CHECK(says(send(&user, ask(SP_ACCEPT, 10, 7), "a"), SP_PREEMPTED, 10, 8, 0, ""));
	CHECK(says(send(&user, ask(SP_PREPARE, 9, 7), ""), SP_PROMISE, 9, 8, 5, "a"));
	CHECK(says(send(&user, ask(SP_ACCEPT, 10, 8), "b"), SP_ACCEPTED, 10, 8, 8, "b"));
	/* It never falls. */
	CHECK(says(send(&user, ask(SP_PREPARE_ALL, 0, 2), ""), SP_PROMISE_ALL, 0, 8, 0, ""));
}

static void a_slot_is_used_again_only_when_its_instance_is_trimmed(void)
{
	struct user user;
	struct frame *reply;

	user_begin(&user, 1, 7, 4);
	send(&user, ask(SP_ACCEPT, 1, 5), "a");
	reply = send(&user, ask(SP_PREPARE, 5, 5), "");
	CHECK(says(reply, SP_OUTSIDE, 5, 0, 0, "") && extra_of(reply) == 4);
	CHECK(says(send(&user, ask(SP_PREPARE, 1, 6), ""), SP_PROMISE, 1, 6, 5, "a"));
	send(&user, ask(SP_TRIM, 1, 0), "");
	CHECK(says(send(&user, ask(SP_ACCEPT, 5, 5), "e"), SP_ACCEPTED, 5, 5, 5, "e"));
	reply = send(&user, ask(SP_PREPARE, 1, 9), "");
	CHECK(says(reply, SP_OUTSIDE, 1, 0, 1, "") && extra_of(reply) == 5);
	CHECK(says(send(&user, ask(SP_REPEAT, 1, 0), ""), SP_OUTSIDE, 1, 0, 1, ""));
	CHECK(says(send(&user, ask(SP_REPEAT, 5, 0), ""), SP_ACCEPTED, 5, 5, 5, "e"));
	send(&user, ask(SP_TRIM, 0, 0), "");
	CHECK(user.acceptor.trimmed == 1);
}

static void an_accept_prepares_a_further_instance(void)
{
	struct user user;
	struct sp_message with = ask(SP_ACCEPT, 1, 5);

	user_begin(&user, 1, 7, RING);
	with.extra = 6;
	CHECK(extra_of(send(&user, with, "a")) == 6);
	CHECK(says(send(&user, ask(SP_ACCEPT, 6, 4), "x"), SP_PREEMPTED, 6, 5, 0, ""));
	/* An instance in which something was accepted needs a phase 1 of its own. */
	send(&user, ask(SP_ACCEPT, 7, 3), "b");
	with.instance = 2;
	with.extra = 7;
	CHECK(extra_of(send(&user, with, "a")) == 0);
	/* So does one that is promised to a larger ballot, or outside of the ring. */
	send(&user, ask(SP_PREPARE, 8, 9), "");
	with.instance = 3;
	with.extra = 8;
	CHECK(extra_of(send(&user, with, "a")) == 0);
	with.extra = 1000;
	CHECK(extra_of(send(&user, with, "a")) == 0);
}

static void what_is_not_for_it_is_dropped_and_counted(void)
{
	struct user user;
	struct sp_message message = ask(SP_PREPARE, 3, 5);

	user_begin(&user, 1, 7, RING);
	message.cluster = 0xc2;
	CHECK(send(&user, message, "") == NULL && user.counts[SP_OTHER_CLUSTER] == 1);
	message.cluster = 0;
	message.epoch = 2;
	CHECK(send(&user, message, "") == NULL && user.counts[SP_OTHER_EPOCH] == 1);
	CHECK(send(&user, ask(SP_PREPARE, 3, 0), "") == NULL);
	CHECK(send(&user, ask(SP_PREPARE, 0, 5), "") == NULL);
	CHECK(send(&user, ask(SP_PREPARE_ALL, 0, 0), "") == NULL && user.counts[SP_UNSOUND] == 3);
	CHECK(send(&user, ask(SP_PROMISE, 3, 5), "") == NULL && user.counts[SP_NOT_MINE] == 1);
	CHECK(send(&user, ask(SP_REPEAT, 3, 0), "") == NULL && user.counts[SP_NOT_MINE] == 2);
	CHECK(user.acceptor.touched == 0 && user.acceptor.promised_all == 0);
}

/* Promises never fall, an accepted value's ballot never falls and is promised, one value a ballot (K-I1, K-I2). */
static void drawn_histories_keep_the_invariants(void)
{
	for (sp_u64 round = 0; round < 300; round++) {
		static struct user user, before;
		struct frame frame, reply;
		sp_u64 seed = round;

		user_begin(&user, 1, 7, 8 + round % 20);
		for (int step = 0; step < 400; step++) {
			before = user;
			draw_frame(&seed, &frame);
			user_handle(&user, &frame, &reply);
			CHECK(user.acceptor.promised_all >= before.acceptor.promised_all);
			CHECK(user.acceptor.trimmed >= before.acceptor.trimmed);
			for (sp_u64 at = 0; at < user.acceptor.slots; at++) {
				const struct sp_slot *now = &user.ring[at], *then = &before.ring[at];

				CHECK(now->value_ballot <= now->promised);
				CHECK(now->instance >= then->instance);
				if (now->instance != then->instance) {
					CHECK(then->instance <= user.acceptor.trimmed);
					continue;
				}
				CHECK(now->promised >= then->promised && now->value_ballot >= then->value_ballot);
				CHECK(now->value_ballot > then->value_ballot ||
				      memcmp(now, then, sizeof *now) == 0 || now->promised > then->promised);
			}
		}
		CHECK(user.counts[SP_OK] > 200);
	}
}

static void golden(const char *name, struct sp_message message, sp_u32 length, FILE *out)
{
	struct frame frame;

	message.length = (sp_u16)length;
	sp_write(frame.at, &message);
	fill(frame.at + SP_HEADER, length);
	fprintf(out, "%s %u ", name, length);
	for (sp_u32 at = 0; at < SP_HEADER + length; at++)
		fprintf(out, "%02x", frame.at[at]);
	fputc('\n', out);
}

/* Every type, those with values also with values of 0, 1, max - 1 and max bytes, and the value that fills a gap. */
static void write_golden(FILE *out)
{
	static const char *names[SP_TYPES] = { "", "prepare", "promise", "accept", "accepted", "preempted", "repeat", "trim",
		"state", "client-value", "learner-hi", "learner-del", "acceptor-ok", "prepare-all", "promise-all", "outside" };
	static const sp_u32 lengths[] = { 0, 1, SP_VALUE_MAX - 1, SP_VALUE_MAX };

	for (sp_u8 type = 1; type < SP_TYPES; type++) {
		struct sp_message message = { .type = type, .sender = 0x0102, .group = 0x0304, .cluster = 0x05060708,
			.boot = 0x090a0b0c, .epoch = 0x0d0e0f10, .instance = 0x1112131415161718ull,
			.ballot = 0x191a1b1c1d1e1f20ull, .value_ballot = 0x2122232425262728ull,
			.extra = 0x292a2b2c2d2e2f30ull };
		int count = sp_has_value(type) ? 4 : 1;

		for (int at = 0; at < count; at++)
			golden(names[type], message, lengths[at], out);
		if (sp_has_value(type) && type != SP_CLIENT_VALUE) {
			message.flags = SP_NO_OP;
			golden(names[type], message, 0, out);
		}
	}
}

static void golden_frames_are_written_and_read(const char *path)
{
	char *written = NULL, *kept = calloc(1, 1 << 20);
	size_t bytes = 0;
	FILE *file = fopen(path, "r"), *out = open_memstream(&written, &bytes);

	if (file == NULL) {
		fprintf(stderr, "%s cannot be read\n", path);
		exit(2);
	}
	write_golden(out);
	fclose(out);
	CHECK(fread(kept, 1, 1 << 20, file) == bytes && memcmp(kept, written, bytes) == 0);
	fclose(file);
	for (char *line = strtok(kept, "\n"); line; line = strtok(NULL, "\n")) {
		struct frame frame, again;
		struct sp_message message;
		unsigned length;
		int begin;

		sscanf(line, "%*s %u %n", &length, &begin);
		frame.bytes = (sp_u32)strlen(line + begin) / 2;
		for (sp_u32 at = 0; at < frame.bytes; at++) {
			unsigned byte;

			sscanf(line + begin + 2 * at, "%2x", &byte);
			frame.at[at] = (sp_u8)byte;
		}
		CHECK(sp_parse(frame.at, frame.bytes, &message) == SP_OK && message.length == length);
		/* The last byte counts: one less, and the frame is cut (E10). */
		CHECK(length == 0 || sp_parse(frame.at, frame.bytes - 1, &message) == SP_BAD_LENGTH);
		sp_parse(frame.at, frame.bytes, &message);
		memcpy(again.at + SP_HEADER, frame.at + SP_HEADER, length);
		sp_write(again.at, &message);
		CHECK(frame.bytes == SP_HEADER + length && memcmp(again.at, frame.at, frame.bytes) == 0);
	}
	free(kept);
	free(written);
}

/* Frames with any bytes: nothing outside of the buffers is read or written, as the sanitizers see. */
static void any_bytes_do_no_harm(void)
{
	static struct user user;
	sp_u64 seed = 1;

	user_begin(&user, 1, 7, RING);
	for (int round = 0; round < 300000; round++) {
		struct frame frame, reply;
		sp_u8 *exact;

		draw_frame(&seed, &frame);
		for (sp_u64 changes = draw(&seed) % 4; changes > 0; changes--)
			frame.at[draw(&seed) % SP_HEADER] = (sp_u8)draw(&seed);
		if (draw(&seed) % 4 == 0)
			frame.bytes = (sp_u32)(draw(&seed) % (frame.bytes + 1));
		/* A copy of the right size, so that a read beyond it shows. */
		exact = malloc(frame.bytes ? frame.bytes : 1);
		memcpy(exact, frame.at, frame.bytes);
		struct sp_message message;
		(void)sp_parse(exact, frame.bytes, &message);
		free(exact);
		user_handle(&user, &frame, &reply);
		CHECK(reply.bytes <= SP_HEADER + SP_VALUE_MAX);
	}
	for (int verdict = 0; verdict < SP_BUSY; verdict++)
		CHECK(user.counts[verdict] > 0);
}

int main(int count, char **arguments)
{
	if (count == 2 && strcmp(arguments[1], "--write") == 0) {
		write_golden(stdout);
		return 0;
	}
	if (count != 2) {
		fprintf(stderr, "usage: core FRAMES | core --write\n");
		return 2;
	}
	golden_frames_are_written_and_read(arguments[1]);
	a_larger_ballot_preempts_and_learns_the_value();
	handlers_are_idempotent();
	a_gap_that_is_filled_has_a_value();
	a_promise_for_all_instances_holds_in_each();
	a_slot_is_used_again_only_when_its_instance_is_trimmed();
	an_accept_prepares_a_further_instance();
	what_is_not_for_it_is_dropped_and_counted();
	drawn_histories_keep_the_invariants();
	any_bytes_do_no_harm();
	puts(failures ? "core: failed" : "core: ok");
	return failures != 0;
}
