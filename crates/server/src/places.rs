//! Bounds the number of connections. Idle connections give way to new ones.
//!
//! The oldest connection that never sent a request gives way first. After these, the one that has been idle
//! for longest gives way, if that is at least [`IDLE_MIN`] and connections that have sent a request hold more
//! than half of the places. A connection with an outstanding request never gives way. So a client that only
//! opens connections cannot keep out those that use theirs.
//!
//! Where connections are short, at the addresses for pages, all give way: those that never sent a request, then idle
//! ones, then those with an outstanding request, the oldest first. So a client that holds all places keeps nobody out.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};

/// How long a connection that has sent a request must be idle before it gives way.
pub(crate) const IDLE_MIN: Duration = Duration::from_secs(30);
/// How long to wait for a connection that was told to give way before telling another, and how long to wait in all.
const GIVE_WAY_PACE: Duration = Duration::from_millis(50);
const GIVE_WAY_TIMEOUT: Duration = Duration::from_secs(3);

/// The places for the connections of one address or of several. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    max: u32,
    /// Whether connections with an outstanding request give way as well, and idle ones at once.
    all_give_way: bool,
    idle: Arc<Mutex<Idle>>,
}

/// The order in which connections give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    NeverAsked,
    Idle,
    /// Listed only where all give way.
    Busy,
}

