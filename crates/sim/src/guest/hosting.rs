//! The state machine of the simulated replicas: the store, and beside it that of a guest.

use std::{
    cell::RefCell,
    io::{self, Read, Write},
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use synod_api::{
    etcdserverpb::LeaseLeasesRequest,
    synod::v1::{KvQuery, kv_answer::Answer as QueryAnswer, kv_query::Query},
};
use synod_kv::KvStore;
use synod_replica::{Answer, Context, Frozen, StateMachine};
use synod_wire::SessionId;

use super::{AnyGuest, AnyMachine, Input, command_in, query_in};
use crate::{backup, check::Journal};

/// The store, and the machine of a guest if there is one.
#[derive(Debug)]
pub(crate) struct Hosting {
    store: KvStore,
    guest: Option<Box<dyn AnyMachine>>,
    /// The leases that the clock has ended, each with the store's revision after that, since they were last taken.
    ended: RefCell<Vec<(i64, i64)>>,
    /// What the store goes through, if somebody wants to know.
    journal: Option<Box<RefCell<Journal>>>,
    /// What the guest's machine was given since it was last taken, at the reference.
    inputs: Option<RefCell<Vec<Input>>>,
}

impl Hosting {
    /// That of the reference, which keeps what the guest's machine is given.
    pub(crate) fn of_reference(guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
        Hosting { inputs: guest.map(|_| RefCell::default()), ..Hosting::of(KvStore::new(), guest) }
    }

    /// That of a replica, with a store that is still in its initial state.
    pub(crate) fn of(store: KvStore, guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
        let guest = guest.map(|guest| guest.machine());
        Hosting { store, guest, ended: RefCell::default(), journal: None, inputs: None }
    }

    /// The same, which keeps a journal of the store.
    pub(crate) fn with_journal(self) -> Hosting {
        Hosting { journal: Some(Box::default()), ..self }
    }

    /// The same with the state of a backup: the store has executed these commands, none of which is in a log, and the
    /// guest has made its machine.
    pub(crate) fn with_backup(mut self, commands: &[Bytes], guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
        for command in commands {
            let reply = self.store.apply(command, &Context::new(backup::SLOT));
            if let Some(journal) = &mut self.journal {
                journal.get_mut().executed(&self.store, command, &reply);
            }
        }
        self.guest = guest.map(|guest| guest.backup());
        self
    }

    pub(crate) fn store(&self) -> &KvStore {
        &self.store
    }

    /// The journal, if one is kept.
    pub(crate) fn journal(&self) -> Option<&RefCell<Journal>> {
        self.journal.as_deref()
    }

    /// The leases that the clock has ended since the last call, each with the store's revision after that.
    pub(crate) fn take_ended(&self) -> Vec<(i64, i64)> {
        self.ended.take()
    }

    /// What the guest's machine was given since the last call.
    pub(crate) fn take_inputs(&self) -> Vec<Input> {
        self.inputs.as_ref().map(RefCell::take).unwrap_or_default()
    }

    fn leases(&self) -> Vec<i64> {
        if self.store.waits_for().is_none() {
            return Vec::new();
        }
        let query = KvQuery { query: Some(Query::LeaseLeases(LeaseLeasesRequest {})), ..KvQuery::default() };
        match self.store.query(&query) {
            Ok(QueryAnswer::LeaseLeases(found)) => found.leases.iter().map(|lease| lease.id).collect(),
            other => unreachable!("leases are always listed: {other:?}"),
        }
    }

    pub(crate) fn guest(&self) -> Option<&dyn AnyMachine> {
        self.guest.as_deref()
    }
}

impl StateMachine for Hosting {
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        match (&mut self.guest, command_in(command)) {
            (Some(guest), Some(command)) => {
                let reply = guest.apply(&command, context);
                if let Some(inputs) = &mut self.inputs {
                    inputs.get_mut().push(Input::Command(command, *context));
                }
                reply
            }
            _ => {
                let reply = self.store.apply(command, context);
                if let Some(journal) = &mut self.journal {
                    journal.get_mut().executed(&self.store, command, &reply);
                }
                reply
            }
        }
    }

    fn clock_moved(&mut self, context: &Context, mover: SessionId) {
        if let Some(guest) = &mut self.guest {
            guest.clock_moved(context, mover);
            if let Some(inputs) = &mut self.inputs {
                inputs.get_mut().push(Input::Clock(mover, *context));
            }
        }
        let before = self.leases();
        StateMachine::clock_moved(&mut self.store, context, mover);
        if let Some(journal) = &mut self.journal {
            journal.get_mut().clock_moved(&self.store);
        }
        if !before.is_empty() {
            let (left, revision) = (self.leases(), self.store.revision());
            self.ended
                .get_mut()
                .extend(before.into_iter().filter(|id| !left.contains(id)).map(|id| (id, revision)));
        }
    }

    fn waits_for(&self) -> Option<Duration> {
        let guest = self.guest.as_ref().and_then(|guest| guest.waits_for());
        guest.into_iter().chain(self.store.waits_for()).min()
    }

    fn query(&self, query: &Bytes) -> Bytes {
        match (&self.guest, query_in(query)) {
            (Some(guest), Some(query)) => guest.query(&query),
            _ => StateMachine::query(&self.store, query),
        }
    }

    fn answer(&self, query: &Bytes) -> Answer {
        match (&self.guest, query_in(query)) {
            (Some(guest), Some(query)) => guest.answer(&query),
            _ => self.store.answer(query),
        }
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        let store = StateMachine::freeze(&self.store);
        match &self.guest {
            Some(guest) => Box::new(Both { guest: guest.freeze(), store }),
            None => store,
        }
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        if let Some(guest) = &mut self.guest {
            let mut len = [0; 8];
            snapshot.read_exact(&mut len)?;
            let len = u64::from_le_bytes(len);
            let mut own = Vec::new();
            (&mut *snapshot).take(len).read_to_end(&mut own)?;
            guest.restore(&mut &own[..])?;
        }
        self.store.restore(snapshot)
    }

    fn digest(&self) -> u64 {
        let guest = self.guest.as_ref().map_or(0, |guest| guest.digest());
        StateMachine::digest(&self.store) ^ guest.rotate_left(17)
    }
}

/// The guest's state, after its length, and the store's.
struct Both {
    guest: Box<dyn Frozen>,
    store: Box<dyn Frozen>,
}

impl Frozen for Both {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut own = Vec::new();
        self.guest.write_to(&mut own)?;
        out.write_all(&(own.len() as u64).to_le_bytes())?;
        out.write_all(&own)?;
        self.store.write_to(out)
    }
}
