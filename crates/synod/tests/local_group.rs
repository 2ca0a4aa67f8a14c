//! A group in one process, started as by a person who tries the library.

use std::{io, thread, time::Duration};

use synod::{Config, Context, Frozen, LocalGroup, Session, SessionError, StateMachine, bytes::Bytes};

/// Remembers all commands, and answers each with itself.
#[derive(Default)]
struct Journal(Vec<u8>);

impl StateMachine for Journal {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        self.0.extend_from_slice(command);
        command.clone()
    }
    fn query(&self, _: &Bytes) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(Bytes::copy_from_slice(&self.0))
    }
    fn restore(&mut self, snapshot: &mut dyn io::Read) -> io::Result<()> {
        self.0.clear();
        snapshot.read_to_end(&mut self.0).map(drop)
    }
}

#[tokio::test]
async fn a_leader_that_is_stopped_has_handed_over_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut replicas = LocalGroup::start(folder.path(), 3, Journal::default).await.unwrap();
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

/// More than one, since a request for a session that is sent again may open two.
const SESSIONS_MAX: usize = 4;

#[tokio::test]
async fn a_session_has_each_command_executed_once_without_a_majority_and_after_it_has_expired() {
    let folder = tempfile::tempdir().unwrap();
    let tune = |config: &mut Config| {
        config.settings.request_timeout = Duration::from_millis(500);
        config.settings.limits.sessions.clients_max = SESSIONS_MAX;
    };
    let mut replicas = LocalGroup::start_with(folder.path(), 2, Journal::default, tune).await.unwrap();
    let session = Session::open(replicas.handle(0), 2, Duration::from_secs(60)).await.unwrap();
    let both = tokio::join!(session.execute("a".into()), session.execute("b".into()));
    assert_eq!(both, (Ok("a".into()), Ok("b".into())));

    replicas.stop(1).await.unwrap();
    let (sent, ()) = tokio::join!(session.execute("c".into()), async {
        // It is sent several times by then.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        replicas.restart(1, Journal::default()).await.unwrap();
    });
    assert_eq!(sent, Ok("c".into()));

    // This many others close this one.
    for _ in 0..SESSIONS_MAX {
        Session::open(replicas.handle(1), 1, Duration::from_secs(60)).await.unwrap();
    }
    let before = session.id();
    let expired = session.execute("d".into()).await;
    assert!(matches!(expired, Err(SessionError::Expired)), "{expired:?}");
    session.execute("e".into()).await.unwrap();
    assert_ne!(session.id(), before);

    let journal = replicas.handle(0).query(Bytes::new()).await.unwrap();
    assert!(["abce", "bace"].iter().any(|expected| journal == expected), "{journal:?}");
}