/// Connections that may have to give way, in the order in which they do.
#[derive(Debug, Default)]
struct Idle {
    next: u64,
    waiting: BTreeMap<(Class, u64), (Instant, oneshot::Sender<()>)>,
    /// How many connections, idle or not, have sent a request.
    asked: u32,
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Presence {
    places: Places,
    asked: bool,
    /// Its key among those that may have to give way, while it is one of them.
    listed: Option<(Class, u64)>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(crate) fn new(max: u32) -> Places {
        let free = Arc::new(Semaphore::new(max as usize));
        Places { free, max, all_give_way: false, idle: Arc::default() }
    }

    /// Places of which a newcomer always gets one.
    pub(crate) fn giving_way(max: u32) -> Places {
        Places { all_give_way: true, ..Places::new(max) }
    }

    /// Takes a place, if one is free.
    pub(crate) fn take(&self) -> Option<Presence> {
        Some(self.presence(Arc::clone(&self.free).try_acquire_owned().ok()?))
    }

    /// Takes a place, if one is free or an idle connection gives way in time.
    pub(crate) async fn claim(&self) -> Option<Presence> {
        let deadline = Instant::now() + GIVE_WAY_TIMEOUT;
        let mut told = false;
        loop {
            if let Some(place) = self.take() {
                return Some(place);
            }
            let now = Instant::now();
            // A connection that is told to give way may send a request at the same time, and stay.
            told |= self.make_room(now);
            if !told || now >= deadline {
                return None;
            }
            let freed = Arc::clone(&self.free).acquire_owned();
            if let Ok(permit) = timeout(GIVE_WAY_PACE, freed).await {
                return Some(self.presence(permit.expect("it is never closed")));
            }
        }
    }

    fn presence(&self, permit: OwnedSemaphorePermit) -> Presence {
        Presence { places: self.clone(), asked: false, listed: None, _permit: permit }
    }

    /// Tells a connection to give way. Returns whether there is one that must.
    fn make_room(&self, now: Instant) -> bool {
        let mut idle = self.idle();
        let Some(first) = idle.waiting.first_entry() else { return false };
        let &(class, _) = first.key();
        let long = now.duration_since(first.get().0) >= IDLE_MIN;
        let must = self.all_give_way || class == Class::NeverAsked || (long && idle.asked > self.max / 2);
        if !must {
            return false;
        }
        let (_, (_, give_way)) = idle.waiting.pop_first().expect("it was there");
        // If the connection has ended meanwhile, its place is free.
        let _ = give_way.send(());
        true
    }

    /// Waits until every place is free, when the server stops.
    pub(crate) async fn all(&self) {
        let _ = self.free.acquire_many(self.max).await;
    }

    /// How many places are taken.
    pub(crate) fn taken(&self) -> usize {
        self.max as usize - self.free.available_permits()
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Presence {
    /// Marks the connection as idle. The receiver becomes ready when the connection must give way.
    pub(crate) fn idle(&mut self, now: Instant) -> oneshot::Receiver<()> {
        let places = self.places.clone();
        let class = if self.asked { Class::Idle } else { Class::NeverAsked };
        self.list(&mut places.idle(), class, now)
    }

    /// Marks the connection as having an outstanding request. There is a receiver where it may have to give way all the
    /// same.
    pub(crate) fn busy(&mut self) -> Option<oneshot::Receiver<()>> {
        let places = self.places.clone();
        let mut idle = places.idle();
        self.unlist(&mut idle);
        if !self.asked {
            self.asked = true;
            idle.asked += 1;
        }
        places.all_give_way.then(|| self.list(&mut idle, Class::Busy, Instant::now()))
    }

    fn list(&mut self, idle: &mut Idle, class: Class, now: Instant) -> oneshot::Receiver<()> {
        let (give_way, gives_way) = oneshot::channel();
        let number = idle.next;
        idle.next += 1;
        self.unlist(idle);
        self.listed = Some((class, number));
        idle.waiting.insert((class, number), (now, give_way));
        gives_way
    }

    fn unlist(&mut self, idle: &mut Idle) {
        if let Some(listed) = self.listed.take() {
            idle.waiting.remove(&listed);
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let places = self.places.clone();
        let mut idle = places.idle();
        self.unlist(&mut idle);
        idle.asked -= u32::from(self.asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_a_request_give_way_first_and_busy_ones_never() {
        let (places, now) = (Places::new(4), Instant::now());
        let mut four: Vec<Presence> = (0..4).map(|_| places.take().unwrap()).collect();
        assert!(places.take().is_none());
        assert!(!places.make_room(now), "none is idle");
        assert!(four[0].busy().is_none());
        four[1].busy();
        let mut asked = four[1].idle(now);
        let mut older = four[2].idle(now);
        let mut younger = four[3].idle(now);
        assert!(places.make_room(now) && older.try_recv().is_ok());
        assert!(places.make_room(now) && younger.try_recv().is_ok());
        assert!(!places.make_room(now) && asked.try_recv().is_err());
        // Half of the places belong to connections that have sent a request.
        assert!(!places.make_room(now + IDLE_MIN) && asked.try_recv().is_err());
        four[2].busy();
        drop(four[2].idle(now));
        assert!(!places.make_room(now + IDLE_MIN - Duration::from_millis(1)));
        assert!(places.make_room(now + IDLE_MIN) && asked.try_recv().is_ok());
        drop(four);
        assert_eq!(places.taken(), 0);
        assert_eq!(places.idle().asked, 0);
        assert!(places.idle().waiting.is_empty());
    }

    #[test]
    fn where_all_give_way_busy_connections_come_last() {
        let (places, now) = (Places::giving_way(3), Instant::now());
        let mut three: Vec<Presence> = (0..3).map(|_| places.take().unwrap()).collect();
        let mut answers = three[0].busy().unwrap();
        three[1].busy();
        let mut rests = three[1].idle(now);
        let mut silent = three[2].idle(now);
        for told in [&mut silent, &mut rests, &mut answers] {
            assert!(told.try_recv().is_err() && places.make_room(now) && told.try_recv().is_ok());
        }
        assert!(!places.make_room(now), "all were told");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_goes_on_to_the_next_if_one_that_was_told_stays() {
        let places = Places::new(2);
        let mut deaf = places.claim().await.unwrap();
        let _ignored = deaf.idle(Instant::now());
        let mut polite = places.claim().await.unwrap();
        let gives_way = polite.idle(Instant::now());
        tokio::spawn(async move {
            let _ = gives_way.await;
            drop(polite);
        });
        let _newcomer = places.claim().await.expect("one gives way");
        assert!(places.claim().await.is_none(), "nobody is left who could give way");
    }
}
