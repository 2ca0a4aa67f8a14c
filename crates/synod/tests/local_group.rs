//! A group in one process, started as by a person who tries the library.

use std::{io, thread, time::Duration};

use synod::{Context, Frozen, LocalGroup, StateMachine, bytes::Bytes};

/// Answers every command with itself.
#[derive(Default)]
struct Echo;

impl StateMachine for Echo {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        command.clone()
    }
    fn query(&self, query: &Bytes) -> Bytes {
        query.clone()
    }
    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(Bytes::new())
    }
    fn restore(&mut self, _: &mut dyn io::Read) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_leader_that_is_stopped_has_handed_over_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut replicas = LocalGroup::start(folder.path(), 3, Echo::default).await.unwrap();
    replicas.handle(0).execute("a".into()).await.unwrap();
    let leader = loop {
        let leads = (0..3).find(|&index| {
            let status = replicas.handle(index).status();
            status.leader.is_some_and(|leader| leader.0 == index as u64 + 1)
        });
        match leads {
            Some(leader) => break leader,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    // A successor lags for a moment, as long as the last decision is on its way to it.
    let others: Vec<usize> = (0..3).filter(|&index| index != leader).collect();
    for &other in &others {
        replicas.handle(other).query("caught up".into()).await.unwrap();
    }
    replicas.stop(leader).await.unwrap();
    let leads = |of: usize| replicas.handle(of).status().leader.map(|leader| leader.0 as usize - 1);
    assert!(others.iter().any(|&other| leads(other) == Some(other)), "nobody has taken over");
    replicas.handle(others[0]).execute("b".into()).await.unwrap();
}
