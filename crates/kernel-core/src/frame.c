/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The parser and the writer of frames as functions that other languages can call. */
#include "../c/frame.h"

unsigned synod_kernel_parse(const sp_u8 *frame, sp_u32 bytes, struct sp_message *message);
void synod_kernel_write(sp_u8 *frame, const struct sp_message *message);

unsigned synod_kernel_parse(const sp_u8 *frame, sp_u32 bytes, struct sp_message *message)
{
	return sp_parse(frame, bytes, message);
}

void synod_kernel_write(sp_u8 *frame, const struct sp_message *message)
{
	sp_write(frame, message);
}
