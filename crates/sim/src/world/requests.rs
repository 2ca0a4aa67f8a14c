//! Requests of clients at replicas.

use std::time::Duration;

use bytes::Bytes;
use synod_consensus::Role;
use synod_replica::{Outcome, SessionCommand};
use synod_wire::CommandKind;

use super::{
    FIRST, Happening, World,
    clients::{Ask, Heard, Kind, Response, Scripted, TRAVELS},
    waiting::{Question, Waiter},
};
use crate::{
    chart::{Key, Lane},
    check::{Checked, Invariant, Violation, demand},
    network::{Loss, between},
    ops::{Answer, Op},
};

impl World {
    /// A request arrives at a replica.
    pub(super) fn asked(&mut self, of: usize, ask: Ask) -> Checked {
        if !self.machines[of].is_alive() {
            self.chart(|chart| chart.loses(Key::Question(ask.attempt), Loss::Down));
            self.respond(&ask, Response::Refused);
            return Ok(());
        }
        self.chart(|chart| chart.arrives(Key::Question(ask.attempt), Lane::Replica(of)));
        let group = ask.group;
        let kind = match ask.kind {
            Kind::Read => return self.query(of, group, Question::Client(ask)),
            Kind::Command => CommandKind::Apply,
            Kind::OpenSession => CommandKind::OpenSession,
        };
        let (session, payload) = (ask.session, ask.payload.clone());
        self.command(of, group, (kind, session, payload), Waiter::Client(ask))
    }

    /// Whether a script's attempt is not answered yet.
    pub(super) fn is_asked_in_script(&self, attempt: u64) -> bool {
        self.clients.scripted.contains_key(&attempt)
    }

    /// A script sends a request to a replica, after a while; the answer shows in the trace. Returns the number of the
    /// attempt.
    pub(crate) fn ask_in_script(
        &mut self,
        of: usize,
        op: Option<Op>,
        id: Option<u64>,
        session: Option<SessionCommand>,
        text: String,
        wait: Duration,
    ) -> Result<u64, Violation> {
        self.clients.asked += 1;
        let attempt = self.clients.asked;
        let payload = op.as_ref().map_or_else(Bytes::new, |op| op.encode(id.unwrap_or(attempt), 0));
        let kind = match &op {
            None => Kind::OpenSession,
            Some(op) if op.is_read() => Kind::Read,
            Some(_) => Kind::Command,
        };
        if kind != Kind::Read {
            self.checks[self.focus].log.submitted(&payload);
        }
        self.chart(|chart| chart.asks(attempt, of, text.clone()));
        self.clients.scripted.insert(attempt, Scripted { text, op });
        let ask = Ask { group: self.focus, client: 0, worker: 0, attempt, session, kind, payload };
        if wait.is_zero() {
            self.asked(of, ask)?;
        } else {
            self.queue.push(self.now + wait, Happening::Asked { of, ask });
        }
        Ok(attempt)
    }

    fn answer_in_script(&mut self, attempt: u64, scripted: &Scripted, response: &Response) {
        let Scripted { text, op } = scripted;
        let answer = match (response, op) {
            (Response::Reply(reply), Some(op)) => match Answer::decode(op, reply) {
                Some(answer) => answer.to_string(),
                None => "a reply of another kind".to_owned(),
            },
            (Response::Reply(reply), None) => {
                format!("session s{}", reply.iter().rev().fold(0_u64, |id, byte| id << 8 | u64::from(*byte)))
            }
            _ => describe_response(response),
        };
        let told = format!("{text}: {answer}");
        self.chart(|chart| match response.travels() {
            true => {
                chart.answers(attempt, told);
                chart.arrives(Key::Answer(attempt), Lane::Clients);
            }
            false => chart.marks_clients(told),
        });
        self.trace.line(self.now, || format!("client    {text}: {answer}"));
    }

    pub(super) fn respond(&mut self, ask: &Ask, response: Response) {
        if let Some(scripted) = self.clients.scripted.remove(&ask.attempt) {
            return self.answer_in_script(ask.attempt, &scripted, &response);
        }
        if response.travels() {
            self.chart(|chart| chart.answers(ask.attempt, describe_response(&response)));
        }
        let travels = between(&mut self.clients.rng, TRAVELS.0, TRAVELS.1);
        let Ask { client, worker, attempt, .. } = *ask;
        self.queue.push(self.now + travels, Happening::Heard(Heard { client, worker, attempt, response }));
    }

    /// A replica has the outcome of a client's command.
    pub(super) fn client_answered(&mut self, of: usize, ask: &Ask, outcome: Outcome) {
        let response = match outcome {
            Outcome::Reply(reply) => {
                self.note_renewal(of, &ask.payload, &reply);
                Response::Reply(reply)
            }
            Outcome::Error(error) => Response::Failed(error),
            Outcome::Unanswered => unreachable!("it was asked for"),
        };
        self.respond(ask, response);
    }

    /// A replica answers a client's query from what it has executed.
    pub(super) fn client_reads(&mut self, of: usize, ask: &Ask) {
        let Some(life) = &self.machines[of].life else { return };
        let role = life.replica(ask.group).status().protocol.role;
        self.coverage.follower_reads += u64::from(role != Role::Leader);
        let reply = life.executor(ask.group).query(&ask.payload);
        self.respond(ask, Response::Reply(reply));
    }

    /// A read of whatever state a replica has: it must be the state after some slot, and no older than one
    /// seen at this replica before.
    pub(super) fn peek(&mut self, of: usize) -> Checked {
        let keys = self.plan.clients.keys;
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        // Within a batch it waits for the rest.
        let Some(executor) = life.states[FIRST].whole() else { return Ok(()) };
        self.coverage.stale_reads += 1;
        let op = Op::Get { first: 1, last: keys };
        let reply = executor.query(&op.encode(0, 0));
        let revision = Answer::decode(&op, &reply).and_then(|answer| answer.revision()).unwrap_or(0);
        let before = std::mem::replace(&mut life.seen_revision, revision);
        demand(revision >= before, Invariant::Monotone, || {
            format!("a stale read at r{} shows revision {revision} after {before}", of + 1)
        })?;
        self.check_state(of, FIRST)
    }
}

/// The text of a response.
pub(super) fn describe_response(response: &Response) -> String {
    match response {
        Response::Reply(reply) => format!("a reply of {} bytes", reply.len()),
        Response::Failed(error) => error.to_string(),
        Response::Refused => "nothing: connection refused".to_owned(),
        Response::Broken => "nothing more: connection broken".to_owned(),
    }
}
