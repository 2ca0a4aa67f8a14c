//! Revisions that are larger than a stream has room for.

use super::*;

/// Large revisions wait on few streams at a time, and take nothing from what is small.
#[test]
fn large_revisions_that_nobody_reads_are_bounded_and_others_get_theirs_later() {
    let mut world = World::new(1 << 30);
    (0..40).for_each(|n| world.put(&format!("k{n}"), &"v".repeat(100_000)));
    let large: Vec<_> = (0..30).map(|_| world.open()).collect();
    large.iter().for_each(|&stream| world.watch(stream, "k", "l", 0));
    let small = world.open();
    world.watch(small, "x", "", 0);
    world.run();
    let read = |world: &World, stream: usize| {
        let events = |item: Item| if let Item::Events { events, .. } = item { events.len() } else { 0 };
        world.items(stream).into_iter().map(events).sum::<usize>()
    };
    large.iter().for_each(|&stream| assert_eq!(read(&world, stream), 0, "they are created"));
    read(&world, small);
    world.delete_all();
    world.run();
    let holding =
        |world: &World| large.iter().filter(|&&stream| world.streams[stream].large().is_some()).count();
    let most = ALL_BYTES_MAX / (40 * 100_000);
    assert!((most - 1..=most).contains(&holding(&world)), "{}", holding(&world));
    assert!(world.all.bytes() == 0 && world.hub.places()["large"] == large.len() - holding(&world));
    for _ in 0..500 {
        world.put("x", &"v".repeat(100));
    }
    world.run();
    assert_eq!(read(&world, small), 500, "they do not wait");
    // Those that read, or leave, make room for others.
    drop(std::mem::replace(
        &mut world.streams[large[0]],
        Arc::new(Outgoing::new(99, Arc::default(), world.messages.clone())),
    ));
    world.ask(large[0], Request::Close);
    for &stream in &large[1..] {
        world.run();
        assert_eq!(read(&world, stream), 40);
    }
    assert!(holding(&world) == 0 && world.all.bytes() == 0);
}

/// Keys of a revision that is larger than a stream has room for.
const LARGE: usize = 40;

fn put_large(world: &mut World) {
    let put = |n| testing::op_put(&format!("k{n}"), &"v".repeat(100_000));
    let success = (0..LARGE).map(put).collect();
    world.execute(Command::Txn(TxnRequest { success, ..Default::default() }));
}

/// How many events of the range `k` a stream is given.
fn told_large(world: &World, stream: usize) -> usize {
    let of_large = |item| match item {
        Item::Events { events, .. } if events.len() >= LARGE => events.len(),
        _ => 0,
    };
    world.items(stream).into_iter().map(of_large).sum()
}

/// The store makes no events of such a revision: everybody reads it from views.
#[test]
fn live_watchers_do_not_wait_for_those_that_read_a_revision_of_many_changes() {
    let (watchers, changes) = (20, 70_000);
    let mut world = World::new(1 << 30);
    let others: Vec<_> = (0..watchers).map(|_| world.open()).collect();
    others.iter().for_each(|&stream| world.watch(stream, "k", "l", 0));
    let live = world.open();
    world.watch(live, "x", "", 0);
    (0..changes).for_each(|n| world.put(&format!("k{n}"), ""));
    world.run();
    others.iter().for_each(|&stream| drop(world.items(stream)));
    world.items(live);
    world.delete_all();
    // Then all of them have lost sight, and read the revision once.
    world.burst(usize::MAX);
    assert_eq!(world.hub.places().get("live"), None);
    while !world.hub.places().contains_key("live") {
        world.burst(usize::MAX);
    }
    world.items(live);
    let (mut bursts, mut told, mut passes) = (0, 0, 0);
    while told < watchers {
        world.put("x", "");
        world.burst(usize::MAX);
        passes += world.hub.inside.iter().filter(|reading| reading.at.1 <= 1024).count();
        bursts += 1;
        assert_eq!(world.items(live).len(), 1, "burst {bursts}");
        let held = world.hub.watchers.values().map(|one| bytes_of(&one.pending)).sum::<usize>();
        assert!(held <= ALL_BYTES_MAX + (80 << 20), "{held} bytes at burst {bursts}");
        if bursts % 500 == 0 {
            for &stream in &others {
                told += usize::from(
                    world
                        .items(stream)
                        .iter()
                        .any(|item| matches!(item, Item::Events { events, .. } if events.len() == changes)),
                );
            }
        }
    }
    // Some watchers read it together until it is large, and each once with a place.
    assert!((1..=2 * watchers).contains(&passes), "{passes}");
    world.run();
    assert_eq!(world.hub.places(), [("live", watchers + 1)].into());
}

