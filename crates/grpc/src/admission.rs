//! Bounds the memory that the requests of all clients take, and gives each connection a share of it.
//!
//! A connection may hold at most a quarter of what is free. So a single connection gets a fifth of the whole.
//! The shares of many connections get smaller and, as their requests end, equal, and something is always left
//! for a new connection. These are the dynamic thresholds of Choudhury and Hahne ("Dynamic queue length
//! thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998), with alpha
//! = 1/4. A request that would exceed the share is refused, not delayed, so that a waiting request holds no
//! memory that others need.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tonic::Status;

/// Bytes that a request takes besides its body and its answer: the state of its stream and of the code that answers it.
pub const REQUEST_BYTES: u64 = 4 << 10;

/// A connection may hold one part in this many of what is free.
const SHARE: u64 = 4;

/// The memory for the requests of all clients. Clones share it.
#[derive(Clone, Debug)]
pub struct Admission {
    free: Arc<AtomicU64>,
    max: u64,
    refusal: &'static str,
}

/// The part of that memory that a connection holds. Clones stand for the same connection.
#[derive(Clone, Debug)]
pub struct Share(Arc<Held>);

#[derive(Debug)]
struct Held {
    free: Arc<AtomicU64>,
    /// While at least this much is free, connections may have [`extra`](Held::extra) memory.
    plenty: u64,
    /// Bytes held for buffers that only make the connection faster. They do not count against the share:
    /// otherwise, when little is left, a connection that has them would be refused the smallest request and a
    /// new connection would not.
    extra: AtomicU64,
    /// Bytes held for requests.
    bytes: AtomicU64,
    /// The part of `bytes` that belongs to answered requests whose answers may not have left yet.
    answered: AtomicU64,
    /// What a client is told for which there is no memory.
    refusal: &'static str,
}

/// The memory that a request holds. Dropping it means that the answer has been handed to the connection.
#[derive(Debug)]
pub struct Charge {
    share: Share,
    bytes: AtomicU64,
}

impl Admission {
    /// So much memory. A client for which there is none is told `refusal`, and may ask again.
    #[must_use]
    pub fn new(bytes_max: u64, refusal: &'static str) -> Admission {
        Admission { free: Arc::new(AtomicU64::new(bytes_max)), max: bytes_max, refusal }
    }

    /// Makes the share of a new connection.
    pub fn share(&self) -> Share {
        let (free, plenty, refusal) = (Arc::clone(&self.free), self.max / 2, self.refusal);
        let none = || AtomicU64::new(0);
        Share(Arc::new(Held { free, plenty, extra: none(), bytes: none(), answered: none(), refusal }))
    }
}

impl Share {
    /// Charges a new request for `bytes`.
    ///
    /// # Errors
    /// The share has no room for it.
    pub fn charge(&self, bytes: u64) -> Result<Charge, Status> {
        let charge = || Charge { share: self.clone(), bytes: AtomicU64::new(bytes) };
        self.take(bytes).then(charge).ok_or_else(|| self.too_many())
    }

    /// The refusal for lack of memory.
    fn too_many(&self) -> Status {
        Status::resource_exhausted(self.0.refusal)
    }

    /// Bytes that answered requests held and that [`sent`](Share::sent) has not given back.
    pub fn answered(&self) -> u64 {
        self.0.answered.load(Relaxed)
    }

    /// Gives back `bytes` of the answered requests: their answers have left.
    pub fn sent(&self, bytes: u64) {
        self.0.answered.fetch_sub(bytes, Relaxed);
        self.give(bytes);
    }

    /// Takes `bytes` for a request, if there is room for them.
    fn take(&self, bytes: u64) -> bool {
        if bytes == 0 {
            // Other connections may have reduced the share below what is held already.
            return true;
        }
        let held = self.0.bytes.fetch_add(bytes, Relaxed);
        let taken = self.0.free.fetch_update(Relaxed, Relaxed, |free| {
            let left = free.checked_sub(bytes)?;
            (held + bytes <= free / SHARE).then_some(left)
        });
        if taken.is_err() {
            self.0.bytes.fetch_sub(bytes, Relaxed);
        }
        taken.is_ok()
    }

