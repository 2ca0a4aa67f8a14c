//! An allocator that counts what each thread has in use, so that a target can be held to a limit.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The system's allocator, with counts for each thread. A program that runs targets makes it the global one.
#[derive(Debug)]
pub struct Counting;

/// What a thread has allocated since the last [`reset`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// Bytes in use; below zero if the thread freed what was there before.
    now: isize,
    /// The most bytes that were in use at a time.
    pub(crate) most: isize,
    /// The number of allocations.
    pub(crate) allocations: usize,
}

thread_local! {
    static USED: Cell<Used> = const { Cell::new(Used { now: 0, most: 0, allocations: 0 }) };
}

/// Begins to count again on this thread.
pub(crate) fn reset() {
    USED.set(Used::default());
}

/// What this thread has used since the last [`reset`].
pub(crate) fn used() -> Used {
    USED.get()
}

fn count(bytes: isize) {
    // A thread that ends frees memory after its counts are gone.
    let _ = USED.try_with(|used| {
        let mut now = used.get();
        now.now += bytes;
        now.most = now.most.max(now.now);
        now.allocations += usize::from(bytes > 0);
        used.set(now);
    });
}

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        unsafe { System.realloc(at, layout, size) }
    }
}
