//! The clients of a node that wait at a group: those whose commands are under way, and those whose queries wait for a
//! confirmed slot. A client is a token of the caller.

use std::{collections::BTreeMap, mem};

use synod_replica::{ReadId, RequestId};

/// Clients whose commands are under way. An id has the place of its client in the lower half, and a number in the upper
/// half that tells apart those who had this place.
#[derive(Debug)]
pub(crate) struct Commands<C> {
    places: Vec<Option<(RequestId, C)>>,
    free: Vec<u32>,
    last: u32,
}

impl<C> Default for Commands<C> {
    fn default() -> Commands<C> {
        Commands { places: Vec::new(), free: Vec::new(), last: 0 }
    }
}

impl<C> Commands<C> {
    /// Lets a client wait, under the id that this returns.
    pub(crate) fn insert(&mut self, client: C) -> RequestId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).expect("the admission of requests bounds them")
        });
        self.last = self.last.wrapping_add(1);
        let request = RequestId(u64::from(self.last) << 32 | u64::from(place));
        self.places[place as usize] = Some((request, client));
        request
    }

    /// The client that waits under this id; it does not any more.
    pub(crate) fn remove(&mut self, request: RequestId) -> Option<C> {
        let place = request.0 as u32;
        let (_, client) = self.places.get_mut(place as usize)?.take_if(|(id, _)| *id == request)?;
        self.free.push(place);
        Some(client)
    }

    /// All clients that wait; none does any more.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = C> {
        mem::take(self).places.into_iter().flatten().map(|(_, client)| client)
    }
}

/// Queries that wait until their group has confirmed a slot.
#[derive(Debug)]
pub(crate) struct Queries<Q> {
    confirming: BTreeMap<ReadId, Vec<Q>>,
    /// Queries of the present burst; they share one confirmation.
    burst: Vec<Q>,
    last: u64,
}

impl<Q> Default for Queries<Q> {
    fn default() -> Queries<Q> {
        Queries { confirming: BTreeMap::new(), burst: Vec::new(), last: 0 }
    }
}

impl<Q> Queries<Q> {
    /// A query comes.
    pub(crate) fn push(&mut self, query: Q) {
        self.burst.push(query);
    }

    /// Lets the queries of the present burst wait for one read, whose id this returns if there are any.
    pub(crate) fn read(&mut self) -> Option<ReadId> {
        if self.burst.is_empty() {
            return None;
        }
        self.last += 1;
        let read = ReadId(self.last);
        self.confirming.insert(read, mem::take(&mut self.burst));
        Some(read)
    }

    /// The queries that wait for a read; they do not any more.
    pub(crate) fn remove(&mut self, read: ReadId) -> Option<Vec<Q>> {
        self.confirming.remove(&read)
    }

    /// All queries that wait, in the order in which they came; none does any more.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Q> {
        let Queries { confirming, burst, .. } = mem::take(self);
        confirming.into_values().flatten().chain(burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_under_another_id() {
        let mut commands = Commands::default();
        let [a, b] = ["a", "b"].map(|client| commands.insert(client));
        assert_eq!((commands.remove(a), commands.remove(a)), (Some("a"), None));
        let c = commands.insert("c");
        assert_eq!((c.0 as u32, c == a), (a.0 as u32, false));
        assert_eq!(commands.remove(a), None, "the place is another client's");
        assert_eq!(commands.take_all().collect::<Vec<_>>(), ["c", "b"]);
        assert_eq!(commands.remove(b), None);
    }

    #[test]
    fn the_queries_of_a_burst_share_a_read() {
        let mut queries = Queries::default();
        assert_eq!(queries.read(), None);
        ["a", "b"].into_iter().for_each(|query| queries.push(query));
        let first = queries.read().unwrap();
        assert_eq!(queries.read(), None);
        queries.push("c");
        let second = queries.read().unwrap();
        queries.push("d");
        assert_eq!((queries.remove(first), queries.remove(first)), (Some(vec!["a", "b"]), None));
        assert!(second > first);
        assert_eq!(queries.take_all().collect::<Vec<_>>(), ["c", "d"]);
    }
}
