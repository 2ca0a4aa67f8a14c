//! Simple tokens: a secret that the server of a client has drawn, and a number that the log gives. Every replica learns
//! of them as it executes the log, and keeps them in memory for a while after they were last used.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use synod_kv::Token;

/// Letters of a secret: about 137 bits.
const SECRET_LETTERS: usize = 24;
const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Bytes of tokens and their users' names that are kept. Beyond, the oldest are void.
pub(super) const BYTES_MAX: usize = 32 << 20;
/// What a token takes besides its texts.
const TOKEN_BYTES: usize = 128;
/// How often it is looked which tokens are void.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Tokens {
    ttl: Duration,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// By their numbers, which are no secret: a secret is only ever compared with one other.
    tokens: BTreeMap<u64, Entry>,
    bytes: usize,
    swept: Instant,
}

struct Entry {
    secret: Box<str>,
    user: Box<str>,
    until: Instant,
}

impl std::fmt::Debug for Entry {
    /// A secret must not come into a message of the log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        TOKEN_BYTES + self.secret.len() + self.user.len()
    }
}

impl Known {
    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.tokens.remove(&number) {
            self.bytes -= entry.bytes();
        }
    }

    fn retain(&mut self, keeps: impl Fn(&Entry) -> bool) {
        let void: Vec<u64> =
            self.tokens.iter().filter(|(_, entry)| !keeps(entry)).map(|(number, _)| *number).collect();
        void.into_iter().for_each(|number| self.remove(number));
    }
}

impl Tokens {
    pub(super) fn new(ttl: Duration) -> Tokens {
        let known = Known { tokens: BTreeMap::new(), bytes: 0, swept: Instant::now() };
        Tokens { ttl, known: Mutex::new(known) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token was issued. A replica that reads its log again after a restart, or catches up, learns of old ones too,
    /// so its age by the clock of the server that issued it counts.
    pub(super) fn add(&self, token: &Token<'_>) {
        self.add_at(token, Instant::now(), now_ms());
    }

    fn add_at(&self, token: &Token<'_>, now: Instant, now_ms: u64) {
        let age = Duration::from_millis(now_ms.saturating_sub(token.issued_ms));
        let Some(left) = self.ttl.checked_sub(age).filter(|left| !left.is_zero()) else { return };
        let mut known = self.known();
        if now.duration_since(known.swept) >= SWEEP_INTERVAL {
            known.swept = now;
            known.retain(|entry| entry.until > now);
        }
        let entry = Entry { secret: token.secret.into(), user: token.user.into(), until: now + left };
        known.bytes += entry.bytes();
        known.tokens.insert(token.number, entry);
        while known.bytes > BYTES_MAX
            && let Some((&oldest, _)) = known.tokens.first_key_value()
        {
            known.remove(oldest);
        }
    }

    /// The user of a token. Its use makes it valid for longer.
    pub(super) fn find(&self, number: u64, secret: &str) -> Option<String> {
        self.find_at(number, secret, Instant::now())
    }

    fn find_at(&self, number: u64, secret: &str, now: Instant) -> Option<String> {
        let mut known = self.known();
        let entry = known.tokens.get_mut(&number)?;
        if !equal(entry.secret.as_bytes(), secret.as_bytes()) {
            return None;
        }
        if entry.until <= now {
            known.remove(number);
            return None;
        }
        entry.until = now + self.ttl;
        Some(entry.user.to_string())
    }

    /// The tokens of a user, or of all, are void.
    pub(super) fn void(&self, user: Option<&str>) {
        self.known().retain(|entry| user.is_some_and(|user| user != &*entry.user));
    }
}

/// Whether they are equal. How long that takes does not depend on where they differ.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let differing = one.iter().zip(other).fold(0, |differing, (one, other)| differing | (one ^ other));
    one.len() == other.len() && std::hint::black_box(differing) == 0
}

/// A secret that nobody can guess.
pub(super) fn secret() -> String {
    let mut secret = String::with_capacity(SECRET_LETTERS);
    while secret.len() < SECRET_LETTERS {
        let mut random = [0; 2 * SECRET_LETTERS];
        getrandom::fill(&mut random).expect("the system has random numbers");
        // A byte beyond the last multiple of 52 would make some letters more likely.
        let fair = random.iter().filter(|&&byte| byte < 208).map(|&byte| LETTERS[usize::from(byte % 52)]);
        secret.extend(fair.map(char::from).take(SECRET_LETTERS - secret.len()));
    }
    secret
}

/// Milliseconds since 1970, by this machine's clock.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64, user: &str, issued_ms: u64) -> Token<'_> {
        Token { number, secret: "secret", user, issued_ms }
    }

    #[test]
    fn a_token_lives_from_use_to_use_and_an_old_one_does_not_come_back() {
        let tokens = Tokens::new(Duration::from_secs(300));
        let (began, ms) = (Instant::now(), 1_000_000);
        let after = |seconds| began + Duration::from_secs(seconds);
        tokens.add_at(&token(1, "u", ms), began, ms);
        tokens.add_at(&token(2, "old", ms - 300_000), began, ms);
        tokens.add_at(&token(3, "v", ms - 200_000), began, ms);
        assert_eq!(tokens.find_at(2, "secret", began), None);
        assert_eq!(tokens.find_at(3, "secret", after(100)), None);
        for seconds in [0, 299, 598, 800] {
            assert_eq!(tokens.find_at(1, "secret", after(seconds)).as_deref(), Some("u"));
        }
        assert_eq!(tokens.find_at(1, "secret", after(1_100)), None);
        assert_eq!(tokens.known().bytes, 0);
    }

    #[test]
    fn tokens_are_bounded_in_bytes() {
        let tokens = Tokens::new(Duration::from_secs(60));
        let long = "x".repeat(1 << 20);
        (1..=40).for_each(|number| tokens.add(&token(number, &long, now_ms())));
        assert!(tokens.known().bytes <= BYTES_MAX);
        assert_eq!((tokens.find(1, "secret"), tokens.find(40, "secret")), (None, Some(long)));
        tokens.void(None);
        assert_eq!(tokens.known().bytes, 0);
    }

    #[test]
    fn secrets_are_long_and_differ() {
        let secrets: std::collections::BTreeSet<String> = (0..100).map(|_| secret()).collect();
        assert_eq!(secrets.len(), 100);
        let is_letters = |secret: &String| secret.bytes().all(|byte| byte.is_ascii_alphabetic());
        assert!(secrets.iter().all(|secret| secret.len() == SECRET_LETTERS && is_letters(secret)));
    }
}