/// One group at a time is inside a revision, and the others have every second turn.
#[test]
fn those_that_lack_the_past_do_not_wait_for_those_that_read_a_revision_of_many_changes() {
    let mut world = World::new(1 << 30);
    (0..70_000).for_each(|n| world.put(&format!("k{n}"), ""));
    // Of each of these revisions a slice may end with a part.
    for _ in 0..10_000 {
        let success = ["x", "y", "z"].map(|key| testing::op_put(key, "")).into();
        world.execute(Command::Txn(TxnRequest { success, ..Default::default() }));
    }
    world.delete_all();
    let large = world.store.revision();
    let (inside, behind) = (world.open(), world.open());
    let create = |world: &World, stream: usize, key: &str, start_revision: i64| {
        let request = WatchCreateRequest { key: key.to_owned().into(), start_revision, ..Default::default() };
        world.create(stream, &request);
    };
    create(&world, inside, "k0", large);
    world.burst(usize::MAX);
    while world.hub.inside.is_none() {
        world.burst(usize::MAX);
    }
    create(&world, behind, "x", 70_002);
    let (mut told, mut bursts) = (0, 0);
    while told < 10_000 {
        // There are always some that read the large revision.
        create(&world, inside, "k0", large);
        world.burst(usize::MAX);
        drop(world.items(inside));
        for item in world.items(behind) {
            told += if let Item::Events { events, .. } = item { events.len() } else { 0 };
        }
        bursts += 1;
        assert!(bursts < 4 * 100_000 / 1_024, "{told} of 10,000 are told");
    }
    let mut left = 0;
    while world.hub.counts().1 > 0 {
        world.burst(usize::MAX);
        drop((world.items(inside), world.items(behind)));
        left += 1;
        assert!(left < 10_000, "{:?}", world.hub.places());
    }
}

/// Without a place nobody reads a large revision: that would be work for nothing.
#[test]
fn those_that_wait_for_a_place_cost_nothing_and_have_theirs_before_those_that_come_later() {
    let mut world = World::new(1 << 30);
    let places = ALL_BYTES_MAX / (LARGE * 100_000);
    let first: Vec<_> = (0..places + 3).map(|_| world.open()).collect();
    first.iter().for_each(|&stream| world.watch(stream, "k", "l", 0));
    world.run();
    first.iter().for_each(|&stream| drop(world.items(stream)));
    put_large(&mut world);
    world.run();
    let count = |world: &World, of| world.hub.places().get(of).copied().unwrap_or(0);
    let waiting = count(&world, "large");
    assert!(waiting >= 3 && !world.hub.has_work(), "{:?}", world.hub.places());
    let behind: Vec<_> = first.iter().copied().filter(|&s| world.streams[s].large().is_none()).collect();
    assert_eq!(behind.len(), waiting);
    // Those that are live would have each next place, if they went before those that wait.
    let mut told = vec![0; behind.len()];
    for _ in 0..100 {
        put_large(&mut world);
        world.burst(usize::MAX);
        first.iter().filter(|stream| !behind.contains(stream)).for_each(|&stream| drop(world.items(stream)));
        behind.iter().zip(&mut told).for_each(|(&stream, told)| *told += told_large(&world, stream));
    }
    assert!(told.iter().all(|&events| events >= 5 * LARGE), "{told:?}");
}

/// What else waits on a stream does not keep a large revision from its place.
#[test]
fn a_busy_watch_does_not_hold_up_a_large_revision_of_the_same_stream() {
    let mut world = World::new(1 << 30);
    let stream = world.open();
    world.watch(stream, "k", "l", 0);
    world.watch(stream, "a", "", 0);
    world.run();
    world.items(stream);
    (0..100).for_each(|_| world.put("a", &"v".repeat(10_000)));
    world.run();
    assert_eq!(world.hub.places(), [("full", 1), ("live", 1)].into());
    put_large(&mut world);
    world.run();
    assert!(world.streams[stream].large().is_some());
    assert_eq!(told_large(&world, stream), LARGE);
    world.run();
    assert!(world.hub.places.take(stream as u64, 0, 1), "its place is free again");
}
