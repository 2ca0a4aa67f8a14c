//! Which user a request is from.
//!
//! A request brings a token, or its connection the common name of a client's certificate. Here it is found out which
//! user that is; **what the user may do is judged by the store**, where the command is executed or the query answered.
//! So a server that lags behind can be wrong only about who it is, and then its command is refused: it carries the
//! revision of users and roles that the server knew ([docs/auth.md](../../../../docs/auth.md)).

mod jwt;
mod keys;
mod lasting;
mod logins;
mod passwords;
mod tokens;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderName};
use synod_grpc::Mark;
use synod_kv::{AuthFeed, Token};

pub use self::passwords::PASSWORD_BYTES_MAX;
use self::{jwt::Signer, lasting::Lasting, tokens::Tokens};
pub(crate) use self::{
    lasting::{Judgement, judged_anew, until_marked},
    passwords::{Attempt, Passwords},
    tokens::now_ms,
};

/// The headers that carry a token, as etcd's clients and its JSON gateway name them.
const TOKEN: HeaderName = HeaderName::from_static("token");
/// What etcd's gateway adds: the certificate of such a connection is the gateway's.
const GATEWAY: HeaderName = HeaderName::from_static("grpcgateway-accept");
/// The longest token that is looked at.
const TOKEN_BYTES_MAX: usize = 4 << 10;
/// How long a simple token that is not used is valid, unless the operator says otherwise.
pub(crate) const SIMPLE_TTL: Duration = Duration::from_secs(300);

/// How users show who they are, and which of them are known. One is given to the store ([`Auth::feed`]) and to the
/// server. Clones are the same.
#[derive(Clone, Debug)]
pub struct Auth(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Whether users count, as far as this replica has executed the log.
    enabled: AtomicBool,
    /// The revision of users and roles.
    revision: AtomicU64,
    /// The number of the last simple token that was issued.
    last_token: AtomicU64,
    tokens: Tokens,
    signer: Option<Signer>,
    passwords: Passwords,
    /// The calls that are judged when they begin, and last.
    lasting: Lasting,
}

/// The tokens that users get for their passwords.
#[derive(Debug)]
pub struct TokenKind(Kind);

#[derive(Debug)]
enum Kind {
    Simple { ttl: Duration },
    Signed(Box<Signer>),
}

impl Default for TokenKind {
    fn default() -> TokenKind {
        TokenKind(Kind::Simple { ttl: SIMPLE_TTL })
    }
}

impl TokenKind {
    /// Tokens that are signed with a secret.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn of_key(key: &[u8]) -> TokenKind {
        TokenKind(Kind::Signed(Box::new(Signer::of_key(key))))
    }

    /// Reads etcd's notation: `simple`, or `jwt` with `pub-key=FILE`, `priv-key=FILE`, `sign-method=METHOD` and
    /// `ttl=TIME` after commas. A simple token is valid for `simple_ttl` after it was last used.
    ///
    /// # Errors
    /// The text means nothing, or a key cannot be read; the error says what is accepted.
    pub fn parse(text: &str, simple_ttl: Duration) -> Result<TokenKind, String> {
        match text.split_once(',').unwrap_or((text, "")) {
            ("simple", "") => Ok(TokenKind(Kind::Simple { ttl: simple_ttl })),
            ("jwt", options) => {
                Signer::parse(options).map(|signer| TokenKind(Kind::Signed(Box::new(signer))))
            }
            _ => Err(format!("{text:?} is no kind of token; accepted: simple, or {}", jwt::ACCEPTED)),
        }
    }
}

impl Default for Auth {
    fn default() -> Auth {
        Auth::new(TokenKind::default(), Auth::BCRYPT_COST)
    }
}

impl Auth {
    /// Most bytes of tokens that are kept.
    pub(crate) const BYTES_MAX: u64 = tokens::BYTES_MAX as u64;

    /// etcd's default: a password takes some ten milliseconds.
    pub const BCRYPT_COST: u32 = 10;

