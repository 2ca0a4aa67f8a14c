//! When the messages of a replica leave: each once its own record is durable, and no later; those whose records become
//! durable together in the order in which they were sent (docs/decisions/0028-a-host-without-threads.md).

use synod_wire::Lsn;

use super::invariant::{Checked, Invariant, demand};

/// The messages of a replica's life that have not left, in the order in which they were sent, each with its number and
/// the record that it rests on.
#[derive(Debug, Default)]
pub(crate) struct SentMessages {
    last: u64,
    waiting: Vec<(u64, Lsn)>,
}

impl SentMessages {
    /// The replica sends a message. Returns its number.
    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The message with this number, which rests on record `after`, leaves at once or waits, while the log is durable
    /// through a record.
    pub(crate) fn sent(&mut self, number: u64, after: Lsn, durable: Lsn, leaves: bool) -> Checked {
        if !leaves {
            self.waiting.push((number, after));
        }
        demand(leaves == (after <= durable), Invariant::GateOrder, || {
            let what = if leaves { "leaves" } else { "waits" };
            format!("a message that rests on record {after} {what}; the log is durable through {durable}")
        })
    }

    /// These messages leave now that the log is durable through a record.
    pub(crate) fn leave(&mut self, durable: Lsn, left: impl Iterator<Item = u64>) -> Checked {
        let ready = self.waiting.extract_if(.., |(_, after)| *after <= durable).map(|(number, _)| number);
        let (ready, left): (Vec<u64>, Vec<u64>) = (ready.collect(), left.collect());
        demand(ready == left, Invariant::GateOrder, || {
            format!(
                "with the log durable through {durable} messages {left:?} leave; they should be {ready:?}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> SentMessages {
        let mut sent = SentMessages::default();
        for after in [5, 4, 6] {
            let number = sent.number();
            sent.sent(number, Lsn(after), Lsn(3), false).expect("it has to wait");
        }
        sent
    }

    #[test]
    fn what_is_ready_leaves_in_the_order_in_which_it_was_sent() {
        assert!(three().leave(Lsn(5), [1, 2].into_iter()).is_ok());
        for wrong in [&[2, 1][..], &[1], &[1, 2, 3], &[]] {
            let found = three().leave(Lsn(5), wrong.iter().copied());
            assert_eq!(found.unwrap_err().invariant, Invariant::GateOrder);
        }
    }

    #[test]
    fn a_message_waits_for_its_own_record_alone() {
        let mut sent = three();
        assert!(sent.sent(4, Lsn(3), Lsn(3), true).is_ok());
        assert!(sent.sent(5, Lsn(3), Lsn(3), false).is_err(), "nothing holds it");
        assert!(sent.sent(6, Lsn(4), Lsn(3), true).is_err(), "its record is not durable");
    }
}
