//! Bounds the number of connections. Idle connections give way to new ones.
//!
//! The oldest connection that never sent a request gives way first, unless its address has fewer places than the
//! newcomer's; if it has as many, only once a second has gone by or nobody else gives way. After these, the one that
//! has been idle for longest gives way, if that is at least [`IDLE_MIN`] and connections that have sent a request hold
//! more than half of the places. So a client that only opens connections cannot keep out those that use theirs.
//!
//! A client may also hold places with requests that last and take no user: for the server's health, for reflection, or
//! with a body that does not end. Where no other connection gives way, one does that has done no [work](Mark), at an
//! address with more places than the newcomer's. And where there is none, **the address with most places loses one to
//! an address with fewer**: a connection that rests, then one that has done no work, then any, each time the oldest; at
//! last one at the newcomer's own address that has done no work. So a newcomer at an address of its own always gets in,
//! and one at a crowded address does not cost others their work.
//!
//! Where connections are short, at the addresses for pages, all give way: those of the address with most places, and of
//! these the ones that never sent a request, then idle ones, then those with an outstanding request, the oldest first.
//! So a client that holds all places keeps nobody out, and one that opens many at once pushes out its own only.
//!
//! Newcomers that find no free place wait. **A place that becomes free goes to the newcomer whose address has fewest
//! places**, whichever connection made room for whom, and where more than [`NEWCOMERS_MAX`] wait, the latest at the
//! address with most connections and newcomers is turned away. So newcomers of a crowd stand in nobody's way.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

use crate::listen::Origin;

/// How long a connection that has sent a request must be idle before it gives way.
pub const IDLE_MIN: Duration = Duration::from_secs(30);
/// How long a connection may take for its first request, while there are others that could give way.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(1);
/// How long to wait for a connection that was told to give way before telling another, and how long to wait in all.
const GIVE_WAY_PACE: Duration = Duration::from_millis(50);
const GIVE_WAY_TIMEOUT: Duration = Duration::from_secs(3);
/// Newcomers that wait for a place at the same time. Each has a descriptor beside those of connections with places.
const NEWCOMERS_MAX: usize = 16;

/// The places for the connections of one address or of several. Clones share them.
#[derive(Clone, Debug)]
pub struct Places {
    max: u32,
    /// Whether connections with an outstanding request give way as well, and idle ones at once.
    all_give_way: bool,
    state: Arc<Mutex<State>>,
    /// Notified when the last connection leaves.
    empty: Arc<Notify>,
}

/// The order in which connections give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    NeverAsked,
    Idle,
    Busy,
}

/// Whether a connection has done work: a request of a user, or where users do not count one that came as a whole and is
/// none for the server's health or for reflection. Clones are of the same connection.
#[derive(Clone, Debug, Default)]
pub struct Mark(Arc<AtomicBool>);

impl Mark {
    /// The connection has done work.
    pub fn works(&self) {
        self.0.store(true, Relaxed);
    }

    fn has_worked(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// The connections that have places, and the newcomers that have none yet.
#[derive(Debug, Default)]
struct State {
    next: u64,
    /// How many places are taken. While one is free, there are no newcomers.
    taken: u32,
    newcomers: BTreeMap<u64, Newcomer>,
    /// Connections that may have to give way, in the order in which they do.
    waiting: BTreeMap<(Class, u64), Waiting>,
    /// How many connections were told to give way, and have their places still.
    leaving: u32,
    /// How many connections, idle or not, have sent a request.
    asked: u32,
    /// How many connections, idle or not, come from each address, but for those that were told to give way: their
    /// places are as good as free.
    origins: BTreeMap<Origin, u32>,
}

/// One that may have to give way.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    give_way: oneshot::Sender<()>,
    origin: Origin,
    mark: Mark,
}

/// A connection that waits for a place.
#[derive(Debug)]
struct Newcomer {
    origin: Origin,
    place: oneshot::Sender<Presence>,
}

/// The wait of a newcomer, which ends when this is dropped.
#[derive(Debug)]
struct Wait {
    places: Places,
    number: u64,
    place: oneshot::Receiver<Presence>,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.places.state().newcomers.remove(&self.number);
    }
}

impl State {
    fn places_of(&self, origin: &Origin) -> u32 {
        self.origins.get(origin).copied().unwrap_or(0)
    }