    /// Takes `bytes` until the connection ends, if at least half of all memory is free and they are no more
    /// than half of what the share could be.
    pub fn take_of_plenty(&self, bytes: u64) -> bool {
        let taken = self.0.free.fetch_update(Relaxed, Relaxed, |free| {
            (free >= self.0.plenty && 2 * bytes <= free / SHARE).then(|| free - bytes)
        });
        if taken.is_ok() {
            self.0.extra.fetch_add(bytes, Relaxed);
        }
        taken.is_ok()
    }

    fn give(&self, bytes: u64) {
        self.0.bytes.fetch_sub(bytes, Relaxed);
        self.0.free.fetch_add(bytes, Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.free.fetch_add(*self.bytes.get_mut() + *self.extra.get_mut(), Relaxed);
    }
}

impl Charge {
    /// Charges the request for `bytes` more, if there is room for them.
    pub fn grow(&self, bytes: u64) -> bool {
        let taken = self.share.take(bytes);
        if taken {
            self.bytes.fetch_add(bytes, Relaxed);
        }
        taken
    }

    /// [`Charge::grow`].
    ///
    /// # Errors
    /// There is no room for them.
    pub fn afford(&self, bytes: u64) -> Result<(), Status> {
        if self.grow(bytes) { Ok(()) } else { Err(self.share.too_many()) }
    }

    /// Charges the request for what is missing to `bytes`.
    ///
    /// # Errors
    /// There is no room for that.
    pub fn afford_to(&self, bytes: u64) -> Result<(), Status> {
        self.afford(bytes.saturating_sub(self.bytes.load(Relaxed)))
    }

    /// Gives back `bytes` of what the request holds.
    pub fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.share.give(bytes);
    }

    /// Gives back what the request holds beyond `bytes`.
    pub fn shrink_to(&self, bytes: u64) {
        let held = self.bytes.load(Relaxed);
        if held > bytes {
            self.bytes.store(bytes, Relaxed);
            self.share.give(held - bytes);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.share.0.answered.fetch_add(*self.bytes.get_mut(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(share: &Share) -> u64 {
        let mut taken = 0;
        while share.take(10) {
            taken += 10;
        }
        taken
    }

    #[test]
    fn a_first_connection_gets_a_fifth_and_later_ones_get_something_too() {
        let all = Admission::new(10_000, "full");
        let first = all.share();
        assert_eq!(fill(&first), 2_000);
        let others: Vec<_> = (0..16).map(|_| all.share()).collect();
        // Connections that come earlier get more, until they give something back.
        let shares: Vec<_> = others.iter().map(fill).collect();
        assert!(shares.is_sorted_by(|a, b| a >= b) && shares[0] == 1_600, "{shares:?}");
        let late = all.share();
        assert!(fill(&late) > 0);
        drop((first, others, late));
        assert_eq!(all.free.load(Relaxed), 10_000);
    }

    #[test]
    fn extra_memory_costs_no_connection_a_request() {
        let all = Admission::new(10_000, "full");
        let old = all.share();
        assert!(old.take_of_plenty(1_000) && !old.take_of_plenty(1_200), "half a share");
        let others: Vec<_> = (0..10).map(|_| all.share()).collect();
        assert!(others.iter().map(fill).sum::<u64>() > 7_000);
        assert!(!all.share().take_of_plenty(10));
        let charge = old.charge(10).expect("a small request");
        // Less is left now than this connection could hold as a new one; it keeps what it has.
        let greedy: Vec<_> = (0..30).map(|_| all.share()).collect();
        greedy.iter().for_each(|share| while share.take(1) {});
        assert!(!charge.grow(1) && charge.grow(0));
        drop((old, charge, others, greedy));
        assert_eq!(all.free.load(Relaxed), 10_000);
    }

    #[test]
    fn what_a_request_held_is_free_when_its_answer_has_left() {
        let all = Admission::new(1_000, "full");
        let share = all.share();
        let charge = share.charge(100).unwrap();
        assert!(charge.grow(20) && charge.afford_to(150).is_ok() && !charge.grow(300));
        assert_eq!(charge.afford_to(450).unwrap_err().message(), "full");
        charge.shrink_to(120);
        drop(charge);
        assert_eq!((all.free.load(Relaxed), share.answered()), (880, 120));
        share.sent(120);
        assert_eq!((all.free.load(Relaxed), share.answered()), (1_000, 0));
        let charge = share.charge(7).unwrap();
        drop(share);
        drop(charge);
        assert_eq!(all.free.load(Relaxed), 1_000);
    }
}
