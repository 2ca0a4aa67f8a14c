//! The contents of requests: keys, values, and the choice between reading and writing.

use bytes::{BufMut, Bytes, BytesMut};
use synod_api::etcdserverpb::{PutRequest, RangeRequest};

use super::{Consistency, Load, Operation};

/// Keys are cut from pieces of this size, so that memory is allocated once for hundreds of requests.
const KEY_ARENA_BYTES: usize = 16 << 10;
/// Random values are windows into this many random bytes. In a run of a few million, two values are unlikely
/// to be equal.
const RANDOM_POOL_BYTES: usize = 16 << 20;

/// A request ready to be sent.
#[derive(Debug)]
pub(super) enum Request {
    Put(PutRequest),
    Get(RangeRequest),
}

/// The values of a run; all threads share the bytes.
#[derive(Clone, Debug)]
pub(super) struct Values {
    pool: Bytes,
    size: usize,
}

impl Values {
    /// Values for this load: none if nothing is written.
    pub(super) fn new(operation: Operation, load: &Load) -> Values {
        if matches!(operation, Operation::Get(_)) {
            return Values { pool: Bytes::new(), size: 0 };
        }
        let spare = if load.random_values && load.val_size > 0 { RANDOM_POOL_BYTES } else { 0 };
        let mut pool = vec![0; load.val_size + spare];
        fastrand::Rng::with_seed(load.seed).fill(&mut pool);
        Values { pool: pool.into(), size: load.val_size }
    }

    fn next(&self, rng: &mut fastrand::Rng) -> Bytes {
        let spare = self.pool.len() - self.size;
        let at = if spare == 0 { 0 } else { rng.usize(..=spare) };
        self.pool.slice(at..at + self.size)
    }
}

/// Makes the requests of one thread.
#[derive(Debug)]
pub(super) struct Requests {
    operation: Operation,
    values: Values,
    rng: fastrand::Rng,
    arena: BytesMut,
    key_prefix: Bytes,
    key_size: usize,
    key_space: u64,
    /// The next key and the step to the one after it, if keys are taken in order.
    sequence: Option<(u64, u64)>,
}

impl Requests {
    /// Requests of thread `thread` of `threads`: in order, it takes every `threads`-th key.
    pub(super) fn new(
        operation: Operation,
        load: &Load,
        values: Values,
        thread: usize,
        threads: usize,
    ) -> Requests {
        Requests {
            operation,
            values,
            rng: fastrand::Rng::with_seed(thread_seed(load.seed, thread)),
            arena: BytesMut::new(),
            key_prefix: Bytes::copy_from_slice(load.key_prefix.as_bytes()),
            key_size: load.key_size,
            key_space: load.key_space_size,
            sequence: load.sequential_keys.then_some((thread as u64, threads as u64)),
        }
    }

    /// The next request.
    pub(super) fn next(&mut self) -> Request {
        match self.operation {
            Operation::Put => self.put(),
            Operation::Get(consistency) => self.get(consistency),
            Operation::Mixed { read_ratio, consistency } => {
                if self.rng.f64() < read_ratio {
                    self.get(consistency)
                } else {
                    self.put()
                }
            }
        }
    }

    fn put(&mut self) -> Request {
        let key = self.key();
        Request::Put(PutRequest { key, value: self.values.next(&mut self.rng), ..PutRequest::default() })
    }

    fn get(&mut self, consistency: Consistency) -> Request {
        let serializable = consistency == Consistency::Serializable;
        Request::Get(RangeRequest { key: self.key(), serializable, ..RangeRequest::default() })
    }

    fn key(&mut self) -> Bytes {
        let number = match &mut self.sequence {
            Some((next, step)) => {
                let number = *next % self.key_space;
                *next = number.wrapping_add(*step);
                number
            }
            None => self.rng.u64(..self.key_space),
        };
        let size = self.key_prefix.len() + self.key_size;
        if self.arena.capacity() < size {
            self.arena.reserve(KEY_ARENA_BYTES.max(size));
        }
        self.arena.put_slice(&self.key_prefix);
        self.arena.put_bytes(b'0', self.key_size);
        let mut rest = number;
        for digit in self.arena.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.arena.split().freeze()
    }
}