    /// How many places the address of a newcomer will have without that one, when all of its newcomers have theirs.
    fn places_with_newcomers(&self, origin: &Origin) -> u32 {
        let newcomers = self.newcomers.values().filter(|one| one.origin == *origin).count();
        self.places_of(origin) + u32::try_from(newcomers.saturating_sub(1)).unwrap_or(u32::MAX)
    }

    fn count_up(&mut self, origin: Origin) {
        *self.origins.entry(origin).or_default() += 1;
    }

    fn count_down(&mut self, origin: Origin) {
        if let Some(count) = self.origins.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.origins.remove(&origin);
            }
        }
    }

    /// The newcomer that gets the next place.
    fn next_newcomer(&self) -> Option<u64> {
        let first = self.newcomers.iter().min_by_key(|(number, one)| (self.places_of(&one.origin), **number));
        first.map(|(number, _)| *number)
    }

    /// The newcomer that is turned away where too many wait.
    fn last_newcomer(&self) -> Option<u64> {
        let crowd = |origin: &Origin| {
            let newcomers = self.newcomers.values().filter(|one| one.origin == *origin).count();
            newcomers + self.places_of(origin) as usize
        };
        let last = self.newcomers.iter().max_by_key(|(number, one)| (crowd(&one.origin), **number));
        last.map(|(number, _)| *number)
    }

    /// Which connection gives way where all do.
    fn of_most_crowded(&self) -> Option<(Class, u64)> {
        let places = |one: &Waiting| self.places_of(&one.origin);
        let first = self.waiting.iter().min_by_key(|(key, one)| (Reverse(places(one)), **key));
        first.map(|(key, _)| *key)
    }

    /// The oldest connection that never sent a request, but for those of addresses with fewer places than the
    /// newcomer's: one that has just come must not make room for the next of a thousand. Also whether it gives way
    /// before others do: its address has more places, or its request is overdue. (Several may come from one address at
    /// a moment.)
    fn oldest_without_request(&self, newcomer: Origin, now: Instant) -> Option<((Class, u64), bool)> {
        let places = |origin: &Origin| self.places_of(origin);
        let own = self.places_with_newcomers(&newcomer);
        let mut waiting = self.waiting.iter().take_while(|((class, _), _)| *class == Class::NeverAsked);
        let (key, one) = waiting.find(|(_, one)| one.origin == newcomer || places(&one.origin) >= own)?;
        let is_overdue = now.duration_since(one.since) >= FIRST_REQUEST_MAX;
        Some((*key, places(&one.origin) > own || is_overdue))
    }

    /// The connection that has been idle for longest, if it has for long.
    fn longest_idle(&self, now: Instant) -> Option<(Class, u64)> {
        let mut idle = self.waiting.range((Class::Idle, 0)..(Class::Busy, 0));
        let (key, one) = idle.next()?;
        (now.duration_since(one.since) >= IDLE_MIN).then_some(*key)
    }

    /// Which connection gives way to a newcomer though it has an outstanding request, or has rested for a short time.
    fn for_newcomer(&self, newcomer: Origin) -> Option<(Class, u64)> {
        let places = |origin: &Origin| self.places_of(origin);
        let own = self.places_with_newcomers(&newcomer);
        let strangers = || {
            self.waiting.iter().filter(|((class, _), one)| *class == Class::Busy && !one.mark.has_worked())
        };
        let elsewhere = strangers().filter(|(_, one)| places(&one.origin) > own);
        let first = elsewhere.min_by_key(|((_, number), one)| (Reverse(places(&one.origin)), *number));
        if let Some((key, _)) = first {
            return Some(*key);
        }
        // Otherwise two addresses would take turns at the last place.
        let most =
            self.origins.iter().max_by_key(|(_, count)| **count).filter(|(_, count)| **count > own + 1);
        let of_most =
            self.waiting.iter().filter(|(_, one)| most.is_some_and(|(most, _)| one.origin == *most));
        let crowded = of_most.map(|((class, number), one)| (*class, one.mark.has_worked(), *number)).min();
        let crowded = crowded.map(|(class, _, number)| (class, number));
        crowded.or_else(|| {
            let mut at_home = strangers().filter(|(_, one)| one.origin == newcomer);
            at_home.next().map(|(key, _)| *key)
        })
    }
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub struct Presence {
    places: Places,
    origin: Origin,
    mark: Mark,
    asked: bool,
    /// Its key among those that may have to give way, while it is one of them.
    listed: Option<(Class, u64)>,
}

