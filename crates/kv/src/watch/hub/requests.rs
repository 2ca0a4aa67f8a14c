//! What clients ask of the hub, and how each request is answered, in etcd's words.

use super::{
    Create, Hub, ID_BYTES, Item, KvError, NO_WATCH, Place, Request, Sight, Stream, StreamNumber, Watcher,
    Watchers,
};

impl Hub {
    /// Takes what a client asks for, or keeps it until the hub follows.
    pub(super) fn request(&mut self, number: StreamNumber, request: Request) {
        match request {
            Request::Open(out) => {
                let (ids, next_id, full, came, live, future) = Default::default();
                self.streams.insert(number, Stream { out, ids, next_id, full, came, live, future });
                return;
            }
            Request::Close => return self.close(number),
            Request::LargeLeft => return self.places.left(number),
            Request::Room => {
                let waiting = self.streams.get(&number).map_or(0, |stream| stream.full.len());
                if waiting > 0 {
                    self.roomy.insert(number, waiting);
                }
                return;
            }
            _ => {}
        }
        // An answer tells the revision, and clients rely on the order of answers.
        if self.sight != Sight::Following {
            self.requests.entry(number).or_default().push_back(request);
            return;
        }
        match request {
            Request::Create(request) => self.create(number, *request),
            Request::Refuse(reason) => {
                if let Some(stream) = self.streams.get(&number) {
                    stream.out.push(Item::Refused { revision: self.head, free: 0, reason });
                }
            }
            Request::Cancel(id) => self.cancel(number, id),
            Request::Progress(id) => self.progress(number, id),
            Request::Open(_) | Request::Close | Request::Room | Request::LargeLeft => {
                unreachable!("handled above")
            }
        }
        if let Some(stream) = self.streams.get(&number) {
            stream.out.answered();
        }
    }

    fn create(&mut self, number: StreamNumber, request: Create) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let (revision, free) = (self.head, request.cost());
        let refused = |reason: String| Item::Refused { revision, free, reason };
        let Create { range, wants, id, start, progress } = request;
        if start < 0 {
            return stream.out.push(refused(KvError::Compacted.to_string()));
        }
        let Some(range) = range else {
            return stream.out.push(refused("mvcc: watcher range is empty".into()));
        };
        let id = match id {
            0 => {
                while stream.ids.contains_key(&stream.next_id) {
                    stream.next_id += 1;
                }
                stream.next_id += 1;
                stream.next_id - 1
            }
            id if stream.ids.contains_key(&id) => {
                let reason = "mvcc: duplicate watch ID provided on the WatchStream";
                return stream.out.push(refused(reason.into()));
            }
            id => id,
        };
        let own = self.next_number;
        while self.watchers.contains_key(&self.next_number) || self.next_number == own {
            self.next_number = self.next_number.wrapping_add(1);
        }
        stream.ids.insert(id, Some(own));
        stream.out.push(Item::Created { id, revision, progress });
        let next = if start == 0 { self.head + 1 } else { start };
        if start > self.head {
            stream.future.insert((start, id));
        }
        let place = Place::Waiting;
        let (edge, pending) = (self.compacted, Vec::new());
        let watcher = Watcher { stream: number, id, range, wants, start, edge, next, place, pending };
        self.watchers.insert(own, watcher);
        self.wait(own);
    }

    fn cancel(&mut self, number: StreamNumber, id: i64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let Some(watcher) = stream.ids.remove(&id) else { return };
        let free = watcher.map_or(ID_BYTES, |number| self.watchers[&number].cost());
        if let Some(watcher) = watcher {
            stream.future.remove(&(self.watchers[&watcher].start, id));
        }
        stream.out.push(Item::Canceled { id, revision: self.head, free });
        if let Some(watcher) = watcher {
            self.remove(watcher);
        }
    }

    fn close(&mut self, number: StreamNumber) {
        self.requests.remove(&number);
        let Some(stream) = self.streams.remove(&number) else { return };
        self.places.close(number);
        stream.ids.into_values().flatten().for_each(|watcher| self.remove(watcher));
        if self.watchers.is_empty() {
            self.watchers = Watchers::default();
        }
    }

    /// Tells how far a watch is, or all watches of a stream, if they are live.
    fn progress(&mut self, number: StreamNumber, id: Option<i64>) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let told = match id {
            Some(id) => {
                let number = stream.ids.get(&id).copied().flatten();
                let watcher = number.and_then(|number| self.watchers.get(&number));
                watcher.is_some_and(|watcher| watcher.place == Place::Live && watcher.start <= self.head)
            }
            None => {
                while stream.future.first().is_some_and(|(start, _)| *start <= self.head) {
                    stream.future.pop_first();
                }
                stream.live > 0 && stream.live == stream.ids.len() && stream.future.is_empty()
            }
        };
        if told {
            stream.out.push(Item::Progress { id: id.unwrap_or(NO_WATCH), revision: self.head });
        }
    }
}