    /// Auth with such tokens, and with this cost for hashes of passwords (4 to 31; one more doubles the time).
    #[must_use]
    pub fn new(tokens: TokenKind, bcrypt_cost: u32) -> Auth {
        let (ttl, signer) = match tokens.0 {
            Kind::Simple { ttl } => (ttl, None),
            Kind::Signed(signer) => (SIMPLE_TTL, Some(*signer)),
        };
        let (enabled, revision, last_token, lasting) = Default::default();
        let (tokens, passwords) = (Tokens::new(ttl), Passwords::new(bcrypt_cost));
        Auth(Arc::new(Shared { enabled, revision, last_token, tokens, signer, passwords, lasting }))
    }

    /// The store's end, for [`KvStore::authenticating`](synod_kv::KvStore::authenticating).
    #[must_use]
    pub fn feed(&self) -> Arc<dyn AuthFeed> {
        self.0.clone()
    }

    /// Whether users count, as far as this replica knows.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.enabled.load(SeqCst)
    }

    pub(crate) fn passwords(&self) -> &Passwords {
        &self.0.passwords
    }

    /// Whether what a token is worth depends on how far this replica has executed the log.
    pub(crate) fn has_simple_tokens(&self) -> bool {
        self.0.signer.is_none()
    }

    /// The secret part of a simple token; empty if tokens are signed.
    pub(crate) fn secret(&self) -> String {
        if self.0.signer.is_some() { String::new() } else { tokens::secret() }
    }

    /// A signed token of a user, if tokens are signed.
    pub(crate) fn sign(&self, user: &str, revision: u64) -> Option<Result<String, &'static str>> {
        self.0.signer.as_ref().map(|signer| signer.sign(user, revision))
    }

    /// The user of a token.
    pub(crate) fn find(&self, token: &str) -> Found {
        let revision = self.0.revision.load(SeqCst);
        if let Some(signer) = &self.0.signer {
            let user = signer.verify(token);
            return user.map_or(Found::Nobody, |(user, revision)| Found::User(Identity { user, revision }));
        }
        let Some((secret, number)) = token.split_once('.') else { return Found::Nobody };
        let Ok(number) = number.parse() else { return Found::Nobody };
        match self.0.tokens.find(number, secret) {
            // The revision was read before: a token that is void since has an old one.
            Some(user) => Found::User(Identity { user, revision }),
            None if number > self.0.last_token.load(SeqCst) => Found::Later,
            None => Found::Nobody,
        }
    }

    /// Registers a call that lasts, before it is judged. It is marked when all may have lost something, as when users
    /// begin to count; and once it is [named](Auth::name), when its user may have.
    pub(crate) fn judgement(&self) -> Judgement {
        self.0.lasting.of_all()
    }

    /// Registers a call that is marked whenever anybody may have lost something.
    pub(crate) fn judgement_of_any(&self) -> Judgement {
        self.0.lasting.of_any()
    }

    /// The call is of this user, who is judged next.
    pub(crate) fn name(&self, judgement: &Judgement, user: &Identity) {
        judgement.name(&user.user, &self.0.lasting);
    }

    /// The user that a client's certificate names.
    pub(crate) fn named(&self, common_name: &str) -> Identity {
        Identity { user: common_name.to_owned(), revision: self.0.revision.load(SeqCst) }
    }
}

impl AuthFeed for Shared {
    fn state(&self, enabled: bool, revision: u64, tokens: u64) {
        self.revision.store(revision, SeqCst);
        self.last_token.store(tokens, SeqCst);
        self.enabled.store(enabled, SeqCst);
    }

    fn issued(&self, token: &Token<'_>) {
        self.tokens.add(token);
    }

    fn void(&self, user: Option<&str>) {
        self.tokens.void(user);
    }

    fn changed(&self, user: Option<&str>) {
        self.lasting.mark(user);
    }
}

/// A user, as a server found out who it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) user: String,
    /// The revision of users and roles then.
    pub(crate) revision: u64,
}

/// The user of a request, if users count and it has one.
pub(crate) type Who = Option<Box<Identity>>;

