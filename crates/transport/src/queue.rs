//! The bounded queue of frames that wait for one peer.

use std::{collections::VecDeque, sync::Arc};

use crate::frame::{Frame, HEADER_BYTES};

/// The most buffers in one vectored write. It is well below the 1,024 that systems take, since the gain of
/// more is small and the frames of a gather are not counted as queued any more.
const GATHER_SLICES_MAX: usize = 512;
/// A gather is complete once it has this many bytes; its last frame may take it above.
const GATHER_BYTES_MAX: usize = 512 * 1024;

/// The most that may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) frames: usize,
    /// One frame may always wait, even if it alone is larger.
    pub(crate) bytes: usize,
}

/// Frames in the order in which they are to be sent.
#[derive(Debug, Default)]
pub(crate) struct FrameQueue {
    frames: VecDeque<Arc<Frame>>,
    bytes: usize,
    /// How many of the frames are marks.
    marks: usize,
}

impl FrameQueue {
    pub(crate) fn frames(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a frame at the end, and drops the oldest ones as far as the bounds demand; returns how many. Marks make way
    /// for it before others do, and do not count.
    pub(crate) fn push(&mut self, frame: Arc<Frame>, bounds: Bounds) -> usize {
        self.bytes += frame.len();
        self.frames.push_back(frame);
        if self.exceeds(bounds) {
            self.drop_marks();
        }
        self.trim(bounds)
    }

    /// Whether there is room for a mark with a body of this size without dropping anything.
    pub(crate) fn has_room_for_mark(&self, body: usize, bounds: Bounds) -> bool {
        self.frames.len() < bounds.frames && self.bytes + HEADER_BYTES + body <= bounds.bytes
    }

    /// Adds a mark at the end.
    pub(crate) fn push_mark(&mut self, mark: Arc<Frame>) {
        self.bytes += mark.len();
        self.marks += 1;
        self.frames.push_back(mark);
    }

    fn exceeds(&self, bounds: Bounds) -> bool {
        self.frames.len() > bounds.frames || (self.bytes > bounds.bytes && self.frames.len() > 1)
    }

    /// Drops the marks.
    pub(crate) fn drop_marks(&mut self) {
        // A queue that overflows with every message has none as a rule.
        if self.marks > 0 {
            self.retain(|frame| !frame.is_mark());
        }
    }

    fn retain(&mut self, stays: impl Fn(&Frame) -> bool) {
        self.frames.retain(|frame| stays(frame));
        self.bytes = self.frames.iter().map(|frame| frame.len()).sum();
        self.marks = self.frames.iter().filter(|frame| frame.is_mark()).count();
    }

    fn pop(&mut self) -> Option<Arc<Frame>> {
        let oldest = self.frames.pop_front()?;
        self.bytes -= oldest.len();
        self.marks -= usize::from(oldest.is_mark());
        Some(oldest)
    }

    /// Drops the oldest frames until the bounds are kept; returns how many.
    pub(crate) fn trim(&mut self, bounds: Bounds) -> usize {
        let before = self.frames.len();
        while self.exceeds(bounds) {
            self.pop().expect("more frames than the bound");
        }
        before - self.frames.len()
    }

    /// Moves the oldest frames to `gather`, as many as one write should carry.
    pub(crate) fn take(&mut self, gather: &mut Vec<Arc<Frame>>) {
        let (mut slices, mut bytes) = (0, 0);
        while bytes < GATHER_BYTES_MAX
            && self
                .frames
                .front()
                .is_some_and(|frame| slices == 0 || slices + frame.slice_count() <= GATHER_SLICES_MAX)
        {
            let frame = self.pop().expect("there is a front");
            slices += frame.slice_count();
            bytes += frame.len();
            gather.push(frame);
        }
    }

    /// Drops the frames whose messages are of a later version than `version`; returns how many.
    pub(crate) fn drop_newer_than(&mut self, version: u16) -> usize {
        let before = self.frames.len();
        self.retain(|frame| frame.version() <= version);
        before - self.frames.len()
    }

    /// Puts frames that were taken and not sent back before the others.
    pub(crate) fn put_back(&mut self, unsent: impl DoubleEndedIterator<Item = Arc<Frame>>) {
        for frame in unsent.rev() {
            self.bytes += frame.len();
            self.marks += usize::from(frame.is_mark());
            self.frames.push_front(frame);
        }
    }

    /// Drops everything; returns how many frames that were.
    pub(crate) fn clear(&mut self) -> usize {
        let dropped = self.frames.len();
        *self = FrameQueue::default();
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{ClusterId, GroupId, Lsn, Writer};

    const FREE: Bounds = Bounds { frames: usize::MAX, bytes: usize::MAX };

    fn frame(size: usize) -> Arc<Frame> {
        let mut writer = Writer::new();
        (0..size).for_each(|_| writer.u8(0));
        Arc::new(Frame::new(ClusterId(1), 3, GroupId::FIRST, Lsn::ZERO, writer.finish()))
    }

    fn sizes(frames: &[Arc<Frame>]) -> Vec<usize> {
        frames.iter().map(|frame| frame.body_len()).collect()
    }

    fn drain(queue: &mut FrameQueue) -> Vec<Arc<Frame>> {
        let mut all = Vec::new();
        while queue.frames() > 0 {
            queue.take(&mut all);
        }
        assert_eq!(queue.bytes(), 0);
        all
    }

    #[test]
    fn the_oldest_are_dropped_beyond_the_frame_bound() {
        let mut queue = FrameQueue::default();
        let bounds = Bounds { frames: 3, ..FREE };
        let dropped: usize = (1..=5).map(|size| queue.push(frame(size), bounds)).sum();
        assert_eq!(dropped, 2);
        assert_eq!(sizes(&drain(&mut queue)), [3, 4, 5]);
    }

    #[test]
    fn the_oldest_are_dropped_beyond_the_byte_bound() {
        let mut queue = FrameQueue::default();
        let bounds = Bounds { bytes: 2 * (HEADER_BYTES + 100), ..FREE };
        assert_eq!(queue.push(frame(100), bounds), 0);
        assert_eq!(queue.push(frame(100), bounds), 0);
        assert_eq!(queue.push(frame(101), bounds), 2);
        assert_eq!(queue.push(frame(10_000), bounds), 1, "a frame above the bound waits alone");
        assert_eq!(sizes(&drain(&mut queue)), [10_000]);
    }

    #[test]
    fn a_mark_costs_no_other_frame_and_goes_with_its_session() {
        let mut queue = FrameQueue::default();
        let mark = || Arc::new(Frame::mark(ClusterId(1), Lsn::ZERO));
        let bounds = Bounds { frames: 3, bytes: 2 * HEADER_BYTES + 100 };
        queue.push(frame(100), bounds);
        assert!(queue.has_room_for_mark(0, bounds) && !queue.has_room_for_mark(1, bounds));
        assert!(!queue.has_room_for_mark(0, Bounds { frames: 1, ..FREE }));
        queue.push_mark(mark());
        assert_eq!((queue.frames(), queue.bytes()), (2, 2 * HEADER_BYTES + 100));
        assert_eq!(queue.push(frame(0), bounds), 0, "the mark makes way");
        assert_eq!((queue.frames(), queue.bytes()), (2, 2 * HEADER_BYTES + 100));
        queue.push_mark(mark());
        queue.put_back(vec![mark()].into_iter());
        queue.drop_marks();
        assert_eq!(sizes(&drain(&mut queue)), [100, 0]);
        assert_eq!(queue.marks, 0);
    }

    #[test]
    fn a_gather_is_bounded() {
        let mut queue = FrameQueue::default();
        (0..GATHER_SLICES_MAX).for_each(|_| _ = queue.push(frame(1), FREE));
        let mut gather = Vec::new();
        queue.take(&mut gather);
        assert_eq!(gather.len(), GATHER_SLICES_MAX / 2, "each frame has a header and a part");
        drain(&mut queue);

        (0..3).for_each(|_| _ = queue.push(frame(GATHER_BYTES_MAX), FREE));
        gather.clear();
        queue.take(&mut gather);
        assert_eq!(gather.len(), 1);
        assert_eq!(queue.bytes(), 2 * (GATHER_BYTES_MAX + HEADER_BYTES));
    }

    #[test]
    fn what_is_put_back_comes_first() {
        let mut queue = FrameQueue::default();
        (1..=4).for_each(|size| _ = queue.push(frame(size), FREE));
        let taken = drain(&mut queue);
        queue.push(frame(5), FREE);
        queue.put_back(taken.into_iter().skip(2));
        assert_eq!(sizes(&drain(&mut queue)), [3, 4, 5]);
    }
}