impl Places {
    /// This many places.
    pub fn new(max: u32) -> Places {
        Places { max, all_give_way: false, state: Arc::default(), empty: Arc::default() }
    }

    /// Places of which a newcomer always gets one.
    pub fn giving_way(max: u32) -> Places {
        Places { all_give_way: true, ..Places::new(max) }
    }

    /// Takes a place, if one is free.
    pub fn take(&self) -> Option<Presence> {
        self.take_from(None)
    }

    fn take_from(&self, origin: Origin) -> Option<Presence> {
        let mut state = self.state();
        (state.taken < self.max).then(|| self.presence(&mut state, origin))
    }

    /// Takes a place for a connection from there, if one is free or another connection gives way in time.
    pub async fn claim(&self, origin: Origin) -> Option<Presence> {
        let deadline = tokio::time::Instant::now() + GIVE_WAY_TIMEOUT;
        let mut wait = match self.take_or_wait(origin) {
            Ok(place) => return Some(place),
            Err(wait) => wait?,
        };
        let mut told = false;
        loop {
            let now = Instant::now();
            // A connection that is told to give way may send a request at the same time, and stay. Others may be
            // leaving.
            told |= self.make_room(now, origin) || self.state().leaving > 0;
            if !told || tokio::time::Instant::now() >= deadline {
                return None;
            }
            if let Ok(place) = timeout(GIVE_WAY_PACE, &mut wait.place).await {
                // Without one, it was turned away.
                return place.ok();
            }
        }
    }

    /// Takes a place, or waits for one that becomes free. Where too many wait, one of them is turned away: this one, or
    /// another.
    fn take_or_wait(&self, origin: Origin) -> Result<Presence, Option<Wait>> {
        let mut state = self.state();
        if state.taken < self.max {
            return Ok(self.presence(&mut state, origin));
        }
        let number = state.next;
        state.next += 1;
        let (place, granted) = oneshot::channel();
        state.newcomers.insert(number, Newcomer { origin, place });
        if state.newcomers.len() > NEWCOMERS_MAX {
            let last = state.last_newcomer();
            last.and_then(|last| state.newcomers.remove(&last));
            if last == Some(number) {
                return Err(None);
            }
        }
        Err(Some(Wait { places: self.clone(), number, place: granted }))
    }

    fn presence(&self, state: &mut State, origin: Origin) -> Presence {
        state.taken += 1;
        state.count_up(origin);
        Presence { places: self.clone(), origin, mark: Mark::default(), asked: false, listed: None }
    }

    /// Gives a free place to the next newcomer. Returns the place if that has just gone.
    fn grant(&self, state: &mut State) -> Option<Presence> {
        let newcomer = state.next_newcomer().and_then(|number| state.newcomers.remove(&number))?;
        newcomer.place.send(self.presence(state, newcomer.origin)).err()
    }

    /// Tells a connection to give way to a newcomer. Returns whether there is one that must.
    fn make_room(&self, now: Instant, newcomer: Origin) -> bool {
        let mut state = self.state();
        let told = if self.all_give_way {
            state.of_most_crowded()
        } else {
            let without_request = state.oldest_without_request(newcomer, now);
            let (overdue, fresh) = match without_request {
                Some((key, true)) => (Some(key), None),
                Some((key, false)) => (None, Some(key)),
                None => (None, None),
            };
            let rests = || state.longest_idle(now).filter(|_| fresh.is_none() && state.asked > self.max / 2);
            overdue.or_else(rests).or_else(|| state.for_newcomer(newcomer)).or(fresh)
        };
        let Some(told) = told else { return false };
        let told = state.waiting.remove(&told).expect("it is among them");
        state.count_down(told.origin);
        state.leaving += 1;
        // If the connection has ended meanwhile, its place is free.
        let _ = told.give_way.send(());
        true
    }