/// What becomes of a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    User(Identity),
    /// This replica has not executed its start yet, if there was one.
    Later,
    Nobody,
}

/// What a request and its connection say of their user.
#[derive(Clone, Default)]
pub(crate) struct Caller {
    pub(crate) token: Option<Box<str>>,
    /// The common name of the client's certificate, which the connection has verified.
    pub(crate) common_name: Option<Arc<str>>,
    /// That of the connection, once the request is answered.
    pub(crate) mark: Option<Mark>,
}

impl fmt::Debug for Caller {
    /// A token must not come into a message of the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.is_some();
        f.debug_struct("Caller").field("token", &token).field("common_name", &self.common_name).finish()
    }
}

impl Caller {
    /// What is among the headers of a request, on a connection with such a certificate.
    pub(crate) fn of(headers: &HeaderMap, common_name: Option<&Arc<str>>) -> Caller {
        let token = headers.get(TOKEN).or_else(|| headers.get(http::header::AUTHORIZATION));
        let token = token.map(|token| {
            // What can be no token is invalid as one.
            let token =
                token.to_str().ok().filter(|token| token.len() <= TOKEN_BYTES_MAX).unwrap_or_default();
            token.strip_prefix("Bearer ").unwrap_or(token).into()
        });
        let common_name = common_name.filter(|_| !headers.contains_key(GATEWAY)).cloned();
        Caller { token, common_name, mark: None }
    }

    /// Bytes that are kept for it while the request is answered.
    pub(crate) fn bytes(&self) -> u64 {
        self.token.as_ref().map_or(0, |token| token.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_where_it_was_executed() {
        let auth = Auth::default();
        let feed = auth.feed();
        let now = tokens::now_ms();
        let token = |number| Token { number, secret: "abc", user: "u", issued_ms: now };
        feed.state(true, 3, 0);
        assert_eq!(auth.find("abc.1"), Found::Later);
        feed.issued(&token(1));
        feed.state(true, 3, 1);
        let user = || Found::User(Identity { user: "u".into(), revision: 3 });
        assert_eq!(auth.find("abc.1"), user());
        for wrong in ["abd.1", "ab.1", "abcd.1", ".1", "abc", "abc.x", "", "abc.0"] {
            assert_eq!(auth.find(wrong), Found::Nobody, "{wrong}");
        }
        feed.void(Some("v"));
        assert_eq!(auth.find("abc.1"), user());
        feed.void(Some("u"));
        assert_eq!(auth.find("abc.1"), Found::Nobody);
    }

    #[test]
    fn a_header_is_a_token_and_a_gateway_has_no_certificate_of_a_user() {
        let headers = |all: &[(&'static str, &str)]| {
            let pairs =
                all.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            HeaderMap::from_iter(pairs)
        };
        let token = |all| Caller::of(&headers(all), None).token;
        assert_eq!(token(&[]), None);
        assert_eq!(token(&[("token", "a.1")]), Some("a.1".into()));
        assert_eq!(token(&[("authorization", "Bearer a.1")]), Some("a.1".into()));
        assert_eq!(token(&[("authorization", "b.2"), ("token", "a.1")]), Some("a.1".into()));
        assert_eq!(token(&[("token", &"x".repeat(TOKEN_BYTES_MAX + 1))]), Some("".into()));
        let name: Arc<str> = "cn".into();
        let of = |all| Caller::of(&headers(all), Some(&name)).common_name;
        assert_eq!(of(&[]), Some(name.clone()));
        assert_eq!(of(&[("grpcgateway-accept", "*/*")]), None);
    }

    #[test]
    fn a_kind_of_token_is_read_and_a_wrong_one_says_what_is_accepted() {
        assert!(TokenKind::parse("simple", SIMPLE_TTL).is_ok());
        for wrong in ["", "simpel", "simple,ttl=3s", "jwt", "jwt,sign-method=HS999", "jwt,x", "jwt,ttl=abc"] {
            let error = TokenKind::parse(wrong, SIMPLE_TTL).unwrap_err();
            assert!(error.contains("sign-method"), "{wrong}: {error}");
        }
    }
}
