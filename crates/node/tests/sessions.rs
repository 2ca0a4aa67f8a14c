//! What a replica makes of peers that are not what they should be.

mod common;

use std::{sync::mpsc, time::Duration};

use common::Group;
use synod_transport::{Event, Peer, Transport};
use synod_wire::{ClusterId, Incarnation, Writer};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_message_that_does_not_decode_ends_the_session() {
    let group = Group::new(2, |_| {});
    let _node = group.start(1);
    let [one, two] = &group.members[..] else { unreachable!("two were asked for") };

    let (tell, events) = mpsc::channel();
    let other = synod_transport::Config {
        listen: vec![two.address.parse().unwrap()],
        peers: vec![Peer { id: one.id, address: one.address.clone() }],
        ..synod_transport::Config::new(ClusterId(7), two.id, Incarnation(1), 22)
    };
    let sink = move |event| {
        _ = tell.send(event);
        Ok(())
    };
    let transport = Transport::start(other, sink).unwrap();
    let wait = |wanted: fn(&Event) -> bool| while !wanted(&events.recv_timeout(PATIENCE).unwrap()) {};
    wait(|event| matches!(event, Event::Up { .. }));
    let mut nonsense = Writer::new();
    nonsense.bytes(b"what no version says");
    transport.sender().send(one.id, nonsense.finish());
    wait(|event| matches!(event, Event::Down { .. }));
    // It is no reason to shut the peer out for good.
    wait(|event| matches!(event, Event::Up { .. }));
}
