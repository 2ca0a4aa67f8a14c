//! The client in the replicas' process: it keeps proposals outstanding, follows the leader, and counts answers.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_consensus::Role;
use synod_node::Handle;
use synod_replica::RequestError;
use synod_wire::ReplicaId;
use tokio::time::{sleep, timeout_at};

use super::{BIN, Load, Outcome, registry::Values, waiter::Waiter};

/// How often the client checks which replica leads.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// The pause before a refused proposal is sent again.
const RESEND_DELAY: Duration = Duration::from_millis(10);

/// A replica as the client sees it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) id: ReplicaId,
    pub(super) handle: Handle,
    /// The delays of a message to it and of the answer.
    pub(super) way: (Duration, Duration),
}

/// A client with a constant number of outstanding proposals. All its tasks run on one thread.
#[derive(Debug)]
pub(super) struct Client {
    targets: Vec<Target>,
    leader: Cell<Option<usize>>,
    answer_timeout: Duration,
    next: Cell<u64>,
    /// The beginning and end of the time in which answers count.
    window: Cell<Option<(Instant, Instant)>>,
    over: Cell<bool>,
    tally: RefCell<Tally>,
}

#[derive(Debug)]
struct Tally {
    outcome: Outcome,
    acknowledged: Values,
    last_answer: Option<Instant>,
}

impl Client {
    pub(super) fn new(targets: Vec<Target>, load: &Load) -> Rc<Client> {
        let tally = Tally { outcome: Outcome::new(), acknowledged: Values::default(), last_answer: None };
        Rc::new(Client {
            targets,
            leader: Cell::new(None),
            answer_timeout: load.answer_timeout,
            next: Cell::new(0),
            window: Cell::new(None),
            over: Cell::new(false),
            tally: RefCell::new(tally),
        })
    }

    /// Finds the leader. If several replicas claim to lead, it is the one with the highest ballot.
    pub(super) fn look(&self) {
        let leads = self.targets.iter().enumerate().filter_map(|(index, target)| {
            let status = target.handle.status();
            (status.role == Role::Leader).then_some((status.epoch, status.ballot, index))
        });
        let Some((.., leader)) = leads.max() else { return };
        if self.leader.replace(Some(leader)) != Some(leader) {
            self.tally.borrow_mut().outcome.leaders.push(self.targets[leader].id);
        }
    }

    /// The replica to ask: the leader, or any replica while no leader is known.
    pub(super) fn leader(&self) -> Option<&Target> {
        self.leader.get().map(|leader| &self.targets[leader])
    }

    pub(super) async fn follow(self: Rc<Client>) {
        while !self.over.get() {
            self.look();
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Counts answers from now on.
    pub(super) fn open(&self, window: Duration) {
        let now = Instant::now();
        self.window.set(Some((now, now + window)));
        let mut tally = self.tally.borrow_mut();
        tally.last_answer = Some(now);
        let leading = tally.outcome.leaders.last().copied();
        tally.outcome.leaders = leading.into_iter().collect();
        tally.outcome.timeline = vec![0.0; (window.as_secs_f64() / BIN.as_secs_f64()).ceil() as usize];
        tally.outcome.seconds = window.as_secs_f64();
        (tally.outcome.timed_out, tally.outcome.resent) = (0, 0);
    }

    pub(super) fn stop(&self) {
        self.over.set(true);
    }

    pub(super) fn values(&self) -> u64 {
        self.next.get()
    }

    /// Keeps one proposal outstanding: as soon as it is answered, it sends the next. With a waiter, that thread asks.
    pub(super) async fn propose(self: Rc<Client>, waiter: Option<Waiter>) {
        while !self.over.get() {
            let value = self.next.get();
            self.next.set(value + 1);
            self.order(value, waiter.as_ref()).await;
        }
    }

    async fn order(&self, value: u64, waiter: Option<&Waiter>) {
        let began = Instant::now();
        let deadline = tokio::time::Instant::from_std(began + self.answer_timeout);
        let command = Bytes::copy_from_slice(&value.to_le_bytes());
        loop {
            match timeout_at(deadline, self.ask(command.clone(), waiter)).await {
                Err(_) => return self.count(began, None),
                // The command was executed, and only its (empty) reply is not known.
                Ok(Ok(_) | Err(RequestError::OutcomeUnknown)) => return self.count(began, Some(value)),
                Ok(Err(_)) if self.over.get() => return,
                Ok(Err(_)) => {
                    self.tally.borrow_mut().outcome.resent += 1;
                    sleep(RESEND_DELAY).await;
                }
            }
        }
    }

    async fn ask(&self, command: Bytes, waiter: Option<&Waiter>) -> Result<Bytes, RequestError> {
        let target = self.leader().ok_or(RequestError::NoLeader)?;
        wait(target.way.0).await;
        let answer = match waiter {
            None => target.handle.execute(command).await,
            Some(waiter) => waiter.execute(target.handle.clone(), command).await,
        };
        wait(target.way.1).await;
        answer
    }

    fn count(&self, began: Instant, answered: Option<u64>) {
        let now = Instant::now();
        let tally = &mut *self.tally.borrow_mut();
        if let Some(value) = answered {
            tally.acknowledged.insert(value);
        }
        let Some((from, _)) = self.window.get().filter(|(_, until)| now < *until) else { return };
        let outcome = &mut tally.outcome;
        outcome.answered += 1;
        outcome.timed_out += u64::from(answered.is_none());
        let nanoseconds = u64::try_from((now - began).as_nanos()).unwrap_or(u64::MAX);
        outcome.latency.saturating_record(nanoseconds);
        outcome.timeline[((now - from).as_nanos() / BIN.as_nanos()) as usize] += 1.0;
        if answered.is_some() {
            let last = tally.last_answer.replace(now).unwrap_or(from);
            outcome.longest_gap = outcome.longest_gap.max(now - last);
        }
    }

    /// Returns the outcome, and the values that were acknowledged.
    pub(super) fn finish(self: Rc<Client>) -> (Outcome, Values) {
        let client = Rc::into_inner(self).expect("all tasks have ended");
        let tally = client.tally.into_inner();
        let mut outcome = tally.outcome;
        // A gap that lasted to the end of the window counts too.
        if let (Some(last), Some((_, until))) = (tally.last_answer, client.window.get()) {
            outcome.longest_gap = outcome.longest_gap.max(until.saturating_duration_since(last));
        }
        (outcome, tally.acknowledged)
    }
}

async fn wait(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}