    /// Waits until every place is free, when the server stops.
    pub async fn all(&self) {
        loop {
            let mut empty = pin!(self.empty.notified());
            empty.as_mut().enable();
            if self.taken() == 0 {
                return;
            }
            empty.await;
        }
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        self.state().taken as usize
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Presence {
    /// Marks the connection as idle. The receiver becomes ready when the connection must give way.
    pub fn idle(&mut self, now: Instant) -> oneshot::Receiver<()> {
        let places = self.places.clone();
        let class = if self.asked { Class::Idle } else { Class::NeverAsked };
        self.list(&mut places.state(), class, now)
    }

    /// Whether the connection works, which is found out where its requests are answered.
    pub fn mark(&self) -> Mark {
        self.mark.clone()
    }

    /// The same place for a connection whose work is that of another one.
    pub fn marking(mut self, mark: Mark) -> Presence {
        self.mark = mark;
        self
    }

    /// Marks the connection as having an outstanding request. It may have to give way all the same.
    pub fn busy(&mut self) -> oneshot::Receiver<()> {
        let places = self.places.clone();
        let mut state = places.state();
        self.unlist(&mut state);
        if !self.asked {
            self.asked = true;
            state.asked += 1;
        }
        self.list(&mut state, Class::Busy, Instant::now())
    }

    fn list(&mut self, state: &mut State, class: Class, now: Instant) -> oneshot::Receiver<()> {
        let (give_way, gives_way) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        self.unlist(state);
        self.listed = Some((class, number));
        let (origin, mark) = (self.origin, self.mark.clone());
        state.waiting.insert((class, number), Waiting { since: now, give_way, origin, mark });
        gives_way
    }

    fn unlist(&mut self, state: &mut State) {
        if let Some(listed) = self.listed.take()
            && state.waiting.remove(&listed).is_none()
        {
            // It was told to give way, and has stayed so far.
            state.leaving -= 1;
            state.count_up(self.origin);
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let places = self.places.clone();
        let mut state = places.state();
        self.unlist(&mut state);
        state.asked -= u32::from(self.asked);
        state.taken -= 1;
        state.count_down(self.origin);
        let gone = places.grant(&mut state);
        if state.taken == 0 {
            places.empty.notify_waiters();
        }
        drop(state);
        // Its place goes to the next newcomer.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_a_request_give_way_first_and_those_that_work_do_not() {
        let (places, now) = (Places::new(4), Instant::now());
        let mut four: Vec<Presence> = (0..4).map(|_| places.take().unwrap()).collect();
        assert!(places.take().is_none());
        assert!(!places.make_room(now, None), "none is idle");
        four.iter().for_each(|one| one.mark().works());
        let mut busy = four[0].busy();
        four[1].busy();
        let mut asked = four[1].idle(now);
        let mut older = four[2].idle(now);
        let mut younger = four[3].idle(now);
        assert!(places.make_room(now, None) && older.try_recv().is_ok());
        assert!(places.make_room(now, None) && younger.try_recv().is_ok());
        assert!(!places.make_room(now, None) && asked.try_recv().is_err());
        // Half of the places belong to connections that have sent a request.
        assert!(!places.make_room(now + IDLE_MIN, None) && asked.try_recv().is_err());
        four[2].busy();
        drop(four[2].idle(now));
        assert!(!places.make_room(now + IDLE_MIN - Duration::from_millis(1), None));
        assert!(places.make_room(now + IDLE_MIN, None) && asked.try_recv().is_ok());
        assert!(busy.try_recv().is_err());
        drop(four);
        assert_eq!(places.taken(), 0);
        assert_eq!(places.state().asked, 0);
        assert!(places.state().waiting.is_empty() && places.state().origins.is_empty());
    }

    /// A thousand that come from one address, and send requests at once or never, push out their own.
    #[test]
    fn one_that_has_just_come_does_not_make_room_for_a_crowd() {
        let (places, now) = (Places::new(5), Instant::now());
        let mut five: Vec<Presence> =
            [2, 1, 1, 1, 1].map(|host| places.take_from(from(host)).unwrap()).into();
        let mut waits: Vec<_> = five.iter_mut().map(|one| one.idle(now)).collect();
        assert!(places.make_room(now, from(1)));
        assert_eq!(told(&mut waits), [1]);
        // One that comes from the same address as the first, at the same moment.
        for number in 2..5 {
            five[number].busy();
            waits[number] = five[number].idle(now);
        }
        assert!(places.make_room(now, from(2)));
        assert_eq!(told(&mut waits), [2], "it rests at the address with most places");
        assert!(places.make_room(now + FIRST_REQUEST_MAX, from(2)));
        assert_eq!(told(&mut waits), [0], "its request is overdue");
    }

    #[test]
    fn where_all_give_way_the_address_with_most_places_loses_one() {
        let (places, now) = (Places::giving_way(4), Instant::now());
        let mut four: Vec<Presence> = [2, 1, 1, 1].map(|host| places.take_from(from(host)).unwrap()).into();
        // The one at the other address is the oldest, and has not asked yet.
        let mut waits: Vec<_> = vec![four[0].idle(now)];
        waits.extend(four[1..].iter_mut().map(Presence::busy));
        assert!(places.make_room(now, from(1)));
        assert_eq!(told(&mut waits), [1]);
        assert!(places.make_room(now, from(3)));
        assert_eq!(told(&mut waits), [2]);
    }

    /// Connections that were told to give way, by their numbers.
    fn told(all: &mut [oneshot::Receiver<()>]) -> Vec<usize> {
        (0..all.len()).filter(|number| all[*number].try_recv().is_ok()).collect()
    }

    fn from(host: u8) -> Origin {
        Some([10, 0, 0, host].into())
    }

    #[test]
    fn a_connection_that_has_done_no_work_gives_way_to_one_at_an_address_with_fewer_or_at_its_own() {
        let (places, now) = (Places::new(6), Instant::now());
        let mut six: Vec<Presence> =
            [1, 1, 1, 2, 2, 3].map(|host| places.take_from(from(host)).unwrap()).into();
        let mut busy: Vec<_> = six.iter_mut().map(Presence::busy).collect();
        [0, 3].into_iter().for_each(|number| six[number].mark().works());
        // The oldest at the address with most places.
        assert!(places.make_room(now, from(4)));
        assert_eq!(told(&mut busy), [1]);
        assert!(places.make_room(now, from(1)));
        assert_eq!(told(&mut busy), [2]);
        // The places of those that were told are theirs until they end.
        six.drain(1..3);
        busy.drain(1..3);
        let mut more: Vec<_> = (0..2).map(|_| places.take_from(from(5)).unwrap()).collect();
        busy.extend(more.iter_mut().map(Presence::busy));
        more.iter().for_each(|one| one.mark().works());
        // An address with no more places than the newcomer's loses none of them, but to itself.
        assert!(places.make_room(now, from(3)));
        assert_eq!(told(&mut busy), [2]);
        assert!(
            !places.make_room(now, from(1)),
            "what works gives way at none with two places, and the last has one"
        );
        assert!(places.make_room(now, from(3)));
        assert_eq!(told(&mut busy), [3]);
    }

    #[test]
    fn the_address_with_most_places_loses_one_to_a_newcomer_at_another() {
        let (places, now) = (Places::new(5), Instant::now());
        let mut five: Vec<Presence> =
            [1, 2, 2, 2, 3].map(|host| places.take_from(from(host)).unwrap()).into();
        five.iter().for_each(|one| one.mark().works());
        let mut all: Vec<_> = five.iter_mut().map(Presence::busy).collect();
        assert!(!places.make_room(now, from(2)), "its own connections work");
        all[3] = five[3].idle(now);
        for expected in [3, 1] {
            assert!(places.make_room(now, from(4)));
            assert_eq!(told(&mut all), [expected]);
        }
        assert!(
            !places.make_room(now, from(4)),
            "the others have no more than the newcomer will have, or were told"
        );
        // One that was told and stays counts again.
        all[3] = five[3].idle(now);
        assert!(places.make_room(now, from(4)));
        assert_eq!(told(&mut all), [3]);
        drop(five);
        assert!(places.state().origins.is_empty() && places.taken() == 0);
    }

    /// Newcomers of one address that come at once take no more than their share.
    #[test]
    fn a_burst_of_newcomers_takes_its_address_s_share() {
        let (places, now) = (Places::new(6), Instant::now());
        let mut six: Vec<Presence> =
            [1, 1, 1, 1, 1, 2].map(|host| places.take_from(from(host)).unwrap()).into();
        six.iter().for_each(|one| one.mark().works());
        let mut all: Vec<_> = six.iter_mut().map(Presence::busy).collect();
        let mut waits = Vec::new();
        for _ in 0..5 {
            waits.extend(newcomers(&places, [3]));
            places.make_room(now, from(3));
        }
        assert_eq!(told(&mut all), [0, 1], "three are left for each");
        // One at another address gets in, though the most crowded address has been told as far as it goes.
        let _new = newcomers(&places, [4]);
        assert!(places.make_room(now, from(4)));
        assert_eq!(told(&mut all), [2]);
    }

    #[test]
    fn where_all_give_way_busy_connections_come_last() {
        let (places, now) = (Places::giving_way(3), Instant::now());
        let mut three: Vec<Presence> = (0..3).map(|_| places.take().unwrap()).collect();
        let mut answers = three[0].busy();
        three[1].busy();
        let mut rests = three[1].idle(now);
        let mut silent = three[2].idle(now);
        for told in [&mut silent, &mut rests, &mut answers] {
            assert!(told.try_recv().is_err() && places.make_room(now, None) && told.try_recv().is_ok());
        }
        assert!(!places.make_room(now, None), "all were told");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_goes_on_to_the_next_if_one_that_was_told_stays() {
        let places = Places::new(2);
        let mut deaf = places.claim(None).await.unwrap();
        let _ignored = deaf.idle(Instant::now());
        let mut polite = places.claim(None).await.unwrap();
        let gives_way = polite.idle(Instant::now());
        tokio::spawn(async move {
            let _ = gives_way.await;
            drop(polite);
        });
        let _newcomer = places.claim(None).await.expect("one gives way");
        let began = tokio::time::Instant::now();
        assert!(places.claim(None).await.is_none(), "the one that was told stays");
        assert!(began.elapsed() >= GIVE_WAY_PACE);
    }

    #[tokio::test(start_paused = true)]
    async fn more_newcomers_than_can_be_told_wait_for_those_that_leave() {
        let places = Places::new(2);
        for _ in 0..2 {
            let mut one = places.claim(None).await.unwrap();
            let gives_way = one.idle(Instant::now());
            tokio::spawn(async move {
                let _ = gives_way.await;
                tokio::time::sleep(GIVE_WAY_PACE * 3).await;
                drop(one);
            });
        }
        let claims = (0..4).map(|_| {
            let places = places.clone();
            tokio::spawn(async move { drop(places.claim(None).await.expect("a place becomes free")) })
        });
        let claims: Vec<_> = claims.collect();
        for claim in claims {
            claim.await.unwrap();
        }
    }
    /// Registers newcomers, and returns their waits by host.
    fn newcomers<const N: usize>(places: &Places, hosts: [u8; N]) -> [Option<Wait>; N] {
        hosts.map(|host| places.take_or_wait(from(host)).expect_err("all places are taken"))
    }

    #[test]
    fn a_free_place_goes_to_the_newcomer_whose_address_has_fewest() {
        let places = Places::new(3);
        let mut three: Vec<Presence> = [1, 1, 2].map(|host| places.take_from(from(host)).unwrap()).into();
        let [crowd, second, gone, new] = newcomers(&places, [1, 2, 3, 4]);
        // A newcomer that has gone takes no place, whether before one was free or after.
        drop(gone);
        drop(three.remove(0));
        let mut new = new.unwrap();
        let place = new.place.try_recv().expect("its address has none");
        drop(three.remove(0));
        let (mut crowd, mut second) = (crowd.unwrap(), second.unwrap());
        let from_crowd = crowd.place.try_recv().expect("its address has none any more, the other's has one");
        assert!(second.place.try_recv().is_err());
        drop(from_crowd);
        drop(second);
        drop((place, three));
        assert_eq!(places.taken(), 0);
        assert!(places.state().newcomers.is_empty() && places.state().origins.is_empty());
    }

    #[test]
    fn where_too_many_wait_the_latest_of_the_most_crowded_address_is_turned_away() {
        let places = Places::new(2);
        let [taken, _stays] = [1, 1].map(|host| places.take_from(from(host)).unwrap());
        let crowd: Vec<_> = (0..NEWCOMERS_MAX).flat_map(|_| newcomers(&places, [1])).collect();
        assert!(crowd.iter().all(Option::is_some));
        assert!(newcomers(&places, [1])[0].is_none());
        let [new] = newcomers(&places, [2]);
        let mut crowd: Vec<_> = crowd.into_iter().flatten().collect();
        let closed = oneshot::error::TryRecvError::Closed;
        assert_eq!(crowd.last_mut().unwrap().place.try_recv().unwrap_err(), closed);
        assert_eq!(places.state().newcomers.len(), NEWCOMERS_MAX);
        drop(taken);
        assert!(new.unwrap().place.try_recv().is_ok());
    }
}
