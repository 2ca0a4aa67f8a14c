//! The clients that wait at the protocol's thread for one group.

use std::{collections::HashMap, mem};

use bytes::Bytes;
use synod_replica::{ReadId, RequestId};

use crate::handle::Reply;

/// Clients that wait, by what they wait for.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) commands: Commands,
    reads: HashMap<ReadId, Vec<(Bytes, Reply)>>,
    /// Queries of the present burst; they share one confirmation.
    burst: Vec<(Bytes, Reply)>,
    last: u64,
}

impl Waiting {
    /// Lets a client wait for a query of the present burst.
    pub(crate) fn query(&mut self, query: Bytes, reply: Reply) {
        self.burst.push((query, reply));
    }

    /// Lets the queries of the present burst wait for one read, whose id this returns if there are any.
    pub(crate) fn read(&mut self) -> Option<ReadId> {
        if self.burst.is_empty() {
            return None;
        }
        self.last += 1;
        let read = ReadId(self.last);
        self.reads.insert(read, mem::take(&mut self.burst));
        Some(read)
    }

    /// The queries that wait for a read; they do not any more.
    pub(crate) fn take_read(&mut self, read: ReadId) -> Option<Vec<(Bytes, Reply)>> {
        self.reads.remove(&read)
    }

    /// All clients that wait.
    pub(crate) fn into_replies(self) -> impl Iterator<Item = Reply> {
        let queries = self.reads.into_values().flatten().chain(self.burst);
        self.commands.into_replies().chain(queries.map(|(_, reply)| reply))
    }
}

/// Clients whose commands are under way. An id has the place of its client in the lower half, and a number in the upper
/// half that tells apart those who had this place.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    places: Vec<Option<(RequestId, Reply)>>,
    free: Vec<u32>,
    last: u32,
}

impl Commands {
    /// Lets a client wait, under the id that this returns.
    pub(crate) fn insert(&mut self, reply: Reply) -> RequestId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).expect("the admission of requests bounds them")
        });
        self.last = self.last.wrapping_add(1);
        let request = RequestId(u64::from(self.last) << 32 | u64::from(place));
        self.places[place as usize] = Some((request, reply));
        request
    }

    /// The client that waits under this id; it does not any more.
    pub(crate) fn remove(&mut self, request: RequestId) -> Option<Reply> {
        let place = request.0 as u32;
        let (_, reply) = self.places.get_mut(place as usize)?.take_if(|(id, _)| *id == request)?;
        self.free.push(place);
        Some(reply)
    }

    /// All clients that wait.
    fn into_replies(self) -> impl Iterator<Item = Reply> {
        self.places.into_iter().flatten().map(|(_, reply)| reply)
    }
}