/// Seeds of threads are far apart although they are derived from one number.
pub(super) fn thread_seed(seed: u64, thread: usize) -> u64 {
    seed ^ (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::bench::Options;

    fn requests(operation: Operation, load: &Load, thread: usize, threads: usize) -> Requests {
        Requests::new(operation, load, Values::new(operation, load), thread, threads)
    }

    fn put(requests: &mut Requests) -> PutRequest {
        match requests.next() {
            Request::Put(put) => put,
            Request::Get(get) => panic!("{get:?} is no put"),
        }
    }

    #[test]
    fn keys_have_their_prefix() {
        let load =
            Load { key_prefix: "tune/".into(), key_space_size: 2, key_size: 2, ..Options::default().load };
        let load = Load { sequential_keys: true, ..load };
        let mut requests = Requests::new(Operation::Put, &load, Values::new(Operation::Put, &load), 0, 1);
        let keys: Vec<_> = (0..3).map(|_| requests.key()).collect();
        assert_eq!(keys, [&b"tune/00"[..], b"tune/01", b"tune/00"]);
    }

    #[test]
    fn threads_share_the_keys_in_order() {
        let load = Load { key_space_size: 5, sequential_keys: true, key_size: 3, ..Options::default().load };
        let mut threads = [0, 1].map(|thread| requests(Operation::Put, &load, thread, 2));
        let keys: Vec<Bytes> = (0..7).map(|i| put(&mut threads[i % 2]).key).collect();
        assert_eq!(keys, ["000", "001", "002", "003", "004", "000", "001"]);
    }

    #[test]
    fn random_keys_stay_in_their_space_and_cover_it() {
        let load = Load { key_space_size: 12, key_size: 2, ..Options::default().load };
        let mut requests = requests(Operation::Put, &load, 0, 1);
        let keys: HashSet<Bytes> = (0..1000).map(|_| put(&mut requests).key).collect();
        let expected = (0..12).map(|number| Bytes::from(format!("{number:02}"))).collect();
        assert_eq!(keys, expected);
    }

    #[test]
    fn values_are_shared_unless_they_are_to_differ() {
        let mut load = Load { val_size: 256, ..Options::default().load };
        let mut same = requests(Operation::Put, &load, 0, 1);
        let (first, second) = (put(&mut same).value, put(&mut same).value);
        assert_eq!((first.len(), first.as_ptr()), (256, second.as_ptr()));
        load.random_values = true;
        let mut different = requests(Operation::Put, &load, 0, 1);
        let values: HashSet<Bytes> = (0..100).map(|_| put(&mut different).value).collect();
        assert_eq!(values.len(), 100);
        assert!(values.iter().all(|value| value.len() == 256));
    }

    #[test]
    fn the_mix_has_its_ratio() {
        let mixed = Operation::Mixed { read_ratio: 0.9, consistency: Consistency::Serializable };
        let mut requests = requests(mixed, &Options::default().load, 0, 1);
        let mut gets = 0;
        for _ in 0..10_000 {
            if let Request::Get(get) = requests.next() {
                assert!(get.serializable);
                gets += 1;
            }
        }
        assert!((8_800..=9_200).contains(&gets), "{gets} gets");
    }

    #[test]
    fn a_seed_gives_its_requests_again_and_threads_differ() {
        let load = Options::default().load;
        let keys = |thread| {
            let mut requests = requests(Operation::Put, &load, thread, 2);
            (0..10).map(|_| put(&mut requests).key).collect::<Vec<_>>()
        };
        assert_eq!(keys(0), keys(0));
        assert_ne!(keys(0), keys(1));
    }
}
